"""A program that searches for improvements: of 40 changes 4 help, 13 harm, 4 crash and 19 do nothing.

    python search.py [--changes 40] [--seeds 10]

`partwise compare --json` judges each. Every comparison is one of an online sequence, so that of all changes kept at
most 5% are false on average, however long the search runs. Two habits for comparison: keep a change if it wins on
one seed, and keep it if its best seed beats the best of the baseline. Prints a table; run it in an empty folder.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from train import REAL

PROGRAM = Path(__file__).with_name("train.py")
EXPERIMENT = """\
command: >-
  {program} --seed {{seed}} --change {{args}}
arms:
  baseline: {{args: '0'}}
  change {change}: {{args: '{change}'}}
metric: {{name: validation loss, margin: 0.002, pattern: 'validation loss (\\S+)'}}
"""


def compare(change: int, seeds: int) -> dict:
    """The results of one comparison, as `--json` prints them."""
    file = Path(f"change-{change}.yaml")
    program = shlex.join([sys.executable, str(PROGRAM)])
    file.write_text(EXPERIMENT.format(program=program, change=change))
    words = ["compare", str(file), "--seeds", str(seeds), "--first-seed", str(change * seeds), "--online", "--json"]
    done = subprocess.run([sys.executable, "-m", "partwise", *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def values(results: dict, arm: int) -> list[float]:
    """The losses of an arm, seed by seed; a failed trial has none."""
    losses = [trial["value"] for trial in results["arms"][arm]["trials"]]
    return [float("inf") if loss is None else loss for loss in losses]


def describe(kept: list[int], changes: int) -> str:
    real = [change for change in REAL if change <= changes]
    found = len(set(kept) & set(real))
    return f"{len(kept):6} {found:4} of {len(real)} {len(kept) - found:6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    kept: dict[str, list[int]] = {"verdict better, online": [], "wins on one seed": [], "best seed is better": []}
    for change in range(1, options.changes + 1):
        results = compare(change, options.seeds)
        baseline, changed = values(results, 0), values(results, 1)
        if results["claims"][0]["effect"]["verdict"] == "better":
            kept["verdict better, online"].append(change)
        if changed[0] < baseline[0]:
            kept["wins on one seed"].append(change)
        if min(changed) < min(baseline):
            kept["best seed is better"].append(change)
    print(f"{'rule':24} {'kept':>6} {'real':>9} {'false':>6}")
    for rule, changes in kept.items():
        print(f"{rule:24} {describe(changes, options.changes)}")


if __name__ == "__main__":
    main()
