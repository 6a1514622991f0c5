"""Cross-entropy in pieces is torch's own, in value and gradient, and takes no copy of the logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from partwise.data import IGNORED
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
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "PIECE", piece)
        ours = summed_cross_entropy(logits, targets, smoothing)
        (mine,) = torch.autograd.grad(3 * ours, logits)
    reference = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
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
    assert logits.grad is not None and max(seen) <= cross_entropy.PIECE < logits.numel()
