"""The checkpoints of a run: the two newest, each complete or absent."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partwise.checkpoint import (
    FORMAT,
    MANIFEST,
    Writer,
    is_sharded,
    latest_checkpoint,
    list_checkpoints,
    read_latest,
    remove_folder,
    step_of,
    tensor_files,
    verify,
    write_folder,
    write_synced,
)
from partwise.compute.runtime import machine_info
from partwise.config import ConfigError
from partwise.drafts import make_draft, remove_leftovers
from partwise.files import replace_file, write_file
from partwise.json_files import json_writer
from partwise.records import DamagedFileError, read_bytes, read_record
from partwise.run_names import explain_write_errors
from partwise.tensor_files import RowRange, TensorFiles, write_rows, write_tensors
from partwise.train.loop import Run
from partwise.train.metrics import METRICS, check_metrics, cut_metrics, metrics_fingerprint, read_metrics_prefix
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

        Every process must call it. Those that share a model each write the rows that they have, and the first one the rest.
        """
        run = self.run
        if run.updater and run.updater.is_ahead(run):
            raise RuntimeError(f"the weights are not those of step {run.step}: another run has requested the next one")
        run.check_finite()
        with run.average.swapped():  # model.safetensors has the average, for everything that reads the model of a run
            self._write()

    def _write(self) -> None:
        run, processes = self.run, self.run.processes
        tensors = {"model": run.parallel.weights(), "optimizer": run.optimizer_rows()} if self.writes else {}
        target, written = self.folder / checkpoint_name(run.step), None
        if run.parallel.sharded:
            written = self._write_shards(target, tensors)
            tensors = {}
        with processes.together():
            if processes.first:
                with explain_write_errors(self.folder):
                    files = {f"{kind}.safetensors": rows_writer(rows) for kind, rows in tensors.items()}
                    write_folder(target, {**self._descriptions(), **files}, written)
                    self._remove_old(run.step)

    @property
    def writes(self) -> bool:
        """Whether this process writes tensors."""
        return self.run.processes.first or self.run.parallel.sharded

    def _write_shards(self, target: Path, tensors: Mapping[str, Mapping[str, RowRange]]) -> dict[str, Any]:
        """Write the rows of every process into the draft of `target`; returns the entries of their files."""
        processes, entries = self.run.processes, {}
        with explain_write_errors(self.folder):
            draft = Path(processes.on_first(lambda: str(make_draft(target))))
        try:
            with processes.together(), explain_write_errors(self.folder):
                for kind, rows in tensors.items():
                    name = f"{kind}-shard-{processes.rank + 1:05}-of-{processes.size:05}.safetensors"
                    entries[name] = write_synced(draft / name, rows_writer(rows))
            return {name: entry for each in processes.gather(entries) for name, entry in each.items()}
        except BaseException:
            if processes.first:
                shutil.rmtree(draft, ignore_errors=True)
            raise

    def consolidate(self) -> None:
        """Replace the newest checkpoint by one of whole tensors, as one process writes it, if several have written it.

        Every process must call it; the first one has one tensor at a time in memory.
        """
        processes = self.run.processes
        with processes.patient(), processes.together():
            if not processes.first:
                return
            newest, _ = latest_checkpoint(self.folder)
            if newest is None or not is_sharded(newest):
                return
            manifest = read_record(newest / MANIFEST).record("files")
            kept = [name for name in manifest if not name.endswith(".safetensors")]
            files: dict[str, Writer] = {name: copy_of(newest / name) for name in kept}
            for kind in ("model", "optimizer"):
                files[f"{kind}.safetensors"] = whole_writer(tensor_files(newest, kind))
            with explain_write_errors(self.folder):
                write_folder(newest, files)

    def _descriptions(self) -> dict[str, Writer]:
        """The files of a checkpoint without tensors."""
        run, parent = self.run, self.folder.parent
        state = {"step": run.step, "runtime": run.runtime.to_dict(), "machine": machine_info()}
        with explain_write_errors(parent):
            state |= {"processes": run.processes.size, "metrics": metrics_fingerprint(parent)}
        return {
            "config.json": json_writer({"format": FORMAT, "model": run.config.model.to_stored()}),
            "state.json": json_writer(state),
            "tokenizer.json": run.dataset.tokenizer.save,
        }

    def _remove_old(self, step: int) -> None:
        # a checkpoint of a later step is damaged, or this run would have resumed from it
        newest = [path for path in list_checkpoints(self.folder) if step_of(path) <= step][-MAX_CHECKPOINTS:]
        for path in list_checkpoints(self.folder):
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
        self.run.restore(state["step"], tensor_files(checkpoint, "model"), tensor_files(checkpoint, "optimizer"))
        return state


def rows_writer(tensors: Mapping[str, RowRange]) -> Writer:
    return lambda path: write_rows(path, tensors)


def whole_writer(files: TensorFiles) -> Writer:
    return lambda path: write_tensors(path, {name: files.kind(name) for name in files}, files.rows)


def copy_of(source: Path) -> Writer:
    return lambda path: write_file(path, read_bytes(source))
