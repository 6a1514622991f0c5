"""The arms of a comparison and their trials."""

import math
from typing import Annotated, Literal

from pydantic import JsonValue

from partwise.comparison.results.value import Value
from partwise.config import Neutral


class Proportion(Value):
    """A proportion with its Wilson 95% interval."""

    correct: int
    total: int
    proportion: float | None
    low: float | None
    high: float | None


class Accuracy(Value):
    """The accuracies of answers to arithmetic problems."""

    exact_match: Proportion
    char_accuracy: Proportion
    char_accuracy_closed: Proportion
    """Over the characters of the answers including the closing $."""


Accuracies = dict[str, Accuracy]
"""By operation, and for all problems under `all`."""


class TaskScore(Value):
    """The score of a model on a task of lm_eval."""

    task: str
    metric: str
    value: float | None
    """None if it is not finite."""
    item_error: float | None
    """The standard error of the value over the items, if known: not the noise between seeds."""
    items: int
    items_sha256: str | None = None
    """The hash of the items; None in results of older versions."""


class TrialResult(Value):
    """The outcome of one arm on one seed."""

    seed: int
    value: float | None
    """In the metric of the comparison; None if the trial diverged."""
    diverged: bool = False
    failed: bool = False
    """Whether it diverged or its value is beyond the limit of the protocol."""
    validation_loss: float | None = None
    training_loss: float | None = None
    peak_memory: int | None = None
    """In bytes."""
    accuracy: Accuracies | None = None
    task_score: TaskScore | None = None
    """If the metric is that of a task."""
    training_curve: tuple[tuple[int, float], ...] = ()
    """[step, training loss], thinned; empty if not stored."""
    evaluations: tuple[tuple[int, float, float | None], ...] = ()
    """[step, validation loss or another metric, training loss if known]; empty if not stored."""
    horizons: tuple[tuple[int, float | None], ...] = ()
    """[steps, value] of runs of each length, in ascending order; empty if there is one length."""
    reason: str | None = None
    """Why there is no value, if a command ended without one."""
    seconds: float | None = None
    """How long a command ran."""
    log: str | None = None
    """The file with the output of a command, below the folder of the comparison."""


class PartFinding(Value):
    """What a check of the user's own parts has found."""

    check: str
    outcome: Literal["passed", "warning", "leak"]
    """`leak`: a position sees the tokens that it predicts."""
    measured: str
    seed: int | None = None
    """The seed of the trial with the checked weights; None before training."""


class Budget(Value):
    """What one trial of an arm uses: one field per `Measure`."""

    tokens: float | None
    parameters: float | None
    flops: float | None
    seconds: float | None


class Backends(Value):
    """How the operations of one kind are computed."""

    kind: str
    counts: dict[str, int]
    """Backend -> number of operations."""
    reasons: tuple[str, ...] = ()
    """Why faster backends are not used."""


class ArmResult(Value):
    """One arm: what it changes, what it costs, and its trials by seed."""

    name: str
    overrides: tuple[str, ...] = ()
    config_changes: tuple[tuple[str, JsonValue, JsonValue], ...] = ()
    """[setting, value of the baseline, value of the arm]."""
    parameters: int | None = None
    trainable_parameters: int | None = None
    """None if no arm freezes parameters."""
    flops_per_token: int | None = None
    tokens_per_second: float | None = None
    budget: Budget | None = None
    peak_memory: int | None = None
    """The maximum over the trials, in bytes."""
    accuracy: Accuracies | None = None
    """Pooled over the trials."""
    unpaired_tensors: tuple[str, ...] = ()
    """Tensors whose initial weights differ from the baseline's."""
    new_tensors: tuple[str, ...] = ()
    """Tensors that the starting weights lack, or have in another shape; initialized at random."""
    n_paired_tensors: int | None = None
    n_tensors: int | None = None
    backends: tuple[Backends, ...] = ()
    missing_kernels: tuple[str, ...] = ()
    """Why layers of this arm use slower backends than the same layers of another arm."""
    code_changes: str | None = None
    """The diff from the baseline's commit to the arm's, if arms are commits."""
    samples: tuple[str, ...] = ()
    """Lines of text by the model of its first trial that did not diverge."""
    trials: tuple[TrialResult, ...] = ()
    findings: Annotated[tuple[PartFinding, ...], Neutral([])] = ()
    """The findings of the checks of the user's own parts; empty without such parts."""

    @property
    def values(self) -> tuple[float | None, ...]:
        """None for a trial that failed."""
        return tuple(None if trial.failed else trial.value for trial in self.trials)

    @property
    def failed(self) -> tuple[int, ...]:
        """The seeds of the trials that failed."""
        return tuple(trial.seed for trial in self.trials if trial.failed)

    @property
    def mean(self) -> float | None:
        return mean(self.values)

    @property
    def sd(self) -> float | None:
        """The standard deviation over seeds; None if one failed or there is only one."""
        values = [value for value in self.values if value is not None]
        if len(values) < max(2, len(self.values)):
            return None
        center = math.fsum(values) / len(values)
        return math.hypot(*(value - center for value in values)) / math.sqrt(len(values) - 1)

    def trial(self, seed: int) -> TrialResult | None:
        return next((trial for trial in self.trials if trial.seed == seed), None)


def mean(values: tuple[float | None, ...]) -> float | None:
    """The mean; None without values or if one is unknown, since averaging the others would hide it."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
