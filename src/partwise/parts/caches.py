"""Caches of the positions that a layer has processed, for generation."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.config import ConfigError
from partwise.parts.contracts import CachedLayer, ForwardContext


class KVCache:
    """Keys, values or latents of all positions so far, in preallocated buffers."""

    def __init__(self, batch: int, max_length: int, sizes: list[tuple[int, int]], like: Tensor) -> None:
        """`sizes` lists (heads, head dimension) of each buffer."""
        self.buffers = [like.new_empty(batch, heads, max_length, width) for heads, width in sizes]
        self.length = 0

    def append(self, *new: Tensor) -> list[Tensor]:
        """(B, K, T, E) of the new positions, one per buffer -> (B, K, S, E) of all positions."""
        start, self.length = self.length, self.length + new[0].shape[2]
        for buffer, values in zip(self.buffers, new, strict=True):
            buffer[:, :, start : self.length] = values
        return [buffer[:, :, : self.length] for buffer in self.buffers]

    def reserve(self, n_positions: int) -> list[Tensor]:
        """The buffers, after adding `n_positions` positions that the caller must fill."""
        self.length += n_positions
        return self.buffers

    def select(self, rows: Tensor) -> None:
        self.buffers = [buffer[rows] for buffer in self.buffers]

    def check_truncate(self, length: int) -> None:
        """Every length is possible, since all positions are cached."""

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)


class RecentCache:
    """The last `size` positions, along one axis of a buffer."""

    axis: ClassVar[int]

    def __init__(self, buffer: Tensor, size: int) -> None:
        self.buffer, self.size, self.length = buffer, size, 0

    def keep(self, all_positions: Tensor, n_new: int) -> None:
        """Keep the last positions; the last `n_new` of these are new."""
        n = all_positions.shape[self.axis]
        kept = min(n, self.size)
        self.buffer = all_positions.narrow(self.axis, n - kept, kept).clone()  # a slice would keep all of them alive
        self.length += n_new

    def cached_before(self, length: int) -> int:
        """The number of cached positions before `length`."""
        return max(0, self.buffer.shape[self.axis] - (self.length - length))

    def check_truncate(self, length: int) -> None:
        if length < self.length and self.cached_before(length) < min(length, self.size):
            raise ConfigError(f"cannot truncate the cache to length {length}: {self.lost()}; start with a new cache")

    def lost(self) -> str:
        """Why earlier positions are not there."""
        raise NotImplementedError

    def truncate(self, length: int) -> None:
        self.check_truncate(length)
        if length < self.length:
            self.buffer = self.buffer.narrow(self.axis, 0, self.cached_before(length))
            self.length = length


class SlidingWindowCache(RecentCache):
    """Keys and values of the positions that a later query can still attend to."""

    axis = 3

    def __init__(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> None:
        """`size` is the window - 1, since a query attends to itself too."""
        super().__init__(like.new_empty(2, batch, heads, 0, width), size)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, T, E) new keys and values -> (B, K, S, E), cached ones first."""
        kv = torch.cat([self.buffer, torch.stack((k, v)).to(self.buffer.dtype)], dim=3)
        self.keep(kv, k.shape[2])
        return kv[0], kv[1]

    def select(self, rows: Tensor) -> None:
        self.buffer = self.buffer[:, rows]

    def lost(self) -> str:
        return "earlier positions have left the attention window"


class CrossAttentionCache:
    """Keys and values of the encoder's output, computed once."""

    def __init__(self) -> None:
        self.kv: tuple[Tensor, Tensor] | None = None

    def tensors(self) -> list[Tensor]:
        return list(self.kv or ())

    def selected(self, rows: Tensor) -> "CrossAttentionCache":
        """A cache of these rows, in this order."""
        other = CrossAttentionCache()
        other.kv = self.kv
        other.select(rows)
        return other

    def get_or_compute(self, compute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if self.kv is None:
            self.kv = compute()
        return self.kv

    def select(self, rows: Tensor) -> None:
        if self.kv is not None:
            self.kv = self.kv[0][rows], self.kv[1][rows]

    def check_truncate(self, length: int) -> None:
        """Every length is possible: keys and values of the source do not depend on the decoder's length."""

    def truncate(self, length: int) -> None:
        """Nothing to drop: keys and values of the source do not depend on the decoder's length."""


class LookbackLayer(CachedLayer):
    """A layer that reads the inputs of the `lookback` previous positions, within a document."""

    def __init__(self, lookback: int, width: int) -> None:
        super().__init__()
        self.lookback, self.width = lookback, width

    def with_history(self, x: Tensor, ctx: ForwardContext) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, lookback + T, D), zero before the start of a row; and the document ids of these positions."""
        T, cache = x.shape[1], ctx.cache(self)
        inputs = x if cache is None else cache.append(x)
        inputs = F.pad(inputs, (0, 0, self.lookback + T - inputs.shape[1], 0))
        if ctx.document_ids is None:
            return inputs, None
        document_ids = ctx.document_ids[:, max(0, ctx.past_length - self.lookback) :]
        padding = self.lookback + T - document_ids.shape[1]
        return inputs, F.pad(document_ids, (padding, 0))  # any number: padded inputs are 0

    def previous_inputs(self, x: Tensor, ctx: ForwardContext) -> list[Tensor]:
        """(B, T, D) -> x_{t-1}, ..., x_{t-lookback}, each (B, T, D), zero outside the token's document."""
        T = x.shape[1]
        inputs, document_ids = self.with_history(x, ctx)
        slices = [slice(self.lookback - k, self.lookback - k + T) for k in range(1, self.lookback + 1)]
        if document_ids is None:
            return [inputs[:, positions] for positions in slices]
        current = document_ids[:, self.lookback :]
        return [
            inputs[:, positions].masked_fill((document_ids[:, positions] != current).unsqueeze(-1), 0)
            for positions in slices
        ]

    def new_cache(self, batch: int, max_length: int, like: Tensor) -> "ConvCache":
        return ConvCache(batch, self.lookback, self.width, like)


class ConvCache(RecentCache):
    """The last inputs of a LookbackLayer."""

    axis = 1

    def __init__(self, batch: int, lookback: int, width: int, like: Tensor) -> None:
        super().__init__(like.new_empty(batch, 0, width), lookback)

    def append(self, x: Tensor) -> Tensor:
        """(B, T, D) new inputs -> (B, up to lookback + T, D), cached ones first."""
        inputs = torch.cat([self.buffer.to(x.dtype), x], dim=1)
        self.keep(inputs, x.shape[1])
        return inputs

    def select(self, rows: Tensor) -> None:
        self.buffer = self.buffer[rows]

    def lost(self) -> str:
        return f"it keeps only the last {self.size} inputs"
