"""Comparisons end to end: what is fixed, what is paired, what continues, and what is refused."""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import partwise
from partwise.comparison.experiment import plan_comparison
from partwise.comparison.plan import Plan, make_plan
from partwise.comparison.request import Request
from partwise.comparison.results import earlier_sd, thin, unpaired_tensors
from partwise.comparison.store import expected_noise
from partwise.comparison.study import find_study
from partwise.config import ConfigError
from partwise.train.loop import Run
from recipes import split_loss

TINY = [
    "d_model=16",
    "n_layers=2",
    "attention.n_heads=2",
    "max_len=16",
    "train.batch_size=4",
    "train.steps=12",
    "train.eval_every=4",
    "train.threads=1",
    "train.precision=float32",
]
ARITHMETIC = [*TINY, "data.train=300", "data.validation=20", "data.test=20"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return tmp_path


def plan_of(changes: list[list[str]], **settings: Any) -> Plan:
    arms = [shlex.join(change) for change in changes]
    given = {"preset": "mingpt", "arms": arms, "data": "arithmetic", "common": ARITHMETIC, **settings}
    return make_plan(Request.from_dict(given))


def test_what_cannot_vary_applies_to_every_arm() -> None:
    plan = plan_of([["ffn=swiglu", "train.steps=7", "data.train=400"]])
    assert [arm.name for arm in plan.arms] == ["mingpt", "ffn=swiglu"]
    assert {arm.config.train.steps for arm in plan.arms} == {7}
    assert {arm.config.data.train for arm in plan.arms} == {400}
    assert plan.arms[0].config.model.ffn.name == "relu"
    assert plan.arms[1].config.model.ffn.name == "swiglu"


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ([], {}, "nothing is changed"),
        ([["train.steps=5"]], {}, "nothing is changed"),
        ([["ffn=relu"]], {}, "same configuration as 'mingpt'"),
        ([["ffn=swiglu"], ["ffn=swiglu"]], {}, "same configuration as 'ffn=swiglu'"),
        ([["ffn=swigl"]], {}, "did you mean 'swiglu'"),
        ([["ffn=swiglu"]], {"seeds": 0}, "seeds=0"),
        ([["ffn=swiglu"]], {"margin": -1.0}, "margin=-1"),
    ],
)
def test_a_plan_that_says_nothing_is_refused(changes: list, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(changes, **settings)
    assert "\n" not in str(caught.value)


def test_tensors_that_pair_are_listed() -> None:
    plan = plan_of([["ffn=swiglu"], ["attention.fused=false"]])
    unpaired, tensors = unpaired_tensors(plan.arms[0], plan.arms[1])
    assert unpaired == [f"blocks.{i}.ffn.{name}.weight" for i in range(2) for name in ("gate", "up", "down")]
    assert tensors == len(partwise.Transformer(plan.arms[1].config.model).state_dict())
    assert unpaired_tensors(plan.arms[0], plan.arms[2])[0] == []


def test_values_are_those_of_the_runs_alone_and_a_further_look_is_paid_for(here: Path) -> None:
    arguments = {"data": "arithmetic", "common": ARITHMETIC, "name": "c", "margin": 0.01}
    comparison = partwise.compare("mingpt", "ffn=swiglu", seeds=2, **arguments)
    results = json.loads((here / "runs/c/results.json").read_text())
    assert results["question"] == comparison.plan.question
    first = results["comparisons"][0]
    for number, arm in enumerate(comparison.plan.arms):
        for seed in range(2):
            run = Run(arm.with_seed(seed))
            for _ in run.steps():
                pass
            alone = split_loss(run.model, run.dataset.split("val"), 16)
            assert results["arms"][number]["values"][seed] == alone
    assert first["differences"] == [
        b - a for a, b in zip(results["arms"][0]["values"], results["arms"][1]["values"], strict=True)
    ]
    assert first["mean"] == pytest.approx(sum(first["differences"]) / 2)
    assert first["verdict"] == comparison.verdicts["ffn=swiglu"] in ("better", "worse", "equivalent", "undecided")
    assert results["look"] == 1
    assert first["alpha"] == 0.05
    assert results["arms"][0]["accuracy"]["all"]["exact"]["total"] == 2 * 20
    assert {"unigram", "kneser_ney", "most_frequent_closed"} <= results["floors"].keys()
    assert [row["step"] for row in first["horizons"]] == [4, 8, 12]
    assert first["horizons"][-1]["mean"] == pytest.approx(first["mean"])
    assert (here / "runs/c/report.html").exists()
    assert (here / "runs/c/report.md").exists()

    finished = {path: path.stat().st_mtime_ns for path in here.glob("runs/c/runs/*/*/result.json")}
    again = partwise.compare("mingpt", "ffn=swiglu", seeds=2, **arguments)
    assert again.results["look"] == 1  # the same seeds are not a further look
    more = partwise.compare("mingpt", "ffn=swiglu", seeds=3, **arguments)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert more.results["look"] == 2
    assert more.results["comparisons"][0]["alpha"] == 0.05 / 4
    assert more.results["alpha_spent"] == pytest.approx(0.05 + 0.05 / 4)
    assert more.results["arms"][0]["values"][:2] == results["arms"][0]["values"]

    with pytest.raises(ConfigError, match="cannot be taken back"):
        partwise.compare("mingpt", "ffn=swiglu", seeds=2, **arguments)
    with pytest.raises(ConfigError, match="holds another comparison"):
        partwise.compare("mingpt", "ffn=geglu", seeds=3, **arguments)
    with pytest.raises(ConfigError, match=r"margin was 0\.01, now 0\.02"):
        partwise.compare("mingpt", "ffn=swiglu", seeds=3, **{**arguments, "margin": 0.02})

    later = plan_comparison("mingpt", "ffn=geglu", seeds=4, **{**arguments, "name": "d"})
    spread = earlier_sd(Path("runs"), later.plan)
    assert spread is not None
    assert spread[0] == pytest.approx(more.results["comparisons"][0]["sd_pooled"])
    noise = expected_noise(later.plan, later.prepare())
    assert noise.sd == spread[0] and "of c" in noise.source
    assert expected_noise(later.plan, later.prepare(), 0.005).source == "a seed SD of 0.005 and no correlation"


def test_a_change_that_computes_the_same_is_equivalent(here: Path) -> None:
    comparison = partwise.compare("mingpt", "attention.fused=false", data="text.txt", common=TINY, seeds=2, name="same")
    assert comparison.verdicts == {"attention.fused=false": "equivalent"}
    assert comparison.results["arms"][1]["unpaired"] == []


def test_a_diverged_run_leaves_counts_instead_of_a_verdict(here: Path) -> None:
    comparison = partwise.compare("mingpt", "train.lr=1e30", data="text.txt", common=TINY, seeds=2, name="wild")
    row = comparison.results["comparisons"][0]
    assert row["verdict"] is None
    assert (row["diverged_arm"], row["diverged_against"]) == (2, 0)
    assert comparison.results["arms"][1]["values"] == [None, None]
    assert comparison.results["arms"][1]["diverged"] == [0, 1]
    assert "diverged" in row["sentence"]
    assert "untuned" in comparison.results["tuning"]
    assert all(math.isfinite(value) for value in comparison.results["arms"][0]["values"])


@pytest.mark.slow
def test_interrupted_and_continued_it_ends_the_same(here: Path) -> None:
    words = [word for option in [*TINY, "train.steps=400", "train.save_every=1000"] for word in ("--common", option)]
    command = [
        sys.executable,
        "-m",
        "partwise",
        "compare",
        "mingpt",
        "ffn=swiglu",
        "--data",
        "text.txt",
        "--seeds",
        "2",
    ]
    subprocess.run([*command, *words, "--name", "whole"], check=True, capture_output=True)

    process = subprocess.Popen([*command, *words, "--name", "cut"], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(here.glob("runs/cut/runs/*/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "To continue:" in out
    assert list(here.glob("runs/cut/runs/*/*/checkpoints/step-*"))  # stopped in the middle, and saved
    assert not (here / "runs/cut/results.json").exists()
    time.sleep(0.2)
    for card in here.glob("runs/cut/runs/*/*/.lock"):
        pid = int(card.read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    subprocess.run([*command, *words, "--name", "cut"], check=True, capture_output=True)
    whole, cut = (json.loads((here / "runs" / name / "results.json").read_text()) for name in ("whole", "cut"))
    assert [arm["values"] for arm in whole["arms"]] == [arm["values"] for arm in cut["arms"]]
    assert whole["comparisons"][0]["over_time"] == cut["comparisons"][0]["over_time"]


def test_a_study_gathers_its_comparisons(here: Path) -> None:
    (here / "studies").mkdir()
    (here / "studies/small.yaml").write_text(
        "claim: it helps\nsource: nowhere\ncomparisons:\n"
        f"  first: {{preset: mingpt, change: [ffn=swiglu], data: text.txt, seeds: 2, common: [{', '.join(TINY)}]}}\n"
    )
    path = find_study("small").run(lambda comparison: nullcontext(lambda running: None))
    results = json.loads(path.read_text())
    assert results["claim"] == "it helps"
    assert results["comparisons"]["first"]["comparisons"][0]["n"] == 2
    assert (here / "studies/small/first.md").exists()
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        find_study("smal")


def test_curves_are_thinned_to_their_means() -> None:
    points = [(step, float(step)) for step in range(1, 1001)]
    curve = thin(points)
    assert len(curve) == 200
    assert curve[0] == [5, 3.0]
    assert curve[-1] == [1000, 998.0]
