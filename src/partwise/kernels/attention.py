"""Causal attention: a C++ flash-attention kernel for float32 on the CPU, and torch matmuls elsewhere.

The kernel never stores the scores. The ops take and return heads after positions, (B, T, H, E), as projections produce
them: nothing is transposed or copied. With the output they return the log-sum-exp, lse (B, H, T) =
log2 sum_j 2^(score_j log2 e), from which the backward pass recomputes the softmax.
"""

import ctypes
import math
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.kernels.library import OPERATORS, declare, define_operator, openmp_parallel
from partwise.kernels.threads import kernel_threads

LOG2_E = math.log2(math.e)
FLOAT_BYTES = 4


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(q k^T scale) v, causal: query i attends to keys 0 ... S - T + i; Vaswani et al. 2017, Dao et al. 2022.

    (B, T, H, E), (B, S, K, E), (B, S, K, V) -> (B, T, H, V), contiguous. K divides H: groups of consecutive query heads
    share a key head. Bitwise reproducible for any number of threads. Raises ConfigError.
    """
    T, H, S, K = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    if T > S:
        raise ConfigError(f"{T} queries over {S} keys: causal attention needs at least one key per query")
    if H % K or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ConfigError(
            f"attention with q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: make the shapes match"
        )
    out, _ = torch.ops.partwise.attention(q, k, v, scale)
    return out


def decode_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """`attention` of a few queries over many keys, as in generation, without gradients; over all keys if not `causal`.

    Only for float32 tensors on a CPU with compiled kernels.
    """
    return torch.ops.partwise.decode_attention(q, k, v, scale, causal)


def packed_attention(qkv: Tensor, n_heads: int, n_kv_heads: int, scale: float) -> Tensor:
    """`attention` over the output of a fused projection: (B, T, (H + 2 K) E) -> (B, T, H E), with a single gradient."""
    if n_heads % n_kv_heads or qkv.shape[2] % (n_heads + 2 * n_kv_heads):
        raise ConfigError(
            f"qkv width {qkv.shape[2]} does not split into {n_heads} query and 2 x {n_kv_heads} key/value heads"
        )
    out, _ = torch.ops.partwise.packed_attention(qkv, n_heads, n_kv_heads, scale)
    return out


@lru_cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None."""
    pointer, number, openmp = ctypes.c_void_p, ctypes.c_float, (ctypes.c_int, ctypes.c_void_p)
    functions = {
        "attention_forward": (*[pointer] * 6, number, *openmp),
        "attention_backward": (*[pointer] * 11, number, *openmp),
        "attention_decode": (*[pointer] * 5, number, ctypes.c_int, *openmp),
    }
    loaded: ctypes.CDLL | None = declare("attention", functions)
    return loaded


def library_for(*tensors: Tensor) -> ctypes.CDLL | None:
    """The compiled kernel if it supports these tensors, else None."""
    return library() if all(x.dtype == torch.float32 and x.is_cpu for x in tensors) else None


class StridedPointer(NamedTuple):
    """The data pointer of a tensor (B, T, H, E) and its strides, `Strides` of the kernel."""

    pointer: int
    strides: tuple[int, ...]  # elements between batch rows, positions and heads


def strided_pointer(x: Tensor) -> StridedPointer:
    return StridedPointer(x.data_ptr(), x.stride()[:3])


def split_heads_pointers(x: Tensor, head_dim: int, *n_heads: int) -> list[StridedPointer]:
    """Pointers to consecutive groups of heads in (B, T, n E), without creating views, which cost more than the call."""
    strides = (x.stride(0), x.stride(1), head_dim)
    offsets = accumulate(n_heads[:-1], initial=0)
    return [StridedPointer(x.data_ptr() + FLOAT_BYTES * head_dim * offset, strides) for offset in offsets]


def contiguous_heads(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def launch(run: Any, sizes: tuple[int, ...], tensors: list[StridedPointer], *rest: Any) -> None:
    """Call the kernel with its `Shape`; `sizes` are B, T, S, H, K, E, V, `tensors` q, k, v, out and then the gradients."""
    shape = (ctypes.c_int64 * 28)(*sizes, *(stride for tensor in tensors for stride in tensor.strides))
    pointers = [tensor.pointer for tensor in tensors]
    run(shape, *pointers[:4], *rest[:-1], *pointers[4:], rest[-1], kernel_threads(), openmp_parallel())


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    kernel = library_for(q, k, v)
    if kernel is None:
        return eager_forward(q, k, v, scale)
    q, k, v = contiguous_heads(q), contiguous_heads(k), contiguous_heads(v)
    out, lse = empty_outputs(q, k, v)
    tensors = [strided_pointer(x) for x in (q, k, v, out)]
    launch(kernel.attention_forward, sizes(q, k, v), tensors, lse.data_ptr(), scale)
    return out, lse


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    kernel = library_for(grad, q, k, v)
    if kernel is None:
        return eager_backward(grad, q, k, v, out, lse, scale)
    grad, q, k, v = contiguous_heads(grad), contiguous_heads(q), contiguous_heads(k), contiguous_heads(v)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    tensors = [strided_pointer(x) for x in (q, k, v, out, dq, dk, dv)]
    grad_strides = (ctypes.c_int64 * 3)(*grad.stride()[:3])
    launch(kernel.attention_backward, sizes(q, k, v), tensors, lse.data_ptr(), grad.data_ptr(), grad_strides, scale)
    return dq, dk, dv


def decode_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    kernel = library()
    assert kernel is not None
    q, k, v = contiguous_heads(q), contiguous_heads(k), contiguous_heads(v)
    out, _ = empty_outputs(q, k, v)
    launch(kernel.attention_decode, sizes(q, k, v), [strided_pointer(x) for x in (q, k, v, out)], scale, causal)
    return out


def sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])


def packed_forward(qkv: Tensor, n_heads: int, n_kv_heads: int, scale: float) -> tuple[Tensor, Tensor]:
    kernel = library_for(qkv)
    if kernel is None:
        q, k, v = split_qkv(qkv, n_heads, n_kv_heads)
        out, lse = eager_forward(q, k, v, scale)
        return out.flatten(2), lse
    qkv = contiguous_heads(qkv)
    out, lse = packed_empty_outputs(qkv, n_heads, n_kv_heads)
    head_dim = out.shape[2] // n_heads
    tensors = [
        *split_heads_pointers(qkv, head_dim, n_heads, n_kv_heads, n_kv_heads),
        *split_heads_pointers(out, head_dim, n_heads),
    ]
    launch(kernel.attention_forward, packed_sizes(qkv, n_heads, n_kv_heads, head_dim), tensors, lse.data_ptr(), scale)
    return out, lse


def packed_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, n_heads: int, n_kv_heads: int, scale: float
) -> Tensor:
    kernel = library_for(grad, qkv)
    if kernel is None:
        q, k, v = split_qkv(qkv, n_heads, n_kv_heads)
        grad, out = grad.unflatten(2, (n_heads, -1)), out.unflatten(2, (n_heads, -1))
        return torch.cat([x.flatten(2) for x in eager_backward(grad, q, k, v, out, lse, scale)], dim=2)
    grad, qkv = contiguous_heads(grad), contiguous_heads(qkv)
    dqkv = qkv.new_empty(qkv.shape)
    head_dim, qkv_heads = out.shape[2] // n_heads, (n_heads, n_kv_heads, n_kv_heads)
    tensors = [
        *split_heads_pointers(qkv, head_dim, *qkv_heads),
        *split_heads_pointers(out, head_dim, n_heads),
        *split_heads_pointers(dqkv, head_dim, *qkv_heads),
    ]
    grad_strides = (ctypes.c_int64 * 3)(grad.stride(0), grad.stride(1), head_dim)
    rest = (lse.data_ptr(), grad.data_ptr(), grad_strides, scale)
    launch(kernel.attention_backward, packed_sizes(qkv, n_heads, n_kv_heads, head_dim), tensors, *rest)
    return dqkv


def packed_sizes(qkv: Tensor, n_heads: int, n_kv_heads: int, head_dim: int) -> tuple[int, ...]:
    return (*qkv.shape[:2], qkv.shape[1], n_heads, n_kv_heads, head_dim, head_dim)


def split_qkv(qkv: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, ...]:
    """(B, T, (H + 2 K) E) -> views (B, T, H, E), (B, T, K, E), (B, T, K, E)."""
    return qkv.unflatten(2, (n_heads + 2 * n_kv_heads, -1)).split([n_heads, n_kv_heads, n_kv_heads], dim=2)


# ------------------------------------------------------------------------------------------------ eager: torch matmuls


def eager_scores(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Scores in base 2, minus infinity where masked, and their lse: (B, K, G, T, S) and (B, K, G, T), G = H / K."""
    T, S = q.shape[1], k.shape[1]
    scores = torch.einsum("btkge,bske->bkgts", q.unflatten(2, (k.shape[2], -1)), k) * (scale * LOG2_E)
    scores = scores.masked_fill(torch.ones(T, S, dtype=torch.bool, device=q.device).triu(S - T + 1), -math.inf)
    return scores, (scores / LOG2_E).logsumexp(-1) * LOG2_E


def eager_forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    scores, lse = eager_scores(q, k, scale)
    out = torch.einsum("bkgts,bske->btkge", torch.exp2(scores - lse[..., None]), v)
    return out.flatten(2, 3).contiguous(), lse.flatten(1, 2).contiguous()


def eager_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    K = k.shape[2]
    delta = (grad * out).sum(-1).transpose(1, 2).unflatten(1, (K, -1))  # (B, K, G, T)
    grad, q = grad.unflatten(2, (K, -1)), q.unflatten(2, (K, -1))
    scores, _ = eager_scores(q.flatten(2, 3), k, scale)
    weights = torch.exp2(scores - lse.unflatten(1, (K, -1))[..., None])
    dscores = weights * (torch.einsum("btkge,bske->bkgts", grad, v) - delta[..., None]) * scale
    dq = torch.einsum("bkgts,bske->btkge", dscores, k).flatten(2, 3)
    return dq, torch.einsum("bkgts,btkge->bske", dscores, q), torch.einsum("bkgts,btkge->bske", weights, grad)


# --------------------------------------------------------------------------------------------------- torch's op registry


def empty_outputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    B, T, H, _ = q.shape
    return q.new_empty(B, T, H, v.shape[3]), q.new_empty(B, H, T)


def packed_empty_outputs(qkv: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, Tensor]:
    B, T, width = qkv.shape
    width = width // (n_heads + 2 * n_kv_heads) * n_heads
    return qkv.new_empty(B, T, width), qkv.new_empty(B, n_heads, T)


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.options = inputs[len(tensors) :]
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def autograd_backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    return *torch.ops.partwise.attention_backward(grad, *ctx.saved_tensors, *ctx.options), None


def packed_autograd_backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    return torch.ops.partwise.packed_attention_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None


for schema, implementation, fake in (
    (
        "attention(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)",
        forward,
        lambda q, k, v, scale: empty_outputs(q, k, v),
    ),
    (
        "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, float scale)"
        " -> (Tensor, Tensor, Tensor)",
        backward,
        lambda grad, q, k, v, out, lse, scale: tuple(x.new_empty(x.shape) for x in (q, k, v)),
    ),
    (
        "decode_attention(Tensor q, Tensor k, Tensor v, float scale, bool causal) -> Tensor",
        decode_forward,
        lambda q, k, v, scale, causal: empty_outputs(q, k, v)[0],
    ),
    (
        "packed_attention(Tensor qkv, int n_heads, int n_kv_heads, float scale) -> (Tensor, Tensor)",
        packed_forward,
        lambda qkv, n_heads, n_kv_heads, scale: packed_empty_outputs(qkv, n_heads, n_kv_heads),
    ),
    (
        "packed_attention_backward(Tensor grad, Tensor qkv, Tensor out, Tensor lse, int n_heads, int n_kv_heads,"
        " float scale) -> Tensor",
        packed_backward,
        lambda grad, qkv, out, lse, n_heads, n_kv_heads, scale: qkv.new_empty(qkv.shape),
    ),
):
    define_operator(schema, implementation, fake)
torch.library.register_autograd("partwise::attention", autograd_backward, setup_context=setup_context, lib=OPERATORS)
torch.library.register_autograd(
    "partwise::packed_attention", packed_autograd_backward, setup_context=setup_context, lib=OPERATORS
)
