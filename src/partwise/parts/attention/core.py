"""The core of attention, from scores to weighted values: the equation, and torch's fused operator for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.parts.attention.mask import AttentionMask
from partwise.parts.dropout import Dropout
from partwise.parts.operations import AttentionSpec, MaskKind, Operation, OperationSpec, unsupported_option


class AttentionCore(Operation):
    """softmax(cap(q k^T scale) + bias) v. Without a plan, torch's SDPA computes it if it supports the options."""

    def __init__(
        self,
        head_dim: int,
        scale: float,
        softcap: float | None = None,
        sinks: int = 0,
        dropout: float = 0.0,
        v_head_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.v_head_dim = head_dim, v_head_dim or head_dim
        self.scale, self.softcap = scale, softcap
        self.sinks = nn.Parameter(torch.zeros(sinks)) if sinks else None
        self.dropout = Dropout(dropout)
        self.multi_seed = False  # True under torch.func.vmap, in multi-seed training
        if SDPA.unsupported(self.spec("causal")) is None:
            self.backends = (SDPA(scale),)

    def spec(self, mask: MaskKind) -> AttentionSpec:
        return AttentionSpec(
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            scale=self.scale,
            mask=mask,
            softcap=self.softcap,
            sinks=self.sinks is not None,
            dropout=self.dropout.p,
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """(B, H, T, E) queries, (B, K, S, E) keys, (B, K, S, W) values -> (B, H, T, W)."""
        return self.fold_seeds(q, k, v, mask) if self.multi_seed else self.attend(q, k, v, mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        return (self.backend_for(q, k, v, mask) or self.eager)(q, k, v, mask)

    def eager(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """The equation, as two batched matmuls. On a CPU, faster than SDPA for small heads in bfloat16."""
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

    def fold_seeds(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """Fold seeds into the batch: torch's and our kernels do not support torch.func.vmap."""
        if not self.backends or not mask.causal:
            return self.eager(q, k, v, mask)
        return FoldSeeds.apply(q, k, v, lambda q, k, v: self.attend(q, k, v, mask))


class SDPA:
    """torch's scaled_dot_product_attention: faster than the equation in float32 and on accelerators."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @staticmethod
    def unsupported(spec: OperationSpec) -> str | None:
        return unsupported_option(spec, dict.fromkeys(("head_dim", "v_head_dim", "scale", "mask"), True))

    def takes(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> bool:
        return not q.is_cpu or mask.causal or q.shape[2] > EAGER_MAX_QUERIES

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        # is_causal aligns the triangle to the upper left, so it only applies with as many queries as keys
        bias = None if mask.causal else mask.bias()
        bias = None if bias is None else bias.to(q.dtype)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, bias, is_causal=mask.causal, scale=self.scale, enable_gqa=grouped
        )


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
