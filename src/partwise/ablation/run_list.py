"""The runs, comparisons and searches below a folder, from their JSON files alone: nothing is imported or run."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from partwise.any_code.search_folder import SEARCH_FILE, read_search
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

KINDS = {"comparison": "compare.json", "search": SEARCH_FILE, "run": "run.json"}
"""The file that makes a folder one."""
COMPARISON_FILES = ("compare.json", "results.json")


@dataclass(frozen=True)
class ListedFolder:
    """A run, a comparison or a search. None is an unknown value."""

    name: str
    """Its folder, relative to the listed one."""
    kind: str
    """`run`, `comparison` or `search`."""
    what: str
    """The command of a run or of a search; the question of a comparison."""
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
    """All runs, comparisons and searches below a folder, newest first; runs of the last two count as part of them.

    Raises ConfigError. Folders whose files cannot be read are listed with the state `damaged`.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; `partwise train` and `partwise compare` write to runs/")
    entries: list[ListedFolder] = []
    ngrams: dict[str, dict[int, float]] = {}
    for path in _find(folder):
        name = str(path.relative_to(folder)) if path != folder else path.resolve().name
        kind = next((kind for kind, file in KINDS.items() if (path / file).exists()), "run")  # or deleted meanwhile
        read = {"comparison": _read_comparison, "search": _read_search, "run": _read_run}[kind]
        try:
            entries.append(read(path, name, ngrams))
        except DamagedFileError:
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
        if not set(files).isdisjoint(KINDS.values()):
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


def _read_search(path: Path, name: str, ngrams: dict[str, dict[int, float]]) -> ListedFolder:
    try:
        search = read_search(path)
    except ConfigError as error:
        raise DamagedFileError(str(error)) from None
    kept, best = len(search.kept), f"best: try {search.best}" if search.best else "best: the start"
    running = "running, " if is_alive(lock_owner(path) or 0) else ""  # else it waits for its next candidate
    state = f"{running}{len(search.tries)} tried, {kept} kept"
    return ListedFolder(name, "search", search.settings.command, None, state, None, "", best, _modified(path))


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
    for name in ("run.json", "result.json", "compare.json", "results.json", SEARCH_FILE, "results.tsv"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
