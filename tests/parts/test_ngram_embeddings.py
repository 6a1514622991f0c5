"""N-gram tables against a dictionary of the n-grams in the text."""

from itertools import product

import pytest
import torch

import partwise
from partwise.config import ConfigError
from partwise.parts.contracts import ForwardContext, PositionLayer
from partwise.parts.ngram_embeddings import NGramTables
from partwise.train.optimizers import Optimizer

V, T = 5, 9


def layer(max_n: int, table_size: int, width: int = 3) -> NGramTables:
    tables = partwise.parts.ngram_embeddings.HashedNGrams(max_n=max_n, table_size=table_size).build(
        partwise.parts.contracts.LayerContext(width, 1, T), V
    )
    assert isinstance(tables, NGramTables)
    torch.manual_seed(0)
    for table in tables.tables:
        torch.nn.init.normal_(table.weight)
    return tables.double()


def ctx(document_ids: torch.Tensor | None = None) -> ForwardContext:
    return ForwardContext(PositionLayer(), torch.arange(T), document_ids=document_ids)


def ngram(row: list[int], documents: list[int], position: int, length: int) -> tuple[int | None, ...]:
    """The n-gram that ends at a position, with None before the start of its document."""
    span = range(position - length + 1, position + 1)
    return tuple(row[each] if each >= 0 and documents[each] == documents[position] else None for each in span)


@pytest.mark.parametrize("max_n", [2, 3, 4])
def test_exact_tables_have_one_row_per_ngram(max_n: int) -> None:
    tables = layer(max_n, table_size=(V + 1) ** max_n)
    tokens = torch.randint(V, (40, T), generator=torch.Generator().manual_seed(1))
    documents = torch.arange(T) // 4 + torch.zeros(40, 1, dtype=torch.long)
    ids = tables.ngram_ids(tokens, ctx(documents))
    assert [table.num_embeddings for table in tables.tables] == [(V + 1) ** n for n in range(2, max_n + 1)]
    for length, found in enumerate(ids, start=2):
        rows: dict[tuple[int | None, ...], int] = {}
        for row, position in product(range(40), range(T)):
            seen = ngram(tokens[row].tolist(), documents[row].tolist(), position, length)
            assert rows.setdefault(seen, int(found[row, position])) == found[row, position]
        assert len(set(rows.values())) == len(rows)


def test_hashed_rows_depend_only_on_the_ngram_and_are_spread() -> None:
    tables = layer(3, table_size=64)
    tokens = torch.randint(V, (200, T), generator=torch.Generator().manual_seed(2))
    bigrams, trigrams = tables.ngram_ids(tokens, ctx())
    assert int(bigrams.max()) < 36 and int(trigrams.max()) < 64
    rows: dict[tuple[int | None, ...], int] = {}
    for row, position in product(range(200), range(T)):
        seen = ngram(tokens[row].tolist(), [0] * T, position, 3)
        assert rows.setdefault(seen, int(trigrams[row, position])) == trigrams[row, position]
    # 5^3 trigrams and some boundary n-grams in 64 rows: a good hash leaves few rows empty
    assert len(set(rows.values())) > 45


def test_output_adds_the_sum_of_the_rows() -> None:
    tables = layer(3, table_size=40)
    tokens = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(3))
    x = torch.randn(2, T, 3, dtype=torch.float64)
    ids = tables.ngram_ids(tokens, ctx())
    for row, position in product(range(2), range(T)):
        expected = x[row, position].clone()
        for table, index in zip(tables.tables, ids, strict=True):
            expected += table.weight[index[row, position]]
        torch.testing.assert_close(tables(x, tokens, ctx())[row, position], expected, rtol=1e-12, atol=1e-12)


def test_hashes_do_not_overflow_with_the_largest_vocabulary() -> None:
    tables = NGramTables(2**24, [2**20] * 15, 1, 0.0)
    tokens = torch.full((1, T), 2**24 - 1)
    assert all(int(index.min()) >= 0 and int(index.max()) < 2**20 for index in tables.ngram_ids(tokens, ctx()))


def test_muon_trains_tables_by_adamw() -> None:
    model = partwise.Transformer(
        partwise.preset("mingpt", "ngram_embeddings=hashed", "ngram_embeddings.table_size=100", "n_layers=1")
    )
    groups = Optimizer.resolve("muon").build(model, 1e-3).param_groups
    kinds = {id(parameter): group["kind"] for group in groups for parameter in group["params"]}
    assert {kinds[id(table.weight)] for table in model.lookup.tables} == {"adamw"}


def test_invalid_table_size() -> None:
    with pytest.raises(ConfigError, match=r"ngram_embeddings\.table_size"):
        partwise.preset("mingpt", "ngram_embeddings=hashed", "ngram_embeddings.table_size=0")
