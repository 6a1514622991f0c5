"""A short trial of every arm before hours are spent: it works, its metric is found, seeds matter, and how long it takes."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partwise.any_code.command_plan import CommandArm, CommandPlan
from partwise.any_code.command_workload import CommandWorkload
from partwise.any_code.template import split_words
from partwise.comparison.results import Value
from partwise.comparison.trials.executor import run_short_trials
from partwise.comparison.trials.stored import StoredTrial
from partwise.config import ConfigError


class CheckResult(Value):
    """What the short trials have shown."""

    seconds: float
    """The median over the short trials."""
    repeats: bool | None
    """Whether the same seed gave the same number twice; None if that was not tried."""
    sentences: tuple[str, ...]


@dataclass
class BriefRun:
    """The short trials of a plan: the first seed of every arm, and of the baseline the first seed again and the second."""

    workload: CommandWorkload
    plan: CommandPlan
    folder: Path
    trials: list[StoredTrial] = field(default_factory=list)

    def run(self) -> CheckResult:
        """Run them. Raises ConfigError if one has no value, or if the seed changes nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        more = split_words(self.workload.experiment.check) if self.workload.experiment.check else []
        first, baseline = self.plan.first_seed, self.plan.arms[0]
        wanted = [(arm, first, "once") for arm in self.plan.arms]
        wanted += [(baseline, first, "again"), (baseline, first + 1, "other")]
        self.trials = [self.short_trial(number, *each, more) for number, each in enumerate(wanted)]
        try:
            run_short_trials(self.workload.executor(), self.trials, "the check")
            return self.conclude()
        finally:
            if all(trial.status == "done" for trial in self.trials):
                shutil.rmtree(self.folder, ignore_errors=True)

    def short_trial(self, number: int, arm: CommandArm, seed: int, kind: str, more: Sequence[str]) -> StoredTrial:
        return self.workload.short_trial(arm, seed, self.folder / f"{number}-{kind}", more)

    def conclude(self) -> CheckResult:
        found = [trial.outcome("") for trial in self.trials]
        (once, *_), again, other = (result.value for result in found[:1]), found[-2].value, found[-1].value
        seconds = sorted(result.seconds or 0.0 for result in found)[len(found) // 2]
        if once == other:
            raise ConfigError(
                f"seeds {self.trials[0].seed} and {self.trials[-1].seed} of {self.trials[0].arm} gave the same value, "
                f"{once}: make the command use {{seed}}"
            )
        repeats = once == again
        sentences = [f"Every arm ran and gave a {self.plan.rules.metric}; a short trial took {seconds:.1f} s."]
        sentences.append("The same seed gave the same value twice.")
        if not repeats:
            sentences[-1] = (
                "The same seed gave different values: pairing helps only as far as the runs of a seed correlate."
            )
        return CheckResult(seconds=seconds, repeats=repeats, sentences=tuple(sentences))


def looks_like_training(plan: CommandPlan, pattern: str) -> bool:
    """Whether the metric is named like a loss on the training data, which a change can lower by over-fitting alone."""
    text = f"{plan.rules.metric} {pattern}".lower()
    return "train" in text and not any(word in text for word in ("val", "test", "eval", "held"))
