"""Steps of all arms are timed in turn; a long timing is announced."""

from pathlib import Path

import pytest

from comparisons import TINY
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import make_comparison
from partwise.ablation.throughput import TIMED_STEPS


def test_only_a_long_timing_is_announced(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison = make_comparison(Request(preset="mingpt", arms=["d_model=32"], data="text.txt", common=list(TINY)))
    expected = comparison.workload.estimate(comparison.plan, 0, 0, {})
    assert set(expected.throughput) == {arm.name for arm in comparison.plan.arms}
    assert "timing" not in capfd.readouterr().err
    monkeypatch.setattr("partwise.ablation.throughput.ANNOUNCED_SECONDS", 0)
    comparison.workload.estimate(comparison.plan, 0, 0, {})
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("timing")]
    assert line.startswith(f"timing {TIMED_STEPS} steps of each arm, in turn: about ")
