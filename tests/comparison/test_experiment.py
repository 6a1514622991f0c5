"""Comparisons end to end: fixed plans, pairing, resuming, and errors."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import partwise
from comparisons import ARITHMETIC, SETTINGS, TINY, last_of_each
from partwise.ablation.facts import unpaired_tensors
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import plan_comparison
from partwise.ablation.run_plan import plan_runs
from partwise.comparison.design.plan import Plan
from partwise.comparison.noise_store import expected_noise
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.plots.curves import thin
from partwise.studies.study import StudyResults, find_study
from partwise.train.loop import Run
from recipes import split_loss


def plan_of(changes: list[list[str]], **settings: Any) -> Plan:
    arms = [shlex.join(change) for change in changes]
    changed = {word.partition("=")[0] for change in changes for word in change}
    common = [word for word in ARITHMETIC if word.partition("=")[0] not in changed]
    given = {"preset": "mingpt", "arms": arms, "data": "arithmetic", "common": common, **settings}
    return plan_runs(Request.from_dict(given))


def test_shared_settings_apply_to_every_arm() -> None:
    plan = plan_of([["ffn=swiglu", "train.steps=7", "data.train=400"]])
    assert [arm.name for arm in plan.arms] == ["mingpt", "ffn=swiglu"]
    assert {arm.config.train.steps for arm in plan.arms} == {7}
    assert {arm.config.data.train for arm in plan.arms} == {400}
    assert plan.arms[0].config.model.ffn.name == "relu"
    assert plan.arms[1].config.model.ffn.name == "swiglu"


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ([], {}, "nothing to compare"),
        ([["train.steps=5"]], {}, "nothing to compare"),
        ([["ffn=relu"]], {}, "same configuration as 'mingpt'"),
        ([["ffn=swiglu"], ["ffn=swiglu"]], {}, "same configuration as 'ffn=swiglu'"),
        ([["ffn=swigl"]], {}, "did you mean 'swiglu'"),
        ([["ffn=swiglu"]], {"seeds": 0}, "seeds=0"),
        ([["ffn=swiglu"]], {"margin": -1.0}, "margin=-1"),
    ],
)
def test_plans_without_a_change_are_refused(changes: list, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(changes, **settings)
    assert "\n" not in str(caught.value)


def test_paired_tensors_are_listed() -> None:
    plan = plan_of([["ffn=swiglu"], ["attention.fused_qkv=false"]])
    unpaired, tensors = unpaired_tensors(plan.arms[0], plan.arms[1])
    assert unpaired == [f"blocks.{i}.ffn.{name}.weight" for i in range(2) for name in ("gate", "up", "down")]
    assert tensors == len(partwise.Transformer(plan.arms[1].config.model).state_dict())
    assert unpaired_tensors(plan.arms[0], plan.arms[2])[0] == []


@pytest.mark.promise
def test_values_equal_single_runs_and_the_first_verdict_stands(here: Path) -> None:
    arguments = {"data": "arithmetic", "common": ARITHMETIC, "name": "c", "margin": 0.01, "failure": 100.0}
    comparison = partwise.compare("mingpt", "ffn=swiglu", seeds=2, **arguments)
    results = Results.from_json(here / "runs/c/results.json")
    assert results == comparison.results and results.question == comparison.plan.question
    (claim,) = results.claims
    first = claim.effect
    for number, arm in enumerate(comparison.plan.arms):
        for seed in range(2):
            run = Run(arm.config.with_seed(seed))
            for _ in run.steps():
                pass
            expected = split_loss(run.model, run.dataset.split("val"), 16)
            assert results.arms[number].values[seed] == expected
    assert list(first.differences) == [
        b - a for a, b in zip(results.arms[0].values, results.arms[1].values, strict=True)
    ]
    assert first.mean == pytest.approx(sum(first.differences) / 2)
    assert first.verdict == comparison.verdicts["ffn=swiglu"] in ("better", "worse", "equivalent", "undecided")
    assert results.look == 1
    assert first.alpha == 0.05
    assert results.arms[0].accuracy["all"].exact_match.total == 2 * 20
    assert [trial.accuracy["all"].exact_match.total for trial in results.arms[0].trials] == [20, 20]
    assert None not in results.references.to_dict().values()
    assert [row.step for row in claim.effect_over_training] == [4, 8, 12]
    assert claim.effect_over_training[-1].mean == pytest.approx(first.mean)
    for arm in results.arms:  # on arithmetic: a problem, the model's answer and the truth
        assert len(arm.samples) == 2 and all(re.fullmatch(r"[^=]+=.* \([^ ]+\)", line) for line in arm.samples)
    assert (here / "runs/c/report.html").exists()
    assert (here / "runs/c/report.md").exists()

    finished = {path: path.stat().st_mtime_ns for path in here.glob("runs/c/runs/*/*/result.json")}
    again = partwise.compare("mingpt", "ffn=swiglu", seeds=2, **arguments)
    assert again.results.claims[0].exploratory is None
    more = partwise.compare("mingpt", "ffn=swiglu", seeds=3, **arguments)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert more.results.effects == results.effects, "the first verdict stands"
    exploratory = more.results.claims[0].exploratory
    differences = [b - a for a, b in zip(more.results.arms[0].values, more.results.arms[1].values, strict=True)]
    assert exploratory.mean == pytest.approx(sum(differences) / 3) and exploratory.verdict is None
    assert exploratory.sentence in more.report.read_text()
    last = partwise.compare("mingpt", "ffn=swiglu", seeds=4, **arguments)
    assert last.results.effects == results.effects and last.results.claims[0].exploratory.n == 4
    assert more.results.arms[0].values[:2] == results.arms[0].values

    with pytest.raises(ConfigError, match="a look cannot be undone"):
        partwise.compare("mingpt", "ffn=swiglu", seeds=2, **arguments)
    with pytest.raises(ConfigError, match="holds another comparison"):
        partwise.compare("mingpt", "ffn=geglu", seeds=4, **arguments)
    with pytest.raises(ConfigError, match=r"margin was 0\.01, now 0\.02"):
        partwise.compare("mingpt", "ffn=swiglu", seeds=4, **{**arguments, "margin": 0.02})

    later = plan_comparison("mingpt", "ffn=geglu", seeds=4, **{**arguments, "name": "d"})
    noise = expected_noise(later.plan, later.prepare().hash)
    assert noise.sd == pytest.approx(statistics.stdev(last.results.claims[0].exploratory.differences)) and noise.df == 3
    assert "4 pairs of c" in noise.source
    assert "--sd" in expected_noise(later.plan, later.prepare().hash, 0.005).source


def test_a_change_without_effect_is_equivalent(here: Path) -> None:
    comparison = partwise.compare(
        "mingpt", "attention.fused_qkv=false", data="text.txt", common=TINY, seeds=2, name="same", failure=9.0
    )
    assert comparison.verdicts == {"attention.fused_qkv=false": "equivalent"}
    assert comparison.results.arms[1].unpaired_tensors == ()


def test_a_plan_of_an_earlier_version_is_refused(here: Path) -> None:
    arguments = {"data": "text.txt", "common": TINY, "seeds": 2, "name": "old"}
    comparison = partwise.compare("mingpt", "ffn=geglu", **arguments)
    path = comparison.path / "compare.json"
    metadata = json.loads(path.read_text())
    metadata["plan"]["variance"] = "residual"
    path.write_text(json.dumps(metadata))
    with pytest.raises(ConfigError, match="variance=residual, which no longer exists: choose another --name") as caught:
        partwise.compare("mingpt", "ffn=geglu", **arguments)
    assert "\n" not in str(caught.value)


def test_a_loss_above_that_of_uniform_guessing_failed(here: Path) -> None:
    """The default limit is ln(vocabulary) + 1; a limit below every loss makes all runs fail."""
    arguments = {"data": "text.txt", "common": TINY, "seeds": 2}
    plan = plan_comparison("mingpt", "ffn=geglu", **arguments, name="f").plan
    assert plan.rules.failure == math.log(plan.arms[0].config.model.vocab_size) + 1
    assert plan.identity()["failure"] == plan.rules.failure
    comparison = partwise.compare("mingpt", "ffn=geglu", **arguments, name="strict", failure=0.01)
    (effect,) = comparison.results.effects
    assert (effect.failed_arm, effect.failed_against, effect.verdict) == (2, 2, None)
    assert comparison.results.arms[0].failed == (0, 1) and comparison.results.arms[0].values == (None, None)
    assert "A run fails if its value is not finite or above 0.01." in comparison.report.read_text()
    with pytest.raises(ConfigError, match="failure=Infinity: input should be a finite number"):
        plan_comparison("mingpt", "ffn=geglu", **arguments, failure=math.inf)


def test_a_diverged_run_gives_counts_instead_of_a_verdict(here: Path) -> None:
    comparison = partwise.compare(
        "mingpt", "train.lr=1e30", data="text.txt", common=TINY, seeds=2, name="wild", failure=100.0
    )
    effect = comparison.results.effects[0]
    assert effect.verdict is None and effect.differences == (None, None)
    assert (effect.failed_arm, effect.failed_against) == (2, 0)
    assert comparison.results.arms[1].values == (None, None)
    assert comparison.results.arms[1].failed == (0, 1)
    assert "2 of 2 runs of train.lr=1e30 and 0 of 2 runs of mingpt failed" in effect.sentence
    assert "untuned" in comparison.results.tuning_note
    assert all(math.isfinite(value) for value in comparison.results.arms[0].values)
    assert Results.from_json(comparison.path / "results.json") == comparison.results


def test_an_interrupted_comparison_resumes_with_equal_results(here: Path) -> None:
    common = last_of_each([*TINY, "train.steps=200", "train.eval_every=50", "train.save_every=1000"])
    settings: dict[str, Any] = {"data": "text.txt", "common": common, "seeds": 2}
    whole = partwise.compare("mingpt", "ffn=swiglu", **settings, name="whole").results

    words = [word for option in common for word in ("--common", option)]
    words = ["compare", "mingpt", "ffn=swiglu", "--data", "text.txt", "--seeds", "2", *words, "--name", "cut"]
    process = subprocess.Popen([sys.executable, "-m", "partwise", *words], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(here.glob("runs/cut/runs/*/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "To resume:" in out
    assert list(here.glob("runs/cut/runs/*/*/checkpoints/step-*"))  # stopped in the middle, and saved
    assert not (here / "runs/cut/results.json").exists()
    time.sleep(0.2)
    for card in here.glob("runs/cut/runs/*/*/.pid"):
        pid = int(card.read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    cut = partwise.compare("mingpt", "ffn=swiglu", **settings, name="cut").results
    assert [arm.values for arm in whole.arms] == [arm.values for arm in cut.arms]
    assert whole.claims[0].differences_over_training == cut.claims[0].differences_over_training


def test_a_comparison_goes_on_elsewhere_without_its_weights(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints fill disks and are slow to copy; values and verdicts need none."""
    whole = partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, name="t").results
    other = here / "other machine"
    shutil.copytree(here / "runs", other / "runs", ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copy(here / "text.txt", other)
    monkeypatch.chdir(other)
    results = partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, name="t").results
    assert results.claims == whole.claims
    assert whole.activation_statistics and not results.activation_statistics
    assert all(arm.samples for arm in whole.arms) and not any(arm.samples for arm in results.arms)
    assert not list((other / "runs").glob("**/checkpoints")), "nothing was trained again"
    more = partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=3, name="t").results
    for old, new in zip(whole.arms, more.arms, strict=True):
        assert [trial.value for trial in new.trials[:2]] == [trial.value for trial in old.trials]
    assert more.activation_statistics and all(arm.samples for arm in more.arms), "of the third seed"


def test_a_study_gathers_its_comparisons(here: Path) -> None:
    (here / "studies").mkdir()
    (here / "studies/small.yaml").write_text(
        "claim: it helps\nsource: nowhere\ncomparisons:\n"
        f"  first: {{preset: mingpt, change: [ffn=swiglu], data: text.txt, seeds: 2, common: [{', '.join(TINY)}]}}\n"
    )
    path = find_study("small").run(lambda comparison: nullcontext(lambda running: None))
    results = StudyResults.from_json(path)
    assert results.claim == "it helps"
    assert results.comparisons["first"].effects[0].n == 2
    assert [path.name for path in (here / "studies/small").iterdir()] == ["results.json"]
    assert (here / "runs/study-small-first/report.md").exists()
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        find_study("smal")


def test_curves_are_thinned_to_means() -> None:
    points = [(step, float(step)) for step in range(1, 1001)]
    curve = thin(points, 200)
    assert len(curve) == 200
    assert curve[0] == (5, 3.0)
    assert curve[-1] == (1000, 998.0)
