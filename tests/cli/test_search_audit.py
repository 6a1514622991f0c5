"""`partwise verdict results.tsv --search`: the audit as text and JSON, without torch, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.schemas import SearchDocument
from partwise.config import ConfigError

HEADER = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
ROWS = "a1\t0.9980\t44.0\tkeep\tbaseline\nb2\t0.9978\t44.0\tkeep\t=wider\tMLP\nc3\t0.000000\t0.0\tcrash\tOOM\n"
REPEATS = "b2\t0.9984\t44.0\tdiscard\tagain\nb2\t0.9981\t44.0\tdiscard\tagain\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("results.tsv").write_text(HEADER + ROWS + REPEATS)
    Path("once.tsv").write_text(HEADER + ROWS)
    return tmp_path


def output(*words: str) -> str:
    done = CliRunner().invoke(app, ["verdict", *words])
    assert done.exit_code == 0, done.output or done.exception
    return done.output


def test_a_search_is_audited_without_torch(here: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from partwise.cli import app; "
        "done = CliRunner().invoke(app, 'verdict results.tsv --search'.split()); "
        "print(done.output); assert done.exit_code == 0 and 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert (
        "The search kept 1 of 1 candidate. A search in which nothing helps would keep 0.5 (0 to 1) of these." in shown
    )
    assert "SD of a run: 0.00030 (from 3 runs of b2, 2 degrees of freedom)." in shown
    assert "Line 3: more cells than columns" in shown and "1 line without a value, 2 repeats" in shown


def test_without_repeats_no_number_and_json_fits_its_schema(here: Path) -> None:
    shown = output("once.tsv", "--search")
    assert "Run commit b2 4 more times unchanged" in shown and "would keep 0" not in shown
    for words in (["once.tsv"], ["once.tsv", "--known-sd", "0.0003", "--sd-source", "five runs"], ["results.tsv"]):
        document = json.loads(output(*words, "--search", "--json"))
        TypeAdapter(SearchDocument).validate_python(document, strict=False)
        assert document["question"] == "search"
        assert (document["search"]["expected"] is None) == (words == ["once.tsv"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--margin 0.1", "--margin 0.1 is not for a results.tsv"),
        ("--target 1", "--target 1.0 is not for a results.tsv"),
        ("--any-time", "--any-time is not for a results.tsv"),
        ("--alpha 0.1", "--alpha 0.1 is not for a results.tsv"),
        ("--known-sd 0.1", "say where it comes from"),
        ("--known-sd -1 --sd-source x", "a positive number"),
        ("--sd-source x", "give the SD itself"),
        ("--columns arm=b", "only value=COLUMN"),
        ("--columns value=bpb", "no column 'bpb'.*val_bpb"),
    ],
)
def test_what_a_search_refuses(here: Path, words: str, message: str) -> None:
    done = CliRunner().invoke(app, ["verdict", "results.tsv", "--search", *words.split()])
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise done.exception
