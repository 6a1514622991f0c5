"""What pages show and do: nothing labelled before a look, changes by POST alone, no way out of the folder."""

import json
import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazy_module
from partwise.comparison.ledger.project import project_ledger
from partwise.processes import OWN_SESSION

lazy_module("starlette.testclient")
folders = lazy_module("studio.folders", needs="starlette")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "text.txt").write_text("the cat sat on the mat " * 200)
    return tmp_path


def ledger(folder: Path) -> list[dict[str, Any]]:
    return [each.content for each in project_ledger(folder).read()]


def test_before_a_look_nothing_tells_one_arm_from_another(folder: Path) -> None:
    """Neither the state of a running comparison nor its events have an arm's name, a difference, a verdict or a p."""
    folders.make_running(folder)
    client = folders.make_client(folder)
    state = client.get("/api/comparisons/night").json()
    assert state["counts"] == {"done": 2, "running": 2} and not state["revealed"]
    assert len(state["curves"]) == 4 and all(isinstance(curve, list) for curve in state["curves"])
    assert not re.search(r"swiglu|mingpt|verdict|better|worse|\bp\b|mean", json.dumps(state))
    assert client.get("/api/comparisons/night/result").status_code == 400
    for file in ("results.json", "report.html", "certificate.json", "compare.json"):
        assert client.get(f"/files/night/{file}").status_code == 400


def test_the_order_of_curves_is_drawn_for_every_comparison_and_server(folder: Path) -> None:
    """Else the first half of the curves would be the baseline's."""
    orders = set()
    folders.make_running(folder, seeds=4)
    for _ in range(6):
        curves = folders.make_client(folder).get("/api/comparisons/night").json()["curves"]
        orders.add(tuple(curve[0][1] for curve in curves))
    assert len(orders) > 1 and len({frozenset(order) for order in orders}) == 1


def test_revealing_is_recorded_before_anything_is_shown(folder: Path) -> None:
    folders.make_running(folder)
    client = folders.make_client(folder)
    answer = client.post("/api/comparisons/night/look", json={})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()["arms"]) == {"mingpt", "ffn=swiglu"}
    [look] = [each for each in ledger(folder) if each["kind"] == "look"]
    assert look["planned"] is False and look["seeds"] == 1 and look["started"] == 1
    assert client.get("/api/comparisons/night").json()["revealed"]
    client.post("/api/comparisons/night/look", json={})
    assert len(ledger(folder)) == 2  # the same look is not recorded again


def test_without_a_ledger_nothing_is_revealed(folder: Path) -> None:
    folders.make_running(folder)
    (folder / "runs" / "ledger.sqlite").write_bytes(b"damaged")
    answer = folders.make_client(folder).post("/api/comparisons/night/look", json={})
    assert answer.status_code == 400 and "nothing is shown" in answer.json()["error"]
    assert "swiglu" not in answer.text


def test_a_result_has_the_prediction_beside_it_and_the_command_that_gives_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.make_finished(folder, monkeypatch)
    client = folders.make_client(folder)
    result = client.get("/api/comparisons/done/result").json()
    assert result["verdicts"][0]["verdict"] == "better"
    assert result["outcome"]["inside"] is True and result["prediction"]["low"] == -45
    stored = json.loads((folder / "runs" / "done" / "results.json").read_text())
    assert result["command"] == stored["provenance"]["command"]
    report = client.get("/files/done/report.html")
    assert "sandbox" in report.headers["content-security-policy"] and "allow-same-origin" not in str(report.headers)
    assert client.get("/files/done/results.json?download").headers["content-disposition"].startswith("attachment")
    state = client.get("/api/comparisons/done").json()
    assert state["state"] == "finished" and state["revealed"]


def test_a_page_starts_the_command_that_it_shows_after_the_prediction(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Process:
        def __init__(self, words: list[str], **options: Any) -> None:
            assert options["cwd"] == folder and OWN_SESSION.items() <= options.items()
            started.append(words)

        def poll(self) -> None:
            return None

    monkeypatch.setattr("partwise.studio.processes.subprocess.Popen", Process)
    client = folders.make_client(folder)
    said = client.post("/api/question", json=folders.QUESTION).json()
    assert said["arms"][0]["parameters"] > 0 and said["part"]["rows"]["equation"] and not started
    prediction = {"low": -0.2, "high": -0.05}
    asked = {**folders.QUESTION, "name": said["name"]}
    answer = client.post("/api/comparisons", json={**asked, "prediction": prediction})
    assert answer.json() == {"name": said["name"]}, answer.text
    [words] = started
    assert words[1:3] == ["-m", "partwise"]
    assert words[3:] == [*shlex.split(said["command"])[1:], "--predict=-0.2,-0.05"]
    again = client.post("/api/comparisons", json={**asked, "prediction": prediction})
    assert again.status_code == 400 and "runs already" in again.json()["error"]


def test_a_started_comparison_cannot_be_asked_again_with_another_margin(folder: Path) -> None:
    folders.make_running(folder)
    asked = {**folders.QUESTION, "name": "night", "margin": 1.0, "prediction": {"low": -1, "high": 1}}
    answer = folders.make_client(folder).post("/api/comparisons", json=asked)
    assert answer.status_code == 409 and answer.json()["name"] == "night"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preset": "evil.yaml"}, "unknown preset"),
        ({"preset": "--import"}, "expected a name"),
        ({"data": "/etc/passwd"}, "start it with --data FILE"),
        ({"data": "../text.txt"}, "start it with --data FILE"),
        ({"change": ["--import", "evil.py"]}, "expected KEY=VALUE"),
        ({"change": ["from.run=/etc/passwd"]}, "changes models and training only"),
        ({"change": ["data.train=3"]}, "changes models and training only"),
        ({"common": ["tokenizer.file=/etc/passwd"]}, "changes models and training only"),
        ({"common": ["train.log=wandb"]}, "changes models and training only"),
        ({"common": ["d_model=16", "d_model=17"]}, ""),
        ({"change": ["ffn=swigl"]}, "did you mean 'swiglu'"),
        ({"change": ["ffn=swiglu", "ffn.expansion=-1"]}, "expansion"),
        ({"change": []}, "choose a change"),
        ({"seeds": 0}, "above 0"),
        ({"margin": "0.1; rm -rf /"}, "above 0"),
        ({"name": "../evil"}, "--name"),
        ({"imports": ["evil.py"]}, "no field of a question"),
    ],
)
def test_a_question_reads_and_runs_only_what_the_studio_was_started_with(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    answer = folders.make_client(folder).post("/api/question", json={**folders.QUESTION, **change})
    if message:
        assert answer.status_code == 400 and message in answer.json()["error"]
    assert not (folder / "runs").exists()


def test_get_never_acts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address is read by GET: no process starts, no file and no record changes."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    path = folders.make_running(folder)
    client = folders.make_client(folder)
    before = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}
    monkeypatch.setattr("partwise.studio.processes.subprocess.Popen", refuse)
    for route in client.studio.application().routes:
        if "events" in route.path or route.path == "/api/shelf":
            continue
        address = route.path.replace("{name}", path.name).replace("{file}", "report.html")
        answer = client.get(address)
        assert (answer.status_code == 405) == ("POST" in route.methods), address
    assert before == {each: each.stat().st_mtime_ns for each in folder.rglob("*")}


def test_a_question_gets_a_short_name_that_is_free(folder: Path) -> None:
    client = folders.make_client(folder)
    names = []
    for _ in range(2):
        names.append(client.post("/api/question", json={**folders.QUESTION, "size": "small"}).json()["name"])
        (folder / "runs" / names[-1]).mkdir(parents=True)
    assert names == ["mingpt_ffn=swiglu_text_small", "mingpt_ffn=swiglu_text_small-2"]


def test_a_replication_has_fresh_seeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.make_finished(folder, monkeypatch)
    client = folders.make_client(folder)
    assert client.get("/api/comparisons/done/result").json()["asked"] is None  # a terminal has started it
    notes = folder / "runs" / ".studio"
    notes.mkdir()
    (notes / "done.json").write_text(json.dumps({**folders.QUESTION, "name": "done"}))
    result = client.get("/api/comparisons/done/result").json()
    again = {**result["asked"], "first_seed": result["next_seed"]}
    assert "name" not in again and again["first_seed"] == 3
    assert "--first-seed 3" in client.post("/api/question", json=again).json()["command"]


def test_nothing_is_erased_from_the_ledger(folder: Path) -> None:
    """No route deletes, and none takes a record."""
    routes = folders.make_client(folder).studio.application().routes
    assert {method for route in routes for method in route.methods} == {"GET", "HEAD", "POST"}
    assert not [route.path for route in routes if "ledger" in route.path]


@pytest.mark.parametrize("name", ["..", "..%2f..%2fetc", "%2e%2e", "a%2fb", ".studio", "night%00", "link"])
def test_no_address_leads_out_of_the_folder(folder: Path, name: str) -> None:
    folders.make_running(folder)
    (folder / "outside").mkdir()
    (folder / "outside" / "results.json").write_text("{}")
    (folder / "outside" / "report.html").write_text("outside")
    (folder / "runs" / "link").symlink_to(folder / "outside", target_is_directory=True)
    client = folders.make_client(folder)
    for address in (f"/files/{name}/report.html", f"/api/comparisons/{name}", f"/api/comparisons/{name}/result"):
        answer = client.get(address)
        assert answer.status_code in (400, 404) and "outside" not in answer.text


@pytest.mark.parametrize("file", ["../../etc/passwd", "..%2fpages.py", "pages.py", "uplot-LICENSE.txt", ""])
def test_static_files_are_those_of_a_list(folder: Path, file: str) -> None:
    assert folders.make_client(folder).get(f"/static/{file}").status_code in (400, 404)


def test_pages_have_no_markup_of_a_name_and_need_no_other_machine() -> None:
    static = files("partwise.studio").joinpath("static")
    own = {each.name: each.read_bytes().decode() for each in static.iterdir() if each.name != "uplot-LICENSE.txt"}
    for name, text in own.items():
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
            assert word not in text or name == "uplot.js", f"{name}: {word}"
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s'\")]*", re.sub(r"^\s*//.*$", "", text, flags=re.M)))
        assert addresses <= {"https://github.com/leeoniya/uPlot", "http://www.w3.org/2000/svg"}, name
    for template in files("partwise.studio").joinpath("templates").iterdir():
        text = template.read_bytes().decode()
        assert "|safe" not in text and "http" not in text and not re.search(r"<script(?! )[^>]*>\S", text)
        assert not re.search(r"\son\w+=|style=", text), template.name  # the policy of pages forbids them


def test_the_code_of_pages_is_small() -> None:
    """Own and vendored code, without figures and licences."""
    root = files("partwise.studio")
    sizes = [
        len(each.read_bytes())
        for place in ("static", "templates")
        for each in root.joinpath(place).iterdir()
        if each.name != "uplot-LICENSE.txt"
    ]
    assert sum(sizes) < 150_000


def test_a_comparison_that_is_deleted_while_it_is_shown_is_told(folder: Path) -> None:
    import shutil

    path = folders.make_running(folder)
    client = folders.make_client(folder)
    assert client.get("/api/comparisons/night").status_code == 200
    shutil.rmtree(path)
    answer = client.get("/api/comparisons/night")
    assert answer.status_code == 400 and "may have been moved or deleted" in answer.json()["error"]


def test_all_addresses_of_pages_are_below_the_prefix_of_a_proxy(folder: Path) -> None:
    client = folders.make_client(folder, prefix="/lab")
    assert client.get("/lab/").headers["location"] == "/lab/ask"
    page = client.get("/lab/shelf").text
    links = re.findall(r'(?:href|src)="(/[^"]*)"', page)
    assert links and all(link.startswith("/lab/") for link in links)
    assert 'data-prefix="/lab"' in page


def test_pages_import_functions_that_exist_and_declare_none_twice() -> None:
    """A browser refuses the whole module else, and its page stays empty."""
    modules = {each.name: each.read_text() for each in files("partwise.studio").joinpath("static").iterdir()}
    modules = {name: text for name, text in modules.items() if name.endswith(".js") and name != "uplot.js"}
    declared = {
        name: re.findall(r"^(?:export )?(?:async )?(?:const|let|function) \[?([$\w]+)", text, re.MULTILINE)
        for name, text in modules.items()
    }
    exported = {
        name: set(re.findall(r"^export (?:async )?(?:const|let|function) ([$\w]+)", text, re.MULTILINE))
        for name, text in modules.items()
    }
    for name, text in modules.items():
        own = list(declared[name])
        for imported, source in re.findall(r'^import \{([^}]*)\} from "\./(.*?)"', text, re.MULTILINE):
            names = [word.strip() for word in imported.split(",")]
            assert set(names) <= exported[source], name
            own += names
        assert len(set(own)) == len(own), name
        assert set(re.findall(r"(?<![.\w])(\w+)\(", text)) & set().union(*exported.values()) <= set(own), name
