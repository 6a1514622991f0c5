"""What a model remembers while generating, and where tokens stand in rows of several documents."""

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.parts.families import State


class States:
    """What the layers of a stack remember while generating, and how many positions they have seen."""

    def __init__(self, layers: list[State], limit: int) -> None:
        self.layers, self.limit, self.length = layers, limit, 0
        self.segments: Tensor | None = None  # (B, length)
        self.memory: Tensor | None = None
        self.memory_padding: Tensor | None = None

    def extend(self, tokens: Tensor, segments: Tensor | None) -> Tensor | None:
        """The document of every place, that of (B, T) more tokens included: where not given, they continue the last."""
        if segments is None and self.segments is not None:
            segments = self.segments[:, -1:].expand(tokens.shape)
        if segments is not None:
            if self.segments is None and self.length:
                raise ConfigError("segments came after a call without them: give them from the first token on")
            self.segments = segments if self.segments is None else torch.cat([self.segments, segments], dim=1)
        return self.segments

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.select(rows)
        for name in ("segments", "memory", "memory_padding"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name)[rows])

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on. Raises ConfigError, and forgets nothing, where a layer cannot."""
        for layer in self.layers:
            layer.check(length)
        for layer in self.layers:
            layer.truncate(length)
        self.length = min(self.length, length)
        self.segments = None if self.segments is None else self.segments[:, :length]


def place_in_document(segments: Tensor | None, length: int, device: torch.device) -> Tensor:
    """(S,) the positions 0, 1, ...; with (B, S) segments, (B, S) positions that start anew with every document."""
    places = torch.arange(length, device=device)
    if segments is None:
        return places
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return places - torch.where(starts, places, 0).cummax(dim=1).values
