"""Lesson 8, when does depth fail? Where the norm stands, and whether there is a way around each branch."""

from collections.abc import Callable

import torch
from torch import Tensor

Layer = Callable[[Tensor], Tensor]
"""Attention, a feed-forward layer or a norm: (B, T, D) -> (B, T, D)."""


def pre_norm(x: Tensor, branches: list[Layer], norms: list[Layer]) -> Tensor:
    """The sum passes every layer untouched, and so does its gradient."""
    for branch, norm in zip(branches, norms, strict=True):
        x = x + branch(norm(x))
    return x


def post_norm(x: Tensor, branches: list[Layer], norms: list[Layer]) -> Tensor:
    """As in the original: each norm rescales the sum, and its gradient."""
    for branch, norm in zip(branches, norms, strict=True):
        x = norm(x + branch(x))
    return x


def no_residual(x: Tensor, branches: list[Layer], norms: list[Layer]) -> Tensor:
    """Every branch replaces x: what it loses is lost."""
    for branch, norm in zip(branches, norms, strict=True):
        x = branch(norm(x))
    return x


if __name__ == "__main__":
    torch.manual_seed(0)
    D, depth, similar = 32, 24, []
    weights = [torch.randn(2, D, D) / D**0.5 for _ in range(depth)]
    branches = [lambda x, w=w: torch.relu(x @ w[0].T) @ w[1].T for w in weights]
    norms = [lambda x: torch.nn.functional.layer_norm(x, (D,))] * depth
    x = torch.randn(1, 100, D)  # 100 different tokens
    for wiring in (pre_norm, post_norm, no_residual):
        y = torch.nn.functional.normalize(wiring(x, branches, norms)[0], dim=-1)  # (T, D), of length 1
        similar.append(f"{wiring.__name__} {(y @ y.T).mean():.2f}")  # 1 if all tokens have become the same
    print(f"cosine of two tokens after {depth} branches, 0 before: {', '.join(similar)}")
