"""The cache of a model in generation, and the positions of tokens in packed rows."""

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.parts.contracts import LayerCache


class Cache:
    """The caches of all layers of a stack in generation, and the number of positions they hold."""

    def __init__(self, layers: list[LayerCache], max_length: int) -> None:
        self.layers, self.max_length, self.length = layers, max_length, 0
        self.document_ids: Tensor | None = None  # (B, length)
        self.memory: Tensor | None = None
        self.memory_padding: Tensor | None = None

    def extend_document_ids(self, tokens: Tensor, document_ids: Tensor | None) -> Tensor | None:
        """The document ids of all positions, including (B, T) new tokens (default: they continue the last document)."""
        if document_ids is None and self.document_ids is not None:
            document_ids = self.document_ids[:, -1:].expand(tokens.shape)
        if document_ids is not None:
            if self.document_ids is None and self.length:
                raise ConfigError(
                    "document_ids given for a cache filled without document_ids: pass document_ids from the first call"
                )
            old = self.document_ids
            self.document_ids = document_ids if old is None else torch.cat([old, document_ids], dim=1)
        return self.document_ids

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        for layer in self.layers:
            layer.select(rows)
        for name in ("document_ids", "memory", "memory_padding"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name)[rows])

    def truncate(self, length: int) -> None:
        """Drop every position from `length` on. Raises ConfigError, without changes, if a layer does not support it."""
        for layer in self.layers:
            layer.check_truncate(length)
        for layer in self.layers:
            layer.truncate(length)
        self.length = min(self.length, length)
        self.document_ids = None if self.document_ids is None else self.document_ids[:, :length]


def position_ids_from_document_ids(document_ids: Tensor | None, length: int, device: torch.device) -> Tensor:
    """(S,) the positions 0, 1, ...; with (B, S) document ids, (B, S) positions that restart at 0 in every document."""
    positions = torch.arange(length, device=device)
    if document_ids is None:
        return positions
    starts = torch.ones_like(document_ids, dtype=torch.bool)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return positions - torch.where(starts, positions, 0).cummax(dim=1).values
