"""Lesson 6, one head or eight? The same matrices, cut into heads that each attend to something else."""

import torch
from torch import Tensor


def split_heads(x: Tensor, n_head: int) -> Tensor:
    B, T, D = x.shape
    return x.view(B, T, n_head, D // n_head).transpose(1, 2)  # (B, T, D) -> (B, H, T, E)


def merge_heads(y: Tensor) -> Tensor:
    B, H, T, E = y.shape
    return y.transpose(1, 2).reshape(B, T, H * E)  # (B, H, T, E) -> (B, T, D)


def attention_maps(q: Tensor, k: Tensor) -> Tensor:
    """How much each query takes of each key up to itself: (B, H, T, T)."""
    T, E = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / E**0.5  # (B, H, T, E) @ (B, H, E, T)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


def multi_head_attention(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    n_head: int,
) -> Tensor:
    q = split_heads(x @ w_q.T, n_head)  # (B, T, D) -> (B, H, T, E)
    k = split_heads(x @ w_k.T, n_head)
    v = split_heads(x @ w_v.T, n_head)
    y = attention_maps(q, k) @ v  # (B, H, T, E)
    return merge_heads(y) @ w_out.T  # (B, T, D)


if __name__ == "__main__":
    torch.manual_seed(0)
    x, w_q, w_k = torch.randn(1, 32, 64), torch.randn(64, 64) / 8, torch.randn(64, 64) / 8
    tokens = []
    for n_head in (1, 8):
        maps = attention_maps(split_heads(x @ w_q.T, n_head), split_heads(x @ w_k.T, n_head))
        favorites = maps[0, :, -1].argmax(dim=-1)  # (H,): the token that each head weighs most for the last query
        tokens.append(len(favorites.unique()))
    print(f"from the same matrices, one head prefers {tokens[0]} of 32 tokens, eight heads prefer {tokens[1]}")
