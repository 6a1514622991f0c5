"""Small attention layers and their inputs, in float64."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partwise.config import REGISTRY
from partwise.parts.contracts import ForwardContext, LayerContext, PositionLayer

EXACT = 1e-12
WIDTH = 8
BACKENDS = ["eager", "sdpa"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def build(
    kind: str, layer: int = 0, context_length: int = 8, positions: str = "none", **options: Any
) -> tuple[nn.Module, Any]:
    """An attention layer and positions with random float64 weights; the first layer has the same heads."""
    recipe = REGISTRY["attention"][kind].from_dict(options)
    heads = recipe.heads(WIDTH)
    layer_ctx = LayerContext(WIDTH, 2, context_length, heads, layer, first_layer_heads=heads)
    modules = recipe.build(layer_ctx), REGISTRY["positions"][positions].from_dict({}).build(layer_ctx)
    generator = torch.Generator().manual_seed(layer)
    for module in modules:
        for parameter in module.double().eval().parameters():
            parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return modules


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def forward_context(length: int, positions: PositionLayer | None = None, **options: Any) -> ForwardContext:
    return ForwardContext(positions or PositionLayer(), torch.arange(length), **options)


def rms_normalized(x: Tensor, width: int, weight: Tensor | None, eps: float) -> Tensor:
    pieces = [piece / torch.sqrt((piece**2).mean(-1, keepdim=True) + eps) for piece in x.split(width, dim=-1)]
    return torch.cat(pieces if weight is None else [weight * piece for piece in pieces], dim=-1)


def chunkings(length: int) -> Iterator[list[tuple[int, int]]]:
    for bits in range(2 ** (length - 1)):
        yield [*pairwise([0, *(i + 1 for i in range(length - 1) if bits >> i & 1), length])]
