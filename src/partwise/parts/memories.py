"""States: what layers remember of the places they have seen."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.config import ConfigError
from partwise.parts.families import Flow, Remembering


class Places:
    """Keys, values or what they are made from, of all places so far, in buffers that are allocated once."""

    def __init__(self, batch: int, length: int, sizes: list[tuple[int, int]], like: Tensor) -> None:
        """`sizes` gives the heads and the width of each tensor that is kept."""
        self.buffers = [like.new_empty(batch, heads, length, width) for heads, width in sizes]
        self.length = 0

    def append(self, *new: Tensor) -> list[Tensor]:
        """(B, K, T, E) of the new places, each as wide as its buffer -> (B, K, S, E) of all of them."""
        start, self.length = self.length, self.length + new[0].shape[2]
        for buffer, values in zip(self.buffers, new, strict=True):
            buffer[:, :, start : self.length] = values
        return [buffer[:, :, : self.length] for buffer in self.buffers]

    def grow(self, count: int) -> list[Tensor]:
        """The buffers, with room for so many more places that whoever asks must fill."""
        self.length += count
        return self.buffers

    def select(self, rows: Tensor) -> None:
        self.buffers = [buffer[rows] for buffer in self.buffers]

    def check(self, length: int) -> None:
        """All places are kept: every length can be gone back to."""

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)


class Window:
    """The keys and values of the last places, as many as a later query may see."""

    def __init__(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> None:
        self.buffer = like.new_empty(2, batch, heads, 0, width)
        self.size = size  # places kept between two calls: one less than the window, as the query is a key itself
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, T, E) new keys and values -> (B, K, S, E) with those kept before them."""
        whole = torch.cat([self.buffer, torch.stack((k, v)).to(self.buffer.dtype)], dim=3)
        self.length += k.shape[2]
        self.buffer = whole[:, :, :, max(0, whole.shape[3] - self.size) :].clone()  # a slice would keep the whole alive
        return whole[0], whole[1]

    def select(self, rows: Tensor) -> None:
        self.buffer = self.buffer[:, rows]

    def left(self, length: int) -> int:
        """How many of the places kept stand before `length`."""
        return max(0, self.buffer.shape[3] - (self.length - length))

    def check(self, length: int) -> None:
        if length < self.length and self.left(length) < min(length, self.size):
            raise ConfigError(f"the states cannot go back to length {length}: the window has moved on; start anew")

    def truncate(self, length: int) -> None:
        self.check(length)
        if length < self.length:
            self.buffer, self.length = self.buffer[:, :, :, : self.left(length)], length


class Static:
    """Keys and values that are made once and never grow."""

    def __init__(self) -> None:
        self.made: tuple[Tensor, Tensor] | None = None

    def once(self, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if self.made is None:
            self.made = make()
        return self.made

    def select(self, rows: Tensor) -> None:
        if self.made is not None:
            self.made = self.made[0][rows], self.made[1][rows]

    def check(self, length: int) -> None:
        """Keys and values of a source do not belong to any position."""

    def truncate(self, length: int) -> None:
        """Keys and values of a source do not belong to any position."""


class LookingBack(Remembering):
    """A layer that sees the inputs of the `reach` places before its own, as far as its document goes."""

    def __init__(self, reach: int, width: int) -> None:
        super().__init__()
        self.reach, self.width = reach, width

    def whole(self, x: Tensor, flow: Flow) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, reach + T, D) with what came before, zero where nothing did; and the documents of these places."""
        T, state = x.shape[1], flow.state(self)
        whole = x if state is None else state.append(x)
        whole = F.pad(whole, (0, 0, self.reach + T - whole.shape[1], 0))
        if flow.segments is None:
            return whole, None
        known = flow.segments[:, max(0, flow.past - self.reach) :]
        return whole, F.pad(known, (self.reach + T - known.shape[1], 0))  # x is zero where this is filled up

    def earlier(self, x: Tensor, flow: Flow) -> list[Tensor]:
        """(B, T, D) -> x_{t-1}, ..., x_{t-reach}, each (B, T, D), zero where that is no token of the same document."""
        T = x.shape[1]
        whole, known = self.whole(x, flow)
        slices = [slice(self.reach - k, self.reach - k + T) for k in range(1, self.reach + 1)]
        if known is None:
            return [whole[:, places] for places in slices]
        own = known[:, self.reach :]
        return [whole[:, places].masked_fill((known[:, places] != own).unsqueeze(-1), 0) for places in slices]

    def new_state(self, batch: int, length: int, like: Tensor) -> "Tail":
        return Tail(batch, self.reach, self.width, like)


class Tail:
    """The last inputs of a layer that looks back, as many as a later place may see."""

    def __init__(self, batch: int, reach: int, width: int, like: Tensor) -> None:
        self.kept = like.new_empty(batch, 0, width)
        self.reach, self.length = reach, 0

    def append(self, x: Tensor) -> Tensor:
        """(B, T, D) new inputs -> (B, up to reach + T, D) with those kept before them."""
        whole = torch.cat([self.kept.to(x.dtype), x], dim=1)
        self.length += x.shape[1]
        self.kept = whole[:, max(0, whole.shape[1] - self.reach) :].clone()  # a slice would keep the whole alive
        return whole

    def select(self, rows: Tensor) -> None:
        self.kept = self.kept[rows]

    def left(self, length: int) -> int:
        """How many of the inputs kept stand before `length`."""
        return max(0, self.kept.shape[1] - (self.length - length))

    def check(self, length: int) -> None:
        if length < self.length and self.left(length) < min(length, self.reach):
            raise ConfigError(
                f"the states cannot go back to length {length}: the last inputs alone were kept; start anew"
            )

    def truncate(self, length: int) -> None:
        self.check(length)
        if length < self.length:
            self.kept, self.length = self.kept[:, : self.left(length)], length
