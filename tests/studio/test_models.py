"""A run's pages: facts, inspections and streamed text come from the command line, and end with the page that asked."""

import asyncio
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazy_module
from partwise.studio import models, processes

lazy_module("starlette.testclient")
folders = lazy_module("studio.folders", needs="starlette")

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"
ASKED = {"kind": "generate", "prompt": "the cat", "max_new_tokens": 5, "temperature": 0.5, "seed": 3}
WRITES = f"""
import json, sys
open("words.json", "w").write(json.dumps(sys.argv[1:]))
for line in ({{"kind": "prompt", "tokens": ["a"]}}, {{"kind": "token", "text": {HOSTILE!r}}}, {{"kind": "end"}}):
    print(json.dumps(line), flush=True)
"""
WAITS = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"kind": "token", "text": "a", "processes": [os.getpid(), child.pid]}), flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a run, which is not trained."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    make_run(tmp_path)
    return tmp_path


def make_run(folder: Path, name: str = "mine") -> Path:
    path = folder / "runs" / name
    (path / "checkpoints" / "step-6").mkdir(parents=True)
    config = {"n_layers": 2, "d_model": 16, "attention": {"part": "multihead", "n_heads": 4}, "data": {"part": "text"}}
    config["train"] = {"steps": 9, "batch_size": 2, "lr": 0.01, "seed": 0}
    command = ["partwise", "train", "mingpt", "--name", name]
    (path / "run.json").write_text(json.dumps({"config": config, "parameters": 1234, "command": command}))
    step = {"kind": "step", "loss": 3.0, "grad_norm": 1.0, "lr": 0.01, "tokens": 8, "seconds": 0.1}
    lines: list[dict[str, Any]] = []
    for number, loss in ((3, 2.5), (6, 2.25), (6, 2.0), (7, 2.125)):
        lines += [{**step, "step": number}, {"kind": "evaluation", "step": number, "validation": loss, "training": 1.0}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def start_program(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """A program in place of `partwise`."""
    (folder / "program.py").write_text(text)
    monkeypatch.setattr(processes, "program", lambda: [sys.executable, str(folder / "program.py")])


def events_of(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]


def test_facts_come_from_the_files_of_a_run(folder: Path) -> None:
    client = folders.make_client(folder)
    facts = client.get("/api/runs/mine").json()
    assert (facts["state"], facts["step"], facts["steps"], facts["checkpoint"]) == ("stopped", 7, 9, 6)
    assert facts["best"] == {"step": 6, "validation": 2.0, "training": 1.0}  # a resumed run has repeated step 6
    assert facts["last"]["validation"] == 2.125
    assert facts["attention"] == {"layers": 2, "heads": 4} and not facts["report"]
    assert facts["command"] == facts["continue"] == "partwise train mingpt --name mine"
    assert ["size", "n_layers 2, d_model 16"] in facts["settings"]
    (folder / "runs" / "mine" / "result.json").write_text("{}")
    facts = client.get("/api/runs/mine").json()
    assert facts["state"] == "finished" and facts["continue"] == "partwise train from=runs/mine --name mine-continued"
    for screen in ("", "/inspect", "/generate"):
        assert 'data-run="mine"' in client.get(f"/run/mine{screen}").text


def test_text_is_what_the_shown_command_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens arrive as JSON, so that markup in them is text."""
    start_program(monkeypatch, folder, WRITES)
    client = folders.make_client(folder)
    shown = client.post("/api/runs/mine/command", json=ASKED).json()["command"]
    assert shown == "partwise generate runs/mine --prompt 'the cat' --max-new-tokens 5 --temperature 0.5 --seed 3"
    asked = {**ASKED, "attention": {"layer": 1, "head": 0}}
    answer = client.post("/api/runs/mine/start", json=asked)
    assert [each["kind"] for each in events_of(answer)] == ["prompt", "token", "end"]
    assert events_of(answer)[1]["text"] == HOSTILE and answer.headers["x-content-type-options"] == "nosniff"
    words = json.loads((folder / "words.json").read_text())
    assert words == [*shlex.split(shown)[1:], "--json", "--attention", "1,0"]


def test_an_inspection_is_shown_in_a_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "inspect-attention-mine.html"
    path = f"runs/mine/{page}"
    text = f"import json; open({path!r}, 'w').write('<h1>maps</h1>'); print(json.dumps({{'page': {path!r}}}))"
    start_program(monkeypatch, folder, text)
    client = folders.make_client(folder)
    asked = {"kind": "inspect", "what": "attention", "text": "--help"}
    shown = client.post("/api/runs/mine/command", json=asked).json()["command"]
    assert shown == "partwise inspect runs/mine attention --text=--help"
    assert events_of(client.post("/api/runs/mine/start", json=asked)) == [{"kind": "end", "page": page}]
    answer = client.get(f"/pages/mine/{page}")
    assert answer.text == "<h1>maps</h1>"
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts allow-downloads")


def test_a_report_is_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import sys; open(f'{sys.argv[2]}/report.html', 'w').write('drawn'); print('report: report.html')"
    start_program(monkeypatch, folder, text)
    client = folders.make_client(folder)
    answer = client.post("/api/runs/mine/start", json={"kind": "report"})
    assert events_of(answer) == [{"kind": "end", "page": "report.html"}]
    assert client.get("/pages/mine/report.html").text == "drawn" and client.get("/api/runs/mine").json()["report"]


def test_a_command_that_fails_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_program(monkeypatch, folder, "import sys; sys.exit('error: temperature=-1: must be finite')")
    client = folders.make_client(folder)
    for asked in (ASKED, {"kind": "inspect", "what": "cost"}, {"kind": "report"}):
        [event] = events_of(client.post("/api/runs/mine/start", json=asked))
        assert event == {"kind": "failed", "error": "temperature=-1: must be finite"}


def test_modules_of_the_studio_are_given_to_every_command(folder: Path) -> None:
    found = models.Models(folder, processes.Processes(folder), ("mine.py",))
    for asked in (ASKED, {"kind": "inspect", "what": "cost"}, {"kind": "report"}):
        assert found.words("mine", asked)[-2:] == ["--import", "mine.py"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "train"}, "expected generate, inspect or report"),
        ({"kind": "inspect"}, "not an option of this command"),
        ({"prompt": "a" * 4001}, "at most 4000 characters"),
        ({"prompt": ["a"]}, "expected a text"),
        ({"prompt": "a\0b"}, "expected a text"),
        ({"prompt": "\ud800"}, "expected a text"),
        ({"max_new_tokens": 1001}, "from 1 to 1000"),
        ({"max_new_tokens": 2.5}, "whole number"),
        ({"temperature": "1; rm -rf /"}, "number from 0"),
        ({"temperature": True}, "number from 0"),
        ({"seed": -1}, "number from 0"),
        ({"backend": "cpp"}, "not an option of this command"),
        ({"attention": "0,0"}, "a layer and a head"),
        ({"attention": {"layer": 0, "head": None}}, "head None"),
    ],
)
def test_only_bounded_options_of_these_commands_are_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    start_program(monkeypatch, folder, WRITES)
    client = folders.make_client(folder)
    body = json.dumps({**ASKED, **change})
    for action in ("command", "start"):
        headers = {"content-type": "application/json"}
        answer = client.post(f"/api/runs/mine/{action}", content=body, headers=headers)
        assert answer.status_code == 400 and message in answer.json()["error"]
    assert not (folder / "words.json").exists()


def test_a_prompt_is_never_an_option(folder: Path) -> None:
    words = models.Models(folder, processes.Processes(folder)).words("mine", {**ASKED, "prompt": "--import=evil.py"})
    assert "--prompt=--import=evil.py" in words and "--import=evil.py" not in words


@pytest.mark.parametrize("name", ["..", "..%2f..%2fetc", "%2e%2e", "a%2fb", ".studio", "mine%00", "link", "nothing"])
def test_no_address_of_a_run_leads_out_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    start_program(monkeypatch, folder, WRITES)
    outside = make_run(folder / "outside", "other")
    (outside / "report.html").write_text("outside")
    (folder / "runs" / "link").symlink_to(outside, target_is_directory=True)
    client = folders.make_client(folder)
    for answer in (
        client.get(f"/api/runs/{name}"),
        client.get(f"/pages/{name}/report.html"),
        client.post(f"/api/runs/{name}/command", json=ASKED),
        client.post(f"/api/runs/{name}/start", json=ASKED),
    ):
        assert answer.status_code in (400, 404) and "outside" not in answer.text
    assert not (folder / "words.json").exists()


@pytest.mark.parametrize(
    "file", ["run.json", "inspect-..%2frun.html", "inspect-..html", "link.html", "inspect-link.html"]
)
def test_pages_of_a_run_are_those_that_commands_write(folder: Path, file: str) -> None:
    (folder / "secret.html").write_text("outside")
    (folder / "runs" / "mine" / "inspect-link.html").symlink_to(folder / "secret.html")
    answer = folders.make_client(folder).get(f"/pages/mine/{file}")
    assert answer.status_code in (400, 404) and "outside" not in answer.text


def test_a_start_needs_the_header_and_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_program(monkeypatch, folder, WRITES)
    client = folders.make_client(folder)
    assert client.post("/api/runs/mine/start", data={"kind": "generate"}).status_code == 415
    assert client.get("/api/runs/mine/start").status_code == 405
    assert folders.make_client(folder, opened=False).post("/api/runs/mine/start", json=ASKED).status_code == 401
    del client.headers["x-partwise"]
    assert client.post("/api/runs/mine/start", json=ASKED).status_code == 403
    assert not (folder / "words.json").exists()


def test_a_closed_page_ends_its_process_with_all_that_it_has_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_program(monkeypatch, folder, WAITS)
    application = folders.make_client(folder).studio.application()
    body = json.dumps(ASKED).encode()
    scope = {"type": "http", "method": "POST", "path": "/api/runs/mine/start", "query_string": b"", "headers": []}

    async def visit() -> list[int]:
        found, begun = list[int](), asyncio.Event()
        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if requests:
                return requests.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if text := message.get("body"):
                found.extend(json.loads(text.removeprefix(b"data: "))["processes"])
                begun.set()

        await application({**scope, "asgi": {"spec_version": "2.3"}}, receive, send)
        end = time.monotonic() + 20
        while any(map(is_running, found)):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)  # in which the event loop closes their pipes
        return found

    assert len(asyncio.run(visit())) == 2


def is_running(process: int) -> bool:
    """Whether a process exists and is no zombie, which its parent, that may be the machine's first process, has to reap."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_few_commands_run_at_a_time_and_none_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_program(monkeypatch, folder, WAITS)
    monkeypatch.setattr(models, "MAX_SECONDS", 1.0)
    found = models.Models(folder, processes.Processes(folder))
    words = found.words("mine", ASKED)

    async def read() -> list[dict[str, Any]]:
        return [each async for each in found.events(words)]

    async def read_all() -> list[list[dict[str, Any]]]:
        return await asyncio.gather(*(read() for _ in range(3)))

    ends = [events[-1] for events in asyncio.run(read_all())]
    assert {each["kind"] for each in ends} == {"failed"}
    assert sum("2 commands run already" in each["error"] for each in ends) == 1
    assert found.running == 0
