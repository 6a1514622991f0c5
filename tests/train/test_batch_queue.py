"""Rows that are moved ahead give the same steps, in order, after a jump, and once each."""

import pytest
import torch

from partwise.train.batch_queue import BatchQueue, DeviceBatch
from partwise.train.config import run_config
from partwise.train.loop import Run

SMALL = (
    "d_model=16 n_layers=1 attention.n_heads=2 context_length=32 train.batch_size=4 train.steps=4 train.device=cpu "
    "train.precision=float32 data.train=200 data.validation=20 data.test=5"
)


def steps(run: Run) -> list[tuple[float, float, int]]:
    return [(step.loss, step.grad_norm, step.tokens) for step in run.steps()]


@pytest.mark.parametrize(
    "words",
    [
        ("mingpt", "data=arithmetic", "train.grad_accumulation=2", "residual.dropout=0.2"),
        ("original", "data=arithmetic_pairs", "encoder_layers=1"),
    ],
    ids=" ".join,
)
def test_steps_are_the_same(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config(*words, *SMALL.split())
    expected, run = steps(Run(config)), Run(config)
    run.queue.moves = True
    taken: list[tuple[int, bool]] = []
    take = BatchQueue.take

    def record(queue: BatchQueue, step: int) -> object:
        rows = take(queue, step)
        taken.append((step, all(isinstance(batch, DeviceBatch) for _, batch in rows.micro_batches)))
        return rows

    monkeypatch.setattr(BatchQueue, "take", record)
    assert steps(run) == expected
    assert taken == [(0, False), (1, True), (2, True), (3, True)] and not run.queue.ahead


def test_rows_of_another_step_are_not_taken() -> None:
    """As after a checkpoint is restored."""
    run = Run(run_config("mingpt", "data=arithmetic", *SMALL.split()))
    run.queue.moves = True
    run.queue.prepare(1)
    other = run.queue.take(2)
    assert (torch.as_tensor(other.micro_batches[0][1].inputs) == torch.as_tensor(run.batch(2).inputs)).all()
    assert (run.queue.take(1).micro_batches[0][1].inputs.numpy() == run.batch(1).inputs).all()
