"""The plan of a comparison of training runs: an arm per change of a preset."""

import itertools
import math
import shlex
from collections.abc import Mapping

from partwise.ablation.request import Request
from partwise.ablation.task_metric import PREFIX, plan_metric
from partwise.comparison.design.plan import CUMULATIVE_PREFIX, Arm, Plan
from partwise.comparison.results import Budget
from partwise.comparison.stats.effect import Role
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.config import ConfigError
from partwise.config.overrides import difference, distinct, parse_overrides
from partwise.data import Dataset
from partwise.messages import quantity
from partwise.train.config import RunConfig, run_config

RunArm = Arm[RunConfig]
RunPlan = Plan[RunConfig]

# settings that all arms share: an override of one of these in an arm applies to every arm
SHARED_KEYS = ("data", "tokenizer", "vocab_size")
SHARED_TRAIN_KEYS = (
    "steps",
    "seed",
    "device",
    "precision",
    "attention_backend",
    "ffn_backend",
    "block_backend",
    "compile",
    "activation_checkpointing",
    "threads",
    "deterministic",
    "eval_every",
    "save_every",
    "validation_estimator",
    "tuning_split",
    "log",
)

GUESSING_TOLERANCE = 1.0
"""Nats above the loss of uniform guessing from which on a run failed; short runs are often a little above that loss."""

METRICS = {"loss": "validation loss", "exact_match": "exact match", "char_accuracy": "character accuracy"}
UNITS = {"exact_match": "of all problems", "char_accuracy": "of all answer characters"}


def dataset_of(plan: RunPlan, arm: RunArm, dataset: Dataset) -> Dataset:
    """The data of an arm: `dataset`, prepared for the baseline, unless the arm's data configuration differs."""
    return dataset if arm.config.data == plan.arms[0].config.data else arm.config.prepare()


def token_name(config: RunConfig) -> str:
    return {"characters": "character", "bytes": "byte"}.get(config.tokenizer.name, "token")


def training_budget(arm: RunArm, rates: Mapping[str, float | None]) -> Budget:
    """Training tokens, parameters, training FLOPs and seconds of one run; `rates` are tokens per second, None if unknown."""
    config, rate = arm.config, rates.get(arm.name)
    tokens = config.train.steps * config.train.batch_size * config.seq_len
    return Budget(
        tokens=float(tokens),
        parameters=float(config.model.parameters()),
        flops=float(config.train.steps * config.flops_per_step()),
        seconds=tokens / rate if rate else None,
    )


def is_shared(override: str, metric: str = "loss") -> bool:
    """Whether an override applies to every arm. Accuracies may be compared across forms of the same problems, so there
    `data.*` may differ between arms."""
    path = parse_overrides([override])[0][0] if "={" not in override else tuple(override.split("=", 1)[0].split("."))
    if metric != "loss" and path[0] == "data" and len(path) > 1:
        return False
    return path[0] in SHARED_KEYS or (path[0] == "train" and len(path) > 1 and path[1] in SHARED_TRAIN_KEYS)


def plan_runs(request: Request) -> RunPlan:
    """The baseline and one arm per change. Raises ConfigError if two arms have the same configuration."""
    changes = [shlex.split(text) for text in request.arms]
    changes = [request.change, *changes] if request.change else changes
    if request.interaction:
        changes += interaction_arms(request.interaction)
    common = [override.removeprefix("--") for override in request.common]
    common += check_horizons(request)
    changes = [[override.removeprefix("--") for override in change] for change in changes]
    shared = [override for change in changes for override in change if is_shared(override, request.metric)]
    last = dict(override for word in common for override in parse_overrides([word]))  # a study changes its protocol
    distinct([*([(("data",), request.data)] if request.data else []), *last.items(), *parse_overrides(shared)])
    shared = [*common, *shared]
    changes = [[override for override in change if not is_shared(override, request.metric)] for change in changes]
    for change in changes:
        distinct(parse_overrides(change))
    if not any(changes):
        raise ConfigError("nothing to compare: give a change, as in `partwise compare mingpt ffn=swiglu`")
    n_steps = len(changes) if request.cumulative else 0
    if n_steps and (request.interaction or request.tune or request.match):
        raise ConfigError("cumulative=true cannot be combined with interaction, tune or match: leave these out")
    if request.interaction and request.tuned_only:
        raise ConfigError(
            "an interaction is judged at the defaults, which tuned_only leaves out: leave out one of them"
        )
    roles: list[Role] = ["claim"] * len(changes)
    if request.negative_control:
        if "from=" in " ".join([request.preset, *shared]):
            raise ConfigError(
                "negative_control re-initializes weights, but from= starts every run from trained ones: leave it out, and "
                "calibrate with `partwise calibrate`"
            )
        changes, roles = [*changes, [f"train.reinitialize={request.negative_control}"]], [*roles, "negative"]
    if request.positive_control:
        changes, roles = [*changes, shlex.split(request.positive_control)], [*roles, "positive"]
    arms = [RunArm(request.preset, (), run_config(request.preset, data=request.data, common=shared))]
    for number, change in enumerate(changes):
        arm_name = (CUMULATIVE_PREFIX if number < n_steps else "") + " ".join(change)
        if roles[number] == "negative":
            arm_name = f"A/A control ({request.negative_control} re-initialized)"
        previous = arms[-1].overrides if number < n_steps else ()
        config = run_config(request.preset, *change, data=request.data, common=[*shared, *previous])
        arm = RunArm(arm_name, (*previous, *change), config)
        for other in arms:
            if not difference(other.config.to_dict(), arm.config.to_dict()):
                raise ConfigError(
                    f"arm {arm.name!r} has the same configuration as {other.name!r}: change something else"
                )
        arms.append(arm)
    claims = [
        Claim(arm.name, arms[number if number < n_steps else 0].name, role)
        for number, (arm, role) in enumerate(zip(arms[1:], roles, strict=True))
    ]
    additive_predictions = {}
    if request.interaction:
        first, second, both = (
            " ".join(
                override.removeprefix("--")
                for override in change
                if not is_shared(override.removeprefix("--"), request.metric)
            )
            for change in interaction_arms(request.interaction)
        )
        prediction = f"{first} and {second} (additive)"
        additive_predictions = {prediction: (first, second)}
        claims.insert(claims.index(Claim(both, arms[0].name)) + 1, Claim(both, prediction))
    config, items = arms[0].config, dict[str, str]()
    if request.metric.startswith(PREFIX):
        configs = {arm.name: arm.config for arm in arms}
        metric, lower_is_better, items = plan_metric(request.metric.removeprefix(PREFIX), configs)
        unit = ""
    else:
        metric, lower_is_better = METRICS[request.metric], request.metric == "loss"
        unit = UNITS.get(request.metric, f"nats per {token_name(config)}")
        if request.metric != "loss" and config.data.task != "arithmetic":
            raise ConfigError(
                f"metric={request.metric}: data={config.data.name} has no answers; use data=arithmetic or metric=loss"
            )
    rules = Rules(
        margin=request.margin,
        alpha=request.alpha,
        looks=tuple(request.looks),
        design=request.design,
        baseline_runs=request.baseline_runs,
        failure=failure_of(request, config),
        lower_is_better=lower_is_better,
        metric=metric,
        unit=unit,
    )
    seeds = max(request.looks, default=request.seeds)
    return RunPlan(
        tuple(arms),
        seeds,
        rules,
        tuple(claims),
        request.first_seed,
        tuple(shared),
        additive_predictions,
        items,
        tuple(request.horizons),
    )


def check_horizons(request: Request) -> list[str]:
    """The override that makes the last horizon the number of steps; none without horizons. Raises ConfigError."""
    horizons = request.horizons
    if not horizons:
        return []
    text = ",".join(map(str, horizons))
    if len(horizons) < 2 or horizons[0] < 1 or any(a >= b for a, b in itertools.pairwise(horizons)):
        raise ConfigError(
            f"--horizons {text}: expected at least two numbers of steps in ascending order: 500,2000,8000"
        )
    if request.match:
        raise ConfigError(
            f"--horizons {text}: --match {request.match} changes the numbers of steps; leave out one of them"
        )
    words = [*request.common, *request.change, *request.arms, *request.interaction]
    if any(word.removeprefix("--").startswith("train.steps=") for text in words for word in shlex.split(text)):
        raise ConfigError(f"--horizons {text} sets the numbers of steps: leave out train.steps")
    return [f"train.steps={horizons[-1]}"]


def failure_of(request: Request, config: RunConfig) -> float | None:
    """The value beyond which a run failed: `GUESSING_TOLERANCE` above uniform guessing, unless the request sets another."""
    if request.failure is None and request.metric == "loss":
        return math.log(config.model.vocab_size) + GUESSING_TOLERANCE
    return request.failure


def interaction_arms(changes: list[str]) -> list[list[str]]:
    """The arms of a 2x2 factorial design besides the baseline: each change alone, and both. Raises ConfigError."""
    if len(changes) != 2:
        raise ConfigError(
            f"--interaction given {quantity(len(changes), 'time')}: give it twice, as in "
            "--interaction ffn=swiglu --interaction norm=rmsnorm"
        )
    first, second = (shlex.split(text) for text in changes)
    return [first, second, first + second]
