"""Tables of n-grams against a dictionary of the n-grams that stand in the text."""

from itertools import product

import pytest
import torch

import partwise
from partwise.config import ConfigError
from partwise.parts.families import Flow, PositionLayer
from partwise.parts.lookup import NGramTables
from partwise.train.optimizers import Optimizer

V, T = 5, 9


def layer(longest: int, rows: int, width: int = 3) -> NGramTables:
    made = partwise.parts.lookup.NGrams(longest=longest, rows=rows).build(partwise.parts.families.Site(width, 1, T), V)
    assert isinstance(made, NGramTables)
    torch.manual_seed(0)
    for table in made.tables:
        torch.nn.init.normal_(table.weight)
    return made.double()


def flow(segments: torch.Tensor | None = None) -> Flow:
    return Flow(PositionLayer(), torch.arange(T), segments=segments)


def ngram(row: list[int], documents: list[int], place: int, length: int) -> tuple[int | None, ...]:
    """The n-gram that ends at a place, none where its document has not begun."""
    back = range(place - length + 1, place + 1)
    return tuple(row[each] if each >= 0 and documents[each] == documents[place] else None for each in back)


@pytest.mark.parametrize("longest", [2, 3, 4])
def test_an_exact_table_has_one_row_for_each_ngram(longest: int) -> None:
    made = layer(longest, rows=(V + 1) ** longest)
    tokens = torch.randint(V, (40, T), generator=torch.Generator().manual_seed(1))
    documents = torch.arange(T) // 4 + torch.zeros(40, 1, dtype=torch.long)
    keys = made.keys(tokens, flow(documents))
    assert [table.num_embeddings for table in made.tables] == [(V + 1) ** n for n in range(2, longest + 1)]
    for length, found in enumerate(keys, start=2):
        rows: dict[tuple[int | None, ...], int] = {}
        for row, place in product(range(40), range(T)):
            seen = ngram(tokens[row].tolist(), documents[row].tolist(), place, length)
            assert rows.setdefault(seen, int(found[row, place])) == found[row, place]
        assert len(set(rows.values())) == len(rows)


def test_hashed_rows_are_those_of_their_ngram_alone_and_spread() -> None:
    made = layer(3, rows=64)
    tokens = torch.randint(V, (200, T), generator=torch.Generator().manual_seed(2))
    pairs, triples = made.keys(tokens, flow())
    assert int(pairs.max()) < 36 and int(triples.max()) < 64
    rows: dict[tuple[int | None, ...], int] = {}
    for row, place in product(range(200), range(T)):
        seen = ngram(tokens[row].tolist(), [0] * T, place, 3)
        assert rows.setdefault(seen, int(triples[row, place])) == triples[row, place]
    # 5^3 triples and some borders in 64 rows: a good hash leaves few of them empty
    assert len(set(rows.values())) > 45


def test_what_is_added_is_the_sum_of_the_rows() -> None:
    made = layer(3, rows=40)
    tokens = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(3))
    x = torch.randn(2, T, 3, dtype=torch.float64)
    keys = made.keys(tokens, flow())
    for row, place in product(range(2), range(T)):
        wanted = x[row, place].clone()
        for table, key in zip(made.tables, keys, strict=True):
            wanted += table.weight[key[row, place]]
        torch.testing.assert_close(made(x, tokens, flow())[row, place], wanted, rtol=1e-12, atol=1e-12)


def test_keys_stay_in_64_bits_for_the_largest_vocabulary() -> None:
    made = NGramTables(2**24, [2**20] * 15, 1, 0.0)
    tokens = torch.full((1, T), 2**24 - 1)
    assert all(int(key.min()) >= 0 and int(key.max()) < 2**20 for key in made.keys(tokens, flow()))


def test_tables_are_learned_by_adamw_beside_muon() -> None:
    model = partwise.Transformer(partwise.preset("mingpt", "lookup=ngrams", "lookup.rows=100", "n_layers=1"))
    groups = Optimizer.resolve("muon").build(model, 1e-3).param_groups
    kinds = {id(parameter): group["kind"] for group in groups for parameter in group["params"]}
    assert {kinds[id(table.weight)] for table in model.lookup.tables} == {"adamw"}


def test_a_table_that_no_machine_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lookup\.rows"):
        partwise.preset("mingpt", "lookup=ngrams", "lookup.rows=0")
