"""Embeddings of n-grams, added to token embeddings, `ngram_embeddings=`."""

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.caches import LookbackLayer
from partwise.parts.contracts import ForwardContext, LayerContext, NGramEmbeddings
from partwise.parts.dropout import Dropout
from partwise.parts.layers import embedding_table

PRIME = 2**31 - 1
FACTOR = 1_103_515_245
"""The polynomial rolling hash of the ids: base FACTOR, modulo PRIME. No product overflows 64 bits."""


@part("none")
class NoNGramEmbeddings(NGramEmbeddings):
    """x: token embeddings only."""

    def build(self, layer_ctx: LayerContext, vocab_size: int) -> nn.Module:
        return IdentityNGramEmbeddings()


@part("hashed")
class HashedNGrams(NGramEmbeddings):
    """x_t + sum_n table_n[hash(i_{t-n+1} ... i_t)], n = 2 ... max_n.

    Hash n-gram embeddings of Pagnoni et al. 2024 (BLT), arXiv:2412.09871, section 3.2.1. If (V + 1)^n <= `table_size`,
    every n-gram has its own row; otherwise, n-grams share `table_size` rows. A special token pads the start of a text or
    document. Needs few FLOPs and learns local statistics fast; on a short text it overfits without `dropout`, which is
    applied to the sum of the rows.
    """

    max_n: int = Field(4, ge=2, le=16)
    """The longest n-gram, in tokens."""
    table_size: int = Field(2**15, ge=1, le=2**28)
    """Rows of each table."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the sum of the rows."""

    def build(self, layer_ctx: LayerContext, vocab_size: int) -> nn.Module:
        sizes = [min((vocab_size + 1) ** n, self.table_size) for n in range(2, self.max_n + 1)]
        return NGramTables(vocab_size, sizes, layer_ctx.d_model, self.dropout)


class IdentityNGramEmbeddings(nn.Module):
    def forward(self, x: Tensor, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        return x


class NGramTables(LookbackLayer):
    """Embedding tables for n-grams of 2, 3, ... tokens, of the given sizes."""

    def __init__(self, vocab_size: int, table_sizes: list[int], d_model: int, dropout: float) -> None:
        super().__init__(lookback=len(table_sizes), width=1)
        self.vocab_size, self.table_sizes = vocab_size, table_sizes
        self.tables = nn.ModuleList(embedding_table(size, d_model) for size in table_sizes)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, tokens: Tensor, ctx: ForwardContext) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        embeddings = [table(ids) for table, ids in zip(self.tables, self.ngram_ids(tokens, ctx), strict=True)]
        return x + self.dropout(torch.stack(embeddings).sum(dim=0))

    def ngram_ids(self, tokens: Tensor, ctx: ForwardContext) -> list[Tensor]:
        """(B, T) row indices into each table."""
        current = tokens.unsqueeze(-1) + 1  # zero pads the start of a document
        exact = hashed = current
        ids, factor = [], 1
        for previous, size in zip(self.previous_inputs(current, ctx), self.table_sizes, strict=True):
            factor *= self.vocab_size + 1
            hashed = (hashed * FACTOR + previous) % PRIME
            if factor * (self.vocab_size + 1) <= size:
                exact = exact + previous * factor
                ids.append(exact)
            else:
                ids.append(hashed % size)
        return [each.squeeze(-1) for each in ids]
