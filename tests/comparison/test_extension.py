"""Arms that are added to a judged comparison: another record, the same trials, and a verdict that stands."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import partwise
import programs
from comparisons import SETTINGS
from partwise.any_code.function_comparison import make_function_comparison
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import verify
from partwise.comparison.ledger.project import project_ledger
from partwise.comparison.report.ledger_sentences import ledger_sentences
from partwise.comparison.results import Results
from partwise.config import ConfigError

CALLS: list[tuple[int, float]] = []


def train(seed: int, report: Any, gain: float = 0.0) -> float:
    CALLS.append((seed, gain))
    return 1.0 + 0.01 * (seed * 7 % 5) - gain * (1 + 0.01 * (seed % 3))


def compare(*gains: float, **settings: Any) -> Results:
    arms = {"base": {}, **{f"gain {gain}": {"gain": gain} for gain in gains}}
    return make_function_comparison(train, arms, **{"seeds": 4, "margin": 0.05, "name": "c", **settings}).run()


def test_an_added_arm_is_another_comparison_that_reuses_trials(here: Path) -> None:
    CALLS.clear()
    first = compare(0.2)
    before = {path: path.read_bytes() for path in Path("runs/c").rglob("*") if path.is_file()}
    CALLS.clear()
    results = compare(0.2, 0.3, online=False)
    assert [(seed, 0.3) for seed in range(4)] == CALLS, "only the new arm was called"
    assert results.arms[0].values == first.arms[0].values and results.arms[1].values == first.arms[1].values
    assert results.verdicts == {"gain 0.2": "better", "gain 0.3": "better"}
    assert {effect.n_comparisons for effect in results.effects} == {2}, "all its claims are one family"
    earlier = results.provenance.extends
    assert earlier is not None and (earlier.folder, earlier.record) == ("runs/c", 1)
    assert earlier.verdicts == first.verdicts
    sentence = ledger_sentences(results)[0]
    assert "runs/c (record 1 of the ledger) judged one family, and its verdicts stand: gain 0.2 better" in sentence
    assert sentence.endswith("judges another family together: gain 0.2, gain 0.3.")
    assert sentence in Path("runs/c-2/report.md").read_text().replace("\\", "")
    assert {path: path.read_bytes() for path in before} == before, "what was judged is as it was"
    assert not [
        check for folder in ("c", "c-2") for check in verify(Certificate.read(Path("runs", folder))) if check.fault
    ]
    starts = [record.content for record in project_ledger().read() if record.content["kind"] == "started"]
    assert [(start["folder"], start.get("extends")) for start in starts] == [("runs/c", None), ("runs/c-2", 1)]
    CALLS.clear()
    again = compare(0.2, 0.3)
    assert not CALLS and again.effects == results.effects
    compare(0.2, 0.3, 0.4)
    assert [(seed, 0.4) for seed in range(4)] == CALLS and Path("runs/c-3/results.json").exists()
    assert compare(0.2).effects == first.effects


def test_what_is_no_addition_of_arms_is_refused(here: Path) -> None:
    compare(0.2)
    for changed in (lambda: compare(0.3), lambda: compare(0.2, 0.3, margin=0.1), lambda: compare(0.1, 0.3)):
        with pytest.raises(ConfigError, match="runs/c holds another comparison"):
            changed()
    plan = json.loads(Path("runs/c/compare.json").read_text())
    (values,) = plan["values"].items()
    Path("runs/c/compare.json").write_text(json.dumps({**plan, "values": {values[0]: [*values[1], "another"]}}))
    with pytest.raises(ConfigError, match="the values of runs/c have changed since its verdict"):
        compare(0.2, 0.3)
    shutil.rmtree("runs/c-2")
    Path("runs/c/compare.json").write_text(json.dumps({**plan, "looks": []}))
    with pytest.raises(ConfigError, match="runs/c holds another comparison"):  # there is no verdict that could stand
        compare(0.2, 0.3)


def test_commands_reuse_their_trials(here: Path) -> None:
    programs.write_program(here)
    first = programs.comparison(here).run()
    (here / "runs/c/runs/0-base/seed-0/mine.txt").write_text("")
    arms = {**programs.ARMS, "more": {"args": "--gain=0.2"}}
    made = programs.comparison(here, arms=arms)
    results = made.run()
    assert made.path == Path("runs/c-2") == made.workload.path
    assert results.arms[0].values == first.arms[0].values and (made.path / "runs/0-base/seed-0/mine.txt").exists()
    assert results.verdicts == {"gain": "better", "more": "better"}
    shutil.rmtree("runs/c")  # the trials that it reuses are its own
    assert Path("runs/c-2/results.json").exists() and all(trial.log for trial in results.arms[0].trials)


def test_training_runs_are_reused(here: Path) -> None:
    first = partwise.compare("mingpt", arms=["ffn=swiglu"], **SETTINGS, seeds=2, name="t").results
    times = [path.stat().st_mtime_ns for path in sorted(here.glob("runs/t/runs/*/*/result.json"))]
    more = partwise.compare("mingpt", arms=["ffn=swiglu", "norm=rmsnorm"], **SETTINGS, seeds=2, name="t")
    assert more.path == Path("runs/t-2")
    assert [path.stat().st_mtime_ns for path in sorted(here.glob("runs/t-2/runs/[01]*/*/result.json"))] == times
    assert [arm.values for arm in more.results.arms[:2]] == [arm.values for arm in first.arms]
    assert more.results.provenance.extends is not None and len(more.results.arms[2].values) == 2
