"""`look`: the arms of a comparison under their names before its result, which the ledger records as a look."""

from partwise.ablation.run_list import find_comparison
from partwise.ablation.running import RunningComparison
from partwise.cli.terminal import console, print_json, table
from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.ledger.reveals import record_reveal
from partwise.comparison.report.rendering import printable
from partwise.config import ConfigError


def look(name: str, as_json: bool) -> None:
    """Print the losses of every arm so far, after the ledger has the look. Raises ConfigError."""
    folder = find_comparison(name)
    if folder is None:
        raise ConfigError(f"no comparison is named {name!r}: `partwise runs` lists them")
    running = RunningComparison(folder)
    running.read_on()
    pairs = running.finished_pairs()
    if not running.finished:
        record_reveal(LedgerEntries(folder), running.ledger, pairs)
    if as_json:
        print_json({"pairs": pairs, "arms": running.labelled()})
        return
    rows = []
    for arm, name in enumerate(running.arms):
        trials = [trial for (number, _), trial in running.trials.items() if number == arm]
        curves = [curve for trial in trials if (curve := trial.curve())]
        loss = f"{sum(curve[-1][1] for curve in curves) / len(curves):.4f}" if curves else ""
        rows.append(printable([name, str(sum(trial.status == "done" for trial in trials)), loss]))
    console.print(table(f"{running.folder}: training losses so far", ["arm", "finished", "mean loss"], rows))
    console.print("the ledger has this look; decide nothing by it: the verdict comes with the result")
