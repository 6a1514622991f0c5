"""The runs and comparisons below a folder, from their JSON files alone: nothing is imported or run."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from partwise.baselines.scale import place_loss
from partwise.checkpoint import list_checkpoints, step_of
from partwise.comparison.results import Results
from partwise.comparison.trials.trial import VALIDATION_LOSS
from partwise.config import ConfigError
from partwise.machine import is_alive
from partwise.messages import quantity
from partwise.records import DamagedFileError, read_record
from partwise.run_names import lock_owner
from partwise.train.result import read_result

COMPARISON_FILES = ("compare.json", "results.json")


@dataclass(frozen=True)
class ListedFolder:
    """A run or a comparison. None is an unknown value."""

    name: str
    """Its folder, relative to the listed one."""
    kind: str
    """`run` or `comparison`."""
    what: str
    """The command of a run; the question of a comparison."""
    parameters: int | None
    """The number of a comparison is that of its baseline."""
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


def list_runs(folder: Path) -> list[ListedFolder]:
    """All runs and comparisons below a folder, newest first; runs of a comparison count as part of it. Raises ConfigError.

    Folders whose files cannot be read are listed with the state `damaged`.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; `partwise train` and `partwise compare` write to runs/")
    entries: list[ListedFolder] = []
    ngrams: dict[str, dict[int, float]] = {}
    for path in _find(folder):
        name = str(path.relative_to(folder)) if path != folder else path.resolve().name
        read = _read_comparison if (path / "compare.json").exists() else _read_run
        try:
            entries.append(read(path, name, ngrams))
        except DamagedFileError:
            kind = "comparison" if read is _read_comparison else "run"
            entries.append(ListedFolder(name, kind, "", None, "damaged", None, "", "", _modified(path)))
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
        folders[:] = [name for name in folders if not name.startswith(".")]  # such as drafts of a killed process
        if "compare.json" in files or "run.json" in files:
            folders.clear()
            yield Path(path)
        folders.sort()


def _read_run(path: Path, name: str, ngrams: dict[str, dict[int, float]]) -> ListedFolder:
    metadata = read_record(path / "run.json")
    config = metadata.record("config")
    steps, loss = config.record("train").whole("steps"), None
    try:
        outcome = read_result(path, config)
    except ConfigError as error:
        raise DamagedFileError(str(error)) from None
    source = metadata.record("imported") if "imported" in metadata else None
    if source is not None:
        state = f"imported ({source.text('family')})"
    elif outcome is not None:
        state = "diverged" if "diverged" in outcome else "finished"
        if evaluations := outcome.records("evaluations") if "evaluations" in outcome else []:
            loss = evaluations[-1].number("validation")
    else:
        saved = [step_of(each) for each in list_checkpoints(path / "checkpoints")]
        state = f"{_activity(path)} at step {max(saved, default=0):,} of {steps:,}"
    words = " ".join(metadata.texts("command")).removeprefix("partwise ")
    data = ""  # of an imported model: unknown
    if source is None:
        data = _data(metadata.record("data").text("hash"), config)
    elif "from" in source:
        words = f"import {source.text('from')}"
    return ListedFolder(name, "run", words, metadata.whole("parameters"), state, loss, "", "", _modified(path), data)


def _read_comparison(path: Path, name: str, ngrams: dict[str, dict[int, float]]) -> ListedFolder:
    plan, file = read_record(path / "compare.json"), path / "results.json"
    if not file.exists():
        finished = len(list(path.glob("runs/*/seed-*/result.json")))
        counted = f", {quantity(finished, 'run')} finished" if (path / "runs").is_dir() else ""  # or runs are shared
        arms = [arm.text("name") for arm in plan.record("plan").records("arms")]
        state = f"{_activity(path)}{counted}"
        return ListedFolder(name, "comparison", " / ".join(arms), None, state, None, "", "", _modified(path))
    results = read_results(file)
    ours = results.task is not None  # training runs rather than commands or functions
    data = _data(plan.text("data"), results.config) if ours else ""
    effects = [claim.effect for claim in results.claims if claim.role == "claim"]
    verdicts = ", ".join(f"{effect.arm} {effect.verdict or 'no verdict'}" for effect in effects)
    baseline, loss = results.arms[0], None
    values = [trial.value for trial in baseline.trials if trial.value is not None]
    if ours and values and results.protocol.metric == VALIDATION_LOSS:
        loss = sum(values) / len(values)
        ngrams[data] = dict(results.references.ngrams or ())
    return ListedFolder(
        name, "comparison", results.question, baseline.parameters, "finished", loss, "", verdicts, _modified(path), data
    )


def read_results(path: Path) -> Results:
    """The results in a file. Raises DamagedFileError."""
    try:
        return Results.from_json(path)
    except ConfigError as error:
        raise DamagedFileError(str(error)) from None


def _data(content: str, config: Mapping[str, Any]) -> str:
    return f"{content} {json.dumps(config['data'])}"


def _activity(path: Path) -> str:
    """`running` if the process that last locked the folder is alive, else `stopped`. Takes no lock itself."""
    return "running" if is_alive(lock_owner(path) or 0) else "stopped"


def _modified(path: Path) -> float:
    """The time of the last change to the files that describe a folder."""
    times = [0.0]
    for name in ("run.json", "result.json", "compare.json", "results.json"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
