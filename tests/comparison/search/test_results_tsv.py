"""results.tsv as programs that search write it: tabs in descriptions, crashes as numbers, spreadsheets' formulas."""

import codecs
from pathlib import Path

import pytest

from partwise.comparison.search.audit import audit
from partwise.comparison.search.results_tsv import ResultsFile, Row, read_results, render_results
from partwise.config import ConfigError

HEADER = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
SEARCH = (
    HEADER
    + "a1\t0.997900\t44.0\tkeep\tbaseline\n"
    + 'b2\t0.993200\t44.2\tKEEP\tuse "muon"\tfor all\n'
    + "c3\t0.000000\t0.0\tcrash\tdouble width (OOM)\n"
    + "-\tnan\t44.0\tdiscard\tno warmup\n"
    + "N/A\t0.000000\t0.0\tdiscard\tforgot\n"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "results.tsv"
    path.write_bytes(codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode())
    return path


def test_a_file_is_read_with_its_crashes_and_tabs_told(tmp_path: Path) -> None:
    file = read_results(written(tmp_path, SEARCH))
    assert [row.value for row in file.rows] == [0.9979, 0.9932, None, None, None]
    assert [row.status for row in file.rows] == ["keep", "keep", "crash", "discard", "discard"]
    assert file.rows[1].description == 'use "muon" for all' and file.rows[1].memory == 44.2
    assert [row.commit for row in file.rows] == ["a1", "b2", "c3", "", ""]  # the last two are no repeats
    assert (file.value_name, file.memory_name) == ("val_bpb", "memory_gb")
    assert [note.split(":")[0] for note in file.notes] == ["Line 3", "Line 6", "Line 5"]


def test_what_is_written_is_read_again_and_harmless(tmp_path: Path) -> None:
    rows = (
        Row(commit="=1+1", value=0.99790012, status="keep", description="a\tb\nc\x1b[31m"),
        Row(commit="b2", value=None, status="crash", description='=HYPERLINK("x")', memory=3.14),
        Row(commit="c3", value=-2.5, status="undecided", description="-0.1 dropout"),
    )
    text = render_results(ResultsFile(rows, "loss"))
    lines = text.splitlines()
    assert lines[1] == "'=1+1\t0.99790012\t0.0\tkeep\ta b c [31m"
    assert lines[2] == 'b2\t0.000000\t3.1\tcrash\t\'=HYPERLINK("x")'
    file = read_results(written(tmp_path, text))
    assert [row.description for row in file.rows] == ["a b c [31m", '=HYPERLINK("x")', "-0.1 dropout"]
    assert [row.value for row in file.rows] == [0.99790012, None, -2.5]
    assert file.value_name == "loss"


def test_means_of_several_runs_are_said_and_not_audited_as_single_runs(tmp_path: Path) -> None:
    rows = (
        Row(commit="a1", value=2.5, status="keep", description="start", runs=16),
        Row(commit="b2", value=2.4, status="keep", description="wider", runs=4),
        Row(commit="c3", value=2.6, status="discard", description="deeper"),
    )
    text = render_results(ResultsFile(rows, "loss"))
    assert text.splitlines()[0].split("\t") == ["commit", "loss", "memory_gb", "status", "description", "mean_of_runs"]
    file = read_results(written(tmp_path, text))
    assert [row.runs for row in file.rows] == [16, 4, 1]
    with pytest.raises(ConfigError, match=r"line 2: the value is the mean of 16 runs.*`partwise try --search NAME`"):
        audit(file.rows)
    assert len(audit(file.rows[2:] * 2).kept) == 0, "rows of one run are audited"
    with pytest.raises(ConfigError, match="line 2: mean_of_runs='0': expected the number of runs"):
        read_results(written(tmp_path, text.replace("\t16", "\t0")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commit,val_bpb,status,description\n", "separate the columns by tabs"),
        ("commit\tval_bpb\tstat\tdescription\n", "no column 'status'.*stat"),
        ("commit\tstatus\tdescription\n", "--columns value=val_loss"),
        (HEADER, "no rows below the header"),
        (HEADER + "a\t1.0\t2.0\n", "line 2: 3 cells but 5 columns"),
        (HEADER + "a\t1.0\t2.0\tmaybe\tx\n", "line 2: status='maybe': expected keep, discard, crash"),
        (HEADER + "a\t1_0\t2.0\tkeep\tx\n", "line 2: val_bpb='1_0': expected a number"),
        ("", "is empty"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_results(written(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot read"):
        read_results(tmp_path)
