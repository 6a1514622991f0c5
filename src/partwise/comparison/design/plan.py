"""The plan of a comparison, fixed before the first trial: arms, seeds, metric, decision rules and claims."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self

from typing_extensions import TypeVar

from partwise.comparison.stats.designs import check_enough_seeds
from partwise.comparison.stats.methods import FIRST
from partwise.comparison.stats.protocol import Claim, Rules, Values, add_predictions
from partwise.config import REGISTRY, ConfigError

CUMULATIVE_PREFIX = "+ "
"""Prefix of the name of an arm that adds its change to those of the previous arm, in a cumulative ablation."""


class Configuration(Protocol):
    """The content of an arm, by kind of trial: a training run's configuration, or a command's arguments."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values: two arms differ if these do."""
        ...

    def to_stored(self) -> dict[str, Any]:
        """As `to_dict`, without options at their neutral values (`partwise.config.Neutral`)."""
        ...

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_stored`. Raises ConfigError for an option that this version does not know."""
        ...

    def with_override(self, override: str) -> Self:
        """The configuration with one setting changed, such as `train.lr=1e-3`. Raises ConfigError."""
        ...


C = TypeVar("C", bound=Configuration, default=Any)


@dataclass(frozen=True)
class Arm(Generic[C]):
    """One variant: a name that states its change, its overrides, and its configuration."""

    name: str
    overrides: tuple[str, ...]
    config: C


@dataclass(frozen=True)
class Plan(Generic[C]):
    """Arms (the first is the baseline) tried on seeds first_seed, first_seed + 1, ..., and the rules that judge them.

    With planned looks it is a protocol and cannot be changed. Without, more seeds can be added after the verdict, which
    stands; the estimate from all seeds is exploratory.
    """

    arms: tuple[Arm[C], ...]
    seeds: int
    rules: Rules
    claims: tuple[Claim, ...]
    first_seed: int = 0
    common: tuple[str, ...] = field(default=())
    additive_predictions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For interactions: name of the prediction that two effects add up -> the two arms that make one change each."""
    task_items: dict[str, str] = field(default_factory=dict)
    """If the metric is that of a task: name of the arm -> SHA-256 of the task's items."""
    horizons: tuple[int, ...] = ()
    """The run lengths in steps, ascending, if every trial has runs of several lengths; else empty."""

    def __post_init__(self) -> None:
        rules, baseline = self.rules, self.arms[0].name
        check_enough_seeds(rules.design, rules.baseline_runs, self.seeds)
        if rules.baseline_runs > 1 and (other := next((c for c in self.claims if c.against != baseline), None)):
            raise ConfigError(
                f"baseline_runs={rules.baseline_runs}: {other.arm!r} is compared with {other.against!r} rather than with the "
                "baseline, so further runs of the baseline do not help: leave out baseline_runs and design"
            )

    def seeds_of(self, arm: Arm[C], seeds: int | None = None) -> int:
        """The number of seeds of an arm; or of its first ones, when each of the others has `seeds`."""
        times = self.rules.baseline_runs if arm.name == self.arms[0].name else 1
        return times * (self.seeds if seeds is None else seeds)

    @property
    def trials(self) -> int:
        """The number of trials of all arms, over all looks."""
        return sum(map(self.seeds_of, self.arms))

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at the looks."""
        return self.rules.looks or (self.seeds,)

    @property
    def n_claims(self) -> int:
        """The number of claims that are judged together; controls are not counted."""
        return max(1, sum(claim.role == "claim" for claim in self.claims))

    @property
    def mixed_changes(self) -> list[str]:
        """A sentence for every claim about an arm that changes several settings at once."""
        overrides = {arm.name: arm.overrides for arm in self.arms}
        return mixed_changes(overrides, [claim[:2] for claim in self.claims if claim.role == "claim"])

    @property
    def question(self) -> str:
        others = list(dict.fromkeys(claim.arm for claim in self.claims if claim.role == "claim"))
        changed = others[0] if len(others) == 1 else f"any of {listed(others)}"
        if any(name.startswith(CUMULATIVE_PREFIX) for name in others):
            steps = listed([name.removeprefix(CUMULATIVE_PREFIX) for name in others])
            changed = f"any of {steps}, each added to the previous ones,"
        return f"Does {changed} change the {self.rules.metric} of {self.arms[0].name}?"

    def arm(self, name: str) -> Arm[C]:
        return next(arm for arm in self.arms if arm.name == name)

    def values(self, results: Values) -> Values:
        """The arms' results, plus those that `additive_predictions` predict."""
        return add_predictions(results, self.arms[0].name, self.additive_predictions, self.rules)

    def identity(self) -> dict[str, Any]:
        """The fields that must be unchanged on resume; without planned looks, the number of seeds may grow.

        A field that is added later is left out at its neutral value: plans from before it existed keep their hashes.
        """
        fixed: dict[str, Any] = {
            "arms": [{"name": arm.name, "config": arm.config.to_stored()} for arm in self.arms],
            "margin": self.rules.margin,
            "alpha": self.rules.alpha,
            "metric": self.rules.metric,
            "failure": self.rules.failure,
        }
        if self.task_items:
            fixed["task_items"] = self.task_items
        if self.horizons:
            fixed["horizons"] = list(self.horizons)
        if self.first_seed:
            fixed["first_seed"] = self.first_seed
        if self.rules.method != FIRST:
            fixed["method"] = self.rules.method
        if self.rules.design != "paired":
            fixed["design"] = self.rules.design
        if self.rules.baseline_runs != 1:
            fixed["baseline_runs"] = self.rules.baseline_runs
        fixed["claims"] = [list(claim[:3]) for claim in self.claims]
        if self.rules.looks:
            fixed["looks"] = list(self.rules.looks)
            fixed["stopping"] = "a claim stops when better, worse or equivalent, or at the last look"
            fixed["question"] = self.question
        return fixed


def mixed_changes(overrides: Mapping[str, Sequence[str]], claims: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for every claim (arm, against) about an arm that changes several settings, given the overrides of the arms.

    Both changes of an interaction, which are compared with their prediction, are meant to be together.
    """
    claims = list(claims)
    predicted = {arm for arm, against in claims if against not in overrides}
    sentences = []
    for arm, against in claims:
        if arm in predicted:
            continue
        kept = {setting_of(word) for word in overrides[against]}
        changed = list(dict.fromkeys(map(setting_of, overrides[arm])))
        changed = [each for each in changed if each and each not in kept]
        if len(changed) > 1:
            kind = "parts" if all(each in REGISTRY for each in changed) else "settings"
            sentences.append(
                f"arm {arm!r} changes {len(changed)} {kind}: {', '.join(changed)}; its difference cannot be attributed to one"
            )
    return sentences


def setting_of(override: str) -> str:
    """The setting that an override changes: a family of parts, or another setting; empty for a word without `=`."""
    key, equals, _ = override.lstrip("-").partition("=")
    family = key.partition(".")[0]
    return (family if family in REGISTRY else key) if equals else ""


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
