"""From finished runs to one plain mapping, `results.json`, of which the report is a view."""

import json
import math
from pathlib import Path
from typing import Any

import torch

from partwise.comparison.effect import Effect
from partwise.comparison.insides import insides
from partwise.comparison.plan import Arm, Plan, amounts, token_name
from partwise.comparison.pool import Job
from partwise.comparison.power import smallest_detectable, smallest_over_looks
from partwise.comparison.protocol import Claim
from partwise.comparison.statistics import grubbs, judge, look_alpha, pooled_sd
from partwise.config import ConfigError
from partwise.data import Dataset, examples
from partwise.model import Transformer
from partwise.overrides import difference
from partwise.train.metrics import read_metrics

CURVE_POINTS = 200

SHARES = {"exact match": "exact", "share of right characters": "characters"}
"""Of what a metric is the share: its name in a run's accuracy."""


def gather(
    plan: Plan, jobs: list[Job], dataset: Dataset, *, look: int, rates: dict[str, float | None], floors: dict[str, Any]
) -> dict[str, Any]:
    """Everything that the runs showed, judged. Every run must be finished."""
    first = plan.arms[0].config
    values = final_values(jobs, plan.rules.metric)
    arms = [
        arm_results(plan, arm, [job for job in jobs if job.arm == arm.name], values[arm.name], rates)
        for arm in plan.arms
    ]
    effects = plan.rules.judge(plan.values(values), plan.claims, look)
    comparisons = [compare_arms(plan, claim, effect, arms) for claim, effect in zip(plan.claims, effects, strict=True)]
    train, validation = (examples(dataset, name, first.context, first.model.max_len) for name in ("train", "val"))
    tokens = first.train.steps * train.tokens_in(first.train.batch_size)
    return {
        "format": 1,
        "question": plan.question,
        "metric": plan.rules.metric,
        "unit": plan.rules.unit,
        "lower_is_better": plan.rules.lower_is_better,
        "margin": plan.rules.margin,
        "alpha": plan.rules.alpha,
        "look": max(effect.look for effect in effects),
        "looks": list(plan.rules.looks),
        "variance": plan.rules.variance,
        "alpha_spent": max(effect.alpha_spent for effect in effects),
        "seeds": sorted({job.seed for job in jobs}),
        "scope": scope(plan),
        "tuning": tuning(plan),
        "task": {
            "data": str(first.data),
            "name": first.data.name,
            "hash": dataset.hash,
            "tokenizer": first.tokenizer.name,
            "steps": first.train.steps,
            "batch_size": first.train.batch_size,
            "context": first.context,
            "tokens": tokens,
            "epochs": train.epochs(tokens),
            "validation_tokens": sum(batch.count for batch in validation.scored()),
            "estimator": first.train.estimator,
        },
        "arms": arms,
        "comparisons": comparisons,
        "smallest_detectable": detectable(comparisons, plan, look),
        "controls": controls(comparisons),
        "warnings": warnings(effects),
        "insides": insides(plan, jobs, dataset),
        "floors": floors,
    }


def scope(plan: Plan) -> str:
    """What the verdict speaks of, and nothing beyond."""
    first = plan.arms[0].config
    size = f"{first.train.batch_size} x {first.context} {token_name(first)}s"
    if first.data.paired:
        size = f"{first.train.batch_size} pairs"
    return (
        f"This holds for {first.model.parameters():,} parameters trained for {first.train.steps:,} steps of "
        f"{size} on {first.data.name}; "
        "another size, horizon or data set may answer differently."
    )


def tuning(plan: Plan) -> str:
    rates = sorted({arm.config.train.lr for arm in plan.arms})
    if len(rates) == 1:
        return f"one learning rate ({rates[0]:g}), untuned"
    return f"learning rates {', '.join(f'{rate:g}' for rate in rates)}, set by the arms, untuned"


def arm_results(
    plan: Plan, arm: Arm, jobs: list[Job], values: dict[int, float], rates: dict[str, float | None]
) -> dict[str, Any]:
    baseline = plan.arms[0]
    runs = [read_run(job) for job in sorted(jobs, key=lambda job: job.seed)]
    unpaired, tensors = unpaired_tensors(baseline, arm)
    return {
        "name": arm.name,
        "overrides": list(arm.overrides),
        "config": arm.config.to_dict(),
        "parameters": arm.config.model.parameters(),
        "flops_per_token": arm.config.model.flops_per_token(arm.config.context),
        "tokens_per_second": rates.get(arm.name),
        "amounts": amounts(arm, rates),
        "peak_memory": max((run["peak_memory"] for run in runs if run["peak_memory"]), default=None),
        "difference": [list(row) for row in difference(baseline.config.to_dict(), arm.config.to_dict())],
        "values": [value if math.isfinite(value) else None for value in values.values()],
        "validation": [run["value"] for run in runs],
        "training": [run["training"] for run in runs],
        "diverged": [job.seed for job, run in zip(jobs, runs, strict=True) if run["value"] is None],
        "accuracy": pool_accuracy([run["accuracy"] for run in runs]),
        "unpaired": unpaired,
        "paired": tensors - len(unpaired),
        "tensors": tensors,
        "curves": {
            "training": [run["train_curve"] for run in runs],
            "evaluations": [run["evaluations"] for run in runs],
        },
    }


def final_values(jobs: list[Job], metric: str = "validation loss") -> dict[str, dict[int, float]]:
    """arm -> seed -> the final validation loss, or the share of right answers; nan where the run diverged.

    Raises ConfigError where a finished run has no such figure.
    """
    values: dict[str, dict[int, float]] = {}
    for job in jobs:
        run = read_run(job)
        value = run["value"]
        if metric in SHARES and value is not None:
            if not run["accuracy"]:
                raise ConfigError(f"{job.folder} has no {metric}: delete this run's folder, and it is made again")
            value = run["accuracy"]["all"][SHARES[metric]]["share"]
        values.setdefault(job.arm, {})[job.seed] = math.nan if value is None else value
    return values


def read_run(job: Job) -> dict[str, Any]:
    """One run's outcome; `value` is None where it diverged."""
    result = json.loads((job.folder / "result.json").read_text())
    lines = read_metrics(job.folder)
    evaluations = [
        [line["step"], line["validation"], line["training"]] for line in lines if line["kind"] == "evaluation"
    ]
    ended = "diverged" not in result and evaluations and evaluations[-1][0] == job.steps
    return {
        "value": evaluations[-1][1] if ended else None,
        "training": evaluations[-1][2] if ended else None,
        # of several seeds as one program no run's own is known
        "peak_memory": None if "together" in result else result["peak_memory"],
        "accuracy": result.get("accuracy"),
        "evaluations": evaluations,
        "train_curve": thin([(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]),
    }


def thin(points: list[tuple[int, float]]) -> list[list[float]]:
    """At most CURVE_POINTS points, each the mean of a stretch."""
    size = max(1, math.ceil(len(points) / CURVE_POINTS))
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [[stretch[-1][0], sum(loss for _, loss in stretch) / len(stretch)] for stretch in stretches]


def compare_arms(plan: Plan, claim: Claim, effect: Effect, arms: list[dict[str, Any]]) -> dict[str, Any]:
    """An effect, and how it came about over training."""
    curves = {arm["name"]: arm["curves"]["evaluations"] for arm in arms}
    over_time = []
    if claim.against in curves and plan.rules.lower_is_better:  # the curves are of the loss
        places = [list(range(plan.first_seed, plan.first_seed + plan.seeds)).index(seed) for seed in effect.seeds]
        pairs = [(curves[claim.arm][place], curves[claim.against][place]) for place in places]
        over_time = [difference_over_time(ours, others) for ours, others in pairs]
    return {
        **effect.to_dict(),
        "role": claim.role,
        "horizons": horizons(over_time, effect, plan),
        "over_time": over_time,
        "smallest_detectable": shown_by(plan, effect),
    }


def difference_over_time(mine: list[list[float]], theirs: list[list[float]]) -> list[list[float]]:
    """[step of the baseline, difference] at equal shares of training, which are equal steps unless steps were matched."""
    if not mine or not theirs:
        return []
    own, other = mine[-1][0], theirs[-1][0]
    found = []
    for step, loss, *_ in theirs:
        near = min(mine, key=lambda point: abs(point[0] / own - step / other))
        if abs(near[0] / own - step / other) <= 0.01:
            found.append([step, near[1] - loss])
    return found


def horizons(over_time: list[list[list[float]]], effect: Effect, plan: Plan) -> list[dict[str, Any]]:
    """The difference at every evaluation, with the interval that it would have had: to look at, not to choose from."""
    rows = []
    steps = sorted({int(step) for seed in over_time for step, _ in seed})
    for step in steps:
        values = {number: value for number, seed in enumerate(over_time) for at, value in seed if at == step}
        if len(values) == len(over_time):
            zero = dict.fromkeys(values, 0.0)
            found = judge("", "", values, zero, alpha=plan.rules.alpha, look=effect.look, looks=effect.looks)
            rows.append({"step": step, "mean": found.mean, "low": found.low, "high": found.high})
    return rows


def shown_by(plan: Plan, effect: Effect) -> float | None:
    """The true difference that the looks planned show with 80 % power, at the spread that the pairs had."""
    if effect.sd_difference is None or effect.n < 2:
        return None
    return least_shown(plan, effect.sd_interval or effect.sd_difference, effect.n, effect.alpha)


def least_shown(plan: Plan, sd_difference: float, n: int, alpha: float) -> float:
    """By the planned looks together, or by this many pairs at this level."""
    sd = sd_difference / math.sqrt(2)  # of one run, as power counts
    if plan.rules.looks:
        return smallest_over_looks(sd, plan.rules.looks, alpha=plan.rules.alpha)
    return smallest_detectable(sd, n, alpha=alpha)


def detectable(comparisons: list[dict[str, Any]], plan: Plan, look: int) -> float | None:
    """The smallest effect that these seeds show with 80 % power, at the spread that they themselves had."""
    pooled = pooled_sd([row["differences"] for row in comparisons if row["verdict"] and len(row["differences"]) > 1])
    if pooled is None or plan.seeds < 2:
        return None
    return least_shown(plan, pooled, plan.seeds, look_alpha(look, plan.rules.alpha))


def warnings(effects: list[Effect]) -> list[str]:
    """Where the t interval of a comparison may cover less than it says: one pair far from the others."""
    found = []
    for effect in effects:
        p = grubbs(effect.differences)
        if p is not None and p < 0.01:
            distances = [abs(value - (effect.mean or 0.0)) for value in effect.differences]
            far = effect.seeds[distances.index(max(distances))]
            found.append(
                f"seed {far} of {effect.arm} lies far from the other pairs (Grubbs's test, p = {p:.2g}): where noise is "
                "that uneven, the interval may cover less than it says: look at that run, and run more seeds."
            )
    return found


def controls(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether the instrument found its controls: no difference where there is none, and the one that was planted."""
    found = []
    for row in comparisons:
        if row["role"] != "claim":
            shown = row["verdict"] in ("better", "worse")
            passed = None if row["verdict"] is None else shown == (row["role"] == "planted")
            found.append({"arm": row["arm"], "role": row["role"], "passed": passed})
    return found


def unpaired_tensors(baseline: Arm, arm: Arm) -> tuple[list[str], int]:
    """The names of the arm's tensors that do not start equal to the baseline's, and the number of all."""

    def start(of: Arm) -> dict[str, torch.Tensor]:
        model = Transformer(of.config.model, seed=0, redraw=of.config.train.redraw)
        return {tensor.name: tensor.data for tensor in model.logical_tensors()}

    with torch.random.fork_rng(devices=[]):
        old, new = start(baseline), start(arm)
    unpaired = [
        name
        for name, tensor in new.items()
        if name not in old or old[name].shape != tensor.shape or not torch.equal(old[name], tensor)
    ]
    return unpaired, len(new)


def pool_accuracy(scores: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Accuracies over the problems of all seeds together."""
    from partwise.evaluate.arithmetic import Share

    found = [score for score in scores if score]
    if not found:
        return None
    return {
        kind: {
            measure: Share(
                sum(score[kind][measure]["right"] for score in found),
                sum(score[kind][measure]["total"] for score in found),
            ).to_dict()
            for measure in measures
        }
        for kind, measures in found[0].items()
    }


def earlier_sd(folder: Path, plan: Plan) -> tuple[float, float, str] | None:
    """(seed SD, paired correlation, name) of the newest earlier comparison of the same task, size and horizon."""
    first = plan.arms[0].config
    for path in sorted(folder.glob("*/results.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            results = json.loads(path.read_text())
            task, base = results["task"], results["arms"][0]
            same = results["metric"] == plan.rules.metric and (
                task["data"] == str(first.data)
                and task["steps"] == first.train.steps
                and task["batch_size"] == first.train.batch_size
                and task["context"] == first.context
                and base["parameters"] == first.model.parameters()
            )
            row = results["comparisons"][0]
            if same and row["sd_pooled"]:
                return row["sd_pooled"], row["correlation"] or 0.0, path.parent.name
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue
    return None
