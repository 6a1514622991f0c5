"""Scores to weights to values: the equation of attention, by one of several paths that compute the same."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.kernels.attention import attend, attention
from partwise.kernels.halves import half_attention, serves_attention
from partwise.kernels.library import ready
from partwise.parts.layers import Dropout
from partwise.parts.sight import Sight


class Scores(nn.Module):
    """softmax(cap(q k^T scale) + bias) v, by one of several paths that compute the same."""

    def __init__(self, scale: float, softcap: float | None, sinks: int, dropout: float) -> None:
        super().__init__()
        self.scale, self.softcap = scale, softcap
        self.sinks = nn.Parameter(torch.zeros(sinks)) if sinks else None
        self.dropout = Dropout(dropout)
        self.only_products = dropout > 0 or softcap is not None or sinks > 0  # what torch's kernel does not know
        self.path: Path = self.by_products
        self.several_seeds = False  # at once, under torch.func.vmap
        self.use_path("fused")

    def use_path(self, path: str) -> None:
        """'products', 'fused' or 'kernel', where what the layer computes leaves the choice."""
        paths: dict[str, Path] = {"products": self.by_products, "fused": self.by_torch, "kernel": self.by_kernel}
        self.path = self.by_products if self.only_products else paths[path]

    def path_over(self, sight: Sight, others: str = "fused") -> str:
        """The path that a long pass takes; `others` is what our kernel leaves over."""
        if self.path == self.by_products:
            return "products"
        if self.path != self.by_kernel:
            return "fused"
        return "kernel" if sight.triangle else others

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """(B, H, T, E) queries, (B, K, S, E) keys, (B, K, S, W) values -> (B, H, T, W)."""
        return self.by_folding(q, k, v, sight) if self.several_seeds else self.path(q, k, v, sight)

    def by_products(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """The equation itself, as two batched products: the faster path for narrow heads in bfloat16 on a CPU."""
        B, H, T, _ = q.shape
        K, S = k.shape[1], k.shape[2]
        bias = sight.bias()
        q = q.reshape(B * K, H // K * T, -1)  # the queries of a group side by side: no key is repeated
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

    def by_torch(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """torch's scaled_dot_product_attention: the faster path in float32 and on an accelerator."""
        # its causal shortcut aligns the triangle top-left, so it stands only where there are as many queries as keys
        if q.is_cpu and not sight.triangle and q.shape[2] <= FEW_QUERIES:
            return self.by_products(q, k, v, sight)
        bias = None if sight.triangle else sight.bias()
        bias = None if bias is None else bias.to(q.dtype)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, bias, is_causal=sight.triangle, scale=self.scale, enable_gqa=grouped
        )

    def by_folding(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """Under torch.func.vmap, of which torch's kernels and ours know nothing: every seed's rows as one batch."""
        if self.path == self.by_products or not sight.triangle:
            return self.by_products(q, k, v, sight)
        return Folded.apply(q, k, v, lambda q, k, v: self.path(q, k, v, sight))

    def by_kernel(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """Our own kernels for a CPU: the fastest paths where nothing but the future is hidden."""
        autocast = torch.is_autocast_enabled("cpu") and q.is_cpu
        if autocast and sight.triangle:
            queries, keys, values = (side.transpose(1, 2).bfloat16() for side in (q, k, v))
            if serves_attention(queries, keys, values):
                return half_attention(queries, keys, values, self.scale).transpose(1, 2)
        few = q.shape[2] < FEW_FOR_KERNEL and not torch.is_grad_enabled()
        if few and autocast and k.dtype == v.dtype == torch.float32:
            q = q.float()  # over a cache, which is finer
        elif autocast:
            return self.by_products(q, k, v, sight)
        elif not q.is_cpu or q.dtype != torch.float32:
            return self.by_torch(q, k, v, sight)
        if few and ready() and (sight.aligned or sight.everything):
            y = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.scale, sight.aligned)
        elif sight.aligned:
            y = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.scale)
        else:
            return self.by_torch(q, k, v, sight)
        return y.transpose(1, 2)


Path = Callable[[Tensor, Tensor, Tensor, Sight], Tensor]


class Folded(torch.autograd.Function):
    """A function of queries, keys and values (B, ...), called once on (S B, ...) where each of S seeds has its own."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, whole: Callable[..., Tensor]) -> Tensor:
        raise NotImplementedError("several seeds at once exist under torch.func.vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], q: Tensor, k: Tensor, v: Tensor, whole: Callable[..., Tensor]
    ) -> tuple[Tensor, int]:
        seeds: int = info.batch_size
        sides = [
            side.expand(seeds, *side.shape) if place is None else side.movedim(place, 0)
            for side, place in zip((q, k, v), in_dims, strict=False)
        ]
        return whole(*(side.flatten(0, 1) for side in sides)).unflatten(0, (seeds, -1)), 0


FEW_QUERIES = 64
"""Up to so many queries over a cache, plain products beat torch's kernel on a CPU (measured with 1 and 19 of them)."""

FEW_FOR_KERNEL = 8
"""Below so many queries the kernel takes them one by one: its vectors hold 8 to 32 of them, and would be mostly empty."""
