"""Plain reference implementations of the tutorials' equations, which share no code with partwise.

Norms, activations, positions and the minimal GPT are those of examples/from_scratch.

A model is a flat mapping from names to tensors, and a few sizes. Everything is computed in the dtype of the tensors (the
tests use float64) with elementary operations, so that autograd gives reference gradients. Shapes: B batch, T positions,
D model width, H heads, K key/value heads, E head width, F feed-forward width, V vocabulary.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from from_scratch import ffn, norms, positions

Tensors = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def affine(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    """x W^T, plus b if the mapping has one."""
    y = x @ tensors[f"{name}.weight"].T
    bias = tensors.get(f"{name}.bias")
    return y if bias is None else y + bias


def layer_norm(tensors: Tensors, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the biased variance (divided by D)."""
    return norms.layernorm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)


def rms_norm(tensors: Tensors, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return norms.rmsnorm(x, tensors[f"{name}.weight"], eps)


def swiglu(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x))."""
    return affine(
        tensors, f"{name}.down", ffn.silu(affine(tensors, f"{name}.gate", x)) * affine(tensors, f"{name}.up", x)
    )


def causal_attention(tensors: Tensors, name: str, x: Tensor, n_heads: int, n_kv_heads: int, rope: bool) -> Tensor:
    """out(concat_h softmax(q_h k_g^T / sqrt(E)) v_g) with a causal mask, g = h K // H, head by head."""
    batch, length, _ = x.shape
    q = affine(tensors, f"{name}.q", x).reshape(batch, length, n_heads, -1)
    k = affine(tensors, f"{name}.k", x).reshape(batch, length, n_kv_heads, -1)
    v = affine(tensors, f"{name}.v", x).reshape(batch, length, n_kv_heads, -1)
    if rope:
        q, k = (positions.rope(x.transpose(1, 2)).transpose(1, 2) for x in (q, k))
    past = torch.tril(torch.ones(length, length, dtype=torch.bool))
    outputs = []
    for head in range(n_heads):
        group = head * n_kv_heads // n_heads
        scores = q[:, :, head] @ k[:, :, group].transpose(1, 2) / math.sqrt(q.shape[-1])  # (B, T, T)
        scores = scores.masked_fill(~past, float("-inf"))
        weights = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
        outputs.append(weights / weights.sum(-1, keepdim=True) @ v[:, :, group])  # (B, T, E)
    return affine(tensors, f"{name}.out", torch.cat(outputs, dim=-1))


def with_biases(weights: dict[str, tuple[int, int]], biased: bool) -> Shapes:
    """The shapes of linear layers (out, in), each with its bias if they have one."""
    shapes: Shapes = {}
    for name, shape in weights.items():
        shapes[f"{name}.weight"] = shape
        if biased:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes
