"""Interpolation with an n-gram language model, `ngram_lm=`."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from partwise.baselines.kneser_ney import KneserNey
from partwise.config import part
from partwise.parts.caches import LookbackLayer
from partwise.parts.contracts import FittedLayer, ForwardContext, NGramLM, NGramLMLayer

MAX_DENSE_ELEMENTS = 2**22
"""Maximum size of a dense table of all unigram or bigram distributions, which hold most of the entries to add."""


@part("none")
class NoNGramLM(NGramLM):
    """z: the model's logits."""

    def build(self, vocab_size: int) -> NGramLMLayer:
        return IdentityNGramLM()


@part("kneser_ney")
class KneserNeyLM(NGramLM):
    """log((1 - w) softmax(z) + w P), w = `interpolation_weight`, with n-gram probabilities P(next | last `context_tokens`).

    P is a modified Kneser-Ney model (Chen & Goodman 1998, Harvard TR-10-98) of the first `max_tokens` tokens of the
    training text, interpolated as in Mikolov et al. 2010, Interspeech. Training uses only the model's own logits, since
    the n-gram language model has seen the answers. N-gram language models and transformers make different errors, so
    their interpolation beats either.
    """

    needs_text: ClassVar[bool] = True

    context_tokens: int = Field(6, ge=0, le=15)
    """Tokens before the predicted one that an n-gram has."""
    interpolation_weight: float = Field(0.5, gt=0, lt=1)
    """The weight w of the n-gram model's probabilities."""
    max_tokens: int = Field(2_000_000, ge=1, le=2**28)
    """Tokens of the training text that are counted."""

    def build(self, vocab_size: int) -> NGramLMLayer:
        return InterpolatedNGramLM(vocab_size, self.context_tokens, self.interpolation_weight, self.max_tokens)


class IdentityNGramLM(NGramLMLayer):
    def forward(self, logits: Tensor, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        return logits


class TensorNGramTable(NamedTuple):
    """All n-grams of one order, sorted by context. The last rank is the one of unseen contexts."""

    keys: Tensor  # int64, sorted: rank of the context * number of symbols + rank of the last token
    first: Tensor  # (contexts + 2,) index of the first n-gram of each context
    last: Tensor  # the id of each n-gram's last token
    weight: Tensor  # discounted probability of each n-gram
    backoff: Tensor  # (contexts + 1,) weight of the shorter context, for each context

    def interpolate(self, p: Tensor, contexts: Tensor) -> None:
        """Update the distributions p (N, V) of the shorter contexts to those of the contexts (N,), in place."""
        n_ngrams = self.first[contexts + 1] - self.first[contexts]
        p *= self.backoff[contexts].unsqueeze(-1)
        row = torch.arange(len(p), device=p.device).repeat_interleave(n_ngrams)
        offset = self.first[contexts] - n_ngrams.cumsum(0) + n_ngrams
        index = torch.arange(len(row), device=p.device) + offset[row]
        p.view(-1).index_add_(0, row * p.shape[1] + self.last[index], self.weight[index])


class TensorKneserNey(NamedTuple):
    ranks: Tensor  # (V,) rank of each id among the symbols that occur, -1 for the others
    n_symbols: int
    orders: list[TensorNGramTable]
    dense: list[Tensor]  # (contexts + 1, V) distribution after each context, for the first orders

    @classmethod
    def from_counts(cls, counts: KneserNey, like: Tensor) -> Self:
        """On the device and in the precision of `like`."""

        def on_device(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(like.device)

        symbols, orders = counts.symbols, []
        ranks = np.full(counts.vocab_size, -1)
        ranks[symbols] = np.arange(len(symbols))
        for order in counts.orders:
            contexts = np.arange(len(order.backoff))  # the last one represents unseen contexts
            first = np.append(np.searchsorted(order.keys, contexts * len(symbols)), len(order.keys))
            last = symbols[order.keys % len(symbols)]
            weight, backoff = (torch.from_numpy(values).to(like) for values in (order.weight[:-1], order.backoff))
            orders.append(TensorNGramTable(on_device(order.keys), on_device(first), on_device(last), weight, backoff))
        dense, p = [], like.new_full((1, counts.vocab_size), 1 / counts.vocab_size)
        for table in orders[:2]:
            every_context = torch.arange(len(table.backoff), device=p.device)
            if len(every_context) * counts.vocab_size > MAX_DENSE_ELEMENTS:
                break
            p = p[:1].repeat(len(every_context), 1)
            table.interpolate(p, every_context)
            dense.append(p)
        return cls(on_device(ranks), len(symbols), orders, dense)


class InterpolatedNGramLM(FittedLayer, NGramLMLayer, LookbackLayer):
    """The training text is saved with the weights; the n-gram language model is built from it on first use."""

    text: Tensor

    def __init__(self, vocab_size: int, context_tokens: int, interpolation_weight: float, max_tokens: int) -> None:
        super().__init__(lookback=max(1, context_tokens), width=1)
        self.vocab_size, self.context_tokens = vocab_size, context_tokens
        self.interpolation_weight, self.max_tokens = interpolation_weight, max_tokens
        self.register_buffer("text", torch.empty(0, dtype=torch.uint8 if vocab_size <= 256 else torch.int32))
        self._ngram_model: TensorKneserNey | None = None

    def fit(self, ids: np.ndarray) -> None:
        text = torch.from_numpy(ids[: self.max_tokens].astype(np.int64))
        self.allocate({"text": text})
        self.text.copy_(text)

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        length = tensors["text"].numel() if "text" in tensors else 0
        self.text, self._ngram_model = self.text.new_empty(min(length, self.max_tokens)), None

    def find_damage(self, tensors: Mapping[str, Tensor]) -> str | None:
        text = tensors["text"]
        # as Python's integers: 8 bits would wrap a vocabulary of 256 to 0
        if len(text) and (
            text.dtype != self.text.dtype or not 0 <= int(text.min()) <= int(text.max()) < self.vocab_size
        ):
            return f"text is not a text of ids below vocab_size={self.vocab_size}"
        return None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.allocate({"text": state_dict[f"{prefix}text"]} if f"{prefix}text" in state_dict else {})
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._ngram_model = None  # it is on the previous device
        return super()._apply(*args, **kwargs)

    def forward(self, logits: Tensor, tokens: Tensor, ctx: ForwardContext) -> Tensor:  # (B, T, V), (B, T) -> (B, T, V)
        if self.training or not len(self.text):
            return logits
        upcast = logits if logits.dtype == torch.float64 else logits.float()
        ngram_p = self.probabilities(tokens, ctx, upcast)
        mixed = torch.logaddexp(
            F.log_softmax(upcast, -1) + math.log1p(-self.interpolation_weight),
            ngram_p.log() + math.log(self.interpolation_weight),
        )
        return mixed.to(logits.dtype)

    @torch.no_grad()
    def probabilities(self, tokens: Tensor, ctx: ForwardContext, like: Tensor) -> Tensor:
        """(B, T, V) n-gram probabilities of the next token after each of (B, T) tokens, in the precision of `like`."""
        model, V = self.ngram_model(like), self.vocab_size
        B, T = tokens.shape
        ranks = self.context_ranks(tokens, ctx, model)
        n_dense = len(model.dense)
        p = model.dense[-1][ranks[n_dense - 1]] if n_dense else like.new_full((B * T, V), 1 / V)
        for order, contexts in zip(model.orders[n_dense:], ranks[n_dense:], strict=False):
            order.interpolate(p, contexts)
        return p.view(B, T, V)

    def context_ranks(self, tokens: Tensor, ctx: ForwardContext, model: TensorKneserNey) -> list[Tensor]:
        """(B T,) for each order: the rank of the context that ends in each token; the last rank if unseen."""
        T = tokens.shape[1]
        inputs, document_ids = self.with_history(tokens.unsqueeze(-1) + 1, ctx)  # zero pads the start of a row
        ids = inputs.squeeze(-1) - 1  # (B, lookback + T)
        symbols = torch.where(ids < 0, -1, model.ranks[ids.clamp(min=0)])
        ranks = [torch.zeros_like(symbols)]  # rank 0: the empty context
        for order in model.orders[: self.context_tokens]:
            previous = F.pad(ranks[-1], (1, -1), value=-1) if len(ranks) > 1 else ranks[-1]
            seen = (previous >= 0) & (symbols >= 0)
            if len(ranks) > 1 and document_ids is not None:
                seen[:, 1:] &= document_ids[:, 1:] == document_ids[:, :-1]
            keys = torch.where(seen, previous * model.n_symbols + symbols, -1)
            index = torch.searchsorted(order.keys, keys).clamp(max=len(order.keys) - 1)
            ranks.append(torch.where(order.keys[index] == keys, index, -1))
        return [
            torch.where(rank < 0, len(order.backoff) - 1, rank)[:, -T:].flatten()
            for order, rank in zip(model.orders, ranks, strict=False)
        ]

    def ngram_model(self, like: Tensor) -> TensorKneserNey:
        model = self._ngram_model
        if model is None or model.orders[0].weight.dtype != like.dtype:
            counts = KneserNey(self.text.cpu().numpy().astype(np.int64), self.vocab_size, self.context_tokens)
            model = self._ngram_model = TensorKneserNey.from_counts(counts, like)
        return model
