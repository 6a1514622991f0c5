"""The checkpoints of a run: the two newest, each complete or absent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from partwise.checkpoint import (
    FORMAT,
    json_writer,
    list_checkpoints,
    load_tensors,
    read_latest,
    remove_folder,
    remove_leftovers,
    step_of,
    tensor_writer,
    verify,
    write_folder,
)
from partwise.compute.runtime import machine_info
from partwise.config import ConfigError
from partwise.files import replace_file
from partwise.records import DamagedFileError, read_record
from partwise.train.loop import Run
from partwise.train.metrics import METRICS, check_metrics, cut_metrics, metrics_fingerprint, read_metrics_prefix
from partwise.train.run_names import explain_write_errors
from partwise.train.shared_prefix import shared_steps, steps_of_prefix

MAX_CHECKPOINTS = 2


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


class RunCheckpoints:
    """Saves and restores a run in `folder`; `log` receives a line per checkpoint that cannot be read.

    The checkpoint of the step `kept` is not removed: a longer run may start from it.
    """

    def __init__(self, folder: Path, run: Run, log: Callable[[str], None], kept: int | None = None) -> None:
        self.folder, self.run, self.log, self.kept = folder, run, log, kept

    def save(self) -> None:
        """Write a checkpoint of this step and remove old ones. Raises ConfigError on a full disk, and Diverged.

        Every process must call it; the first one writes.
        """
        self.run.check_finite()
        weights, optimizer = self.run.parallel.weights(), self.run.optimizer_tensors()
        with self.run.processes.together():
            if self.run.processes.first:
                self._write(weights, optimizer)

    def _write(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        folder, step = self.folder, self.run.step
        state = {"step": step, "runtime": self.run.runtime.to_dict(), "machine": machine_info()}
        state["processes"] = self.run.processes.size
        with explain_write_errors(folder.parent):
            state["metrics"] = metrics_fingerprint(folder.parent)
        with explain_write_errors(folder):
            write_folder(
                folder / checkpoint_name(step),
                {
                    "config.json": json_writer({"format": FORMAT, "model": self.run.config.model.to_dict()}),
                    "model.safetensors": tensor_writer(weights),
                    "optimizer.safetensors": tensor_writer(optimizer),
                    "state.json": json_writer(state),
                    "tokenizer.json": self.run.dataset.tokenizer.save,
                },
            )
            # a checkpoint of a later step is damaged, or this run would have resumed from it
            newest = [path for path in list_checkpoints(folder) if step_of(path) <= step][-MAX_CHECKPOINTS:]
            for path in list_checkpoints(folder):
                if path not in newest and step_of(path) != self.kept:
                    remove_folder(path)

    def start_from(self, other: Path) -> dict[str, Any] | None:
        """Continue a shorter run of the same configuration from the last step that both have in common; return its state.

        None if they have none in common, or after a line to `log` if its checkpoint is damaged: the run starts at step 0.
        """
        run = self.run
        try:
            steps = steps_of_prefix(other, run.config, run.dataset.hash, run.plan)
            if steps is None:
                raise DamagedFileError(f"{other} is another run")
            shared = shared_steps(run.config, steps, run.model)
            if not shared:
                return None
            checkpoint = other / "checkpoints" / checkpoint_name(shared)
            verify(checkpoint)
            metrics = read_metrics_prefix(other, read_record(checkpoint / "state.json")["metrics"])
        except DamagedFileError as error:
            self.log(f"{error}: training from step 0 instead")
            return None
        try:
            with explain_write_errors(self.folder.parent):
                replace_file(self.folder.parent / METRICS, metrics)
            state = self._load(checkpoint)
        except DamagedFileError as error:
            raise ConfigError(f"{error}: delete {other} to train it again") from None
        self.save()
        return state

    def restore(self) -> dict[str, Any] | None:
        """Load the newest readable checkpoint and return its state, or None if there is none.

        Every process must call it; the others load the one that the first could read.
        """
        processes = self.run.processes
        state: dict[str, Any] | None = processes.on_first(self._restore_newest)
        with processes.together():
            if state and not processes.first:
                self._load(self.folder / checkpoint_name(state["step"]))
        return state

    def _restore_newest(self) -> dict[str, Any] | None:
        folder = self.folder
        with explain_write_errors(folder):
            remove_leftovers(folder)
        state, errors = read_latest(folder, self._load)
        if errors and not state:
            raise ConfigError(f"{errors[0]}, and no older checkpoint can be read: start over with --fresh")
        if state and "metrics" in state:
            with explain_write_errors(folder.parent):
                cut_metrics(folder.parent, state["metrics"]["size"])
        for error in errors:
            self.log(f"{error}; resuming from step {self.run.step} instead")
        return state

    def _load(self, checkpoint: Path) -> dict[str, Any]:
        state = read_record(checkpoint / "state.json")
        for key, expected_type in (("step", int), ("runtime", dict), ("machine", dict)):
            if not isinstance(state.get(key), expected_type):
                raise DamagedFileError(f"{checkpoint / 'state.json'} lacks {key!r}")
        if "metrics" in state:  # older checkpoints have none
            check_metrics(self.folder.parent, state["metrics"])
        weights, optimizer = (load_tensors(checkpoint / f"{name}.safetensors") for name in ("model", "optimizer"))
        self.run.restore(state["step"], weights, optimizer)
        return state
