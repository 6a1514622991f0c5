"""Shared by the benchmarks: alternating measurements, ratios within a round, and the rows that `table.py` collects.

A row is {"goal", "what", "ours", "unit", "peers": {name: figure, or null if missing}, "ratio", "low", "high", "target"}:
`ratio` is how many times as good as the best peer ours is, `low` and `high` its range over the rounds.
"""

import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from partwise.compute.runtime import machine_info

WARMUP = 3
PAUSE = 0.005  # seconds between blocks of steps: idle threads spin for a while and would disturb the next process
BLOCK_SECONDS, MAX_STEPS = 0.25, 20  # approximate seconds of a block of steps, and its maximum number of steps
PLACEHOLDERS = {"--nanogpt": "FOLDER", "--litgpt": "PYTHON", "--folder": "FOLDER"}
"""Options whose values are paths of this machine, and what to print instead."""
Step = Callable[..., Tensor | float]
"""`step(count=1)`: forward, backward and optimizer step on one batch, `count` times; returns the loss of the last."""
Row = dict[str, Any]


def time_alternating(
    steps: dict[str, Step], rounds: int, warmup: int = WARMUP, fewest: int = 1, within: float = math.inf
) -> dict[str, list[float]]:
    """Seconds per training step, the mean of a block of steps, in each round.

    There are `rounds` rounds, or as many as fit into `within` seconds, but at least `fewest`. Warmup rounds of one step
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
    steps: Mapping[str, Callable[..., object]], rounds: int, counts: Mapping[str, int] | None = None
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
            began = time.perf_counter()
            step()
            seconds[name].append((time.perf_counter() - began) / count)
    return seconds


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """The ratio of their time to ours within each round: median and range, for a row."""
    each = [a / b for a, b in zip(theirs, ours, strict=True)]
    return {"ratio": statistics.median(each), "low": min(each), "high": max(each)}


def write_rows(path: Path | None, rows: list[Row], **more: Any) -> None:
    """Write the rows, the machine and the command as JSON; does nothing if `path` is None."""
    if path is None:
        return
    result = {"rows": rows, "machine": machine_info(), "command": shlex.join(["python", *portable(sys.argv)]), **more}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


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
