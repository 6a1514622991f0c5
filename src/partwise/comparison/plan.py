"""What is compared: arms, seeds, metric and rules, fixed before the first run."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partwise.comparison.protocol import Claim, Role, Rules
from partwise.comparison.request import MEASURES, Measure, Request
from partwise.config import ConfigError
from partwise.data import Dataset
from partwise.overrides import difference, parse_overrides
from partwise.train.settings import RunConfig, run_config

# what an arm cannot vary, because the comparison holds it equal: given beside a change, it applies to every arm
SHARED_KEYS = ("data", "tokenizer", "vocab_size")
SHARED_NUMBERS = (
    "steps",
    "seed",
    "device",
    "precision",
    "attention_path",
    "ffn_path",
    "block_path",
    "threads",
    "eval_every",
    "save_every",
    "estimator",
    "held_out",
)


RUNG = "+ "
"""Begins the name of an arm that stands on top of another one."""

METRICS = {"loss": "validation loss", "exact": "exact match", "characters": "share of right characters"}
UNITS = {"exact": "of all problems", "characters": "of all answers' characters"}


@dataclass(frozen=True)
class Arm:
    """One variant: its change, as a name, and the configuration of its first seed."""

    name: str
    overrides: tuple[str, ...]
    config: RunConfig

    def with_seed(self, seed: int) -> RunConfig:
        train = self.config.train.model_copy(update={"seed": seed})
        return self.config.model_copy(update={"train": train})


@dataclass(frozen=True)
class Plan:
    """Arms (the first is the baseline) over seeds first_seed, first_seed + 1, ..., judged by rules in the metric's unit.

    Without planned looks it may grow by more seeds, each further look at a price; with them, it is a protocol, and stays.
    """

    arms: tuple[Arm, ...]
    seeds: int
    rules: Rules
    claims: tuple[Claim, ...]
    first_seed: int = 0
    common: tuple[str, ...] = field(default=())
    sums: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What two changes would give together if neither changed what the other does: a name -> the two arms."""

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at which to judge."""
        return self.rules.looks or (self.seeds,)

    @property
    def question(self) -> str:
        others = list(dict.fromkeys(claim.arm for claim in self.claims if claim.role == "claim"))
        changed = others[0] if len(others) == 1 else f"any of {', '.join(others)}"
        if any(name.startswith(RUNG) for name in others):
            changed = f"any of {', '.join(name.removeprefix(RUNG) for name in others)}, each on top of those before it,"
        return f"Does {changed} change the {self.rules.metric} of {self.arms[0].name}?"

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def values(self, results: Mapping[str, Mapping[int, float]]) -> dict[str, Mapping[int, float]]:
        """The arms' results, and for every sum of two changes first + second - baseline, seed by seed."""
        values = dict(results)
        base = results[self.arms[0].name]
        for name, (first, second) in self.sums.items():
            shared = results[first].keys() & results[second].keys() & base.keys()
            values[name] = {seed: results[first][seed] + results[second][seed] - base[seed] for seed in sorted(shared)}
        return values

    def identity(self) -> dict[str, Any]:
        """What a continued comparison must share with the one it continues; unplanned, the number of seeds may grow."""
        fixed: dict[str, Any] = {
            "arms": [{"name": arm.name, "config": arm.config.to_dict()} for arm in self.arms],
            "margin": self.rules.margin,
            "alpha": self.rules.alpha,
            "metric": self.rules.metric,
        }
        if self.first_seed:
            fixed["first_seed"] = self.first_seed
        fixed["variance"] = self.rules.variance
        fixed["claims"] = [list(claim) for claim in self.claims]
        if self.rules.looks:
            fixed["looks"] = list(self.rules.looks)
            fixed["stopping"] = "better, worse or equivalent by then, or the last look"
            fixed["question"] = self.question
        return fixed


def dataset_of(plan: Plan, arm: Arm, dataset: Dataset) -> Dataset:
    """The baseline's prepared data, or the arm's own where it differs in it."""
    return dataset if arm.config.data == plan.arms[0].config.data else arm.config.prepare()


def token_name(config: RunConfig) -> str:
    return {"characters": "character", "bytes": "byte"}.get(config.tokenizer.name, "token")


def amounts(arm: Arm, rates: dict[str, float | None]) -> dict[Measure, float | None]:
    """What an arm takes: tokens seen, parameters, operations of training, seconds by its rate."""
    config, rate = arm.config, rates.get(arm.name)
    tokens = config.train.steps * config.train.batch_size * config.context
    operations = tokens * config.model.flops_per_token(config.context)
    found = (tokens, config.model.parameters(), operations, tokens / rate if rate else None)
    return dict(zip(MEASURES, (None if x is None else float(x) for x in found), strict=True))


def is_shared(word: str, metric: str = "loss") -> bool:
    """Whether an override holds for every arm. Right answers may be compared over other forms of the same problems."""
    path = parse_overrides([word])[0][0] if "={" not in word else tuple(word.split("=", 1)[0].split("."))
    if metric != "loss" and path[0] == "data" and len(path) > 1:
        return False
    return path[0] in SHARED_KEYS or (path[0] == "train" and len(path) > 1 and path[1] in SHARED_NUMBERS)


def make_plan(request: Request) -> Plan:
    """The baseline and one arm per change. Raises ConfigError for arms that are equal by accident."""
    changes = [shlex.split(text) for text in request.arms]
    changes = [request.change, *changes] if request.change else changes
    if request.interaction:
        changes += interacting(request.interaction)
    words = [word.removeprefix("--") for word in request.common]
    changes = [[word.removeprefix("--") for word in change] for change in changes]
    words += [word for change in changes for word in change if is_shared(word, request.metric)]
    changes = [[word for word in change if not is_shared(word, request.metric)] for change in changes]
    if not any(changes):
        raise ConfigError("nothing is changed: name a change, as in `partwise compare mingpt ffn=swiglu`")
    rungs = len(changes) if request.ladder else 0
    if rungs and (request.interaction or request.tune or request.match):
        raise ConfigError("a ladder compares each arm with the one before it: leave out interaction, tune and match")
    roles: list[Role] = ["claim"] * len(changes)
    if request.control_null:
        changes, roles = [*changes, [f"train.redraw={request.control_null}"]], [*roles, "null"]
    if request.control_planted:
        changes, roles = [*changes, shlex.split(request.control_planted)], [*roles, "planted"]
    arms = [Arm(request.preset, (), run_config(request.preset, *words, data=request.data))]
    for number, change in enumerate(changes):
        arm_name = (RUNG if number < rungs else "") + " ".join(change)
        change = [*(arms[-1].overrides if number < rungs else ()), *change]
        arm = Arm(arm_name, tuple(change), run_config(request.preset, *words, *change, data=request.data))
        for other in arms:
            if not difference(other.config.to_dict(), arm.config.to_dict()):
                raise ConfigError(
                    f"arm {arm.name!r} is the same configuration as {other.name!r}: change something else"
                )
        arms.append(arm)
    claims = [
        Claim(arm.name, arms[number if number < rungs else 0].name, role)
        for number, (arm, role) in enumerate(zip(arms[1:], roles, strict=True))
    ]
    sums = {}
    if request.interaction:
        if request.variance != "pair":
            raise ConfigError("variance=residual knows no interaction: leave it out, for variance=pair")
        first, second, both = (
            " ".join(
                word.removeprefix("--") for word in change if not is_shared(word.removeprefix("--"), request.metric)
            )
            for change in interacting(request.interaction)
        )
        apart = f"{first} and {second} apart"
        sums = {apart: (first, second)}
        claims.insert(claims.index(Claim(both, arms[0].name)) + 1, Claim(both, apart))
    rules = Rules(
        margin=request.margin,
        alpha=request.alpha,
        looks=tuple(request.looks),
        variance=request.variance,
        lower_is_better=request.metric == "loss",
        metric=METRICS[request.metric],
        unit=UNITS.get(request.metric, f"nats per {token_name(arms[0].config)}"),
    )
    if request.metric != "loss" and arms[0].config.data.task != "arithmetic":
        raise ConfigError(
            f"metric={request.metric}: data={arms[0].config.data.name} has no answers; choose arithmetic, or the loss"
        )
    seeds = max(request.looks, default=request.seeds)
    return Plan(tuple(arms), seeds, rules, tuple(claims), request.first_seed, tuple(words), sums)


def interacting(changes: list[str]) -> list[list[str]]:
    """The two-by-two beside the baseline: one change, the other, and both. Raises ConfigError."""
    if len(changes) != 2:
        raise ConfigError(
            f"--interaction is given {len(changes)} times: give it twice, as in --interaction ffn=swiglu "
            "--interaction norm=rmsnorm"
        )
    first, second = (shlex.split(text) for text in changes)
    return [first, second, first + second]
