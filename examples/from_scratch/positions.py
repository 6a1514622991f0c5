"""Lesson 3, where am I? Attention sums over its tokens in any order, so that positions must be put into the numbers."""

import torch
from torch import Tensor


def learned(x: Tensor, table: Tensor) -> Tensor:
    """Add row t of a learned table (context_length, D) to the token at position t."""
    T = x.shape[1]  # x is (B, T, D)
    return x + table[:T]


def frequencies(width: int, base: float = 10000.0) -> Tensor:
    """w_i = base^(-2i / width): radians per position, from fast to slow."""
    i = torch.arange(width // 2, dtype=torch.float64)
    return base ** (-2 * i / width)  # (width / 2,)


def angles(length: int, width: int, base: float = 10000.0) -> Tensor:
    """t w_i: (T, width / 2)."""
    t = torch.arange(length, dtype=torch.float64)
    return t[:, None] * frequencies(width, base)


def sinusoidal(x: Tensor) -> Tensor:
    """Add sin(t w_i) in column 2i and cos(t w_i) in column 2i + 1: clocks whose hands turn at different speeds."""
    T, D = x.shape[1:]  # x is (B, T, D)
    waves = torch.empty(T, D, dtype=x.dtype)
    waves[:, 0::2] = angles(T, D).sin()
    waves[:, 1::2] = angles(T, D).cos()
    return x + waves


def rope(heads: Tensor, base: float = 10000.0) -> Tensor:
    """Turn pair (i, i + E/2) of a query or key at position t by t w_i."""
    T, E = heads.shape[-2:]  # heads are (B, H, T, E)
    turn = angles(T, E, base)  # (T, E/2)
    cos, sin = turn.cos().to(heads.dtype), turn.sin().to(heads.dtype)
    a, b = heads[..., : E // 2], heads[..., E // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


if __name__ == "__main__":
    torch.manual_seed(0)
    q, k = torch.randn(2, 16, dtype=torch.float64)
    q, k = rope(q.expand(1, 1, 200, 16))[0, 0], rope(k.expand(1, 1, 200, 16))[0, 0]  # the same q and k at 200 positions
    print(f"q.k at positions 5 and 2: {q[5] @ k[2]:.6f}, at 105 and 102: {q[105] @ k[102]:.6f}")
