"""Lesson 9, what does a smaller cache cost? Queries in groups share keys and values, which are kept between tokens."""

import torch
from torch import Tensor


class Cache:
    """The keys and values of all tokens so far, which never change."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.k is not None and self.v is not None:
            k = torch.cat([self.k, k], dim=2)  # (B, K, T, E) -> (B, K, S, E)
            v = torch.cat([self.v, v], dim=2)
        self.k, self.v = k, v
        return k, v

    def bytes(self) -> int:
        kept = [t for t in (self.k, self.v) if t is not None]
        return sum(t.numel() * t.element_size() for t in kept)


def split_heads(x: Tensor, n_head: int) -> Tensor:
    return x.unflatten(-1, (n_head, -1)).transpose(1, 2)  # (B, T, H E) -> (B, H, T, E)


def grouped_query_attention(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    n_head: int,
    n_kv_head: int,
    cache: Cache | None = None,
) -> Tensor:
    """Heads h = 0, 1, ... attend with their own queries to the keys of group h n_kv_head // n_head."""
    q = split_heads(x @ w_q.T, n_head)  # (B, T, D) -> (B, H, T, E)
    k, v = split_heads(x @ w_k.T, n_kv_head), split_heads(x @ w_v.T, n_kv_head)  # (B, K, T, E)
    if cache is not None:
        k, v = cache.append(k, v)  # (B, K, S, E): those of all tokens, while T counts the new ones
    k = k.repeat_interleave(n_head // n_kv_head, dim=1)  # (B, H, S, E)
    v = v.repeat_interleave(n_head // n_kv_head, dim=1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # (B, H, T, S)
    T, S = scores.shape[-2:]
    future = torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)  # the last query sees all S keys
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2) @ w_out.T  # (B, T, D)


def cache_bytes(batch: int, length: int, n_layer: int, n_kv_head: int, head_dim: int, bytes_per_number: int = 2) -> int:
    """A key and a value of head_dim numbers, for each layer, key head and token of each row."""
    return 2 * batch * length * n_layer * n_kv_head * head_dim * bytes_per_number


if __name__ == "__main__":
    sizes = [cache_bytes(1, 8192, 32, n_kv_head, 128) / 2**30 for n_kv_head in (32, 8, 1)]
    print("a cache of 8,192 tokens, 32 layers and heads of 128, in GiB, with 32, 8 and 1 key heads:", *sizes)
