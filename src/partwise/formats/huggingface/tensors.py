"""The correspondence of tensors: one tensor of `transformers` for one or several of ours, and its layout."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Layout:
    """The same tensor. Subclasses join several of ours into one of theirs, or order its elements differently.

    Files are read in blocks of rows, the first dimension.
    """

    def shape(self, ours: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The shape of theirs."""
        return (sum(shape[0] for shape in ours), *ours[0][1:])

    def rows(self, shape: Sequence[int]) -> int:
        """The number of rows of a tensor of theirs, of this shape, that must be copied together."""
        return 1

    def part(self, ours: Sequence[Tensor], start: int, stop: int) -> Sequence[Tensor]:
        """The part of our tensors that rows `start` to `stop` of theirs fill."""
        return [tensor[start:stop] for tensor in ours]

    def join(self, ours: Sequence[Tensor]) -> Tensor:
        (tensor,) = ours
        return tensor

    def split(self, theirs: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """The inverse of `join`; `sizes` are the first dimensions of ours."""
        return [theirs]


class Whole(Layout):
    """Layouts that cannot be read row by row: each tensor is read at once."""

    def rows(self, shape: Sequence[int]) -> int:
        return shape[0]

    def part(self, ours: Sequence[Tensor], start: int, stop: int) -> Sequence[Tensor]:
        return ours


class Transposed(Whole):
    """Ours (out, in), one below the other, are theirs (in, out); vectors are concatenated."""

    def shape(self, ours: Sequence[Sequence[int]]) -> tuple[int, ...]:
        return super().shape(ours)[::-1]

    def join(self, ours: Sequence[Tensor]) -> Tensor:
        tensor = torch.cat(list(ours)) if len(ours) > 1 else ours[0]
        return tensor.T if tensor.dim() == 2 else tensor

    def split(self, theirs: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return list((theirs.T if theirs.dim() == 2 else theirs).split(list(sizes)))


class Rows(Whole):
    """Ours one below the other."""

    def join(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(ours))

    def split(self, theirs: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return list(theirs.split(list(sizes)))


@dataclass(frozen=True)
class RowsByHead(Whole):
    """For each head, its rows of each of our tensors."""

    n_heads: int

    def join(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.unflatten(0, (self.n_heads, -1)) for tensor in ours], dim=1).flatten(0, 1)

    def split(self, theirs: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        pieces = theirs.unflatten(0, (self.n_heads, -1)).split([size // self.n_heads for size in sizes], dim=1)
        return [piece.flatten(0, 1) for piece in pieces]


@dataclass(frozen=True)
class SwappedHalves(Layout):
    """The two halves of each head's rows in reverse order: a rotation in the opposite direction."""

    head_dim: int

    def rows(self, shape: Sequence[int]) -> int:
        return self.head_dim

    def join(self, ours: Sequence[Tensor]) -> Tensor:
        (tensor,) = ours
        return tensor.unflatten(0, (-1, 2, self.head_dim // 2)).flip(1).flatten(0, 2)

    def split(self, theirs: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return [self.join([theirs])]


@dataclass(frozen=True)
class Offset(Whole):
    """Ours below a number of unused rows."""

    unused: int

    def shape(self, ours: Sequence[Sequence[int]]) -> tuple[int, ...]:
        length, *rest = super().shape(ours)
        return (length + self.unused, *rest)

    def join(self, ours: Sequence[Tensor]) -> Tensor:
        (tensor,) = ours
        return torch.cat([torch.zeros_like(tensor[:1]).expand(self.unused, -1), tensor])

    def split(self, theirs: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return [theirs[self.unused :]]


SAME = Layout()


@dataclass(frozen=True)
class TensorRule:
    """A tensor of theirs and those of ours that it consists of; of `expert`, the part of ours with this index."""

    theirs: str
    ours: tuple[str, ...]
    layout: Layout = SAME
    expert: int | None = None

    def sources(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        found = [tensors[name] for name in self.ours]
        return found if self.expert is None else [tensor[self.expert] for tensor in found]

    def join(self, tensors: dict[str, Tensor]) -> Tensor:
        """Theirs, from all of ours by name."""
        return self.layout.join(self.sources(tensors))

    def shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The shape of theirs, from all of ours by name."""
        skipped = 0 if self.expert is None else 1
        return self.layout.shape([tensors[name].shape[skipped:] for name in self.ours])

    def rows(self, shape: Sequence[int]) -> int:
        """The number of rows of theirs that must be copied together."""
        return self.layout.rows(shape)

    @torch.no_grad()
    def copy_rows(self, start: int, theirs: Tensor, tensors: dict[str, Tensor]) -> None:
        """Copy rows of theirs from `start` into ours, in the precision of ours."""
        targets = self.layout.part(self.sources(tensors), start, start + len(theirs))
        pieces = self.layout.split(theirs, [len(target) for target in targets])
        for target, piece in zip(targets, pieces, strict=True):
            target.copy_(piece)


def rules_for(prefix: str, ours: str, theirs: str, has_bias: bool, layout: Layout = SAME) -> Iterator[TensorRule]:
    """The weight, and the bias if there is one, of a linear layer or norm."""
    for kind in ("weight", "bias") if has_bias else ("weight",):
        yield TensorRule(f"{theirs}.{kind}", tuple(f"{prefix}{name}.{kind}" for name in ours.split()), layout)
