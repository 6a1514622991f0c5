"""A run that survives: its folder, who owns it, what is written to it, and how it continues.

runs/NAME/run.json         everything needed to repeat the run
          metrics.jsonl    one line per update and per evaluation, only ever appended to
          checkpoints/     step-000500, ...: the two newest
          result.json      how it ended
"""

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from partwise.checkpoint import (
    FORMAT,
    Damaged,
    checkpoints,
    json_writer,
    load_tensors,
    new_folder,
    read_json,
    read_newest,
    remove_folder,
    step_of,
    tensor_writer,
    tidy,
    write_folder,
    write_json,
)
from partwise.config import ConfigError
from partwise.data import Dataset, examples
from partwise.evaluate.loss import mean_loss, random_batches_loss
from partwise.overrides import difference
from partwise.train.card import read_card, stored_choices
from partwise.train.choices import Choices, choose, machine
from partwise.train.loop import Diverged, Run, Step
from partwise.train.metrics import Metrics, read_metrics
from partwise.train.names import Lock, writing
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
        dataset = dataset or config.prepare()
        check_length(dataset, config)
        wanted = choices or choose(config.train)
        self.path, self.config, self.say, self.stopping = path, config, say, False
        with writing(path):
            new_folder(path)
        self.lock = Lock(path)
        try:
            stored = None if fresh else self._stored(config, dataset)
            if stored is None:
                self.choices = wanted
                with writing(path):
                    self._clear()
                    write_json(path / "run.json", self._card(command, dataset))
            else:
                self.choices = stored_choices(path, stored)
            self.latest: Evaluation | None = None
            self.run = Run(config, dataset, self.choices)
            saved = self._restore()
            for earlier in (stored, saved):
                if earlier:
                    self._announce({**earlier["machine"], **earlier["choices"]})
        except BaseException:
            self.lock.release()
            raise

    def events(self) -> Iterator[Step | Evaluation | Saved]:
        """Train to the end, then let go of the folder.

        Raises Interrupted after saving once `stopping` is set, Diverged before a poisoned update is made or saved.
        """
        run, started, result = self.run, time.perf_counter(), self.path / "result.json"
        try:
            with Metrics(self.path / "metrics.jsonl") as metrics:
                if run.step < self.config.train.steps:
                    result.unlink(missing_ok=True)  # of a run that diverged here
                yield from self._train(metrics)
        except Diverged as error:
            self._finish({"diverged": str(error), "step": run.step}, started)
            raise
        else:
            if not result.exists():
                final = [line for line in read_metrics(self.path) if line["kind"] == "evaluation"]
                self._finish({"step": run.step, "evaluations": final}, started)
        finally:
            self.close()

    def close(self) -> None:
        """Let another process, or another RunFolder, have the folder."""
        self.lock.release()

    def _train(self, metrics: "Metrics") -> Iterator[Step | Evaluation | Saved]:
        train, run = self.config.train, self.run
        for step in run.steps():
            metrics.write({"kind": "step", **asdict(step)})
            yield step
            last = step.step == train.steps
            if last or step.step % self.config.eval_every == 0:
                evaluation = self.latest = self.evaluate()
                metrics.write({"kind": "evaluation", **asdict(evaluation)})
                yield evaluation
            if last or step.step % train.save_every == 0 or self.stopping:
                metrics.flush()  # the numbers up to a checkpoint must outlast what the checkpoint outlasts
                self.save()
                yield Saved(step.step)
            if self.stopping and not last:
                raise Interrupted(f"stopped after step {step.step} of {train.steps}; everything is saved")

    def evaluate(self) -> Evaluation:
        """Losses after this step. Raises Diverged where they are not finite."""
        run, dataset = self.run, self.run.dataset
        precision, train = self.choices.precision, self.config.train
        validation = examples(dataset, "val", self.config.context, self.config.model.max_len)
        if train.estimator == "full":
            sides = (validation, run.examples.as_much_as(validation))
            losses = [mean_loss(run.model, side.scored(), precision, side is not validation) for side in sides]
        else:
            losses = [
                random_batches_loss(
                    run.model,
                    side,
                    train.batch_size,
                    key=f"{dataset.hash} {split}",
                    seed=train.seed,
                    step=run.step,
                    precision=precision,
                    learned=split == "train",
                )
                for split, side in (("val", validation), ("train", run.examples))
            ]
        if not all(map(math.isfinite, losses)):
            raise Diverged(run.step, f"validation loss {losses[0]}, on training text {losses[1]}")
        return Evaluation(run.step, losses[0], losses[1], self.config.train.estimator)

    def save(self) -> None:
        """Write a checkpoint of this step, retire all but the newest. Raises ConfigError on a full disk, Diverged."""
        self.run.check_finite()
        folder, step = self.path / "checkpoints", self.run.step
        state = {"step": step, "choices": self.choices.to_dict(), "machine": machine()}
        with writing(folder):
            write_folder(
                folder / f"step-{step:08d}",
                {
                    "config.json": json_writer({"format": FORMAT, "model": self.config.model.to_dict()}),
                    "model.safetensors": tensor_writer(self.run.model.state_dict()),
                    "optimizer.safetensors": tensor_writer(self.run.optimizer_tensors()),
                    "state.json": json_writer(state),
                    "tokenizer.json": self.run.dataset.tokenizer.save,
                },
            )
            # what is numbered higher was found damaged, else this run would have continued from there
            kept = [path for path in checkpoints(folder) if step_of(path) <= step][-KEPT:]
            for path in checkpoints(folder):
                if path not in kept:
                    remove_folder(path)

    def _stored(self, config: RunConfig, dataset: Dataset) -> dict[str, Any] | None:
        """The card of the run that this folder holds, None where it holds none. Raises ConfigError for another run."""
        if not (self.path / "run.json").exists():
            if checkpoints(self.path / "checkpoints"):
                raise ConfigError(
                    f"{self.path} holds checkpoints but no run.json: choose another --name, or start over with --fresh"
                )
            return None
        stored = read_card(self.path)
        rows = difference(stored["config"], config.to_dict())
        if rows:
            path, old, new = rows[0]
            raise ConfigError(
                f"{self.path} holds another run ({path} was {old}, now {new}): choose another --name, or start it over "
                "with --fresh"
            )
        if stored["data"]["hash"] != dataset.hash:
            raise ConfigError(f"the data of {self.path} has changed since it began: start over with --fresh")
        return stored

    def _clear(self) -> None:
        """Remove what a run writes and nothing else that may lie here; the card last, which says what the rest is."""
        for name in ("checkpoints", "result.json", "metrics.jsonl", "run.json"):
            path = self.path / name
            if path.is_dir():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)
        tidy(self.path)

    def _card(self, command: list[str] | None, dataset: Dataset) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "choices": self.choices.to_dict(),
            "machine": machine(),
            "data": {"hash": dataset.hash, "splits": {name: len(dataset.split(name)) for name in dataset.names}},
            "parameters": self.config.model.parameters(),
            "command": command or [],
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _announce(self, earlier: dict[str, Any]) -> None:
        for key, old, new in difference(earlier, {**machine(), **self.choices.to_dict()}):
            self.say(f"resuming with {key} {new} instead of {old}: later numbers may differ in their last digits")

    def _restore(self) -> dict[str, Any] | None:
        """Continue from the newest checkpoint that can be read and return its state; None where there is none."""
        folder = self.path / "checkpoints"
        with writing(folder):
            tidy(folder)
        state, complaints = read_newest(folder, self._continue)
        if complaints and not state:
            raise ConfigError(f"{complaints[0]}, and no older checkpoint can be read: start over with --fresh")
        for complaint in complaints:
            self.say(f"{complaint}; continuing from step {self.run.step} instead")
        return state

    def _continue(self, checkpoint: Path) -> dict[str, Any]:
        state = read_json(checkpoint / "state.json")
        for key, kind in (("step", int), ("choices", dict), ("machine", dict)):
            if not isinstance(state.get(key), kind):
                raise Damaged(f"{checkpoint / 'state.json'} lacks {key!r}")
        weights, optimizer = (load_tensors(checkpoint / f"{kind}.safetensors") for kind in ("model", "optimizer"))
        self.run.restore(state["step"], weights, optimizer)
        return state

    def _finish(self, outcome: dict[str, Any], started: float) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        with writing(self.path):
            values = {**outcome, "seconds": time.perf_counter() - started, "peak_memory": memory}
            if self.run.updater:
                values["together"] = self.run.updater.seeds  # which share these seconds and this memory
            write_json(self.path / "result.json", values)


def check_length(dataset: Dataset, config: RunConfig) -> None:
    if dataset.corpus.paired:
        for name in ("train", "val"):
            examples(dataset, name, config.context, config.model.max_len)  # raises where a pair is too long
        return
    examples(dataset, "train", config.context, config.model.max_len)  # raises where a problem is too long
    for name, needed in (
        ("train", config.context),
        ("val", config.context if config.train.estimator == "random" else 1),
    ):
        if len(dataset.split(name)) <= needed:
            raise ConfigError(
                f"train.context={config.context} is longer than the {name} split of the data, "
                f"{len(dataset.split(name))} tokens: lower train.context"
            )
