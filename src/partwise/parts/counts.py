"""What has been counted beforehand, mixed into what the model says of the next token: what stands at `counts=`."""

import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from partwise.config import part
from partwise.parts.families import Counts, CountsLayer, Flow
from partwise.parts.memories import LookingBack
from partwise.parts.ngram import KneserNey

WHOLE = 2**22
"""Numbers up to which distributions after no and after one token are kept whole: most of what is added comes from these."""


@part("none")
class NoCounts(Counts):
    """z: the logits that the model gives."""

    def build(self, vocab_size: int) -> CountsLayer:
        return NothingCounted()


@part("kneser_ney")
class KneserNeyCounts(Counts):
    """log((1 - w) softmax(z) + w P), where P(next | last `context` tokens) is counted in the training text, w = `weight`.

    P is modified Kneser-Ney over its first `limit` tokens (Chen & Goodman 1998, Harvard TR-10-98), mixed in as Mikolov et
    al. 2010, Interspeech, do. Training sees the model's own logits: the table knows the answers there. A table
    of counts and a transformer err at different places, so that the two together are better than either.
    """

    context: int = Field(6, ge=0, le=15)
    weight: float = Field(0.5, gt=0, lt=1)
    limit: int = Field(2_000_000, ge=1, le=2**28)

    def build(self, vocab_size: int) -> CountsLayer:
        return MixedCounts(vocab_size, self.context, self.weight, self.limit)


class NothingCounted(CountsLayer):
    def forward(self, logits: Tensor, tokens: Tensor, flow: Flow) -> Tensor:
        return logits


class Order(NamedTuple):
    """All n-grams of one length, by their contexts. A context of rank -1, the last one, was not seen."""

    keys: Tensor  # int64, sorted: rank of the context, times the number of symbols, plus rank of the last token
    first: Tensor  # (contexts + 2,) where the n-grams of each context begin
    last: Tensor  # the id of each n-gram's last token
    weight: Tensor  # what each gives to it
    backoff: Tensor  # (contexts + 1,) what each context leaves to the shorter one

    def spread(self, p: Tensor, contexts: Tensor) -> None:
        """P of the shorter contexts, in place to that of these: (N, V), (N,)."""
        number = self.first[contexts + 1] - self.first[contexts]
        p *= self.backoff[contexts].unsqueeze(-1)
        row = torch.arange(len(p), device=p.device).repeat_interleave(number)
        found = torch.arange(len(row), device=p.device) + (self.first[contexts] - number.cumsum(0) + number)[row]
        p.view(-1).index_add_(0, row * p.shape[1] + self.last[found], self.weight[found])


class Tables(NamedTuple):
    ranks: Tensor  # (V,) of each id among the symbols that occur, -1 for the others
    symbols: int
    orders: list[Order]
    whole: list[Tensor]  # of the first orders, the whole distribution after each context, (contexts + 1, V)

    @classmethod
    def of(cls, counted: KneserNey, like: Tensor) -> Self:
        """Those of counts, on the device and in the precision of `like`."""

        def whole(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(like.device)

        symbols, orders = counted.symbols, []
        ranks = np.full(counted.vocab_size, -1)
        ranks[symbols] = np.arange(len(symbols))
        for order in counted.orders:
            contexts = np.arange(len(order.backoff))  # the last of them stands for those that were not seen
            first = np.append(np.searchsorted(order.keys, contexts * len(symbols)), len(order.keys))
            last = symbols[order.keys % len(symbols)]
            weight, backoff = (torch.from_numpy(values).to(like) for values in (order.weight[:-1], order.backoff))
            orders.append(Order(whole(order.keys), whole(first), whole(last), weight, backoff))
        found, p = [], like.new_full((1, counted.vocab_size), 1 / counted.vocab_size)
        for shorter in orders[:2]:
            every = torch.arange(len(shorter.backoff), device=p.device)
            if len(every) * counted.vocab_size > WHOLE:
                break
            p = p[:1].repeat(len(every), 1)
            shorter.spread(p, every)
            found.append(p)
        return cls(whole(ranks), len(symbols), orders, found)


class MixedCounts(CountsLayer, LookingBack):
    """The text that was counted is saved with the weights; its tables are made from it when they are first asked for."""

    text: Tensor

    def __init__(self, vocab_size: int, context: int, weight: float, limit: int) -> None:
        super().__init__(reach=max(1, context), width=1)
        self.vocab_size, self.context, self.weight, self.limit = vocab_size, context, weight, limit
        self.register_buffer("text", torch.empty(0, dtype=torch.uint8 if vocab_size <= 256 else torch.int32))
        self._tables: Tables | None = None

    def count(self, ids: np.ndarray) -> None:
        self.make_room(len(ids))
        self.text.copy_(torch.from_numpy(ids[: self.limit].astype(np.int64)))

    def make_room(self, length: int) -> None:
        self.text, self._tables = self.text.new_empty(min(length, self.limit)), None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.make_room(state_dict[f"{prefix}text"].numel() if f"{prefix}text" in state_dict else 0)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._tables = None  # they lie where the text lay
        return super()._apply(*args, **kwargs)

    def forward(self, logits: Tensor, tokens: Tensor, flow: Flow) -> Tensor:  # (B, T, V), (B, T) -> (B, T, V)
        if self.training or not len(self.text):
            return logits
        wide = logits if logits.dtype == torch.float64 else logits.float()
        counted = self.probabilities(tokens, flow, wide)
        mixed = torch.logaddexp(
            F.log_softmax(wide, -1) + math.log1p(-self.weight), counted.log() + math.log(self.weight)
        )
        return mixed.to(logits.dtype)

    @torch.no_grad()
    def probabilities(self, tokens: Tensor, flow: Flow, like: Tensor) -> Tensor:
        """(B, T, V) of what may follow each of (B, T) tokens, in the precision of `like`."""
        tables, V = self.tables(like), self.vocab_size
        B, T = tokens.shape
        ranks = self.ranks(tokens, flow, tables)
        at = len(tables.whole)
        p = tables.whole[-1][ranks[at - 1]] if at else like.new_full((B * T, V), 1 / V)
        for order, contexts in zip(tables.orders[at:], ranks[at:], strict=False):
            order.spread(p, contexts)
        return p.view(B, T, V)

    def ranks(self, tokens: Tensor, flow: Flow, tables: Tables) -> list[Tensor]:
        """For each order, the rank of every token's context, itself its last token: (B T,), the last rank where unseen."""
        T = tokens.shape[1]
        whole, documents = self.whole(tokens.unsqueeze(-1) + 1, flow)  # zero is what lies before a row
        ids = whole.squeeze(-1) - 1  # (B, reach + T)
        own = torch.where(ids < 0, -1, tables.ranks[ids.clamp(min=0)])
        found = [torch.zeros_like(own)]  # of the empty context
        for order in tables.orders[: self.context]:
            before = F.pad(found[-1], (1, -1), value=-1) if len(found) > 1 else found[-1]
            known = (before >= 0) & (own >= 0)
            if len(found) > 1 and documents is not None:
                known[:, 1:] &= documents[:, 1:] == documents[:, :-1]
            keys = torch.where(known, before * tables.symbols + own, -1)
            place = torch.searchsorted(order.keys, keys).clamp(max=len(order.keys) - 1)
            found.append(torch.where(order.keys[place] == keys, place, -1))
        return [
            torch.where(rank < 0, len(order.backoff) - 1, rank)[:, -T:].flatten()
            for order, rank in zip(tables.orders, found, strict=False)
        ]

    def tables(self, like: Tensor) -> Tables:
        made = self._tables
        if made is None or made.orders[0].weight.dtype != like.dtype:
            counted = KneserNey(self.text.cpu().numpy().astype(np.int64), self.vocab_size, self.context)
            made = self._tables = Tables.of(counted, like)
        return made
