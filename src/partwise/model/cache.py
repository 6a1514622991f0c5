"""The cache of a model in generation, and the positions of tokens in packed rows."""

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.parts.contracts import LayerCache


class Cache:
    """The caches of all layers of a stack in generation, and the number of positions they hold."""

    def __init__(self, layers: list[LayerCache], max_length: int) -> None:
        self.layers, self.max_length, self.length = layers, max_length, 0
        self.segments: Tensor | None = None  # (B, length)
        self.memory: Tensor | None = None
        self.memory_padding: Tensor | None = None

    def extend_segments(self, tokens: Tensor, segments: Tensor | None) -> Tensor | None:
        """The segments of all positions, including (B, T) new tokens (default: they continue the last segment)."""
        if segments is None and self.segments is not None:
            segments = self.segments[:, -1:].expand(tokens.shape)
        if segments is not None:
            if self.segments is None and self.length:
                raise ConfigError(
                    "segments given for a cache filled without segments: pass segments from the first call"
                )
            self.segments = segments if self.segments is None else torch.cat([self.segments, segments], dim=1)
        return self.segments

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        for layer in self.layers:
            layer.select(rows)
        for name in ("segments", "memory", "memory_padding"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name)[rows])

    def truncate(self, length: int) -> None:
        """Drop every position from `length` on. Raises ConfigError, without changes, if a layer does not support it."""
        for layer in self.layers:
            layer.check_truncate(length)
        for layer in self.layers:
            layer.truncate(length)
        self.length = min(self.length, length)
        self.segments = None if self.segments is None else self.segments[:, :length]


def position_ids_from_segments(segments: Tensor | None, length: int, device: torch.device) -> Tensor:
    """(S,) the positions 0, 1, ...; with (B, S) segments, (B, S) positions that restart at 0 in every segment."""
    positions = torch.arange(length, device=device)
    if segments is None:
        return positions
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return positions - torch.where(starts, positions, 0).cummax(dim=1).values
