"""The checks of the user's own parts in a comparison: each arm before the first run, each run before it is judged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from partwise.ablation.run_plan import RunArm, RunPlan, dataset_of
from partwise.checkpoint import list_checkpoints, load
from partwise.checks.finding import Finding
from partwise.checks.model_checks import LEAK
from partwise.comparison.results import PartFinding
from partwise.comparison.trials.trial import Trial
from partwise.compute.backend_plan import BackendPlan as ComputePlan
from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError, digest
from partwise.data import Dataset
from partwise.machine import is_out_of_memory
from partwise.train.config import RunConfig
from partwise.train.loop import Run
from partwise.train.own_parts import check_own_parts, has_own, refuse_leaks


@dataclass
class PartChecks:
    """The findings so far. With `allow_leak`, arms that see later positions are compared anyway."""

    allow_leak: bool = False
    before: dict[str, list[Finding]] = field(default_factory=dict)
    """By the digest of an arm's configuration without its seed."""
    trained: dict[Path, list[Finding]] = field(default_factory=dict)
    """By the folder of a trial."""

    def check_arms(self, plan: RunPlan, dataset: Dataset) -> None:
        """Check the model, optimizer, schedule and data of each arm. Raises ConfigError for a leak."""
        for arm in plan.arms:
            if has_own(arm.config) and key_of(arm.config) not in self.before:
                found = self.before[key_of(arm.config)] = check_arm(arm.config, dataset_of(plan, arm, dataset))
                self.refuse(arm, found, "")

    def check_trained(self, plan: RunPlan, trials: Sequence[Trial], dataset: Dataset) -> None:
        """Check the trained weights of every run with parts of the user's own. Raises ConfigError for a leak."""
        for trial in trials:
            arm = plan.arm(trial.arm)
            if trial.status == "done" and has_own(arm.config) and trial.folder not in self.trained:
                found = check_trial(trial.folder, arm.config, dataset_of(plan, arm, dataset))
                self.trained[trial.folder] = found
                self.refuse(arm, found, f", seed {trial.seed}")

    def refuse(self, arm: RunArm, found: Sequence[Finding], which: str) -> None:
        if not self.allow_leak:
            try:
                refuse_leaks(arm.config, found, ComputePlan({}))
            except ConfigError as error:
                raise ConfigError(f"arm {arm.name}{which}: {error}") from None

    def findings(self, arm: RunArm, trials: Sequence[Trial]) -> tuple[PartFinding, ...]:
        """The findings of an arm: those before training, and those of trained weights that failed or are new."""
        before = [PartFinding(**each.to_dict()) for each in self.before.get(key_of(arm.config), ())]
        trained = [
            PartFinding(**each.to_dict(), seed=trial.seed)
            for trial in trials
            if trial.arm == arm.name
            for each in self.trained.get(trial.folder, ())
            if each.outcome != "passed" or each.check == LEAK
        ]
        return (*before, *trained)


def key_of(config: RunConfig) -> str:
    """Equal for configurations whose checks are the same: learning rates and seeds do not matter."""
    train = config.train
    backends = [train.attention_backend, train.ffn_backend, train.block_backend, train.device]
    parts = [config.model, config.optimizer, config.schedule, config.data, config.tokenizer]
    return digest([*(part.to_dict() for part in parts), config.seq_len, *backends])


def check_arm(config: RunConfig, dataset: Dataset) -> list[Finding]:
    """The checks of an arm's own parts before it trains. Raises ConfigError if its model cannot be computed."""
    try:
        run = Run(config, dataset, choose_runtime(config.train))
        return check_own_parts(config, run.model, dataset, run.plan)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(type(error).__name__, str(error)):
            return [Finding(LEAK, "warning", "not checked: too little memory for the model in one process")]
        raise


def check_trial(folder: Path, config: RunConfig, dataset: Dataset) -> list[Finding]:
    """The checks of a finished run's model."""
    if not list_checkpoints(folder / "checkpoints"):
        return [Finding(LEAK, "warning", "the trained weights were deleted, so they were not checked")]
    model = load(folder)[0]
    device = choose_runtime(config.train).device
    model.to(torch.device(device))
    return check_own_parts(config, model, dataset, ComputePlan({}), trained=True)
