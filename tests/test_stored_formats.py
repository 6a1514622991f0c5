"""Runs and comparisons of every format ever written are read, resumed and judged again: tests/formats_on_disk keeps them."""

import json
import shutil
from pathlib import Path

import pytest

from partwise.comparison.results import Results
from partwise.comparison.results.results import FORMAT as RESULTS_FORMAT
from partwise.formats.loading import load
from partwise.train.metrics import read_metrics
from stored_formats import TRAIN
from test_records import command

KEPT = Path(__file__).parent / "formats_on_disk"
VERSIONS = sorted(path.name for path in KEPT.iterdir())


@pytest.fixture
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return shutil.copytree(KEPT / request.param, tmp_path / "stored runs")


def done(folder: Path, *words: str) -> str:
    """What a command printed; to standard error if an earlier one in this process had `--json`."""
    status, printed, errors = command(folder, list(words))
    assert status == 0, errors
    return printed + errors


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
    assert "resuming after step 2" in done(stored, *TRAIN)
    found = [line.get("loss", line.get("validation")) for line in read_metrics(folder)]
    assert found == pytest.approx(expected, rel=1e-4)  # rounding of another machine


@pytest.mark.parametrize("stored", VERSIONS, indirect=True)
def test_a_stored_comparison_is_judged_again(stored: Path) -> None:
    folder = stored / "runs" / "comparison"
    before = json.loads((folder / "results.json").read_text())
    results = Results.from_json(folder / "results.json")
    assert results.to_dict() == before
    done(stored, "verify", "runs/comparison")
    done(stored, "report", "runs/comparison")
    assert (folder / "report.html").exists()
    assert json.loads((folder / "results.json").read_text())["claims"] == before["claims"]


def test_this_versions_formats_are_kept() -> None:
    """A format that changes needs a new folder, written by tests/stored_formats.py before the change and after it."""
    kept = [json.loads(path.read_text())["format"] for path in KEPT.glob("*/runs/comparison/results.json")]
    assert RESULTS_FORMAT in kept
    newest = Results.model_fields.keys()
    stored = [set(json.loads(path.read_text())) for path in KEPT.glob("*/runs/comparison/results.json")]
    assert any(keys == set(newest) for keys in stored)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(KEPT / VERSIONS[-1], tmp_path / "newer")
    path = folder / "runs" / "run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    status, _, errors = command(folder, ["eval", "run"])
    assert status == 2 and "was written by a newer version of partwise" in errors and errors.count("\n") == 1
