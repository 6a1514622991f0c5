"""Backends of attention, from queries, keys and values to their weighted sums: `train.attention_backend`."""

import torch
from torch import Tensor

from partwise.compute.backends import NO_KERNELS, Backend, backend
from partwise.compute.runtime import Runtime
from partwise.kernels.attention import attention, decode_attention
from partwise.kernels.bf16 import bf16_attention, supports_bf16_attention
from partwise.kernels.library import kernels_available
from partwise.parts.attention.core import SDPA, AttentionCore
from partwise.parts.attention.mask import AttentionMask
from partwise.parts.operations import OperationSpec, Rule, unsupported_option

FLASH_MIN_QUERIES = 8
"""With fewer queries, decode_attention is faster: the SIMD vectors of flash attention hold 8 to 32 queries, most of them
then empty."""


@backend
class SDPABackend(Backend):
    """torch's scaled_dot_product_attention. In bfloat16 on a CPU, eager is much faster with narrow heads."""

    kind, name = "attention", "sdpa"

    def rank(self, runtime: Runtime) -> int:
        return -1 if runtime.device == "cpu" and runtime.precision == "bfloat16" else 1

    def unsupported(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        return SDPA.unsupported(spec)

    def bind(self, module: AttentionCore, spec: OperationSpec) -> SDPA:  # type: ignore[override]
        return SDPA(module.scale)


@backend
class CppAttentionBackend(Backend):
    """Flash attention in C++ for causal masks, and in generation for a few queries over a cache."""

    kind, name = "attention", "cpp"

    def rank(self, runtime: Runtime) -> int:
        return 2

    def unsupported(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        if not runtime.kernels:
            return NO_KERNELS
        rules: dict[str, Rule] = {"head_dim": True, "v_head_dim": True, "scale": True, "mask": causal_only}
        reason = unsupported_option(spec, rules)
        if reason is None and runtime.precision == "bfloat16":
            E, V = spec.head_dim, spec.v_head_dim  # type: ignore[attr-defined]
            if E != V or E % 2:
                return f"in bfloat16, heads of queries and values must have one even dimension, not {E} and {V}"
        return reason

    def bind(self, module: AttentionCore, spec: OperationSpec) -> "CppAttention":  # type: ignore[override]
        return CppAttention(module.scale)


def causal_only(mask: str) -> str | None:
    reasons = {
        "full": "only causal attention is supported",
        "bias": "a window, padding or a bias from positions is not supported",
    }
    return reasons.get(mask)


class CppAttention:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def takes(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> bool:
        decoding = is_decoding(q)
        if not q.is_cpu:
            return False
        if torch.is_autocast_enabled("cpu"):
            if mask.causal and supports_bf16_attention(*(x.transpose(1, 2) for x in (q, k, v))):
                return True
            if not (decoding and k.dtype == v.dtype == torch.float32):
                return False
        elif q.dtype != torch.float32:
            return False
        return mask.causal_lower_right or (decoding and mask.full and kernels_available())

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, E) views
        if torch.is_autocast_enabled("cpu"):
            if mask.causal and supports_bf16_attention(queries, keys, values):
                y = bf16_attention(queries.bfloat16(), keys.bfloat16(), values.bfloat16(), self.scale)
                return y.transpose(1, 2)
            queries = queries.float()  # keys and values are cached in float32
        if is_decoding(q) and kernels_available():
            return decode_attention(queries, keys, values, self.scale, mask.causal_lower_right).transpose(1, 2)
        return attention(queries, keys, values, self.scale).transpose(1, 2)


def is_decoding(q: Tensor) -> bool:
    return q.shape[2] < FLASH_MIN_QUERIES and not torch.is_grad_enabled()
