"""Causal attention in one pass over the scores, by a C++ kernel on the CPU in float32 and by torch's products elsewhere.

Both ops take and give heads behind positions, (B, T, H, E), as projections do: nothing is transposed or copied. Beside the
output they return lse (B, H, T), from which the backward pass makes the softmax again: log2 sum_j 2^(score_j log2 e).
"""

import ctypes
import math
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.kernels.library import compiled, team

LOG2_E = math.log2(math.e)
FLOAT = 4  # bytes


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(q k^T scale) v where query i sees the keys up to S - T + i; Vaswani et al. 2017, Dao et al. 2022.

    (B, T, H, E), (B, S, K, E), (B, S, K, V) -> (B, T, H, V), contiguous. K divides H: query heads in groups, side by side,
    share a key head. Equal numbers on every call and for every number of threads. Raises ConfigError.
    """
    T, H, S, K = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    if T > S:
        raise ConfigError(f"{T} queries over {S} keys: causal attention needs a key for every query")
    if H % K or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ConfigError(f"attention over {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}: give q, k, v that fit")
    out, _ = torch.ops.partwise.attention(q, k, v, scale)
    return out


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """`attention` of a few queries over many keys, as generation has it, without gradients; all keys where not `causal`.

    Only for float32 on a CPU where the kernel is compiled.
    """
    return torch.ops.partwise.attend(q, k, v, scale, causal)


def packed_attention(qkv: Tensor, n_heads: int, n_kv_heads: int, scale: float) -> Tensor:
    """`attention` over what one projection gives: (B, T, (H + 2 K) E) -> (B, T, H E). One gradient, not three to join."""
    if n_heads % n_kv_heads or qkv.shape[2] % (n_heads + 2 * n_kv_heads):
        raise ConfigError(f"{qkv.shape[2]} numbers do not make {n_heads} query and {n_kv_heads} key and value heads")
    out, _ = torch.ops.partwise.packed_attention(qkv, n_heads, n_kv_heads, scale)
    return out


@lru_cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None."""
    loaded = compiled("attention")
    if loaded is not None:
        pointer, number, tail = ctypes.c_void_p, ctypes.c_float, (ctypes.c_int, ctypes.c_void_p)
        loaded.attention_forward.argtypes = (*[pointer] * 6, number, *tail)
        loaded.attention_backward.argtypes = (*[pointer] * 11, number, *tail)
        loaded.attention_step.argtypes = (*[pointer] * 5, number, ctypes.c_int, *tail)
        loaded.attention_forward.restype = loaded.attention_backward.restype = loaded.attention_step.restype = None
    return loaded


def compiled_for(*tensors: Tensor) -> ctypes.CDLL | None:
    """The library, if it serves such tensors."""
    return library() if all(x.dtype == torch.float32 and x.is_cpu for x in tensors) else None


class Place(NamedTuple):
    """Where a tensor (B, T, H, E) lies: the kernel's `Strides` and its first number."""

    pointer: int
    strides: tuple[int, ...]  # of B, T and H


def whole(x: Tensor) -> Place:
    return Place(x.data_ptr(), x.stride()[:3])


def slices(x: Tensor, width: int, *counts: int) -> list[Place]:
    """The places of neighbouring heads within (B, T, n E), found without the views, which cost more than the launch."""
    strides = (x.stride(0), x.stride(1), width)
    return [Place(x.data_ptr() + FLOAT * width * before, strides) for before in accumulate(counts[:-1], initial=0)]


def side_by_side(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def launch(run: Any, sizes: tuple[int, ...], places: list[Place], *rest: Any) -> None:
    """Call the kernel with its `Shape`; `sizes` are B, T, S, H, K, E, V, places q, k, v, out and then the gradients."""
    shape = (ctypes.c_int64 * 28)(*sizes, *(step for place in places for step in place.strides))
    pointers = [place.pointer for place in places]
    run(shape, *pointers[:4], *rest[:-1], *pointers[4:], rest[-1], torch.get_num_threads(), team())


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    kernel = compiled_for(q, k, v)
    if kernel is None:
        return plain_forward(q, k, v, scale)
    q, k, v = side_by_side(q), side_by_side(k), side_by_side(v)
    out, lse = outputs(q, k, v)
    places = [whole(x) for x in (q, k, v, out)]
    launch(kernel.attention_forward, sizes(q, k, v), places, lse.data_ptr(), scale)
    return out, lse


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    kernel = compiled_for(grad, q, k, v)
    if kernel is None:
        return plain_backward(grad, q, k, v, out, lse, scale)
    grad, q, k, v = side_by_side(grad), side_by_side(q), side_by_side(k), side_by_side(v)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    places = [whole(x) for x in (q, k, v, out, dq, dk, dv)]
    steps = (ctypes.c_int64 * 3)(*grad.stride()[:3])
    launch(kernel.attention_backward, sizes(q, k, v), places, lse.data_ptr(), grad.data_ptr(), steps, scale)
    return dq, dk, dv


def step(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    kernel = library()
    assert kernel is not None
    q, k, v = side_by_side(q), side_by_side(k), side_by_side(v)
    out, _ = outputs(q, k, v)
    launch(kernel.attention_step, sizes(q, k, v), [whole(x) for x in (q, k, v, out)], scale, causal)
    return out


def sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])


def packed_forward(qkv: Tensor, n_heads: int, n_kv_heads: int, scale: float) -> tuple[Tensor, Tensor]:
    kernel = compiled_for(qkv)
    if kernel is None:
        q, k, v = heads(qkv, n_heads, n_kv_heads)
        out, lse = plain_forward(q, k, v, scale)
        return out.flatten(2), lse
    qkv = side_by_side(qkv)
    out, lse = packed_outputs(qkv, n_heads, n_kv_heads)
    width = out.shape[2] // n_heads
    places = slices(qkv, width, n_heads, n_kv_heads, n_kv_heads) + slices(out, width, n_heads)
    launch(kernel.attention_forward, packed_sizes(qkv, n_heads, n_kv_heads, width), places, lse.data_ptr(), scale)
    return out, lse


def packed_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, n_heads: int, n_kv_heads: int, scale: float
) -> Tensor:
    kernel = compiled_for(grad, qkv)
    if kernel is None:
        q, k, v = heads(qkv, n_heads, n_kv_heads)
        grad, out = grad.unflatten(2, (n_heads, -1)), out.unflatten(2, (n_heads, -1))
        return torch.cat([x.flatten(2) for x in plain_backward(grad, q, k, v, out, lse, scale)], dim=2)
    grad, qkv = side_by_side(grad), side_by_side(qkv)
    result = qkv.new_empty(qkv.shape)
    width, counts = out.shape[2] // n_heads, (n_heads, n_kv_heads, n_kv_heads)
    places = slices(qkv, width, *counts) + slices(out, width, n_heads) + slices(result, width, *counts)
    steps = (ctypes.c_int64 * 3)(grad.stride(0), grad.stride(1), width)
    rest = (lse.data_ptr(), grad.data_ptr(), steps, scale)
    launch(kernel.attention_backward, packed_sizes(qkv, n_heads, n_kv_heads, width), places, *rest)
    return result


def packed_sizes(qkv: Tensor, n_heads: int, n_kv_heads: int, width: int) -> tuple[int, ...]:
    return (*qkv.shape[:2], qkv.shape[1], n_heads, n_kv_heads, width, width)


def heads(qkv: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, ...]:
    """(B, T, (H + 2 K) E) -> views (B, T, H, E), (B, T, K, E), (B, T, K, E)."""
    return qkv.unflatten(2, (n_heads + 2 * n_kv_heads, -1)).split([n_heads, n_kv_heads, n_kv_heads], dim=2)


# ------------------------------------------------------------------------------------- the same by products of torch


def plain_weights(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Scores, minus infinity where a query does not see, and their lse: (B, K, G, T, S) and (B, K, G, T), G = H / K."""
    T, S = q.shape[1], k.shape[1]
    scores = torch.einsum("btkge,bske->bkgts", q.unflatten(2, (k.shape[2], -1)), k) * (scale * LOG2_E)
    scores = scores.masked_fill(torch.ones(T, S, dtype=torch.bool, device=q.device).triu(S - T + 1), -math.inf)
    return scores, (scores / LOG2_E).logsumexp(-1) * LOG2_E


def plain_forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    scores, lse = plain_weights(q, k, scale)
    out = torch.einsum("bkgts,bske->btkge", torch.exp2(scores - lse[..., None]), v)
    return out.flatten(2, 3).contiguous(), lse.flatten(1, 2).contiguous()


def plain_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    K = k.shape[2]
    delta = (grad * out).sum(-1).transpose(1, 2).unflatten(1, (K, -1))  # (B, K, G, T)
    grad, q = grad.unflatten(2, (K, -1)), q.unflatten(2, (K, -1))
    scores, _ = plain_weights(q.flatten(2, 3), k, scale)
    weights = torch.exp2(scores - lse.unflatten(1, (K, -1))[..., None])
    changes = weights * (torch.einsum("btkge,bske->bkgts", grad, v) - delta[..., None]) * scale
    dq = torch.einsum("bkgts,bske->btkge", changes, k).flatten(2, 3)
    return dq, torch.einsum("bkgts,btkge->bske", changes, q), torch.einsum("bkgts,btkge->bske", weights, grad)


# ---------------------------------------------------------------------------------------------------- torch's registry


def outputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    B, T, H, _ = q.shape
    return q.new_empty(B, T, H, v.shape[3]), q.new_empty(B, H, T)


def packed_outputs(qkv: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, Tensor]:
    B, T, width = qkv.shape
    width = width // (n_heads + 2 * n_kv_heads) * n_heads
    return qkv.new_empty(B, T, width), qkv.new_empty(B, n_heads, T)


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.options = inputs[len(tensors) :]
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    return *torch.ops.partwise.attention_backward(grad, *ctx.saved_tensors, *ctx.options), None


def differentiate_packed(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    return torch.ops.partwise.packed_attention_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None


OPS = torch.library.Library("partwise", "FRAGMENT")  # lighter on every call than torch.library.custom_op
for schema, implementation, fake in (
    (
        "attention(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)",
        forward,
        lambda q, k, v, scale: outputs(q, k, v),
    ),
    (
        "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, float scale)"
        " -> (Tensor, Tensor, Tensor)",
        backward,
        lambda grad, q, k, v, out, lse, scale: tuple(x.new_empty(x.shape) for x in (q, k, v)),
    ),
    (
        "attend(Tensor q, Tensor k, Tensor v, float scale, bool causal) -> Tensor",
        step,
        lambda q, k, v, scale, causal: outputs(q, k, v)[0],
    ),
    (
        "packed_attention(Tensor qkv, int n_heads, int n_kv_heads, float scale) -> (Tensor, Tensor)",
        packed_forward,
        lambda qkv, n_heads, n_kv_heads, scale: packed_outputs(qkv, n_heads, n_kv_heads),
    ),
    (
        "packed_attention_backward(Tensor grad, Tensor qkv, Tensor out, Tensor lse, int n_heads, int n_kv_heads,"
        " float scale) -> Tensor",
        packed_backward,
        lambda grad, qkv, out, lse, n_heads, n_kv_heads, scale: qkv.new_empty(qkv.shape),
    ),
):
    OPS.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = f"partwise::{schema.partition('(')[0]}"
    OPS.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=OPS)
torch.library.register_autograd("partwise::attention", differentiate, setup_context=remember, lib=OPS)
torch.library.register_autograd("partwise::packed_attention", differentiate_packed, setup_context=remember, lib=OPS)
