"""A run that survives: its folder, who owns it, what is written to it, and how it continues.

runs/NAME/run.json         everything needed to repeat the run
          metrics.jsonl    one line per update and per evaluation, only ever appended to
          checkpoints/     step-000500, ...: the two newest
          result.json      how it ended
"""

import fcntl
import json
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from partwise.checkpoint import (
    FORMAT,
    Damaged,
    find_run,
    json_writer,
    load_tensors,
    newest,
    tensor_writer,
    write_folder,
)
from partwise.config import ConfigError, difference, digest
from partwise.data import Dataset, prepare
from partwise.evaluate.loss import random_batches_loss, split_loss
from partwise.train.choices import Choices, choose, machine
from partwise.train.loop import Diverged, Run, Step
from partwise.train.settings import RunConfig

KEPT = 2


@dataclass(frozen=True)
class Evaluation:
    """Losses in nats per token after `step` updates, on the validation split and on as much training text."""

    step: int
    validation: float
    training: float
    estimator: str


@dataclass(frozen=True)
class Saved:
    step: int


class Interrupted(Exception):
    """The run was asked to stop; it has been saved and continues from there."""


def run_name(name: str) -> str:
    """A name that is safe as a folder's. Raises ConfigError for separators, `..` and the like."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+,~@-]{0,119}", name) or ".." in name:
        raise ConfigError(
            f"--name {name!r}: a run's name starts with a letter or digit and holds no separator, space or '..'"
        )
    return name


def default_name(words: list[str]) -> str:
    """A folder's name from the words of a command."""
    text = "_".join(re.sub(r"[^A-Za-z0-9.=+-]+", "-", Path(word).name or word).strip("-.") for word in words)
    text = text.replace("..", "-").lstrip("._=+-") or "run"
    return run_name(text if len(text) <= 100 else f"{text[:90]}~{digest(words)[:8]}")


class Lock:
    """One owner per folder, held as long as the process lives. Raises ConfigError while another process holds it."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / ".lock").open("a+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.seek(0)
            owner = self.file.read().strip() or "unknown"
            self.file.close()
            raise ConfigError(
                f"{folder} is in use by process {owner}: wait for it, stop it, or choose another --name"
            ) from None
        self.file.truncate(0)
        self.file.write(str(os.getpid()))
        self.file.flush()

    def release(self) -> None:
        self.file.close()


class RunFolder:
    """A run with a home on disk. The same configuration continues where it stopped; another one is refused."""

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        *,
        fresh: bool = False,
        choices: Choices | None = None,
        command: list[str] | None = None,
        dataset: Dataset | None = None,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        dataset = dataset or prepare(config.data, config.tokenizer)
        check_length(dataset, config)
        self.path, self.config, self.say, self.stopping = path, config, say, False
        path.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(path)
        try:
            stored = None if fresh else self._stored(config)
            if stored is None:
                self._clear()
                self.choices = choices or choose(config.train)
                self._write_card(command, dataset)
            else:
                self.choices = Choices(**stored["choices"])
                self._announce(stored, dataset)
            self.run = Run(config, dataset, self.choices)
            self._restore()
        except BaseException:
            self.lock.release()
            raise

    def events(self) -> Iterator[Step | Evaluation | Saved]:
        """Train to the end. Raises Interrupted after saving once `stopping` is set, Diverged before a poisoned update."""
        train, run = self.config.train, self.run
        started = time.perf_counter()
        with Metrics(self.path / "metrics.jsonl") as metrics:
            try:
                for step in run.steps():
                    metrics.write({"kind": "step", **asdict(step)})
                    yield step
                    last = step.step == train.steps
                    if last or step.step % self.config.eval_every == 0:
                        evaluation = self.evaluate()
                        metrics.write({"kind": "evaluation", **asdict(evaluation)})
                        yield evaluation
                    if last or step.step % train.save_every == 0 or self.stopping:
                        self.save()
                        yield Saved(step.step)
                    if self.stopping and not last:
                        raise Interrupted(f"stopped after step {step.step} of {train.steps}; everything is saved")
            except Diverged as error:
                self._finish({"diverged": str(error), "step": run.step}, started)
                raise
        if not (self.path / "result.json").exists():
            final = [line for line in read_metrics(self.path) if line["kind"] == "evaluation"]
            self._finish({"step": run.step, "evaluations": final}, started)

    def evaluate(self) -> Evaluation:
        run, dataset = self.run, self.run.dataset
        validation = dataset.split("val")
        training = dataset.split("train")[: len(validation)]
        context, precision = self.config.context, self.choices.precision
        if self.config.train.estimator == "full":
            losses = [split_loss(run.model, ids, context, precision) for ids in (validation, training)]
        else:
            losses = [
                random_batches_loss(
                    run.model,
                    ids,
                    context,
                    self.config.train.batch_size,
                    key=f"{dataset.hash} {split}",
                    seed=self.config.train.seed,
                    step=run.step,
                    precision=precision,
                )
                for split, ids in (("val", validation), ("train", dataset.split("train")))
            ]
        return Evaluation(run.step, losses[0], losses[1], self.config.train.estimator)

    def save(self) -> None:
        """Write a checkpoint of this step and retire all but the newest. Raises ConfigError on a full disk."""
        folder = self.path / "checkpoints"
        try:
            write_folder(
                folder / f"step-{self.run.step:08d}",
                {
                    "config.json": json_writer({"format": FORMAT, "model": self.config.model.to_dict()}),
                    "model.safetensors": tensor_writer(self.run.model.state_dict()),
                    "optimizer.safetensors": tensor_writer(self.run.optimizer_tensors()),
                    "state.json": json_writer({"step": self.run.step, "choices": self.choices.to_dict()}),
                    "tokenizer.json": self.run.dataset.tokenizer.save,
                },
            )
        except OSError as error:
            raise ConfigError(
                f"cannot save to {folder}: {error.strerror}; make room and give the same command again, it continues "
                "from the last checkpoint"
            ) from None
        for old in sorted(folder.glob("step-*"))[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def _stored(self, config: RunConfig) -> dict[str, Any] | None:
        card = self.path / "run.json"
        if not card.exists():
            return None
        stored = read_card(self.path)
        rows = difference(stored["config"], config.to_dict())
        if rows:
            path, old, new = rows[0]
            raise ConfigError(
                f"{self.path} holds another run ({path} was {old}, now {new}): choose another --name, or start it over "
                "with --fresh"
            )
        return stored

    def _clear(self) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != ".lock":
                entry.unlink()

    def _write_card(self, command: list[str] | None, dataset: Dataset) -> None:
        card = {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "choices": self.choices.to_dict(),
            "machine": machine(),
            "data": {"hash": dataset.hash, "splits": {name: len(dataset.split(name)) for name in dataset.names}},
            "parameters": self.config.model.parameters(),
            "command": command or [],
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        temporary = self.path / ".run.json.tmp"
        json_writer(card)(temporary)
        os.replace(temporary, self.path / "run.json")

    def _announce(self, stored: dict[str, Any], dataset: Dataset) -> None:
        if stored["data"]["hash"] != dataset.hash:
            raise ConfigError(f"the data of {self.path} has changed since it began: start over with --fresh")
        for key, old, new in difference(stored["machine"], machine()):
            self.say(f"resuming with {key} {new} instead of {old}: later numbers may differ in their last digits")

    def _restore(self) -> None:
        checkpoint, complaints = newest(self.path / "checkpoints")
        for complaint in complaints:
            instead = checkpoint.name if checkpoint else "the beginning"
            self.say(f"{complaint}; continuing from {instead} instead")
        if checkpoint:
            try:
                step = json.loads((checkpoint / "state.json").read_text())["step"]
                weights, optimizer = (
                    load_tensors(checkpoint / f"{kind}.safetensors") for kind in ("model", "optimizer")
                )
                self.run.restore(step, weights, optimizer)
            except Damaged as error:
                raise ConfigError(f"{error}: start over with --fresh") from None

    def _finish(self, outcome: dict[str, Any], started: float) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        result = {**outcome, "seconds": time.perf_counter() - started, "peak_memory": memory}
        temporary = self.path / ".result.json.tmp"
        temporary.write_text(json.dumps(result, indent=1))
        os.replace(temporary, self.path / "result.json")


class Metrics:
    """An append-only file of JSON lines; a line cut by a kill is closed, so that what follows can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Metrics":
        torn = False
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
        self.file = self.path.open("a", encoding="utf-8")
        if torn:
            self.file.write("\n")
        return self

    def write(self, values: dict[str, Any]) -> None:
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every update and evaluation once, in order; where a resumed run wrote a step again, the last writing counts."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    path = folder / "metrics.jsonl"
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
                lines[(line["kind"], line["step"])] = line
            except (ValueError, KeyError, TypeError):
                continue  # a line torn by a kill
    return sorted(lines.values(), key=lambda line: (line["step"], line["kind"] != "step"))


def read_card(folder: Path) -> dict[str, Any]:
    """The run's `run.json`. Raises ConfigError where it cannot be read."""
    try:
        card = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if card["format"] != FORMAT:
            raise ConfigError(f"{folder} was written in format {card['format']}; this version reads {FORMAT}")
        return card
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / 'run.json'} cannot be read ({error}): start over with --fresh") from None


def open_run(name: str | Path) -> tuple[Path, RunConfig, dict[str, Any]]:
    """The folder, configuration and card of a run that exists. Raises ConfigError."""
    folder = find_run(name)
    card = read_card(folder)
    return folder, RunConfig.from_dict(card["config"]), card


def check_length(dataset: Dataset, config: RunConfig) -> None:
    for name, needed in (
        ("train", config.context),
        ("val", config.context if config.train.estimator == "random" else 1),
    ):
        if len(dataset.split(name)) <= needed:
            raise ConfigError(
                f"train.context={config.context} is longer than the {name} split of the data, "
                f"{len(dataset.split(name))} tokens: lower train.context"
            )
