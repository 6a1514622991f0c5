"""What a token and those before it look up in tables: what stands at `lookup=`, beside the embedding."""

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.families import Flow, Lookup, Site
from partwise.parts.layers import Dropout, table
from partwise.parts.memories import LookingBack

PRIME = 2**31 - 1
FACTOR = 1_103_515_245
"""A key is a polynomial of the ids at FACTOR, modulo PRIME: 64 bits hold every product."""


@part("none")
class NoLookup(Lookup):
    """x: the embedding alone tells which token it is."""

    def build(self, site: Site, vocab_size: int) -> nn.Module:
        return NothingLookedUp()


@part("ngrams")
class NGrams(Lookup):
    """x_t + sum_n table_n[i_{t-n+1} ... i_t], n = 2 ... longest: vectors of the last tokens, found by a hash.

    Hash n-gram embeddings of Pagnoni et al. 2024 (BLT), arXiv:2412.09871, section 3.2.1. A table of at least (V + 1)^n
    rows has one for each n-gram; in a smaller one n-grams share `rows` of them. Where the text or the document has not
    begun stands a token of its own. Cheap in operations, and quick to learn what a few tokens tell; of a short text it
    learns too much without `dropout`, which falls on the sum of the rows.
    """

    longest: int = Field(4, ge=2, le=16)
    rows: int = Field(2**15, ge=1, le=2**28)
    dropout: float = Field(0.0, ge=0, lt=1)

    def build(self, site: Site, vocab_size: int) -> nn.Module:
        rows = [min((vocab_size + 1) ** length, self.rows) for length in range(2, self.longest + 1)]
        return NGramTables(vocab_size, rows, site.d_model, self.dropout)


class NothingLookedUp(nn.Module):
    def forward(self, x: Tensor, tokens: Tensor, flow: Flow) -> Tensor:
        return x


class NGramTables(LookingBack):
    """Tables for 2, 3, ... tokens, of as many rows as `rows` says."""

    def __init__(self, vocab_size: int, rows: list[int], d_model: int, dropout: float) -> None:
        super().__init__(reach=len(rows), width=1)
        self.vocab_size, self.rows = vocab_size, rows
        self.tables = nn.ModuleList(table(number, d_model) for number in rows)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, tokens: Tensor, flow: Flow) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        found = [rows(keys) for rows, keys in zip(self.tables, self.keys(tokens, flow), strict=True)]
        return x + self.dropout(torch.stack(found).sum(dim=0))

    def keys(self, tokens: Tensor, flow: Flow) -> list[Tensor]:
        """(B, T) row numbers into each table."""
        own = tokens.unsqueeze(-1) + 1  # zero is what lies before a document
        exact = hashed = own
        keys, place = [], 1
        for before, rows in zip(self.earlier(own, flow), self.rows, strict=True):
            place *= self.vocab_size + 1
            hashed = (hashed * FACTOR + before) % PRIME
            if place * (self.vocab_size + 1) <= rows:
                exact = exact + before * place
                keys.append(exact)
            else:
                keys.append(hashed % rows)
        return [key.squeeze(-1) for key in keys]
