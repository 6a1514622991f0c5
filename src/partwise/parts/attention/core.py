"""The core of attention, from scores to weighted values, by one of several equivalent backends."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.kernels.attention import attention, decode_attention
from partwise.kernels.bf16 import bf16_attention, supports_bf16_attention
from partwise.kernels.library import kernels_available
from partwise.parts.attention.mask import AttentionMask
from partwise.parts.layers import Dropout


class AttentionCore(nn.Module):
    """softmax(cap(q k^T scale) + bias) v, by one of several equivalent backends."""

    def __init__(self, scale: float, softcap: float | None, sinks: int, dropout: float) -> None:
        super().__init__()
        self.scale, self.softcap = scale, softcap
        self.sinks = nn.Parameter(torch.zeros(sinks)) if sinks else None
        self.dropout = Dropout(dropout)
        self.eager_only = dropout > 0 or softcap is not None or sinks > 0  # unsupported by the other backends
        self.backend: Backend = self.eager
        self.multi_seed = False  # True under torch.func.vmap, in multi-seed training
        self.use_backend("sdpa")

    def use_backend(self, backend: str) -> None:
        """'eager', 'sdpa' or 'cpp'; the layer's options may require 'eager'."""
        backends: dict[str, Backend] = {"eager": self.eager, "sdpa": self.sdpa, "cpp": self.cpp}
        self.backend = self.eager if self.eager_only else backends[backend]

    def backend_name(self, mask: AttentionMask, fallback: str = "sdpa") -> str:
        """The backend that computes a long sequence; `fallback` is that of masks which 'cpp' does not support."""
        if self.backend == self.eager:
            return "eager"
        if self.backend != self.cpp:
            return "sdpa"
        return "cpp" if mask.causal else fallback

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """(B, H, T, E) queries, (B, K, S, E) keys, (B, K, S, W) values -> (B, H, T, W)."""
        return self.fold_seeds(q, k, v, mask) if self.multi_seed else self.backend(q, k, v, mask)

    def eager(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """The equation, as two batched matmuls; faster than sdpa for small heads in bfloat16 on a CPU."""
        B, H, T, _ = q.shape
        K, S = k.shape[1], k.shape[2]
        bias = mask.bias()
        q = q.reshape(B * K, H // K * T, -1)  # the query heads of a group as one: no need to repeat keys
        k, v = k.flatten(0, 1), v.flatten(0, 1)
        if bias is not None and bias.dim() == 2 and H == K and self.softcap is None:
            scores = torch.baddbmm(bias.to(q.dtype), q, k.transpose(1, 2), alpha=self.scale).view(B, H, T, S)
        else:
            scores = (torch.bmm(q, k.transpose(1, 2)) * self.scale).view(B, H, T, S)
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            if bias is not None:
                scores = scores + bias.to(q.dtype)
        weights = self.dropout(self.softmax(scores)).view(B * K, -1, S)
        return torch.bmm(weights, v).view(B, H, T, -1)

    def softmax(self, scores: Tensor) -> Tensor:
        if self.sinks is None:
            return scores.softmax(dim=-1)
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """torch's scaled_dot_product_attention; faster than eager in float32 and on accelerators."""
        # is_causal aligns the triangle to the upper left, so it only applies with as many queries as keys
        if q.is_cpu and not mask.causal and q.shape[2] <= EAGER_MAX_QUERIES:
            return self.eager(q, k, v, mask)
        bias = None if mask.causal else mask.bias()
        bias = None if bias is None else bias.to(q.dtype)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, bias, is_causal=mask.causal, scale=self.scale, enable_gqa=grouped
        )

    def fold_seeds(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """Fold seeds into the batch: torch's and our kernels do not support torch.func.vmap."""
        if self.backend == self.eager or not mask.causal:
            return self.eager(q, k, v, mask)
        return FoldSeeds.apply(q, k, v, lambda q, k, v: self.backend(q, k, v, mask))

    def cpp(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """The C++ kernels; on a CPU the fastest backend for causal masks."""
        autocast = torch.is_autocast_enabled("cpu") and q.is_cpu
        if autocast and mask.causal:
            queries, keys, values = (tensor.transpose(1, 2).bfloat16() for tensor in (q, k, v))
            if supports_bf16_attention(queries, keys, values):
                return bf16_attention(queries, keys, values, self.scale).transpose(1, 2)
        decoding = q.shape[2] < FLASH_MIN_QUERIES and not torch.is_grad_enabled()
        if decoding and autocast and k.dtype == v.dtype == torch.float32:
            q = q.float()  # keys and values are cached in float32
        elif autocast:
            return self.eager(q, k, v, mask)
        elif not q.is_cpu or q.dtype != torch.float32:
            return self.sdpa(q, k, v, mask)
        if decoding and kernels_available() and (mask.causal_lower_right or mask.full):
            y = decode_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.scale, mask.causal_lower_right
            )
        elif mask.causal_lower_right:
            y = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.scale)
        else:
            return self.sdpa(q, k, v, mask)
        return y.transpose(1, 2)


Backend = Callable[[Tensor, Tensor, Tensor, AttentionMask], Tensor]


class FoldSeeds(torch.autograd.Function):
    """A function of queries, keys and values (B, ...), vectorized over S seeds by one call on (S B, ...)."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        raise NotImplementedError("multi-seed training requires torch.func.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], q: Tensor, k: Tensor, v: Tensor, attend: Callable[..., Tensor]
    ) -> tuple[Tensor, int]:
        seeds: int = info.batch_size
        tensors = [
            tensor.expand(seeds, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((q, k, v), in_dims, strict=False)
        ]
        return attend(*(tensor.flatten(0, 1) for tensor in tensors)).unflatten(0, (seeds, -1)), 0


EAGER_MAX_QUERIES = 64
"""Up to this many queries over a cache, eager is faster than torch's kernel on a CPU (measured with 1 and 19)."""

FLASH_MIN_QUERIES = 8
"""With fewer queries, decode_attention is faster: flash attention's vectors hold 8 to 32 queries, mostly empty then."""
