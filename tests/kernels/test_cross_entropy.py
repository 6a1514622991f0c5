"""The cross-entropy kernel equals torch's cross-entropy in float64."""

import pytest
import torch
from torch.nn import functional as F

from kernel_inputs import all_equal, logits_and_targets, threads
from partwise.data import IGNORE_INDEX
from partwise.kernels.cross_entropy import bf16_cross_entropy, supports_bf16_cross_entropy

pytestmark = pytest.mark.usefixtures("kernels")


def check(logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0) -> None:
    """The loss has float32 accuracy, its gradient that of bfloat16."""
    logits = logits.detach().requires_grad_()
    assert supports_bf16_cross_entropy(logits)
    ours = bf16_cross_entropy(logits, targets, IGNORE_INDEX, smoothing)
    (gradient,) = torch.autograd.grad(3 * ours, logits)
    double = logits.detach().double().requires_grad_()
    exact = F.cross_entropy(double, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    (expected,) = torch.autograd.grad(3 * exact, double)
    assert ours.dtype == torch.float32 and abs(ours.item() - exact.item()) <= 1e-6 * max(1.0, exact.item())
    assert gradient.dtype == torch.bfloat16
    assert bool(((gradient - expected).abs() <= 2**-8 * expected.abs() + 1e-6).all())


@pytest.mark.parametrize("smoothing", [0.0, 0.9])
@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 17, 33, 5003])
def test_equals_the_equation_for_every_vocab_size(vocab_size: int, smoothing: float) -> None:
    check(*logits_and_targets(37, vocab_size, seed=vocab_size), smoothing)


def test_large_logits_and_row_strides() -> None:
    check(*logits_and_targets(20, 65, scale=300.0))
    logits, targets = logits_and_targets(20, 100)
    check(logits[:, 7:72], targets.clamp(max=64))
    check(logits[::2], targets[::2])
    check(logits[:0], targets[:0])
    check(logits, torch.full_like(targets, IGNORE_INDEX))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    logits, targets = logits_and_targets(301, 129)
    logits.requires_grad_()
    results = []
    for number in (1, 2, 3):
        with threads(number):
            loss = bf16_cross_entropy(logits, targets, IGNORE_INDEX)
            results.append((loss, *torch.autograd.grad(loss, logits)))
    assert all(all_equal(other, results[0]) for other in results[1:])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 40, 64])
def test_nan_and_infinity_propagate(value: float, column: int) -> None:
    logits, targets = logits_and_targets(5, 65)
    targets[2] = 3
    logits[2, column] = value
    assert not bf16_cross_entropy(logits, targets, IGNORE_INDEX).isfinite()


@pytest.mark.parametrize("target", [-1, 65, 2**40])
def test_targets_outside_the_vocabulary_are_refused(target: int) -> None:
    logits, targets = logits_and_targets(5, 65)
    targets[3] = target
    with pytest.raises(IndexError, match=f"target {target} is outside the vocabulary of 65"):
        bf16_cross_entropy(logits, targets, IGNORE_INDEX)


def test_targets_may_be_int32_and_are_one_per_row() -> None:
    logits, targets = logits_and_targets(6, 65)
    expected = bf16_cross_entropy(logits, targets, IGNORE_INDEX)
    assert torch.equal(bf16_cross_entropy(logits, targets.int(), IGNORE_INDEX), expected)
    with pytest.raises(ValueError, match=r"\(5,\) targets for 6 rows of logits: give one per row"):
        bf16_cross_entropy(logits, targets[:5], IGNORE_INDEX)


@pytest.mark.parametrize("vocab_size", [16, 65])
def test_padding_of_a_row_has_no_influence(vocab_size: int) -> None:
    """The loss is unchanged even if all logits of the row are the smallest finite number, or minus infinity."""
    logits, targets = logits_and_targets(4, vocab_size)
    targets[:] = 1
    logits[0] = torch.finfo(torch.bfloat16).min
    check(logits, targets)
    logits[0] = -torch.inf
    assert bf16_cross_entropy(logits, targets, IGNORE_INDEX).isnan()
