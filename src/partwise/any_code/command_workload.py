"""The workload of commands: any program, run by worker processes on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from partwise.any_code.command_plan import CommandArm, CommandPlan
from partwise.any_code.equal_seconds import match_seconds, measure_seconds_per_step
from partwise.any_code.experiment_file import Experiment
from partwise.any_code.provenance import changes_since, describe_environment
from partwise.any_code.result_files import lies_in_folder, shared_result_file
from partwise.any_code.template import placeholders, split_words
from partwise.any_code.worktrees import Repository
from partwise.comparison.measures import Measure
from partwise.comparison.results import ArmResult, Matching, Results
from partwise.comparison.trials.job import COMMANDS
from partwise.comparison.trials.local import LocalExecutor
from partwise.comparison.trials.stored import StoredTrial, prepare_trial
from partwise.comparison.trials.trial import Trial
from partwise.comparison.trials.workload import Resources, Workload
from partwise.config import ConfigError, digest
from partwise.config.yaml import show
from partwise.machine import available_cores, visible_devices
from partwise.messages import attempt, not_shown

WORKTREES = "worktrees"
TIMING = "timing"
"""The folder of the short trials that `--match seconds` times."""


@dataclass
class CommandWorkload(Workload):
    """The commands of `experiment`, run in `folder`; `path` is the folder of the comparison.

    Without `allow_changes`, code, packages and machine must stay as they were before the first trial.
    """

    experiment: Experiment
    folder: Path
    path: Path
    workers: int | None = None
    allow_changes: bool = False
    changed: list[str] = field(default_factory=list)
    setup: dict[str, Any] = field(default_factory=dict)

    def prepare(self, plan: CommandPlan) -> str:
        """The settings of every trial: the source of the metric, and the limits."""
        if not self.folder.is_dir():
            raise ConfigError(f"folder: {self.folder} does not exist")
        return digest(
            {key: value for key, value in self.experiment.to_stored().items() if key in ("metric", "curve", "trial")}
        )

    def at(self, folder: Path) -> Self:
        return replace(self, path=folder)

    def choose_setup(self, plan: CommandPlan, timed: bool) -> dict[str, Any]:
        environment = self.environment(plan)
        self.setup = {"environment": environment, "machine": environment["machine"]}
        if timed:
            timing = self.path / TIMING
            self.setup["seconds_per_step"] = measure_seconds_per_step(self.executor(), self.short_trial, plan, timing)
        return self.setup

    def match(self, plan: CommandPlan, measure: Measure) -> tuple[CommandPlan, Matching]:
        return match_seconds(plan, self.setup["seconds_per_step"])

    def restore_setup(self, plan: CommandPlan, setup: Mapping[str, Any]) -> None:
        self.setup = dict(setup)
        self.changed = changes_since(self.setup["environment"], self.environment(plan))
        if self.changed and not self.allow_changes:
            raise ConfigError(
                f"changed since the first trial of {self.path}: {'; '.join(self.changed)}. Choose another --name, or "
                "continue with --allow-changes; the report will list the changes"
            )

    def environment(self, plan: CommandPlan) -> dict[str, Any]:
        words = [] if self.experiment.shell else split_words(self.experiment.command)
        names = [name for arm in plan.arms for name in arm.config.env]
        found = describe_environment(self.folder, words, names)
        if all(arm.config.commit for arm in plan.arms):
            found["code"] = {"files": {}}  # the commits are part of the plan, and this checkout does not matter
        return found

    def executor(self) -> LocalExecutor:
        limits = self.experiment.trial
        each = f" for each of trial.processes={limits.processes}" if limits.processes > 1 else ""
        if limits.all_cpus > cores():
            raise ConfigError(f"trial.cpus={limits.cpus}{each}: this machine has {cores()}; lower it")
        devices = visible_devices() if limits.gpus else []
        if limits.all_gpus > len(devices):
            raise ConfigError(f"trial.gpus={limits.gpus}{each}: this machine has {len(devices)} visible GPUs; lower it")
        return LocalExecutor(self.processes(self.workers), executed_by=COMMANDS, gpus=limits.all_gpus, devices=devices)

    def processes(self, workers: int | None) -> int:
        """How many trials run at a time on this machine: `workers`, or as many as its cores allow."""
        return workers or max(1, cores() // self.experiment.trial.all_cpus)

    def resources(self) -> Resources:
        return Resources(self.experiment.trial.all_cpus, self.experiment.trial.all_gpus)

    def trial(self, arm: CommandArm, seed: int, folder: Path) -> StoredTrial:
        return self._prepare_trial(arm, seed, folder, {})

    def short_trial(self, arm: CommandArm, seed: int, folder: Path, check: Sequence[str] = ()) -> StoredTrial:
        """A trial that only tries or times the command; what it writes outside `{folder}` is removed."""
        return self._prepare_trial(arm, seed, folder, {"short": "yes"}, check)

    def _prepare_trial(
        self, arm: CommandArm, seed: int, folder: Path, place: dict[str, str], check: Sequence[str] = ()
    ) -> StoredTrial:
        place = {"cwd": str(self.cwd(arm)), "locks": str(self.path.parent.resolve()), **place}
        trial = prepare_trial(folder, arm.name, seed, self.job(arm, seed, check), COMMANDS, place)
        if not trial.finished and (fault := shared_result_file(self.experiment)):
            raise ConfigError(f"{fault}. So values in {self.path} may be those of other trials: choose another --name")
        return trial

    def folder_name(self, arm: CommandArm) -> str:
        """Without `=`, which some programs do not expect in the path of `{folder}`."""
        return super().folder_name(arm).replace("=", "-")

    def notes(self, plan: CommandPlan) -> list[str]:
        return [
            f"{key}.from={show(source.source)} is one file for all seeds of an arm, so its trials run one at a "
            "time: write it to {folder} to run several"
            for key, source in self.experiment.file_sources().items()
            if not lies_in_folder(source.source) and "seed" not in placeholders(source.source)
        ]

    def job(self, arm: CommandArm, seed: int, check: Sequence[str] = ()) -> dict[str, Any]:
        """Everything that one execution depends on, except the place and the environment."""
        experiment = self.experiment
        return {
            "arm": arm.name,
            "seed": seed,
            "config": arm.config.to_stored(),
            "check": list(check),
            "metric": {key: getattr(experiment.metric, key) for key in ("source", "pattern", "value", "take", "name")},
            "curve": experiment.curve.to_stored() if experiment.curve else None,
            "trial": experiment.trial.to_stored(),
        }

    def cwd(self, arm: CommandArm) -> Path:
        """Where the arm's command runs: its worktree, or the folder of the experiment."""
        if arm.config.commit is None:
            return self.folder.resolve()
        repository = Repository.around(self.folder)
        return (self.path / WORKTREES / arm.config.commit[:12]).resolve() / repository.inside

    def add_worktrees(self, plan: CommandPlan) -> None:
        """Check out the commit of every arm that has one. Raises ConfigError."""
        for commit in self.commits(plan):
            repository, target = Repository.around(self.folder), self.path / WORKTREES / commit[:12]
            repository.add_worktree(target, commit, self.experiment.share, self.experiment.setup)

    def remove_worktrees(self, plan: CommandPlan) -> None:
        for commit in self.commits(plan):
            Repository.around(self.folder).remove_worktree((self.path / WORKTREES / commit[:12]).resolve())

    def commits(self, plan: CommandPlan) -> list[str]:
        return list(dict.fromkeys(arm.config.commit for arm in plan.arms if arm.config.commit))

    def describe(self, plan: CommandPlan, trials: Sequence[Trial], results: Results) -> dict[str, Any]:
        """Adds the changes of code between arms, and refuses arms whose values are all identical."""
        check_values_differ(plan, results)
        arms = [self._with_diff(plan.arms[0], *pair) for pair in zip(plan.arms, results.arms, strict=True)]
        changes = f" Changed while it ran: {'; '.join(self.changed)}." if self.changed else ""
        scope = f"Measured with the command {self.experiment.command!r} on this machine.{changes}"
        if shared_result_file(self.experiment):  # of before this was refused
            scope += " Trials wrote one result file, so a value may be that of another trial."
        scope += sentence_on_repeats(trials)
        return {"arms": tuple(arms), "scope": scope}

    def _with_diff(self, baseline: CommandArm, arm: CommandArm, result: ArmResult) -> ArmResult:
        before, after = baseline.config.commit, arm.config.commit
        if before is None or after is None or before == after:
            return result

        def changes() -> str:
            return Repository.around(self.folder).difference(before, after)

        return result.model_copy(update={"code_changes": attempt(f"the diff of {arm.name}", changes, not_shown)})


def sentence_on_repeats(trials: Sequence[Trial]) -> str:
    """Which trials `--retry-failed` has repeated, and why; "" if none."""
    repeated = [
        f"{trial.arm}, seed {trial.seed} ({'; '.join(trial.repeats)})"
        for trial in trials
        if isinstance(trial, StoredTrial) and trial.repeats
    ]
    return f" Repeated because the machine had ended them: {', '.join(repeated)}." if repeated else ""


def check_values_differ(plan: CommandPlan, results: Results) -> None:
    """Raise ConfigError if an arm has the values of the baseline, bit for bit: then the same code has probably run."""
    baseline, *others = results.arms
    for arm in others:
        known = [(mine.value, trial.value) for trial in baseline.trials if (mine := arm.trial(trial.seed))]
        if len(known) > 1 and all(one is not None and one == other for one, other in known):
            cause = "an installed package may hide the code of the worktree: let `setup` install each commit on its own"
            if plan.arm(arm.name).config.commit is None:
                cause = "its change may not reach the program: try the command by hand"
            raise ConfigError(
                f"{arm.name} and {baseline.name} have identical values on all {len(known)} seeds, so nothing is judged: "
                f"{cause}"
            )


def cores() -> int:
    return available_cores()
