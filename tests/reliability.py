"""Measure docs/reliability.md: put faults into small runs and count broken promises.

    python tests/reliability.py [--minutes 15] [--only resume kill ...] [--again]

This is `make test-reliability`. The counts are in docs/reliability.json; the same command continues where it stopped, and
exits with 1 if a promise was broken. `--again` starts from the first trial.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch is imported: processes are forked

import torch  # noqa: E402

from reliability_comparisons import COMPARISON_CHECKS  # noqa: E402
from reliability_configurations import CONFIGURATION_CHECKS  # noqa: E402
from reliability_hostile import HOSTILE_CHECKS  # noqa: E402
from reliability_runs import RUN_CHECKS, Check  # noqa: E402
from reliability_storage import STORAGE_CHECKS  # noqa: E402
from reliability_stored import STORED_CHECKS  # noqa: E402

CHECKS = RUN_CHECKS | STORAGE_CHECKS | COMPARISON_CHECKS | CONFIGURATION_CHECKS | HOSTILE_CHECKS | STORED_CHECKS

DOCS = Path(__file__).parents[1] / "docs"
FIGURES, PAGE = DOCS / "reliability.json", DOCS / "reliability.md"
START, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
SHOWN = 5
"""Misses whose text is kept."""


def measure(check: Check, counts: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Go on with the trials of a check for some seconds: how many were done, their outcomes, and the misses."""
    counts = {"trials": 0, "outcomes": {}, "missed": 0, "misses": [], **counts}
    ending = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        trial = check.prepare(Path(folder))
        while counts["trials"] < check.target and time.monotonic() < ending:
            number = counts["trials"]
            try:
                outcome = trial(number)
                counts["outcomes"][outcome] = counts["outcomes"].get(outcome, 0) + 1
            except Exception as error:  # a traceback is a broken promise as well
                counts["missed"] += 1
                message = f"trial {number}: {type(error).__name__}: {str(error).replace(folder, '')}".splitlines()[0]
                counts["misses"] = [*counts["misses"], message][:SHOWN]
            counts["trials"] += 1
    return counts


def table(figures: dict[str, Any]) -> str:
    """A row per promise."""
    lines = ["| `ONLY=` | promise | trials, of a target | broken |", "|---|---|---:|---:|"]
    for name, check in CHECKS.items():
        counts = figures.get(name)
        done, broken = ("–", "not measured") if counts is None else (f"{counts['trials']:,}", f"{counts['missed']:,}")
        lines.append(f"| `{name}` | {check.promise} | {done} of {check.target:,} | **{broken}** |")
    return "\n".join(lines) + "\n"


def figure(counts: dict[str, Any] | None) -> str:
    if counts is None:
        return "not measured"
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts["outcomes"].items()))
    return f"**{counts['missed']:,} broken of {counts['trials']:,}**: {outcomes}"


def with_table(page: str, figures: dict[str, Any]) -> str:
    before, _, rest = page.partition(START)
    return f"{before}{START}{table(figures)}{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Put faults into small runs and count broken promises.")
    parser.add_argument("--minutes", type=float, default=15, help="the time for all checks together (default: 15)")
    parser.add_argument(
        "--only", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="CHECK", help=", ".join(CHECKS)
    )
    parser.add_argument("--again", action="store_true", help="start these checks from their first trial")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    ending = time.monotonic() + 60 * options.minutes
    broken = 0
    for position, name in enumerate(options.only):
        share = (ending - time.monotonic()) / (
            len(options.only) - position
        )  # what a check leaves goes to the next ones
        figures[name] = measure(CHECKS[name], {} if options.again else figures.get(name, {}), share)
        broken += figures[name]["missed"]
        FIGURES.write_text(json.dumps({each: figures[each] for each in CHECKS if each in figures}, indent=1) + "\n")
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
        print(f"{name}: {figure(figures[name])}", *figures[name]["misses"], sep="\n  ", flush=True)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
