"""The attention core uses the bfloat16 kernel under autocast."""

from pathlib import Path

import pytest
import torch

from backends import use_layer_backend
from kernel_inputs import BF16_ERROR, randn, relative_error, require_kernels
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import AttentionMask


@pytest.fixture(autouse=True)
def kernels(shared_cache: Path) -> None:
    require_kernels()


@pytest.mark.parametrize("head_dim", [12, 11])
def test_backends_agree_under_autocast(head_dim: int) -> None:
    """The kernel does not support an odd head_dim; torch then computes the same up to rounding."""
    layer = AttentionCore(head_dim, 0.3)
    q, k, v = (x.bfloat16() for x in randn(*((2, heads, 20, head_dim) for heads in (4, 2, 2)), seed=0))
    mask = AttentionMask(lambda: torch.full((20, 20), -torch.inf).triu(1), causal=True, causal_lower_right=True)
    results = []
    for backend in ("eager", "cpp"):
        use_layer_backend(layer, backend)
        with torch.autocast("cpu", torch.bfloat16):
            results.append(layer(q, k, v, mask))
    assert relative_error(results[1], results[0].double()) <= 2 * BF16_ERROR
