"""Shared by the benchmarks: options, alternating measurements, ratios within a round, and the rows that `table.py` collects.

A row is {"goal", "what", "ours", "unit", "peers": {name: figure, or null if missing}, "ratio", "low", "high", "target"}:
`ratio` is how many times as good as the best peer ours is, `low` and `high` its range over the rounds.

Imports torch only to write rows, so that it can time code without torch.
"""

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from torch import Tensor

WARMUP = 3
PAUSE = 0.005  # seconds between blocks of steps: idle threads spin for a while and would disturb the next process
BLOCK_SECONDS, MAX_STEPS = 0.25, 20  # approximate seconds of a block of steps, and its maximum number of steps
PLACEHOLDERS = {"--nanogpt": "FOLDER", "--litgpt": "PYTHON", "--folder": "FOLDER"}
"""Options whose values are paths of this machine, and what to print instead."""
Step = Callable[..., "Tensor | float"]
"""`step(count=1)`: forward, backward and optimizer step on one batch, `count` times; returns the loss of the last."""
Row = dict[str, Any]


def benchmark_parser(doc: str | None, rounds: int, threads: int | None = None) -> argparse.ArgumentParser:
    """The options of a benchmark whose module has this docstring: --rounds, --json, and --threads if a number is given."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--rounds", type=at_least_one, default=rounds)
    if threads is not None:
        parser.add_argument("--threads", type=at_least_one, default=threads)
    parser.add_argument("--json", type=Path)
    return parser


def at_least_one(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word}: must be at least 1")
    return int(word)


def time_alternating(
    steps: dict[str, Step], rounds: int, warmup: int = WARMUP, fewest: int = 1, within: float = math.inf
) -> dict[str, list[float]]:
    """Seconds per training step, the mean of a block of steps, in each round.

    There are `rounds` rounds, or as many as fit into `within` seconds, but at least `fewest`. Warm-up rounds of one step
    each determine the number of steps per block. Raises RuntimeError if a loss does not decrease.
    """
    first = {name: float(step()) for name, step in steps.items()}
    once = alternate(steps, warmup)
    counts = steps_per_block(once)
    allowed = within / sum((1 + counts[name]) * min(times) for name, times in once.items())
    seconds = alternate(steps, rounds if allowed > rounds else max(fewest, int(allowed)), counts)
    for name, step in steps.items():
        last = float(step())
        if not last < first[name]:
            raise RuntimeError(f"{name}: the loss went from {first[name]:.4f} to {last:.4f}: it does not train")
    return seconds


def steps_per_block(once: Mapping[str, Sequence[float]]) -> dict[str, int]:
    """The number of steps in a block of each, from the best time of a single step."""
    return {name: min(MAX_STEPS, max(1, round(BLOCK_SECONDS / min(times)))) for name, times in once.items()}


def alternate(
    steps: Mapping[str, Callable[..., object]],
    rounds: int,
    counts: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call in each round; with `counts`, the mean over that many consecutive steps after an untimed one.

    The first step of a block finds the CPU caches filled by the others, unlike in training.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for round_ in range(rounds):
        shift = round_ % len(names)  # vary which of the others runs before each one
        for name in names[shift:] + names[:shift]:
            time.sleep(PAUSE)
            step, count = steps[name], 1
            if counts:
                step()
                count = counts[name]
                step = partial(step, count)
            began = clock()
            step()
            seconds[name].append((clock() - began) / count)
    return seconds


def repeated(call: Callable[[], object]) -> Callable[..., None]:
    """A step that takes the number of calls, as `alternate` needs it for blocks."""

    def step(count: int = 1) -> None:
        for _ in range(count):
            call()

    return step


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """The ratio of their time to ours within each round: median and range, for a row."""
    return median_and_range([a / b for a, b in zip(theirs, ours, strict=True)])


def median_and_range(each: Sequence[float]) -> dict[str, float]:
    return {"ratio": statistics.median(each), "low": min(each), "high": max(each)}


def rate_row(
    goal: str, what: str, unit: str, seconds: Mapping[str, list[float]], amount: float = 1, target: float | None = None
) -> Row:
    """The row of the first of two alternating systems against the second: `amount` of the unit per measured time."""
    (ours, own), (peer, theirs) = seconds.items()
    rates = {name: amount / statistics.median(times) for name, times in seconds.items()}
    row = {"goal": goal, "what": what, "ours": rates[ours], "unit": unit, "peers": {peer: rates[peer]}}
    return {**row, **ratios(theirs, own), "target": target}


def spread(row: Mapping[str, Any], what: str = "times as fast") -> str:
    """The ratio of a row with its range, as in `1.32 times as fast (1.28 to 1.40)`."""
    return f"{row['ratio']:.2f} {what} ({row['low']:.2f} to {row['high']:.2f})"


def show_rows(title: str, rows: Sequence[Row], *notes: str) -> None:
    """Print the rows as a table, with lines below it."""
    table = Table(title=title)
    for column in ("", "ours", "peers", "ratio", "min to max", "target"):
        table.add_column(column, justify="left" if column in ("", "peers") else "right")
    for row in rows:
        peers = "\n".join(f"{name}: {figure(value)}" for name, value in row["peers"].items())
        ratio, target = (figure(row[name], "") for name in ("ratio", "target"))
        span = f"{row['low']:.2f} to {row['high']:.2f}" if row.get("low") else ""
        table.add_row(row["what"], f"{figure(row['ours'])} {row['unit']}", peers, ratio, span, target)
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note, markup=False)


def figure(value: float | None, missing: str = "missing") -> str:
    if value is None:
        return missing
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def write_result(path: Path | None, result: object) -> None:
    """Write the result as JSON, to standard output if `path` is None."""
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_rows(path: Path | None, rows: list[Row], **more: Any) -> None:
    """Write the rows, the machine and the command as JSON; does nothing if `path` is None."""
    if path is None:
        return
    from partwise.compute.runtime import machine_info

    command = shlex.join(["python", *portable(sys.argv)])
    write_result(path, {"rows": rows, "machine": machine_info(), "command": command, **more})


def portable(words: list[str]) -> list[str]:
    """A command without --json and without paths of this machine."""
    result, rest = [], iter(words)
    for word in rest:
        if word == "--json":
            next(rest)
        elif word in PLACEHOLDERS:
            next(rest)
            result += [word, PLACEHOLDERS[word]]
        else:
            result.append(word)
    return result
