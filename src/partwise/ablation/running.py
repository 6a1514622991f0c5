"""A comparison while it runs: how far its trials are and their curves, read from their files alone."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partwise.comparison.plan_file import PLAN_FILE
from partwise.config import ConfigError
from partwise.config.reading import open_to_read
from partwise.machine import is_alive
from partwise.records import DamagedFileError, Record, read_record
from partwise.run_names import lock_owner
from partwise.train.metrics import METRICS

POINTS = 100
"""Points of a curve: each is the mean loss of as many steps."""

MAX_READ = 1 << 20
"""Bytes of new lines that one call reads of a file; the next call continues."""


@dataclass
class RunningTrial:
    """One trial, as its folder shows it; `read_on` reads what was appended since."""

    arm: int
    seed: int
    folder: Path
    steps: int
    """Its length; 0 if it is unknown."""
    step: int = 0
    status: str = "waiting"
    """waiting, running, done, diverged or failed."""
    sums: dict[int, list[float]] = field(default_factory=dict)
    """By point: the sum of the losses of its steps, and how many they are."""
    offset: int = 0

    def read_on(self) -> None:
        if self.status in ("done", "diverged", "failed"):
            return
        self._read_metrics()
        self.status = self._read_status()

    def _read_metrics(self) -> None:
        try:
            with open_to_read(self.folder / METRICS) as file:
                file.seek(self.offset)
                content = file.read(MAX_READ)
        except OSError:  # not there yet
            return
        whole = content.rpartition(b"\n")[0]
        self.offset += len(whole) + (1 if whole else 0)
        for line in whole.splitlines():
            if b'"step"' not in line[:20]:  # the kind comes first
                continue
            try:
                values = json.loads(line)
                self._add(int(values["step"]), float(values["loss"]))
            except (ValueError, KeyError, TypeError):  # the line that a killed process has cut
                continue

    def _add(self, step: int, loss: float) -> None:
        if step <= self.step:  # steps that a resumed run repeats
            return
        self.step = step
        if math.isfinite(loss):
            point = self.sums.setdefault(step * POINTS // max(self.steps, step, 1), [0.0, 0])
            point[0] += loss
            point[1] += 1

    def _read_status(self) -> str:
        try:
            [status] = json.loads(self._text("status.json")) or [""]
        except (OSError, ValueError, TypeError):
            status = ""
        if status in ("done", "diverged"):
            return str(status)
        if str(status).startswith(("failed", "no value")):
            return "failed"
        return "running" if self.step or (self.folder / "run.json").exists() else "waiting"

    def _text(self, name: str) -> bytes:
        with open_to_read(self.folder / name) as file:
            return file.read(10_000)

    def curve(self) -> list[tuple[float, float]]:
        """(share of the trial that is done, mean training loss)."""
        return [((point + 0.5) / POINTS, total / count) for point, (total, count) in sorted(self.sums.items())]


@dataclass
class RunningComparison:
    """A comparison's folder. `read_on` reads what is new in it."""

    folder: Path
    arms: tuple[str, ...] = ()
    ledger: int | None = None
    """The number of its start in the ledger."""
    seeds: int = 0
    """Seeds for which trials exist or are planned."""
    trials: dict[tuple[int, int], RunningTrial] = field(default_factory=dict)
    steps: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it has results, and the report that its process writes after them."""
        written = (self.folder / "results.json").exists()
        return written and ((self.folder / "report.html").exists() or not self.running)

    @property
    def running(self) -> bool:
        """Whether a process that has locked the folder is alive."""
        return is_alive(lock_owner(self.folder) or 0)

    def read_on(self) -> None:
        """Read what is new. Raises ConfigError if the folder is gone or its plan is damaged."""
        if not self.arms:
            self._read_plan()
        for folder in self._folders():
            number, _, _ = folder.parent.name.partition("-")
            seed = folder.name.removeprefix("seed-")
            if not (number.isdecimal() and seed.isdecimal() and int(number) < len(self.arms)):
                continue
            key = int(number), int(seed)
            if key not in self.trials:
                self.trials[key] = RunningTrial(*key, folder, self.steps[key[0]])
            self.trials[key].read_on()

    def _read_plan(self) -> None:
        try:
            file = read_record(self.folder / PLAN_FILE)
            arms = file.record("plan").records("arms")
            self.arms = tuple(arm.text("name") for arm in arms)
            self.steps = tuple(steps_of(arm.record("config")) for arm in arms)
            self.ledger = file.get("ledger")
        except (DamagedFileError, OSError) as error:
            raise ConfigError(f"{self.folder}: {error}") from None

    def _folders(self) -> Sequence[Path]:
        return sorted((self.folder / "runs").glob("*/seed-*"))

    def counts(self) -> dict[str, int]:
        """The number of trials by status."""
        found: dict[str, int] = {}
        for trial in self.trials.values():
            found[trial.status] = found.get(trial.status, 0) + 1
        return found

    def finished_pairs(self) -> int:
        """The seeds that every arm has finished."""
        done = [
            {seed for (number, seed), trial in self.trials.items() if number == arm and trial.status in ENDED}
            for arm in range(len(self.arms))
        ]
        return len(set.intersection(*done)) if done else 0

    def labelled(self) -> dict[str, Any]:
        """The arms with their curves by seed: only after the ledger has a look or a result."""
        return {
            name: {
                str(trial.seed): {"status": trial.status, "curve": trial.curve()}
                for (number, _), trial in sorted(self.trials.items())
                if number == arm
            }
            for arm, name in enumerate(self.arms)
        }


ENDED = ("done", "diverged", "failed")


def steps_of(config: Record) -> int:
    """The training steps of an arm; 0 for arms that are no training runs of ours."""
    return config.record("train").whole("steps") if "train" in config else 0
