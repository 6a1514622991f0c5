"""The results of a comparison, and `results.json`, which is the same as JSON. Nothing here imports torch."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, JsonValue

from partwise.comparison.results.arms import ArmResult
from partwise.comparison.results.findings import (
    ClaimResult,
    ControlResult,
    Matching,
    Replication,
    SiteStatistic,
    StudyFacts,
    Tuning,
)
from partwise.comparison.results.ledger_facts import EarlierFamily, OnlineLevel, RepeatedQuestion
from partwise.comparison.results.value import Facts, Value, read_json
from partwise.comparison.stats.effect import BaselineDesign, Effect, Verdict
from partwise.config import ConfigError, Neutral
from partwise.json_files import check_hash, write_hashed

if TYPE_CHECKING:
    from partwise.comparison.stats.protocol import Rules, Values  # imports scipy

FORMAT = 3
"""The version of `results.json`."""


class Protocol(Value):
    """What was fixed before the first run: the metric and the rules that judge it."""

    metric: str
    unit: str
    lower_is_better: bool
    margin: float
    alpha: float
    looks: tuple[int, ...] = ()
    """Numbers of seeds at the planned looks; empty if none are planned."""
    failure: float | None = None
    """A run with a value worse than this failed; None if only runs with values that are not finite did."""
    method: Annotated[int, Neutral(1)] = 1
    """The number of the method of judging."""
    design: Annotated[BaselineDesign, Neutral("paired")] = "paired"
    """How the runs of the baseline are used."""
    baseline_runs: Annotated[int, Neutral(1)] = 1
    """Runs of the baseline per run of an arm."""

    @classmethod
    def from_rules(cls, rules: "Rules") -> Self:
        return cls(**{name: getattr(rules, name) for name in cls.model_fields})

    def rules(self, method: int | None = None) -> "Rules":
        """The rules that judge by this protocol, or by another method."""
        from partwise.comparison.stats.protocol import Rules

        return Rules(
            **{name: getattr(self, name) for name in type(self).model_fields} | {"method": method or self.method}
        )

    @property
    def metric_with_unit(self) -> str:
        return ", ".join(filter(None, (self.metric, self.unit)))


class Task(Value):
    """The data and the length of training."""

    data: str
    name: str | None = None
    hash: str | None = None
    tokenizer: str | None = None
    steps: int | None = None
    batch_size: int | None = None
    seq_len: int | None = None
    tokens: int | None = None
    epochs: float | None = None
    validation_tokens: int | None = None
    validation_estimator: str | None = None


class References(Value):
    """What a model must beat: n-gram losses, and on arithmetic the accuracies of constant answers."""

    ngrams: tuple[tuple[int, float], ...] = ()
    """[n, loss of the n-gram model] by n: the unigram model, and others with modified Kneser-Ney smoothing."""
    fitted_tokens: int | None = None
    constant_char_accuracy_closed: float | None = None
    constant_char_accuracy: float | None = None
    constant_exact_match: float | None = None


class Provenance(Value):
    """Where the results come from."""

    name: str | None = None
    created: str | None = None
    command: str | None = None
    protocol_hash: str | None = None
    """SHA-256 of the plan before the first run, if looks were planned."""
    hash_before_rename: str | None = None
    """The hash that the plan had under the former names of its settings."""
    runtime: Facts = Field(default_factory=dict)
    machine: Facts = Field(default_factory=dict)
    workers: tuple[str, ...] = ()
    """Where trials ran, if workers ran them: host, processor and number of trials."""
    value_changes: Annotated[int, Neutral(0)] = 0
    """How often trials were repeated with other values after the first verdict, which stands."""
    extends: Annotated[EarlierFamily | None, Neutral(None)] = None
    """The comparison to which this one has added arms."""


class Results(Value):
    """Everything that a comparison found. `claims` and what follows from them are empty until it is judged."""

    format: Literal[3] = 3
    question: str
    scope: str = ""
    protocol: Protocol
    seeds: tuple[int, ...]
    look: int | None = None
    task: Task | None = None
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """The configuration of the baseline."""
    arms: tuple[ArmResult, ...]
    claims: tuple[ClaimResult, ...] = ()
    minimum_detectable_effect: float | None = None
    """As of a claim, with the SD pooled over all claims."""
    controls: tuple[ControlResult, ...] = ()
    warnings: tuple[str, ...] = ()
    activation_statistics: tuple[SiteStatistic, ...] = ()
    references: References = References()
    tuning_note: str = ""
    tuning: Tuning | None = None
    match: Matching | None = None
    replication: Replication | None = None
    timed_on: str | None = None
    """The processor on which training steps of the arms were timed in turn; None if the throughput is that of the runs."""
    study: StudyFacts | None = None
    online: OnlineLevel | None = None
    asked_before: tuple[RepeatedQuestion, ...] = ()
    """The ledger's answer, for every claim; empty without a ledger."""
    left_out: Annotated[dict[str, str], Neutral({})] = Field(default_factory=dict)
    """By section of the report, why a fact that no verdict depends on could not be computed."""
    provenance: Provenance = Provenance()

    @property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(claim.effect for claim in self.claims)

    @property
    def metric_is_loss(self) -> bool:
        """Whether values are in the metric of the evaluations during training; accuracies and scores on tasks are not."""
        return self.protocol.lower_is_better and not any(trial.task_score for arm in self.arms for trial in arm.trials)

    @property
    def verdicts(self) -> dict[str, Verdict | None]:
        """The verdict on each arm, by its name."""
        return {effect.arm: effect.verdict for effect in self.effects}

    @property
    def values_by_seed(self) -> dict[str, dict[int, float | None]]:
        """Arm -> seed -> value in the metric; None if the run has none."""
        return {arm.name: {trial.seed: trial.value for trial in arm.trials} for arm in self.arms}

    def arm(self, name: str) -> ArmResult | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    def to_json(self, path: Path) -> None:
        """Write the file atomically, with the hash of its content."""
        write_hashed(path, self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "results") -> Self:
        found = values.get("format") if isinstance(values, Mapping) else None
        if isinstance(found, int) and found != FORMAT:
            raise ConfigError(
                f"{source} has the format {found}, and this version reads {FORMAT}: run the comparison again, or read it "
                "with the version that wrote it"
            )
        return super().from_dict(values, source)

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Read `results.json`. Raises ConfigError for another version, or a damaged or changed file."""
        return cls.from_content(read_json(path), str(path))

    @classmethod
    def from_content(cls, content: dict[str, Any], source: str) -> Self:
        """Results from the JSON object of their file, which messages call `source`. Raises ConfigError as `from_json`."""
        sha256 = content.pop("sha256", None)
        results = cls.from_dict(content, source)
        check_hash(content, sha256, source, "run the same compare command again, which writes it from its runs")
        return results


def with_nan(values: Mapping[str, Mapping[int, float | None]]) -> "Values":
    """Arm -> seed -> value, nan for a run that has none."""
    return {
        arm: {seed: math.nan if value is None else value for seed, value in runs.items()}
        for arm, runs in values.items()
    }
