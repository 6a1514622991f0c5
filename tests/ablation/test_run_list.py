"""The list of runs and comparisons: what it reads, and that no damaged folder breaks it."""

import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import partwise
from comparisons import SETTINGS, TINY
from partwise.ablation.run_list import list_runs
from partwise.baselines.scale import place_loss
from partwise.cli import main, terminal
from partwise.config import ConfigError
from partwise.train.run_folder import RunFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison, a run on the same text, and a run without a result."""
    path = tmp_path_factory.mktemp("list")
    before = Path.cwd()
    os.chdir(path)
    try:
        Path("text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
        partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, name="c", progress=False)
        config = partwise.run_config("mingpt", *TINY, "data=text.txt")
        for _ in RunFolder(Path("runs/deep/r"), config, command=["partwise train mingpt"]).events():
            pass
    finally:
        os.chdir(before)
    shutil.copytree(path / "runs/deep/r", path / "runs/stopped")
    (path / "runs/stopped/result.json").unlink()
    (path / "runs/stopped/.pid").unlink()
    for age, name in enumerate(["deep/r", "c", "stopped"]):
        for file in (path / "runs" / name).glob("*.json"):
            os.utime(file, (1000 - age, 1000 - age))
    return path / "runs"


def test_entries_say_what_the_files_say(folder: Path) -> None:
    run, comparison, stopped = list_runs(folder)
    results = json.loads((folder / "c/results.json").read_text())
    ngrams = dict(results["references"]["ngrams"])
    (effect,) = [claim["effect"] for claim in results["claims"] if claim["role"] == "claim"]
    assert (comparison.name, comparison.kind, comparison.state) == ("c", "comparison", "finished")
    assert comparison.verdict == f"ffn=swiglu {effect['verdict']}" and comparison.what == results["question"]
    assert comparison.loss is not None
    assert comparison.loss == pytest.approx(statistics.fmean(each["value"] for each in results["arms"][0]["trials"]))
    assert comparison.scale == place_loss(comparison.loss, ngrams) != ""

    losses = [json.loads(line) for line in (folder / "deep/r/metrics.jsonl").read_text().splitlines()]
    last = [line["validation"] for line in losses if line["kind"] == "evaluation"][-1]
    assert (run.name, run.kind, run.what, run.state) == ("deep/r", "run", "train mingpt", "finished")
    assert run.loss == last and run.scale == place_loss(last, ngrams), (
        "on the scale of the comparison with the same text"
    )
    assert run.parameters == comparison.parameters == results["arms"][0]["parameters"]

    assert (stopped.name, stopped.state, stopped.loss) == ("stopped", "stopped at step 12 of 12", None)
    assert [entry.name for entry in list_runs(folder / "c")] == ["c"], "a comparison's runs are part of it"
    with pytest.raises(ConfigError, match=r"nowhere: no such folder"):
        list_runs(folder / "nowhere")


def test_a_comparison_that_shares_runs_has_none_of_its_own_to_count(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "c", tmp_path / "runs" / "c")
    for name in ("results.json", ".pid"):
        (tmp_path / "runs" / "c" / name).unlink()
    assert [each.state for each in list_runs(tmp_path / "runs")] == ["stopped, 4 runs finished"]
    shutil.rmtree(tmp_path / "runs" / "c" / "runs")
    assert [each.state for each in list_runs(tmp_path / "runs")] == ["stopped"]


def test_other_data_has_another_scale(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "c", tmp_path / "c")
    shutil.copytree(folder / "deep/r", tmp_path / "r")
    metadata = json.loads((tmp_path / "r/run.json").read_text())
    metadata["data"]["hash"] = "0" * 64
    (tmp_path / "r/run.json").write_text(json.dumps(metadata))
    assert {entry.name: bool(entry.scale) for entry in list_runs(tmp_path)} == {"c": True, "r": False}


def test_a_folder_in_use_is_running(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "stopped", tmp_path / "r")
    (tmp_path / "r/.pid").write_text(str(os.getpid()))
    assert list_runs(tmp_path)[0].state.startswith("running")


def test_a_run_whose_result_was_changed_is_damaged(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "deep/r", tmp_path / "r")
    assert [entry.state for entry in list_runs(tmp_path)] == ["finished"]
    file = tmp_path / "r" / "result.json"
    file.write_text(file.read_text().replace('"validation": ', '"validation": 1', 1))
    assert [entry.state for entry in list_runs(tmp_path)] == ["damaged"]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FILES = ["c/compare.json", "c/results.json", "stopped/run.json", "stopped/result.json"]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, child in children for each in paths(child, (*path, key)))]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_folders_are_listed(folder: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Any value in any file may be replaced or cut off."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / name.replace("stopped", "deep/r"), tmp_path / name)
    file = tmp_path / data.draw(st.sampled_from(FILES))
    text = file.read_text()
    value = json.loads(text)
    if data.draw(st.booleans()):
        file.write_text(text[: data.draw(st.integers(0, len(text) - 2))])
    else:
        near = [path for path in paths(value) if path and len(path) <= 5]
        *parents, key = data.draw(st.sampled_from(near))
        parent = value
        for each in parents:
            parent = parent[each]
        parent[key] = data.draw(JSON)
        file.write_text(json.dumps(value))
    entries = {entry.name: entry for entry in list_runs(tmp_path)}
    assert entries.keys() == {"c", "stopped"}
    for entry in entries.values():
        json.dumps(entry.to_dict(), allow_nan=False)


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["partwise", "runs", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_sorts_and_filters(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def names(*words: str) -> list[str]:
        assert command(monkeypatch, folder, "--json", *words) == 0
        return [entry["name"] for entry in json.loads(capsys.readouterr().out)]

    assert names() == ["deep/r", "c", "stopped"]
    assert names("--sort", "name") == ["c", "deep/r", "stopped"]
    assert names("--sort", "loss")[-1] == "stopped", "an unknown loss comes last"
    assert names("--filter", "COMPARISON") == ["c"]
    assert names("--filter", "no such text") == []
    assert command(monkeypatch, folder) == 0
    assert "stopped at step 12 of 12" in capsys.readouterr().out
    assert command(monkeypatch, folder, "--sort", "los") == 2
    assert "--sort los: unknown key; did you mean 'loss'?" in " ".join(capsys.readouterr().err.split())


def test_each_entry_has_a_name_and_a_row_at_80_columns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal.console, "width", 80)
    command(monkeypatch, folder, "--sort", "name")
    name, columns, *rows = capsys.readouterr().out.splitlines()
    assert [name, *columns.split()] == ["name", "parameters", "state", "loss", "verdict", "age"]
    assert rows[::2] == ["c", "deep/r", "stopped"] and len(rows) == 6


@pytest.mark.parametrize("parameters", ["Infinity", "1e999", '"many"', "null", "[]"])
def test_a_damaged_number_is_damage(folder: Path, tmp_path: Path, parameters: str) -> None:
    shutil.copytree(folder / "deep/r", tmp_path / "r")
    file = tmp_path / "r/run.json"
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps(metadata | {"parameters": 0}).replace('"parameters": 0', f'"parameters": {parameters}'))
    (entry,) = list_runs(tmp_path)
    assert entry.state == "damaged" and entry.name == "r"
