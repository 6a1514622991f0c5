"""Certificates: every verdict follows from the values, and one changed digit shows."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from partwise.comparison.certificate.certificate import Certificate, CertifiedVerdict, Code
from partwise.comparison.certificate.verification import verify
from partwise.comparison.results import Protocol
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.tuning_noise import TuningNoise
from partwise.config import ConfigError, digest

CLAIMS = [Claim("ffn=swiglu", "mingpt"), Claim("ffn=geglu", "mingpt"), Claim("norm=rmsnorm", "mingpt", "negative")]
RULES = Rules(looks=(), failure=4.0, method=2)


def make(**changes: Any) -> Certificate:
    """Eight seeds: an arm that is better, one that is equivalent, and a control."""
    rng = np.random.default_rng(0)
    base = 2.0 + 0.01 * rng.standard_normal(8)
    arms = {"mingpt": base}
    for claim, effect in zip(CLAIMS, (-0.05, 0.0002, 0.0), strict=True):
        arms[claim.arm] = base + effect + 0.001 * rng.standard_normal(8)
    values = {arm: {seed: float(x) for seed, x in enumerate(runs)} for arm, runs in arms.items()}
    effects = RULES.judge(values, CLAIMS)
    plan: dict[str, Any] = {
        "arms": [{"name": arm, "config": {"d_model": 128}} for arm in arms],
        "margin": RULES.margin,
        "alpha": RULES.alpha,
        "metric": RULES.metric,
        "failure": RULES.failure,
        "method": RULES.method,
        "claims": [list(claim[:3]) for claim in CLAIMS],
    }
    certificate = Certificate(
        name="a comparison",
        created="2026-11-23T00:00:00Z",
        question="Does any change the loss?",
        plan=plan,
        plan_hash=digest(plan),
        protocol=Protocol.from_rules(RULES),
        baseline="mingpt",
        arms={arm: {"d_model": 128} for arm in arms},
        values=values,
        judged=8,
        verdicts=tuple(map(CertifiedVerdict.from_effect, CLAIMS, effects)),
        data="0" * 64,
        code=Code(version="0.1.0", sources="1" * 64),
        machine={"cpu": "one"},
        runtime={"device": "cpu"},
    )
    return certificate.model_copy(update=changes)


def faults(certificate: Certificate) -> list[str]:
    return [f"{check.statement}: {check.fault}" for check in verify(certificate) if check.fault]


def rehashed(certificate: Certificate) -> Certificate:
    return certificate.model_copy(update={"hash": certificate.computed_hash})


def test_a_certificate_survives_writing_and_holds(tmp_path: Path) -> None:
    path = make().write(tmp_path)
    certificate = Certificate.read(path)
    assert Certificate.read(tmp_path) == certificate
    assert certificate == rehashed(make())
    assert faults(certificate) == []
    assert [verdict.verdict for verdict in certificate.verdicts[:2]] == ["better", "equivalent"]


def test_the_verdicts_follow_from_the_values_alone() -> None:
    """Mean, p and interval of the stored values, computed with scipy."""
    certificate = make()
    base = np.array(list(certificate.values["mingpt"].values()))
    better, equivalent, control = (np.array(list(certificate.values[c.arm].values())) - base for c in CLAIMS)
    verdict = certificate.verdicts[0]
    p = sorted(stats.ttest_1samp(x, 0).pvalue for x in (better, equivalent))
    assert verdict.p_adjusted == pytest.approx(2 * p[0], rel=1e-6) and verdict.p_adjusted < 0.05
    # both claims are rejected in their families at alpha / 2, the smaller of their p-values
    t = stats.ttest_1samp(better, 0).confidence_interval(0.975)
    assert (verdict.low, verdict.high) == pytest.approx((t.low, t.high), rel=1e-9)
    assert verdict.mean == pytest.approx(better.mean())
    assert certificate.verdicts[2].p_adjusted == pytest.approx(stats.ttest_1samp(control, 0).pvalue)


EDITS: list[tuple[str, str, str]] = [
    ("value", r'("ffn=swiglu": \{\s+"0": 1\.9)(\d)', "the values give"),
    ("verdict", r'("verdict": ")(better)', "the values give better"),
    ("mean", r'("mean": -0\.0)(5|4)', "the values give"),
    ("margin in the plan", r'("plan": \{.*?"margin": 0\.00)(5)', "the plan has the hash"),
    ("margin in the protocol", r'("protocol": \{.*?"margin": 0\.00)(5)', "margin was planned as"),
    ("failure in the protocol", r'("protocol": \{.*?"failure": )(4)', "failure was planned as"),
    ("data", r'("data": "0)(0)', "stated"),
    ("the hash itself", r'("hash": ".{63})(.)(?="\n\})', "states"),
]


@pytest.mark.parametrize(("what", "pattern", "fault"), EDITS, ids=[edit[0] for edit in EDITS])
def test_one_changed_digit_shows(tmp_path: Path, what: str, pattern: str, fault: str) -> None:
    path = make().write(tmp_path)
    other = {"better": "worse"}

    def change(match: re.Match[str]) -> str:
        return match[1] + other.get(match[2], "7" if match[2] != "7" else "8")

    text, n = re.subn(pattern, change, path.read_text(), count=1, flags=re.DOTALL)
    assert n == 1, what
    path.write_text(text)
    edited = Certificate.read(path)
    found = faults(edited)
    assert any(line.startswith("the file is unchanged") for line in found)
    if what not in ("data", "the hash itself"):  # the verdicts or the plan contradict the edit even under a new hash
        again = faults(rehashed(edited))
        assert any(fault in line for line in again), again
    elif what == "data":  # as the documentation says: nothing else depends on it
        assert faults(rehashed(edited)) == []


def test_a_seed_that_is_left_out_shows() -> None:
    certificate = make()
    values = {arm: {seed: x for seed, x in runs.items() if seed != 3} for arm, runs in certificate.values.items()}
    assert any("seed 3 of mingpt is missing" in line for line in faults(rehashed(make(values=values))))


def test_a_claim_that_is_left_out_shows() -> None:
    certificate = make()
    found = faults(rehashed(make(verdicts=certificate.verdicts[1:])))
    assert any("['ffn=swiglu', 'mingpt', 'claim'] has no verdict" in line for line in found)


def test_a_failed_run_is_a_value_of_null(tmp_path: Path) -> None:
    certificate = make()
    values = {**certificate.values, "ffn=swiglu": {**certificate.values["ffn=swiglu"], 2: None}}
    judged = RULES.judge(
        {arm: {s: math.nan if x is None else x for s, x in v.items()} for arm, v in values.items()}, CLAIMS
    )
    verdicts = tuple(map(CertifiedVerdict.from_effect, CLAIMS, judged))
    path = make(values=values, verdicts=verdicts).write(tmp_path)
    again = Certificate.read(path)
    assert again.values["ffn=swiglu"][2] is None and again.verdicts[0].verdict is None
    assert faults(again) == []


def test_seeds_that_were_added_later_leave_the_verdict() -> None:
    certificate = make()
    values = {arm: {**runs, 8: runs[0] + 0.3} for arm, runs in certificate.values.items()}
    assert faults(rehashed(make(values=values))) == []
    assert faults(rehashed(make(values=values, judged=9))) != []


def test_the_noise_of_tuning_is_part_of_a_claim(tmp_path: Path) -> None:
    """A tuned claim holds with its noise, and does not without."""
    certificate = make()
    claims = [CLAIMS[0]._replace(tuning=TuningNoise(0.01, 3.0)), *CLAIMS[1:]]
    values = {
        arm: {s: math.nan if x is None else x for s, x in runs.items()} for arm, runs in certificate.values.items()
    }
    verdicts = tuple(map(CertifiedVerdict.from_effect, claims, RULES.judge(values, claims)))
    assert faults(Certificate.read(make(verdicts=verdicts).write(tmp_path))) == []
    untuned = tuple(
        verdict.model_copy(update={"claim": claim}) for verdict, claim in zip(verdicts, CLAIMS, strict=True)
    )
    assert any("low is" in line for line in faults(rehashed(make(verdicts=untuned))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "damaged"),
        ('{"plan_hash": ', "damaged"),
        ("[]", "damaged"),
        ('{"format": 3, "question": "results"}', "not a certificate"),
        ('{"format": 2, "plan_hash": ""}', "format 2"),
        ('{"format": 1, "plan_hash": ""}', "damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        Certificate.read(path)


def test_values_that_are_missing_are_refused() -> None:
    values = {arm: runs for arm, runs in make().values.items() if arm != "ffn=geglu"}
    with pytest.raises(ConfigError, match="no values of"):
        verify(make(values=values))


VERIFY = """
import runpy, sys
sys.argv = ["partwise", "verify", sys.argv[1]]
try:
    runpy.run_module("partwise", run_name="__main__")
finally:
    print("torch" in sys.modules)
"""


def run_verify(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", VERIFY, str(path)], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_verifies_without_torch(tmp_path: Path) -> None:
    """Exit status 0, 1 for an edited certificate, and 2 for a damaged one, in a folder with a space."""
    folder = tmp_path / "my runs"
    folder.mkdir()
    path = make().write(folder)
    done = run_verify(path)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "False"
    assert "✓ ffn=swiglu against mingpt: better" in done.stdout
    values = json.loads(path.read_text())
    values["verdicts"][1]["verdict"] = "better"
    path.write_text(json.dumps(values))
    done = run_verify(path)
    assert done.returncode == 1 and "✕ ffn=geglu against mingpt: better: verdict is better" in done.stdout
    path.write_text(path.read_text()[:-5])
    done = run_verify(path)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "damaged" in done.stderr
