"""Collect finished runs into one plain dictionary, `results.json`, from which the report is rendered."""

import json
import math
from pathlib import Path
from typing import Any

import torch

from partwise.comparison.activation_statistics import measure_activations
from partwise.comparison.design.plan import Arm, Plan, token_name, training_budget
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.intervals import grubbs, judge, look_alpha, pooled_sd
from partwise.comparison.stats.power import minimum_detectable_effect, minimum_detectable_effect_over_looks
from partwise.comparison.stats.protocol import Claim
from partwise.comparison.trials.worker_pool import Job
from partwise.config import ConfigError
from partwise.config.overrides import difference
from partwise.data import Dataset, build_examples
from partwise.model import Transformer
from partwise.train.metrics import read_metrics

CURVE_POINTS = 200

ACCURACY_KEYS = {"exact match": "exact_match", "character accuracy": "char_accuracy"}
"""The metrics that are accuracies, and their keys in a run's `accuracy`."""


def gather(
    plan: Plan,
    jobs: list[Job],
    dataset: Dataset,
    *,
    look: int,
    throughput: dict[str, float | None],
    references: dict[str, Any],
) -> dict[str, Any]:
    """The judged results of all runs, each of which must be finished."""
    first = plan.arms[0].config
    values = final_values(jobs, plan.rules.metric)
    arms = [
        arm_results(plan, arm, [job for job in jobs if job.arm == arm.name], values[arm.name], throughput)
        for arm in plan.arms
    ]
    effects = plan.rules.judge(plan.values(values), plan.claims, look)
    comparisons = [compare_arms(plan, claim, effect, arms) for claim, effect in zip(plan.claims, effects, strict=True)]
    train, validation = (
        build_examples(dataset, name, first.seq_len, first.model.context_length) for name in ("train", "val")
    )
    tokens = first.train.steps * train.targets_per_batch(first.train.batch_size)
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
        "tuning_note": learning_rate_note(plan),
        "task": {
            "data": str(first.data),
            "name": first.data.name,
            "hash": dataset.hash,
            "tokenizer": first.tokenizer.name,
            "steps": first.train.steps,
            "batch_size": first.train.batch_size,
            "seq_len": first.seq_len,
            "tokens": tokens,
            "epochs": train.epochs(tokens),
            "validation_tokens": sum(batch.n_targets for batch in validation.eval_batches()),
            "validation_estimator": first.train.validation_estimator,
        },
        "config": first.to_dict(),
        "arms": arms,
        "comparisons": comparisons,
        "minimum_detectable_effect": pooled_detectable(comparisons, plan, look),
        "controls": control_results(comparisons),
        "warnings": outlier_warnings(effects),
        "activation_statistics": measure_activations(plan, jobs, dataset),
        "references": references,
    }


def scope(plan: Plan) -> str:
    """The setting that the verdict covers."""
    first = plan.arms[0].config
    size = f"{first.train.batch_size} x {first.seq_len} {token_name(first)}s"
    if first.data.paired:
        size = f"{first.train.batch_size} pairs"
    return (
        f"This holds for {first.model.parameters():,} parameters trained for {first.train.steps:,} steps of "
        f"{size} on {first.data.name}; "
        "another model size, number of steps or dataset may give a different answer."
    )


def learning_rate_note(plan: Plan) -> str:
    learning_rates = sorted({arm.config.train.lr for arm in plan.arms})
    if len(learning_rates) == 1:
        return f"one learning rate ({learning_rates[0]:g}), untuned"
    return f"learning rates {', '.join(f'{lr:g}' for lr in learning_rates)}, set by the arms, untuned"


def arm_results(
    plan: Plan, arm: Arm, jobs: list[Job], values: dict[int, float], throughput: dict[str, float | None]
) -> dict[str, Any]:
    baseline = plan.arms[0]
    runs = [read_run(job) for job in sorted(jobs, key=lambda job: job.seed)]
    unpaired, tensors = unpaired_tensors(baseline, arm)
    return {
        "name": arm.name,
        "overrides": list(arm.overrides),
        "config_changes": [list(row) for row in difference(baseline.config.to_dict(), arm.config.to_dict())],
        "parameters": arm.config.model.parameters(),
        "flops_per_token": arm.config.model.flops_per_token(arm.config.seq_len),
        "tokens_per_second": throughput.get(arm.name),
        "budget": training_budget(arm, throughput),
        "peak_memory": max((run["peak_memory"] for run in runs if run["peak_memory"]), default=None),
        "values": [value if math.isfinite(value) else None for value in values.values()],
        "validation_loss": [run["value"] for run in runs],
        "training_loss": [run["training"] for run in runs],
        "diverged": [job.seed for job, run in zip(jobs, runs, strict=True) if run["value"] is None],
        "accuracy": pool_accuracy([run["accuracy"] for run in runs]),
        "unpaired_tensors": unpaired,
        "n_paired_tensors": tensors - len(unpaired),
        "n_tensors": tensors,
        "curves": {
            "training": [run["train_curve"] for run in runs],
            "evaluations": [run["evaluations"] for run in runs],
        },
    }


def final_values(jobs: list[Job], metric: str = "validation loss") -> dict[str, dict[int, float]]:
    """arm -> seed -> the final validation loss or accuracy; nan if the run diverged.

    Raises ConfigError if a finished run lacks the metric.
    """
    values: dict[str, dict[int, float]] = {}
    for job in jobs:
        run = read_run(job)
        value = run["value"]
        if metric in ACCURACY_KEYS and value is not None:
            if not run["accuracy"]:
                raise ConfigError(f"{job.folder} has no {metric}: delete this run's folder to repeat the run")
            value = run["accuracy"]["all"][ACCURACY_KEYS[metric]]["proportion"]
        values.setdefault(job.arm, {})[job.seed] = math.nan if value is None else value
    return values


def read_run(job: Job) -> dict[str, Any]:
    """One run's outcome; `value` is None if it diverged."""
    result = json.loads((job.folder / "result.json").read_text())
    lines = read_metrics(job.folder)
    evaluations = [
        [line["step"], line["validation"], line["training"]] for line in lines if line["kind"] == "evaluation"
    ]
    completed = "diverged" not in result and evaluations and evaluations[-1][0] == job.steps
    return {
        "value": evaluations[-1][1] if completed else None,
        "training": evaluations[-1][2] if completed else None,
        # unknown for a single run if several seeds share a process
        "peak_memory": None if "seeds_per_process" in result else result["peak_memory"],
        "accuracy": result.get("accuracy"),
        "evaluations": evaluations,
        "train_curve": thin([(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]),
    }


def thin(points: list[tuple[int, float]]) -> list[list[float]]:
    """At most CURVE_POINTS points, each the mean of consecutive points."""
    size = max(1, math.ceil(len(points) / CURVE_POINTS))
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    return [[part[-1][0], sum(loss for _, loss in part) / len(part)] for part in bins]


def compare_arms(plan: Plan, claim: Claim, effect: Effect, arms: list[dict[str, Any]]) -> dict[str, Any]:
    """An effect, and the differences over training."""
    curves = {arm["name"]: arm["curves"]["evaluations"] for arm in arms}
    differences = []
    if claim.against in curves and plan.rules.lower_is_better:  # the curves are losses
        indices = [list(range(plan.first_seed, plan.first_seed + plan.seeds)).index(seed) for seed in effect.seeds]
        pairs = [(curves[claim.arm][index], curves[claim.against][index]) for index in indices]
        differences = [difference_over_training(curve, baseline) for curve, baseline in pairs]
    return {
        **effect.to_dict(),
        "role": claim.role,
        "effect_over_training": effect_over_training(differences, effect, plan),
        "differences_over_training": differences,
        "minimum_detectable_effect": pair_detectable(plan, effect),
    }


def difference_over_training(curve: list[list[float]], baseline: list[list[float]]) -> list[list[float]]:
    """[step of the baseline, difference] at equal fractions of training, that is at equal steps unless steps were matched."""
    if not curve or not baseline:
        return []
    last, baseline_last = curve[-1][0], baseline[-1][0]
    differences = []
    for step, loss, *_ in baseline:
        nearest = min(curve, key=lambda point: abs(point[0] / last - step / baseline_last))
        if abs(nearest[0] / last - step / baseline_last) <= 0.01:
            differences.append([step, nearest[1] - loss])
    return differences


def effect_over_training(differences: list[list[list[float]]], effect: Effect, plan: Plan) -> list[dict[str, Any]]:
    """The mean difference at every evaluation with the interval it would have had: descriptive, not for choosing a step."""
    rows = []
    steps = sorted({int(step) for seed in differences for step, _ in seed})
    for step in steps:
        values = {number: value for number, seed in enumerate(differences) for at, value in seed if at == step}
        if len(values) == len(differences):
            zero = dict.fromkeys(values, 0.0)
            judged = judge("", "", values, zero, alpha=plan.rules.alpha, look=effect.look, looks=effect.looks)
            rows.append({"step": step, "mean": judged.mean, "low": judged.low, "high": judged.high})
    return rows


def pair_detectable(plan: Plan, effect: Effect) -> float | None:
    """The true difference that the planned looks detect with 80% power, given the observed SD of the pairs."""
    if effect.sd_difference is None or effect.n < 2:
        return None
    return minimum_detectable(plan, effect.interval_sd or effect.sd_difference, effect.n, effect.alpha)


def minimum_detectable(plan: Plan, sd_difference: float, n: int, alpha: float) -> float:
    """The minimum detectable effect over all planned looks, or with `n` pairs at level alpha."""
    sd = sd_difference / math.sqrt(2)  # the SD of one run, which the power functions expect
    if plan.rules.looks:
        return minimum_detectable_effect_over_looks(sd, plan.rules.looks, alpha=plan.rules.alpha)
    return minimum_detectable_effect(sd, n, alpha=alpha)


def pooled_detectable(comparisons: list[dict[str, Any]], plan: Plan, look: int) -> float | None:
    """The smallest effect that these seeds detect with 80% power, given their observed SD over all comparisons."""
    pooled = pooled_sd([row["differences"] for row in comparisons if row["verdict"] and len(row["differences"]) > 1])
    if pooled is None or plan.seeds < 2:
        return None
    return minimum_detectable(plan, pooled, plan.seeds, look_alpha(look, plan.rules.alpha))


def outlier_warnings(effects: list[Effect]) -> list[str]:
    """Warnings about comparisons with an outlying pair, where the t interval may undercover."""
    messages = []
    for effect in effects:
        p = grubbs(effect.differences)
        if p is not None and p < 0.01:
            distances = [abs(value - (effect.mean or 0.0)) for value in effect.differences]
            outlier = effect.seeds[distances.index(max(distances))]
            messages.append(
                f"seed {outlier} of {effect.arm} is an outlier among the pairs (Grubbs's test, p = {p:.2g}), so the interval "
                "may cover less than stated: inspect that run and add seeds."
            )
    return messages


def control_results(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether each control passed: no difference for a negative control, a difference for a positive one."""
    results = []
    for row in comparisons:
        if row["role"] != "claim":
            differs = row["verdict"] in ("better", "worse")
            passed = None if row["verdict"] is None else differs == (row["role"] == "positive")
            results.append({"arm": row["arm"], "role": row["role"], "passed": passed})
    return results


def unpaired_tensors(baseline: Arm, arm: Arm) -> tuple[list[str], int]:
    """The names of the arm's tensors whose initial weights differ from the baseline's, and the number of all its tensors."""

    def initial_tensors(arm: Arm) -> dict[str, torch.Tensor]:
        model = Transformer(arm.config.model, seed=0, reinitialize=arm.config.train.reinitialize)
        return {tensor.name: tensor.data for tensor in model.logical_tensors()}

    with torch.random.fork_rng(devices=[]):
        old, new = initial_tensors(baseline), initial_tensors(arm)
    unpaired = [
        name
        for name, tensor in new.items()
        if name not in old or old[name].shape != tensor.shape or not torch.equal(old[name], tensor)
    ]
    return unpaired, len(new)


def pool_accuracy(scores: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Accuracies over the problems of all seeds combined."""
    from partwise.evaluate.arithmetic import Proportion

    present = [score for score in scores if score]
    if not present:
        return None
    return {
        kind: {
            measure: Proportion(
                sum(score[kind][measure]["correct"] for score in present),
                sum(score[kind][measure]["total"] for score in present),
            ).to_dict()
            for measure in measures
        }
        for kind, measures in present[0].items()
    }


def earlier_sd(folder: Path, plan: Plan) -> tuple[float, float, str] | None:
    """(seed SD, paired correlation, name) of the latest earlier comparison of the same task, model size and steps."""
    first = plan.arms[0].config
    for path in sorted(folder.glob("*/results.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            results = json.loads(path.read_text())
            task, base = results["task"], results["arms"][0]
            same = results["metric"] == plan.rules.metric and (
                task["data"] == str(first.data)
                and task["steps"] == first.train.steps
                and task["batch_size"] == first.train.batch_size
                and task["seq_len"] == first.seq_len
                and base["parameters"] == first.model.parameters()
            )
            row = results["comparisons"][0]
            if same and row["sd_pooled"]:
                return row["sd_pooled"], row["correlation"] or 0.0, path.parent.name
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue
    return None
