"""Facts about training runs that a report shows beside its verdicts."""

from typing import Any

import pytest
import torch

from partwise.ablation import facts


def test_samples_are_written_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads wait for each other at each operation of each token: on a busy machine, a minute instead of a second."""
    seen: list[int] = []
    monkeypatch.setattr(facts, "trained_model", lambda arm, trials: object())
    monkeypatch.setattr(facts, "dataset_of", lambda plan, arm, dataset: dataset)
    monkeypatch.setattr(facts, "sample_lines", lambda model, dataset: [f"{seen.append(torch.get_num_threads())}"])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        plan: Any = None
        arm: Any = type("Arm", (), {"name": "mingpt"})
        assert facts.write_sample(plan, arm, (), plan) == ("None",)
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
