"""A run's folder: its files, its lock, checkpoints, and resuming.

runs/NAME/run.json         everything needed to reproduce the run
          metrics.jsonl    one line per step and per evaluation, append-only
          checkpoints/     step-00000500, ...: the two newest
          result.json      the final evaluations, or where the run diverged
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
    DamagedFileError,
    json_writer,
    list_checkpoints,
    load_tensors,
    make_folder,
    read_json,
    read_latest,
    remove_folder,
    remove_leftovers,
    step_of,
    tensor_writer,
    write_folder,
    write_json,
)
from partwise.compute.plan import Plan
from partwise.compute.runtime import Runtime, choose_runtime, machine_info
from partwise.config import ConfigError
from partwise.config.overrides import difference
from partwise.data import Dataset, build_examples
from partwise.evaluate.loss import mean_loss, random_batches_loss
from partwise.train.config import RunConfig
from partwise.train.loop import Diverged, Run, Step
from partwise.train.metrics import MetricsFile, read_metrics
from partwise.train.run_metadata import check_stored_plan, read_metadata, stored_runtime
from partwise.train.run_names import FolderLock, explain_write_errors

MAX_CHECKPOINTS = 2


@dataclass(frozen=True)
class Evaluation:
    """Losses in nats per token after `step` steps, on the validation split and on training text of equal size."""

    step: int
    validation: float
    training: float
    validation_estimator: str


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint after `step` steps is on disk."""

    step: int


class Interrupted(Exception):
    """The run stopped on request, after saving a checkpoint."""


class RunFolder:
    """A run on disk. An equal configuration resumes it; another one is refused."""

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        *,
        fresh: bool = False,
        runtime: Runtime | None = None,
        plan: Plan | None = None,
        command: list[str] | None = None,
        dataset: Dataset | None = None,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        dataset = dataset or config.prepare()
        check_split_lengths(dataset, config)
        new_runtime = runtime or choose_runtime(config.train)
        self.path, self.config, self.log, self.stop_requested = path, config, log, False
        with explain_write_errors(path):
            make_folder(path)
        self.lock = FolderLock(path)
        try:
            stored = None if fresh else self._stored_metadata(config, dataset)
            if stored is None:
                self.runtime = new_runtime
                with explain_write_errors(path):
                    self._clear()
            else:
                self.runtime = stored_runtime(path, stored)
            self.latest_evaluation: Evaluation | None = None
            self.run = Run(config, dataset, self.runtime, plan)
            if stored is None:
                with explain_write_errors(path):
                    write_json(path / "run.json", self._metadata(command, dataset))
            else:
                check_stored_plan(path, stored, self.run.plan)
            state = self._restore()
            for earlier in (stored, state):
                if earlier:
                    self._log_changes({**earlier["machine"], **earlier["runtime"]})
        except BaseException:
            self.lock.release()
            raise

    def events(self) -> Iterator[Step | Evaluation | CheckpointSaved]:
        """Train to the end, then release the folder.

        Raises Interrupted after saving if `stop_requested` is set, and Diverged before a non-finite step is taken or saved.
        """
        run, started, result = self.run, time.perf_counter(), self.path / "result.json"
        try:
            with MetricsFile(self.path / "metrics.jsonl") as metrics:
                if run.step < self.config.train.steps:
                    result.unlink(missing_ok=True)  # the result of an earlier attempt that diverged
                yield from self._train(metrics)
        except Diverged as error:
            self._finish({"diverged": str(error), "step": run.step}, started)
            raise
        else:
            if not result.exists():
                evaluations = [line for line in read_metrics(self.path) if line["kind"] == "evaluation"]
                self._finish({"step": run.step, "evaluations": evaluations}, started)
        finally:
            self.close()

    def close(self) -> None:
        """Release the folder for another process or another RunFolder."""
        self.lock.release()

    def _train(self, metrics: MetricsFile) -> Iterator[Step | Evaluation | CheckpointSaved]:
        train, run = self.config.train, self.run
        for step in run.steps():
            metrics.write({"kind": "step", **asdict(step)})
            yield step
            last = step.step == train.steps
            if last or step.step % self.config.eval_every == 0:
                evaluation = self.latest_evaluation = self.evaluate()
                metrics.write({"kind": "evaluation", **asdict(evaluation)})
                yield evaluation
            if last or step.step % train.save_every == 0 or self.stop_requested:
                metrics.flush()  # before the checkpoint, which must never outlive the metrics up to it
                self.save()
                yield CheckpointSaved(step.step)
            if self.stop_requested and not last:
                raise Interrupted(f"stopped after step {step.step} of {train.steps}; everything is saved")

    def evaluate(self) -> Evaluation:
        """The losses after the current step. Raises Diverged if they are not finite."""
        run, dataset = self.run, self.run.dataset
        precision, train = self.runtime.precision, self.config.train
        validation = build_examples(dataset, "val", self.config.seq_len, self.config.model.context_length)
        if train.validation_estimator == "full":
            splits = (validation, run.examples.truncate_like(validation))
            losses = [
                mean_loss(run.model, split.eval_batches(), precision, split is not validation) for split in splits
            ]
        else:
            losses = [
                random_batches_loss(
                    run.model,
                    split,
                    train.batch_size,
                    key=f"{dataset.hash} {name}",
                    seed=train.seed,
                    step=run.step,
                    precision=precision,
                    training_text=name == "train",
                )
                for name, split in (("val", validation), ("train", run.examples))
            ]
        if not all(map(math.isfinite, losses)):
            raise Diverged(run.step, f"validation loss {losses[0]}, training loss {losses[1]}")
        return Evaluation(run.step, losses[0], losses[1], self.config.train.validation_estimator)

    def save(self) -> None:
        """Write a checkpoint of this step and remove old ones. Raises ConfigError on a full disk, and Diverged."""
        self.run.check_finite()
        folder, step = self.path / "checkpoints", self.run.step
        state = {"step": step, "runtime": self.runtime.to_dict(), "machine": machine_info()}
        with explain_write_errors(folder):
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
            # a checkpoint of a later step is damaged, or this run would have resumed from it
            newest = [path for path in list_checkpoints(folder) if step_of(path) <= step][-MAX_CHECKPOINTS:]
            for path in list_checkpoints(folder):
                if path not in newest:
                    remove_folder(path)

    def _stored_metadata(self, config: RunConfig, dataset: Dataset) -> dict[str, Any] | None:
        """The metadata of the run in this folder, or None if there is none. Raises ConfigError for a different run."""
        if not (self.path / "run.json").exists():
            if list_checkpoints(self.path / "checkpoints"):
                raise ConfigError(
                    f"{self.path} has checkpoints but no run.json: choose another --name, or start over with --fresh"
                )
            return None
        stored = read_metadata(self.path)
        changes = difference(stored["config"], config.to_dict())
        if changes:
            path, old, new = changes[0]
            raise ConfigError(
                f"{self.path} contains a different run ({path} was {old}, now {new}): choose another --name, or start "
                "over with --fresh"
            )
        if stored["data"]["hash"] != dataset.hash:
            raise ConfigError(f"the data of {self.path} have changed since the run started: start over with --fresh")
        return stored

    def _clear(self) -> None:
        """Remove the files of a run and no others; run.json last, as it describes the rest."""
        for name in ("checkpoints", "result.json", "metrics.jsonl", "run.json"):
            path = self.path / name
            if path.is_dir():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)
        remove_leftovers(self.path)

    def _metadata(self, command: list[str] | None, dataset: Dataset) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "runtime": self.runtime.to_dict(),
            "plan": self.run.plan.to_dict(),
            "machine": machine_info(),
            "data": {"hash": dataset.hash, "splits": {name: len(dataset.split(name)) for name in dataset.split_names}},
            "parameters": self.config.model.parameters(),
            "command": command or [],
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _log_changes(self, earlier: dict[str, Any]) -> None:
        for key, old, new in difference(earlier, {**machine_info(), **self.runtime.to_dict()}):
            self.log(f"resuming with {key} {new} instead of {old}: later results may differ by rounding")

    def _restore(self) -> dict[str, Any] | None:
        """Load the newest readable checkpoint and return its state, or None if there is none."""
        folder = self.path / "checkpoints"
        with explain_write_errors(folder):
            remove_leftovers(folder)
        state, errors = read_latest(folder, self._load_checkpoint)
        if errors and not state:
            raise ConfigError(f"{errors[0]}, and no older checkpoint can be read: start over with --fresh")
        for error in errors:
            self.log(f"{error}; resuming from step {self.run.step} instead")
        return state

    def _load_checkpoint(self, checkpoint: Path) -> dict[str, Any]:
        state = read_json(checkpoint / "state.json")
        for key, expected_type in (("step", int), ("runtime", dict), ("machine", dict)):
            if not isinstance(state.get(key), expected_type):
                raise DamagedFileError(f"{checkpoint / 'state.json'} lacks {key!r}")
        weights, optimizer = (load_tensors(checkpoint / f"{name}.safetensors") for name in ("model", "optimizer"))
        self.run.restore(state["step"], weights, optimizer)
        return state

    def _finish(self, outcome: dict[str, Any], started: float) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        with explain_write_errors(self.path):
            values = {**outcome, "seconds": time.perf_counter() - started, "peak_memory": memory}
            if self.run.updater:
                values["seeds_per_process"] = self.run.updater.n_seeds  # which share this time and memory
            write_json(self.path / "result.json", values)


def check_split_lengths(dataset: Dataset, config: RunConfig) -> None:
    """Raise ConfigError if a split has no sequence of train.seq_len tokens, or a pair or problem is too long."""
    if dataset.corpus.paired:
        for name in ("train", "val"):
            build_examples(dataset, name, config.seq_len, config.model.context_length)  # raises if a pair is too long
        return
    build_examples(dataset, "train", config.seq_len, config.model.context_length)  # raises if a problem is too long
    for name, min_length in (
        ("train", config.seq_len),
        ("val", config.seq_len if config.train.validation_estimator == "random" else 1),
    ):
        if len(dataset.split(name)) <= min_length:
            raise ConfigError(
                f"train.seq_len={config.seq_len} is too long for the {name} split of {len(dataset.split(name))} tokens: "
                "lower train.seq_len"
            )
