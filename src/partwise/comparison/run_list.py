"""The runs and comparisons below a folder, from their JSON files alone: nothing is imported or run."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from partwise.baselines.scale import place_loss
from partwise.config import ConfigError
from partwise.machine import is_alive

COMPARISON_FILES = ("compare.json", "results.json")
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged file raises."""


@dataclass(frozen=True)
class Entry:
    """A run or a comparison. None is an unknown value."""

    name: str
    """Its folder, relative to the listed one."""
    kind: str
    """`run` or `comparison`."""
    what: str
    """The command of a run; the question of a comparison."""
    parameters: int | None
    """Of a comparison: of its baseline."""
    state: str
    loss: float | None
    """The last validation loss; of a comparison, the mean of its baseline."""
    scale: str
    """The loss among those of n-gram models, if a comparison below the listed folder has measured them on the same data."""
    verdict: str
    modified: float
    """Seconds since the epoch."""
    data: str = ""
    """The data and their hash: losses are comparable if these are equal."""

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "data"}


def list_runs(folder: Path) -> list[Entry]:
    """All runs and comparisons below a folder, newest first; runs of a comparison count as part of it. Raises ConfigError.

    Folders whose files cannot be read are listed with the state `damaged`.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; `partwise train` and `partwise compare` write to runs/")
    entries: list[Entry] = []
    ngrams: dict[str, dict[int, float]] = {}
    for path in _find(folder):
        name = str(path.relative_to(folder)) if path != folder else path.resolve().name
        read = _read_comparison if (path / "compare.json").exists() else _read_run
        try:
            entries.append(read(path, name, ngrams))
        except DAMAGED:
            kind = "comparison" if read is _read_comparison else "run"
            entries.append(Entry(name, kind, "", None, "damaged", None, "", "", _modified(path)))
    placed = [
        replace(entry, scale=place_loss(entry.loss, ngrams.get(entry.data, {}))) if entry.loss is not None else entry
        for entry in entries
    ]
    return sorted(placed, key=lambda entry: -entry.modified)


def find_comparison(name: str) -> Path | None:
    """The folder of a comparison, by its name below `runs/` or its path; None if there is none."""
    folders = [Path("runs") / name, Path(name)]
    return next((path for path in folders if any((path / file).exists() for file in COMPARISON_FILES)), None)


def _find(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        if "compare.json" in files or "run.json" in files:
            folders.clear()
            yield Path(path)
        folders.sort()


def _read_run(path: Path, name: str, ngrams: dict[str, dict[int, float]]) -> Entry:
    metadata, result = _read(path / "run.json"), path / "result.json"
    steps, loss = int(metadata["config"]["train"]["steps"]), None
    if result.exists():
        outcome = _read(result)
        state = "diverged" if "diverged" in outcome else "finished"
        if outcome.get("evaluations"):
            loss = _finite(outcome["evaluations"][-1]["validation"])
    else:
        saved = [int(each.name.removeprefix("step-")) for each in path.glob("checkpoints/step-*[0-9]")]
        state = f"{_activity(path)} at step {max(saved, default=0):,} of {steps:,}"
    words = " ".join(map(str, metadata["command"])).removeprefix("partwise ")
    data, parameters = _data(metadata["data"]["hash"], metadata["config"]), int(metadata["parameters"])
    return Entry(name, "run", words, parameters, state, loss, "", "", _modified(path), data)


def _read_comparison(path: Path, name: str, ngrams: dict[str, dict[int, float]]) -> Entry:
    plan, file = _read(path / "compare.json"), path / "results.json"
    if not file.exists():
        finished = len(list(path.glob("runs/*/seed-*/result.json")))
        arms = [str(arm["name"]) for arm in plan["plan"]["arms"]]
        state = f"{_activity(path)}, {finished} runs finished"
        return Entry(name, "comparison", " / ".join(arms), None, state, None, "", "", _modified(path))
    results = _read(file)
    ours = results["task"] is not None  # training runs rather than commands or functions
    data = _data(plan["data"], results["config"]) if ours else ""
    effects = [claim["effect"] for claim in results["claims"] if claim["role"] == "claim"]
    verdicts = ", ".join(f"{effect['arm']} {effect['verdict'] or 'no verdict'}" for effect in effects)
    baseline, loss = results["arms"][0], None
    values = [trial["value"] for trial in baseline["trials"] if trial["value"] is not None]
    if ours and values and results["protocol"]["metric"] == "validation loss":
        loss = _finite(sum(values) / len(values))
        ngrams[data] = {int(n): float(value) for n, value in results["references"]["ngrams"] or []}
    parameters = None if baseline["parameters"] is None else int(baseline["parameters"])
    question = str(results["question"])
    return Entry(name, "comparison", question, parameters, "finished", loss, "", verdicts, _modified(path), data)


def _read(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _data(content: str, config: dict[str, Any]) -> str:
    return f"{content} {json.dumps(config['data'])}"


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _activity(path: Path) -> str:
    """`running` if the process that last locked the folder is alive, else `stopped`. Takes no lock itself."""
    try:
        return "running" if is_alive(int((path / ".lock").read_text())) else "stopped"
    except (OSError, ValueError):
        return "stopped"


def _modified(path: Path) -> float:
    """The time of the last change to the files that describe a folder."""
    times = [0.0]
    for name in ("run.json", "result.json", "compare.json", "results.json"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
