"""Cross-entropy in pieces, and by the kernel, is torch's own, in value and gradient, and takes no copy of the logits."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from partwise.data import IGNORE_INDEX
from partwise.kernels.cross_entropy import bf16_cross_entropy, supports_bf16_cross_entropy
from partwise.kernels.library import kernels_available
from partwise.train import cross_entropy
from partwise.train.cross_entropy import summed_cross_entropy


@given(
    st.integers(1, 40),
    st.integers(2, 30),
    st.sampled_from([0.0, 0.1, 0.9]),
    st.sampled_from([1, 7, 64, 10**6]),
    st.integers(0, 10**6),
)
def test_it_is_that_of_torch(rows: int, symbols: int, smoothing: float, piece: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, symbols, generator=generator, dtype=torch.float64).mul(3).requires_grad_()
    targets = torch.randint(symbols, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORE_INDEX
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "CHUNK_LOGITS", piece)
        ours = summed_cross_entropy(logits, targets, smoothing)
        (mine,) = torch.autograd.grad(3 * ours, logits)
    reference = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    (theirs,) = torch.autograd.grad(3 * reference, logits)
    assert abs(ours - reference) <= 1e-12 * max(1.0, abs(reference.item()))
    assert (mine - theirs).abs().max() <= 1e-12 * max(1.0, theirs.abs().max().item())


def test_half_precision_is_computed_in_float32() -> None:
    logits = torch.randn(50, 200, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    targets = torch.arange(50)
    ours, reference = summed_cross_entropy(logits, targets), F.cross_entropy(logits.float(), targets, reduction="sum")
    assert ours.dtype == torch.float32 and torch.isclose(ours, reference, rtol=1e-6)
    (mine,), (theirs,) = (torch.autograd.grad(loss, logits) for loss in (ours, reference))
    assert mine.dtype == torch.bfloat16 and torch.allclose(mine.float(), theirs.float(), atol=2**-9)


def test_no_copy_of_the_logits_is_made() -> None:
    """The largest tensor in float32 is a piece, forwards and backwards."""
    rows, symbols = 4096, 8192
    logits = torch.zeros(rows, symbols, dtype=torch.bfloat16, requires_grad=True)
    seen: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                    seen.append(tensor.numel())
            return out

    with Watch():
        summed_cross_entropy(logits, torch.zeros(rows, dtype=torch.long)).backward()
    assert logits.grad is not None and max(seen) <= cross_entropy.CHUNK_LOGITS < logits.numel()


# ------------------------------------------------------------------------------------------------------- the kernel


@pytest.fixture
def cpp(shared_cache: Path) -> None:
    if not kernels_available():
        pytest.skip("no C++ compiler here")


def drawn(rows: int, symbols: int, seed: int = 0, size: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = (size * torch.randn(rows, symbols, generator=generator)).bfloat16()
    targets = torch.randint(symbols, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORE_INDEX
    return logits, targets


def check_kernel(logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0) -> None:
    """The loss to float32, its gradient to the half of a bfloat16 digit that rounding costs."""
    logits = logits.detach().requires_grad_()
    assert supports_bf16_cross_entropy(logits)
    ours = bf16_cross_entropy(logits, targets, IGNORE_INDEX, smoothing)
    (mine,) = torch.autograd.grad(3 * ours, logits)
    wide = logits.detach().double().requires_grad_()
    true = F.cross_entropy(wide, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    (gradient,) = torch.autograd.grad(3 * true, wide)
    assert ours.dtype == torch.float32 and abs(ours.item() - true.item()) <= 1e-6 * max(1.0, true.item())
    assert mine.dtype == torch.bfloat16
    assert bool(((mine - gradient).abs() <= 2**-8 * gradient.abs() + 1e-6).all())


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("symbols", [1, 2, 3, 15, 16, 17, 31, 32, 33, 65, 300, 5003])
def test_the_kernel_is_the_equation(symbols: int, smoothing: float) -> None:
    check_kernel(*drawn(37, symbols, seed=symbols), smoothing)


@pytest.mark.usefixtures("cpp")
def test_the_kernel_takes_large_logits_and_rows_of_a_larger_tensor() -> None:
    check_kernel(*drawn(20, 65, size=300.0))
    logits, targets = drawn(20, 100)
    check_kernel(logits[:, 7:72], targets.clamp(max=64))
    check_kernel(logits[::2], targets[::2])
    check_kernel(logits[:0], targets[:0])
    check_kernel(logits, torch.full_like(targets, IGNORE_INDEX))


@pytest.mark.usefixtures("cpp")
def test_the_kernel_gives_equal_numbers_for_every_number_of_threads() -> None:
    logits, targets = drawn(301, 129)
    logits.requires_grad_()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        loss = bf16_cross_entropy(logits, targets, IGNORE_INDEX)
        found.append((loss, *torch.autograd.grad(loss, logits)))
    torch.set_num_threads(1)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(other, found[0], strict=True))


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 40, 64])
def test_the_kernel_shows_what_is_not_a_number(value: float, place: int) -> None:
    logits, targets = drawn(5, 65)
    targets[2] = 3
    logits[2, place] = value
    assert not bf16_cross_entropy(logits, targets, IGNORE_INDEX).isfinite()


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("target", [-1, 65, 2**40])
def test_the_kernel_reads_no_target_that_there_is_not(target: int) -> None:
    logits, targets = drawn(5, 65)
    targets[3] = target
    with pytest.raises(IndexError, match=f"target {target} is outside the vocabulary of 65"):
        bf16_cross_entropy(logits, targets, IGNORE_INDEX)


@pytest.mark.usefixtures("cpp")
def test_the_kernel_serves_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = drawn(5, 65)
    calls: list[int] = []
    monkeypatch.setattr(cross_entropy, "bf16_cross_entropy", lambda *x: (calls.append(1), bf16_cross_entropy(*x))[1])
    summed_cross_entropy(logits, targets)
    for other in (logits.half(), logits.float(), logits.t().contiguous().t()):
        summed_cross_entropy(other, targets, cpp=True)
    assert not calls
    summed_cross_entropy(logits, targets, cpp=True)
    assert calls == [1]


@pytest.mark.usefixtures("cpp")
def test_the_kernel_takes_targets_as_many_as_rows_of_any_kind() -> None:
    logits, targets = drawn(6, 65)
    assert torch.equal(
        bf16_cross_entropy(logits, targets.int(), IGNORE_INDEX), bf16_cross_entropy(logits, targets, IGNORE_INDEX)
    )
    with pytest.raises(ValueError, match=r"\(5,\) targets for 6 rows of logits: give one per row"):
        bf16_cross_entropy(logits, targets[:5], IGNORE_INDEX)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("symbols", [16, 65])
def test_the_kernel_counts_no_symbol_that_there_is_not(symbols: int) -> None:
    """In rows where all logits are as low as can be, or lower."""
    logits, targets = drawn(4, symbols)
    targets[:] = 1
    logits[0] = torch.finfo(torch.bfloat16).min
    check_kernel(logits, targets)
    logits[0] = -torch.inf
    assert bf16_cross_entropy(logits, targets, IGNORE_INDEX).isnan()
