"""Runs and comparisons of every format ever written are read, resumed and judged again: tests/formats_on_disk keeps them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partwise.comparison.results import Results
from partwise.comparison.results.results import FORMAT as RESULTS_FORMAT
from partwise.config import ConfigError, neutral_values
from partwise.formats.loading import load
from partwise.records import read_record
from partwise.train.config import RunConfig
from partwise.train.metrics import read_metrics
from partwise.train.result import verified_result, write_result
from stored_formats import TRAIN
from test_records import command

KEPT = Path(__file__).parent / "formats_on_disk"
VERSIONS = sorted(path.name for path in KEPT.iterdir())


@pytest.fixture
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return shutil.copytree(KEPT / request.param, tmp_path / "stored runs")


def done(folder: Path, *words: str) -> str:
    """What a command printed; to standard error if it or an earlier one of the test had `--json`."""
    status, printed, errors = command(folder, list(words))
    assert status == 0, errors
    return printed + errors


@pytest.mark.promise
@pytest.mark.parametrize("stored", VERSIONS, indirect=True)
def test_a_stored_run_is_read(stored: Path) -> None:
    model, tokenizer = load(stored / "runs" / "run")
    assert model.config.d_model == 8 and tokenizer.vocab_size == model.config.vocab_size
    assert "report: " in done(stored, "report", "run") and (stored / "runs/run/report.html").exists()
    evaluations = [line for line in read_metrics(stored / "runs/run") if line["kind"] == "evaluation"]
    assert f"{evaluations[-1]['validation']:.4f}" in done(stored, "runs")
    assert done(stored, "eval", "run", "result.json", "--json") is not None
    scores = json.loads((stored / "result.json").read_text())
    assert scores["validation"] == pytest.approx(evaluations[-1]["validation"], rel=1e-4)


@pytest.mark.parametrize("stored", VERSIONS, indirect=True)
def test_a_stored_run_resumes_to_the_same_end(stored: Path) -> None:
    folder = stored / "runs" / "run"
    expected = [line.get("loss", line.get("validation")) for line in read_metrics(folder)]
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    (folder / "result.json").unlink()
    printed = done(stored, *TRAIN)
    assert "resuming after step 2" in printed and "instead of None" not in printed
    found = [line.get("loss", line.get("validation")) for line in read_metrics(folder)]
    assert found == pytest.approx(expected, rel=1e-4)  # rounding of another machine


NEW_SETTINGS = ("train.parallel", "train.freeze", "attention.qk_norm", "logit_softcap")
"""Settings that a run may lack because it is older than they are."""


def forget_settings(folder: Path) -> dict[str, Any]:
    """Store a run's configuration as a version without these settings would have; returns the whole one."""
    whole = json.loads((folder / "run.json").read_text())
    older = json.loads((folder / "run.json").read_text())
    for setting in NEW_SETTINGS:
        *path, key = setting.split(".")
        place = older["config"]
        for name in path:
            place = place[name]
        del place[key]
    (folder / "run.json").write_text(json.dumps(older))
    write_result(folder, read_record(folder / "result.json"), older["config"])
    return RunConfig.from_dict(whole["config"]).to_dict()


@pytest.mark.parametrize("stored", VERSIONS, indirect=True)
def test_a_run_older_than_a_setting_resumes(stored: Path) -> None:
    folder = stored / "runs" / "run"
    whole = forget_settings(folder)
    assert verified_result(folder, whole) is not None
    with pytest.raises(ConfigError, match="another configuration"):
        verified_result(folder, {**whole, "logit_softcap": 30.0})
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    (folder / "result.json").unlink()
    assert "resuming after step 2" in done(stored, *TRAIN)
    status, _, errors = command(stored, [*TRAIN, "train.freeze=embed"])
    assert status == 2 and "train.freeze was None, now embed" in errors


NEW_RESULTS: list[dict[str, Any]] = [
    {"change_over_horizons": None},
    {"horizons": [], "effect_over_horizons": [], "compute_saved": None, "timed_on": None},
]
"""Keys of results that a comparison may lack because it is older than they are, and what they then are; the newest first."""


def older_results(values: Any) -> Iterator[Any]:
    """The values as each version of the format had them."""
    yield values
    for keys in NEW_RESULTS:
        values = without_new_results(values, keys)
        yield values


def without_new_results(values: Any, keys: dict[str, Any]) -> Any:
    """The values without those keys, which must be as they are for an older comparison."""
    if isinstance(values, list):
        return [without_new_results(each, keys) for each in values]
    if not isinstance(values, dict):
        return values
    assert all(values.get(key, default) == default for key, default in keys.items())
    return {key: without_new_results(value, keys) for key, value in values.items() if key not in keys}


@pytest.mark.promise
@pytest.mark.parametrize("stored", VERSIONS, indirect=True)
def test_a_stored_comparison_is_judged_again(stored: Path) -> None:
    folder = stored / "runs" / "comparison"
    before = json.loads((folder / "results.json").read_text())
    del before["sha256"]
    results = Results.from_json(folder / "results.json")
    assert any(before == each for each in older_results(results.to_dict()))
    done(stored, "verify", "runs/comparison")
    done(stored, "report", "runs/comparison")
    assert (folder / "report.html").exists()
    assert json.loads((folder / "results.json").read_text())["claims"] == before["claims"]


def test_this_versions_formats_are_kept() -> None:
    """A format that changes needs a new folder, written by tests/stored_formats.py before the change and after it."""
    kept = [json.loads(path.read_text())["format"] for path in KEPT.glob("*/runs/comparison/results.json")]
    assert RESULTS_FORMAT in kept
    newest = Results.model_fields.keys() - neutral_values(Results).keys()
    stored = [set(json.loads(path.read_text())) for path in KEPT.glob("*/runs/comparison/results.json")]
    assert {*newest, "sha256"} in stored


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(KEPT / VERSIONS[-1], tmp_path / "newer")
    path = folder / "runs" / "run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    status, _, errors = command(folder, ["eval", "run"])
    assert status == 2 and "was written by a newer version of partwise" in errors and errors.count("\n") == 1
