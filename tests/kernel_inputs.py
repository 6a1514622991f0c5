"""Random inputs of the C++ kernels, and how their outputs and gradients are compared."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from partwise.data import IGNORE_INDEX
from partwise.kernels.library import kernels_available
from partwise.kernels.mlp import ACTIVATIONS

BF16_ERROR = 2**-8  # relative, at most, of rounding to bfloat16
MLPS = [(name, gated, not gated) for name in ACTIVATIONS for gated in (False, True)]
MLPS += [(ACTIVATIONS[0], False, False), (ACTIVATIONS[0], True, True)]
"""Each activation with and without a gate; whether there is a bias does not depend on it."""
MLPInputs = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]


def require_kernels() -> None:
    if not kernels_available():
        pytest.skip("no kernels")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Several threads for one example of a test."""
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def randn(*shapes: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def mlp_inputs(shape: tuple[int, ...], hidden: int, gated: bool, bias: bool, scale: float = 1.0) -> MLPInputs:
    """x of this shape, scaled, and weights that keep its variance."""
    D, U = shape[-1], 2 * hidden if gated else hidden
    seed = shape[-2] + 3 * D + 5 * hidden + 7 * gated + 11 * bias
    x, up, down, up_bias, down_bias = randn(shape, (U, D), (D, hidden), (U,), (D,), seed=seed)
    return scale * x, up / D**0.5, up_bias if bias else None, down / hidden**0.5, down_bias if bias else None


def logits_and_targets(rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    """bfloat16 logits and targets, a third of which are ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(rows, vocab_size, generator=generator)).bfloat16()
    targets = torch.randint(vocab_size, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORE_INDEX
    return logits, targets


def random_layout(x: Tensor, data: st.DataObject, any_offset: bool = False) -> Tensor:
    """x (B, T, H, E) with its first three dimensions in any order in memory, and NaN between its heads."""
    order = data.draw(st.permutations([0, 1, 2]))
    padded = x.new_full([x.shape[i] for i in order] + [x.shape[3] + data.draw(st.integers(0, 3))], torch.nan)
    offset = data.draw(st.integers(0, padded.shape[3] - x.shape[3])) if any_offset else 0
    view = padded.permute(*(order.index(i) for i in range(3)), 3)[..., offset : offset + x.shape[3]]
    view.copy_(x)
    return view


def output_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], double: bool = False, autocast: bool = False
) -> list[Tensor]:
    """The output, and the gradients of all inputs for a random output gradient."""
    leaves = [None if x is None else (x.double() if double else x.clone()).requires_grad_() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = function(*leaves)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x for x in leaves if x is not None], grad)]


def all_equal(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to that of the expected values."""
    assert actual.shape == expected.shape
    return float((actual.double() - expected).norm() / expected.norm().clamp_min(1e-30))
