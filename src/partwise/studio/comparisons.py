"""The comparisons of the folder as pages show them: nothing labelled before a look, from their files alone."""

import json
import os
import random
import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partwise.ablation.running import RunningComparison
from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError
from partwise.comparison.ledger.predictions import outcome_of_prediction, prediction_of
from partwise.comparison.ledger.project import project_ledger
from partwise.comparison.ledger.reveals import is_revealed
from partwise.comparison.plan_file import PLAN_FILE
from partwise.comparison.results import Results
from partwise.comparison.stats.verdict_text import headline
from partwise.config import ConfigError
from partwise.config.reading import read_file
from partwise.run_names import FolderLock, check_run_name, lock_owner
from partwise.studio.processes import NOTES, Processes

EVENT_SECONDS = 2.0
"""The shortest time between two readings of a comparison, however many pages show it."""

FILES = {
    "report.html": "text/html; charset=utf-8",
    "report.md": "text/markdown; charset=utf-8",
    "results.json": "application/json",
    "certificate.json": "application/json",
}
"""The files of a finished comparison that pages offer."""


@dataclass
class Watched:
    """One comparison, read at most every EVENT_SECONDS."""

    running: RunningComparison
    read: float = 0.0
    started: tuple[float, int] | None = None
    """When it was first read, and how many steps it had then."""


@dataclass
class Comparisons:
    """The comparisons below `runs/` of a folder."""

    folder: Path
    processes: Processes
    watched: dict[str, Watched] = field(default_factory=dict)
    ledger: tuple[tuple[int, int], list[ChainEntry]] | None = None
    """The records of the ledger, with the time and the size of its file when they were read."""
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    """What the order of unlabelled curves depends on."""

    def path(self, name: str) -> Path:
        """The folder of a comparison. Raises ConfigError for a name that leads elsewhere."""
        path = self.folder / "runs" / check_run_name(name)
        if path.is_symlink() or path.parent.is_symlink():
            raise ConfigError(f"{path} is a symbolic link, which is not followed")
        return path

    def exists(self, name: str) -> bool:
        return (self.path(name) / PLAN_FILE).exists()

    def is_taken(self, name: str) -> bool:
        """Whether a run or a comparison has this name, or one that was started and has no folder yet."""
        return self.path(name).exists() or self.processes.is_alive(name)

    def state(self, name: str) -> dict[str, Any]:
        """What the page of a running comparison shows. Raises ConfigError if its folder is gone."""
        path = self.path(name)
        if not (path / PLAN_FILE).exists():
            self.watched.pop(name, None)
            if self.processes.is_alive(name):
                return {"name": name, "state": "preparing", "counts": {}, "curves": []}
            if failure := self.processes.failure(name):
                return {"name": name, "state": "failed", "error": failure, "counts": {}, "curves": []}
            raise ConfigError(f"no comparison is named {name}: its folder may have been moved or deleted")
        watched = self.watched.setdefault(name, Watched(RunningComparison(path)))
        if time.monotonic() - watched.read >= EVENT_SECONDS:
            watched.running.read_on()
            watched.read = time.monotonic()
        return self._describe(name, watched)

    def _describe(self, name: str, watched: Watched) -> dict[str, Any]:
        running = watched.running
        alive = self.processes.is_alive(name) or running.running
        failure = "" if alive else self.processes.failure(name)
        state = "finished" if running.finished else "running" if alive else "failed" if failure else "stopped"
        records = self.records()
        start = next((each.content for each in records if each.number == running.ledger), {})
        predicted = prediction_of(records, running.ledger)
        seeds = int(start.get("seeds", 0))
        now = [f"seed {each.seed}" for each in running.trials.values() if each.status == "running" and alive]
        return {
            "name": name,
            "state": state,
            "error": failure,
            "question": start.get("question", ""),
            "counts": running.counts(),
            "trials": max(seeds * len(running.arms), len(running.trials)),
            "now": sorted(set(now)) if state == "running" else [],
            "seconds_left": self._seconds_left(watched, seeds) if state == "running" else None,
            "prediction": {key: predicted[key] for key in ("arm", "low", "high")} if predicted else None,
            "revealed": running.finished or is_revealed(records, running.ledger),
            "resumable": state in ("stopped", "failed") and (self.folder / NOTES / f"{name}.json").exists(),
            "curves": self._unlabelled(name, running),
        }

    def _unlabelled(self, name: str, running: RunningComparison) -> list[list[tuple[float, float]]]:
        """The curves of all trials in an order that says nothing about their arms."""
        curves = [(key, curve) for key, trial in running.trials.items() if (curve := trial.curve())]
        order = {key: random.Random(self.secret + f"{name} {key}".encode()).random() for key, _ in curves}
        return [curve for _, curve in sorted(curves, key=lambda each: order[each[0]])]

    def _seconds_left(self, watched: Watched, seeds: int) -> float | None:
        """From the steps per second since this studio first read the comparison."""
        running, now = watched.running, time.monotonic()
        done = sum(
            trial.steps if trial.status in ("done", "diverged") else trial.step for trial in running.trials.values()
        )
        total = sum(running.steps) * seeds
        if watched.started is None:
            watched.started = now, done
        since, before = watched.started
        if done <= before or not total or now <= since:
            return None
        return max(0.0, (total - done) * (now - since) / (done - before))

    def records(self) -> list[ChainEntry]:
        """The ledger's records, read again if its file has changed. Raises ConfigError."""
        ledger = project_ledger(self.folder)
        try:
            found = ledger.path.stat()
            stamp = found.st_mtime_ns, found.st_size
        except OSError:
            return []
        if self.ledger is None or self.ledger[0] != stamp:
            try:
                self.ledger = stamp, ledger.read()
            except DamagedLedgerError as error:
                raise ConfigError(str(error)) from None
        return self.ledger[1]

    def result(self, name: str) -> dict[str, Any]:
        """What the page of a finished comparison shows beside its report. Raises ConfigError."""
        path = self.path(name)
        if not (path / "results.json").exists():
            raise ConfigError(f"{name} has no result yet")
        results = Results.from_json(path / "results.json")
        records = self.records()
        started = RunningComparison(path)
        started.read_on()
        predicted = prediction_of(records, started.ledger)
        outcome = outcome_of_prediction(records, started.ledger)
        return {
            "name": name,
            "question": results.question,
            "verdicts": [
                {"arm": effect.arm, "verdict": effect.verdict, "lines": headline(effect)} for effect in results.effects
            ],
            "margin": results.protocol.margin,
            "command": results.provenance.command,
            "predict": f"--predict={predicted['low']:g},{predicted['high']:g}" if predicted else "",
            "prediction": dict(predicted) if predicted else None,
            "outcome": dict(outcome) if outcome else None,
            "samples": [{"arm": arm.name, "lines": list(arm.samples)} for arm in results.arms],
            "asked": self._asked(name),
            "next_seed": max(results.seeds, default=-1) + 1,
            "files": [file for file in FILES if (path / file).exists()],
        }

    def _asked(self, name: str) -> dict[str, Any] | None:
        """The question of a comparison, to ask again under another name; None if a terminal has started it."""
        try:
            return {key: value for key, value in self.stored_question(name).items() if key != "name"}
        except ConfigError:
            return None

    def file(self, name: str, file: str) -> bytes:
        """A file of a finished comparison. Raises ConfigError."""
        path = self.path(name)
        if file not in FILES or not (path / "results.json").exists() or (path / file).is_symlink():
            raise ConfigError(f"{name} has no {file[:80]}")
        try:
            return read_file(path / file)
        except OSError as error:
            raise ConfigError(f"{path / file}: {error.strerror}") from None

    def stored_question(self, name: str) -> Mapping[str, Any]:
        """The question that this folder's studio has started a comparison with. Raises ConfigError."""
        try:
            stored = json.loads(read_file(self.folder / NOTES / f"{check_run_name(name)}.json", 1 << 20))
        except (OSError, ValueError):
            raise ConfigError(
                f"{name} was not started here: run its command again in a terminal to resume it"
            ) from None
        if not isinstance(stored, dict):
            raise ConfigError(f"{name}: its stored question is damaged")
        return stored

    def interrupt(self, name: str) -> None:
        """Ask the process that runs a comparison to save and end. Raises ConfigError if there is none."""
        if self.processes.interrupt(name):
            return
        path = self.path(name)
        owner = lock_owner(path)
        try:
            FolderLock(path).release()
        except ConfigError:  # it is held, so the process that it names lives
            if owner:
                os.kill(owner, signal.SIGTERM)  # on Windows it ends at once, and resumes from its last checkpoint
                return
        raise ConfigError(f"{name} does not run")
