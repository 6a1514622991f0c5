"""`results.tsv` in the folder of a search: a line per candidate, as programs that search write and read it."""

import statistics

from partwise.any_code.search_folder import SearchFolder
from partwise.comparison.search.answer import Tried
from partwise.comparison.search.results_tsv import ResultsFile, Row, render_results
from partwise.files import replace_file
from partwise.records import Record
from partwise.run_names import explain_write_errors

RESULTS_FILE = "results.tsv"
GB = 2**30


def write_table(search: SearchFolder) -> None:
    """Write the file again from what the search has stored. Raises ConfigError."""
    state = search.state()
    start = next((pool.repeats for pool in search.pools if pool.best == 0 and pool.repeats), None)
    rows = [first_row(search, start)] if start else []
    rows += [row_of(each) for each in state.tries if each.decision != "unfinished"]
    text = render_results(ResultsFile(tuple(rows), value_name=state.metric))
    with explain_write_errors(search.path):
        replace_file(search.path / RESULTS_FILE, text.encode())


def first_row(search: SearchFolder, repeats: Record) -> Row:
    memory = repeats["peak_memory"]
    return Row(
        commit=search.settings.commit[:10],
        value=statistics.fmean(repeats["values"]),
        runs=len(repeats["values"]),
        status="keep",
        description=f"start: {search.settings.start}",
        memory=memory / GB if memory else None,
    )


def row_of(tried: Tried) -> Row:
    """Its value is the mean of its runs."""
    assert tried.decision != "unfinished"
    values = [value for value in tried.values if value is not None]
    crashed = len(values) < len(tried.values)
    return Row(
        commit=tried.commit[:10],
        value=statistics.fmean(values) if values and not crashed else None,
        runs=max(1, len(values)),
        status="crash" if crashed else tried.decision,
        description=tried.description,
        memory=tried.peak_memory / GB if tried.peak_memory else None,
    )
