"""What the benchmarks share: steps that take turns, ratios within a round, and the rows that `table.py` joins.

A row is {"goal", "what", "ours", "unit", "peers": {name: figure or null where it is missing}, "ratio", "low", "high",
"wanted"}: `ratio` says how many times as good as the best peer ours is, `low` and `high` its range over the rounds.
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

WARM_UP = 3
PAUSE = 0.005  # seconds between turns: the threads of a process spin for a while, and would disturb the next one's
TURN, LONGEST = 0.25, 20  # seconds that steps in a row take, more or less, and how many they are at most
PLACES = {"--nanogpt": "FOLDER", "--litgpt": "PYTHON", "--folder": "FOLDER"}
"""Options whose values are of one machine only, and what stands for them."""
Step = Callable[..., Tensor | float]
"""Forward, backward and update on one batch, so many times, once unless told; gives the loss before the last update."""
Row = dict[str, Any]


def time_in_turn(
    steps: dict[str, Step], rounds: int, warm_up: int = WARM_UP, fewest: int = 1, within: float = math.inf
) -> dict[str, list[float]]:
    """Seconds a training step, as the mean of a turn, of every round: `rounds`, or what `within` allows, but `fewest`.

    The rounds of the warm-up, of a step each, settle how many steps make a turn. Raises RuntimeError if one of them does
    not learn its batch.
    """
    first = {name: float(step()) for name, step in steps.items()}
    once = take_turns(steps, warm_up)
    counts = in_a_row(once)
    allowed = within / sum((1 + counts[name]) * min(times) for name, times in once.items())
    seconds = take_turns(steps, rounds if allowed > rounds else max(fewest, int(allowed)), counts)
    for name, step in steps.items():
        last = float(step())
        if not last < first[name]:
            raise RuntimeError(f"{name}: the loss went from {first[name]:.4f} to {last:.4f}: this is no training step")
    return seconds


def in_a_row(once: Mapping[str, Sequence[float]]) -> dict[str, int]:
    """How many steps make a turn of each, by the seconds that one took at best."""
    return {name: min(LONGEST, max(1, round(TURN / min(times)))) for name, times in once.items()}


def take_turns(
    steps: Mapping[str, Callable[..., object]], rounds: int, counts: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Seconds of one call in every round; or with `counts`, seconds a step of so many in a row, after one untimed.

    The first of a row finds the caches as the others left them, which is not what training is like.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(rounds):
        shift = turn % len(names)  # nobody always runs in the cache that the same neighbour left behind
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
    """How many times as long as ours theirs took within each round: the median and the range, as a row has them."""
    each = [a / b for a, b in zip(theirs, ours, strict=True)]
    return {"ratio": statistics.median(each), "low": min(each), "high": max(each)}


def write_rows(path: Path | None, rows: list[Row], **more: Any) -> None:
    """Write what was measured, how and where; nothing where no file is asked for."""
    if path is None:
        return
    result = {"rows": rows, "machine": machine_info(), "command": shlex.join(["python", *shown(sys.argv)]), **more}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def shown(words: list[str]) -> list[str]:
    """A command as anyone would give it: without the file that the rows went to, and without the paths of one machine."""
    kept, rest = [], iter(words)
    for word in rest:
        if word == "--json":
            next(rest)
        elif word in PLACES:
            next(rest)
            kept += [word, PLACES[word]]
        else:
            kept.append(word)
    return kept
