"""Tables on terminals of any width: nothing is cut, no number or interval is split, and text wraps between words."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from partwise.plots.text_table import TextTable

COLUMNS = ["minus mingpt", "n", "parameters", "interval", "verdict"]
ROWS = [
    ["positions=rope", "4", "8,030,261,248", "-0.2372 to -0.1680 (97.5%)", "better"],
    ["ffn=swiglu [bold]train.lr=1e-3", "16", "111,553", "-0.0063 to 0.0153 (98.33%)", "equivalent"],
]
SENTENCE = "Shazeer (2020): gated units lower the loss of a transformer of the same size and cost."


def lines(table: TextTable, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_wide_terminal_has_one_line_per_row() -> None:
    head, *rows = lines(TextTable(COLUMNS, ROWS), 100)
    assert head.split() == " ".join(COLUMNS).split()
    assert [" ".join(row.split()) for row in rows] == [" ".join(row) for row in ROWS]
    ends = {row.index(cells[3]) + len(cells[3]) for row, cells in zip(rows, ROWS, strict=True)}
    assert len(ends) == 1, "intervals are right-aligned"


def test_names_of_columns_wrap_before_rows_do() -> None:
    table = TextTable(["seeds", "equal arms: equivalent", "looks"], [["8", "71%", "4, 8"]])
    shown = [line.split() for line in lines(table, 26)]
    assert shown[-1] == ["8", "71%", "4,", "8"]
    assert sorted(word for line in shown[:-1] for word in line) == ["arms:", "equal", "equivalent", "looks", "seeds"]
    assert len(shown) == 3


def test_a_narrow_terminal_has_a_block_per_row() -> None:
    shown = lines(TextTable(COLUMNS, ROWS, title="a title"), 40)
    assert shown[:6] == [
        "a title",
        "minus mingpt",
        "positions=rope",
        "  n           4",
        "  parameters  8,030,261,248",
        "  interval    -0.2372 to -0.1680 (97.5%)",
    ]
    assert len(shown) == 2 + len(ROWS) * len(COLUMNS)


def test_a_long_name_has_a_line_of_its_own() -> None:
    rows = [["attention.n_kv_heads=2_ffn=swiglu", "4", "-0.2372"], ["ffn=swiglu", "16", "0.0153"]]
    assert lines(TextTable(["minus mingpt", "n", "mean"], rows, title="a title"), 40) == [
        "a title",
        "minus mingpt",
        "   n     mean",
        "attention.n_kv_heads=2_ffn=swiglu",
        "   4  -0.2372",
        "ffn=swiglu",
        "  16   0.0153",
    ]


def test_empty_names_and_cells_take_no_line() -> None:
    table = TextTable(["", "value", ""], [["SD of a paired difference", "0.0123456789", ""], ["n", "", "a note"]])
    assert lines(table, 24) == ["SD of a paired", "difference", "  value  0.0123456789", "n", "  a note"]


def test_a_name_and_its_value_share_a_line_if_they_fit() -> None:
    rows = [
        ["d_model", "96"],
        ["attention", "multihead n_heads=8 attention_backend=auto"],
        ["share_embeddings", "true"],
    ]
    assert lines(TextTable(["", ""], rows), 36) == [
        "d_model           96",
        "attention",
        "    multihead n_heads=8",
        "    attention_backend=auto",
        "share_embeddings  true",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 132])
def test_text_wraps_between_words(width: int) -> None:
    rows = [["glu", SENTENCE, "3", "supported"], ["a-study-of-kv-heads", SENTENCE, "12", "not supported"]]
    shown = lines(TextTable(["study", "claim", "comparisons", "result"], rows), width)
    assert max(map(len, shown)) <= width
    words = " ".join(shown).split()
    assert all(words.count(word) >= 2 for word in SENTENCE.split())
    assert sum("not supported" in line for line in shown) == 1


@given(
    width=st.integers(24, 120),
    rows=st.lists(
        st.tuples(
            st.text("abc =", min_size=1, max_size=50).map(lambda text: " ".join(text.split()) or "a"),
            st.integers(0, 10**13).map(lambda n: f"{n:,}"),
            st.text("xyz ", max_size=70).map(lambda text: " ".join(text.split())),
            st.integers(0, 10**5).map(lambda n: f"{-n / 1e4} to {n / 1e4}"),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_nothing_is_lost_at_any_width(width: int, rows: list[tuple[str, ...]]) -> None:
    shown = lines(TextTable(["name", "count", "text", "span"], rows), width)
    assert max(map(len, shown)) <= width
    for _, count, _, span in rows:
        assert any(count in line for line in shown) and any(span in line for line in shown)
    drawn = "".join(shown)
    for character in "bz=":  # in no column's name
        assert drawn.count(character) == sum(cell.count(character) for row in rows for cell in row)
