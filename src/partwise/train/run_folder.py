"""A run's folder: its files, its lock, checkpoints, and resuming.

runs/NAME/run.json         everything needed to reproduce the run
          metrics.jsonl    one line per step and per evaluation; cut back to the checkpoint from which a run resumes
          checkpoints/     step-00000500, ...: the two newest
          result.json      the final evaluations, or where the run diverged
          tensorboard/     event files, if train.log=tensorboard; wandb/ likewise
          report.html      its page, if `partwise report` has written one
          ranks/           what the other processes of a run on several printed
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from partwise.checkpoint import FORMAT, list_checkpoints, remove_folder
from partwise.checks.finding import Finding
from partwise.compute.backend_plan import BackendPlan
from partwise.compute.runtime import Runtime, choose_runtime, machine_info
from partwise.config import ConfigError, digest, own_names
from partwise.config.overrides import difference
from partwise.data import Dataset
from partwise.drafts import make_folder, remove_leftovers
from partwise.files import refuse_links
from partwise.json_files import write_json
from partwise.machine import peak_memory
from partwise.messages import print_message
from partwise.run_names import FolderLock, explain_write_errors
from partwise.train.config import RunConfig
from partwise.train.distributed.processes import SINGLE, Processes
from partwise.train.evaluation import Evaluation, check_split_lengths, evaluate
from partwise.train.experiment_log import ExperimentLog
from partwise.train.loop import Diverged, Run, Step
from partwise.train.metrics import METRICS, MetricsFile, Unwritten, read_metrics
from partwise.train.result import with_new_settings, without_effect, write_result
from partwise.train.run_checkpoints import RunCheckpoints
from partwise.train.run_metadata import check_stored_plan, read_metadata, stored_runtime
from partwise.train.shared_prefix import ALONE, SharedRun, shared_steps
from partwise.version import __version__

FOLDERS = {"checkpoints": 1, "tensorboard": 0, "wandb": 0, "ranks": 0}
"""The folders in that of a run, and how many levels of each may have no links; wandb makes links of its own in its folder."""

SAVE_SECONDS = 600.0
"""A checkpoint is saved at least this often, between those of `train.save_every`."""


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint after `step` steps is on disk."""

    step: int


class Interrupted(Exception):
    """The run stopped on request, after saving a checkpoint."""


class RunFolder:
    """A run on disk. An equal configuration resumes it; another one is refused.

    Several processes each have one of the same run, on a file system that they share; the first one writes. An `extension`
    starts it from the steps that it has in common with a shorter run, with bitwise equal results. Unless `check_parts` is
    false, parts that are not of this package are checked first; `allow_leak` trains with those that see later positions.
    """

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        *,
        fresh: bool = False,
        runtime: Runtime | None = None,
        plan: BackendPlan | None = None,
        command: list[str] | None = None,
        dataset: Dataset | None = None,
        log: Callable[[str], None] = print_message,
        processes: Processes = SINGLE,
        extension: SharedRun = ALONE,
        allow_leak: bool = False,
        check_parts: bool = True,
    ) -> None:
        self.path, self.config, self.processes = path, config, processes
        self.log = log if processes.first else lambda text: None
        self.stop_requested = False
        self.save_requested: bool | None = None
        """Whether to save after the current step; None: as the clock says. Runs that train in turns must save together."""
        self.lock: FolderLock | None = None
        self.latest_evaluation: Evaluation | None = None
        self.saved_at = time.monotonic()
        with processes.together():
            dataset = dataset or config.prepare()
            check_split_lengths(dataset, config)
            processes.check_rows(config.train.batch_size, config.train.grad_accumulation)
            new_runtime = runtime or choose_runtime(config.train)
            check_processes(config, processes.size)
        processes.check_equal(shared_facts(config, dataset, new_runtime))
        try:
            with processes.together():
                processes.check_device(new_runtime.device)
                if processes.first:
                    refuse_links(path, FOLDERS)
                    with explain_write_errors(path):
                        make_folder(path)
                    self.lock = FolderLock(path)
            stored = processes.on_first(lambda: None if fresh else self._stored_metadata(config, dataset))
            with processes.together():
                self.runtime = self._resumed_runtime(stored, new_runtime) if stored else new_runtime
                if processes.size > 1 or config.train.activation_checkpointing:
                    self.runtime = replace(self.runtime, compile=False)
                if processes.first:
                    with explain_write_errors(path):
                        remove_leftovers(path) if stored else self._clear()
            for turn in (True, False):  # the first process compiles kernels for all
                with processes.together():
                    if processes.first == turn:
                        self.run = Run(config, dataset, self.runtime, plan)
            with processes.together():  # the first for all, before a model is divided between them
                if check_parts and processes.first:
                    if names := own_names(config):
                        self.log(f"checking {names}")
                    self.run.check_parts(allow_leak)
            findings = self.run.findings = self.run.findings or []
            self.metadata = stored or self._metadata(command, dataset)
            with processes.together():
                if stored is not None:
                    check_stored_plan(path, stored, self.run.plan)
                elif processes.first:
                    self._write_metadata()
                self.add_findings(findings)
                self.run.distribute(processes)
            self.extended_at = shared_steps(config, extension.to, self.run.model) if extension.to else None
            self.checkpoints = RunCheckpoints(path / "checkpoints", self.run, self.log, kept=self.extended_at)
            state = self.checkpoints.restore()
            if state is None and extension.of and processes.size == 1:
                state = self.checkpoints.start_from(extension.of)
            for line in dict.fromkeys([*self._changes_since(stored), *self._changes_since(state)]):
                self.log(line)
        except BaseException:
            self.close()
            raise

    def events(self) -> Iterator[Step | Evaluation | CheckpointSaved]:
        """Train to the end, then release the folder.

        Raises Interrupted after saving if `stop_requested` is set, and Diverged before a non-finite step is taken or saved.
        """
        run, started, result = self.run, time.perf_counter(), self.path / "result.json"
        writes = self.processes.first
        try:
            with MetricsFile(self.path / METRICS) if writes else Unwritten() as metrics:
                if run.step < self.config.train.steps:
                    if writes:
                        with explain_write_errors(self.path):
                            result.unlink(missing_ok=True)  # the result of an earlier attempt that diverged
                    kind = self.config.train.log if writes else "none"
                    with ExperimentLog(kind, self.path, self.metadata, self.log) as log:
                        try:
                            yield from self._train(metrics, log)
                        except Diverged as error:
                            self._save_before(error, metrics)
                            raise
                run.average.end()
                self.checkpoints.consolidate()
        except Diverged as error:
            if writes:
                self._finish({"diverged": str(error), "step": run.step}, started)
            raise
        else:
            if writes and not result.exists():
                evaluations = [line for line in read_metrics(self.path) if line["kind"] == "evaluation"]
                self._finish({"step": run.step, "evaluations": evaluations}, started)
        finally:
            self.close()

    def _save_before(self, error: Diverged, metrics: MetricsFile | Unwritten) -> None:
        """Save what a resumed run needs to repeat the step that diverged; its batch follows from the seed and the step."""
        if error.before_step and self.run.step:
            metrics.flush()
            with suppress(Diverged):  # the weights were not finite before
                self.checkpoints.save()

    @property
    def save_is_due(self) -> bool:
        """Whether a kill would lose more than SAVE_SECONDS, however long steps are."""
        return time.monotonic() - self.saved_at >= SAVE_SECONDS

    def close(self) -> None:
        """Release the folder for another process or another RunFolder."""
        if self.lock:
            self.lock.release()

    def _train(
        self, metrics: MetricsFile | Unwritten, log: ExperimentLog
    ) -> Iterator[Step | Evaluation | CheckpointSaved]:
        train, run = self.config.train, self.run
        self.saved_at = time.monotonic()
        for step in run.steps():
            metrics.write({"kind": "step", **asdict(step)})
            yield step
            last = step.step == train.steps
            if last or step.step % self.config.eval_every == 0:
                evaluation = self.latest_evaluation = evaluate(run)
                metrics.write({"kind": "evaluation", **asdict(evaluation)})
                log.write(step, evaluation)
                yield evaluation
            due = self.save_is_due if self.save_requested is None else self.save_requested
            asked = self.processes.maximum(2 if self.stop_requested else int(due))  # of any process
            if last or asked or step.step % train.save_every == 0 or step.step == self.extended_at:
                metrics.flush()  # before the checkpoint, which must never outlive the metrics up to it
                self.checkpoints.save()
                self.saved_at = time.monotonic()
                yield CheckpointSaved(step.step)
                asked = self.processes.maximum(2 if self.stop_requested else 0)
            if asked == 2 and not last:
                raise Interrupted(f"stopped after step {step.step} of {train.steps}; everything is saved")

    def _stored_metadata(self, config: RunConfig, dataset: Dataset) -> dict[str, Any] | None:
        """The metadata of the run in this folder, or None if there is none. Raises ConfigError for a different run."""
        if not (self.path / "run.json").exists():
            if list_checkpoints(self.path / "checkpoints"):
                raise ConfigError(
                    f"{self.path} has checkpoints but no run.json: choose another --name, or start over with --fresh"
                )
            return None
        stored = read_metadata(self.path)
        known = with_new_settings(stored["config"])
        ignored = without_effect(known)
        changes = [each for each in difference(known, config.to_dict()) if each[0] not in ignored]
        if changes:
            path, old, new = changes[0]
            raise ConfigError(
                f"{self.path} contains a different run ({path} was {old}, now {new}): choose another --name, or start "
                "over with --fresh"
            )
        if stored["data"]["hash"] != dataset.hash:
            raise ConfigError(f"the data of {self.path} have changed since the run started: start over with --fresh")
        return stored

    def _resumed_runtime(self, stored: dict[str, Any], new: Runtime) -> Runtime:
        """The stored runtime; threads are chosen again if they change nothing, or if other processes share the machine."""
        runtime = stored_runtime(self.path, stored)
        keep = stored.get("processes", 1) == self.processes.size and not runtime.deterministic
        return runtime if keep else runtime.with_threads(new.threads)

    def _clear(self) -> None:
        """Remove the files of a run and no others; run.json last, as it describes the rest."""
        for name in (*FOLDERS, "report.html", "result.json", METRICS, "run.json"):
            path = self.path / name
            if path.is_dir():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)
        remove_leftovers(self.path)

    def _metadata(self, command: list[str] | None, dataset: Dataset) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config": self.config.to_stored(),
            "runtime": self.runtime.to_dict(),
            "processes": self.processes.size,
            "plan": self.run.plan.to_dict(),
            "machine": machine_info(),
            "data": {"hash": dataset.hash, "splits": {name: len(dataset.split(name)) for name in dataset.split_names}},
            "parameters": self.config.model.parameters(),
            "new_tensors": self.run.new_tensors,
            "command": command or [],
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def add_findings(self, findings: Sequence[Finding], key: str = "findings") -> None:
        """Store in `run.json` what the checks of the user's own parts have found; nothing if there are no such parts."""
        if findings and self.processes.first:
            self.metadata = {**self.metadata, key: [finding.to_dict() for finding in findings]}
            self._write_metadata()

    def _write_metadata(self) -> None:
        with explain_write_errors(self.path):
            write_json(self.path / "run.json", self.metadata)

    def _changes_since(self, earlier: dict[str, Any] | None) -> list[str]:
        """How this machine differs from that of stored metadata or of a checkpoint."""
        if not earlier:
            return []
        if not all(isinstance(earlier.get(key), dict) for key in ("runtime", "machine")):
            raise ConfigError(f"{self.path} has a damaged record of its machine or runtime: start over with --fresh")
        runtime = {**Runtime().to_dict(), **earlier["runtime"]}  # settings that are newer than the run
        old = {**earlier["machine"], **runtime, "processes": earlier.get("processes", 1)}
        now = {**machine_info(), **self.runtime.to_dict(), "processes": self.processes.size}
        return [
            f"resuming with {key} {new} instead of {before}: later results may differ by rounding"
            for key, before, new in difference(old, now)
            if not (key == "threads" and self.runtime.deterministic)
        ]

    def _finish(self, outcome: dict[str, Any], started: float) -> None:
        with explain_write_errors(self.path):
            values = {**outcome, "seconds": time.perf_counter() - started, "peak_memory": peak_memory()}
            if self.run.updater:
                values["seeds_per_process"] = self.run.updater.n_seeds  # which share this time and memory
            write_result(self.path, values, self.config.to_stored())


def check_processes(config: RunConfig, n_processes: int) -> None:
    """Raise ConfigError if a setting does not support this number of processes."""
    train = config.train
    settings = {"train.compile=true": train.compile, "train.deterministic=true": train.deterministic}
    for setting, used in settings.items():
        if n_processes > 1 and used:
            raise ConfigError(f"{setting} does not support {n_processes} processes: leave it out, or start one process")


def shared_facts(config: RunConfig, dataset: Dataset, runtime: Runtime) -> dict[str, str]:
    """The facts that must agree on all processes of a run."""
    return {
        "partwise": __version__,
        "torch": torch.__version__,
        "the configuration": digest(config.to_stored())[:12],
        "the data": dataset.hash[:12],
        "the device": runtime.device,
        "the precision": runtime.precision,
        "kernels": runtime.kernel_build or str(runtime.kernels),
    }
