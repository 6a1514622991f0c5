"""Facts about training runs besides their values: task, parameters, cost, backends, accuracies and activations."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from partwise.ablation.activation_statistics import measure_activations
from partwise.ablation.outcome import pool_accuracy
from partwise.ablation.run_plan import RunArm, RunPlan, dataset_of, token_name, training_budget
from partwise.ablation.run_trial import trained_model
from partwise.baselines.scale import far_below
from partwise.comparison.results import ArmResult, Backends, PartFinding, References, SiteStatistic, Task
from partwise.comparison.trials.trial import Trial
from partwise.compute.backend_plan import BackendPlan as ComputePlan
from partwise.data import Dataset, build_examples
from partwise.data.repetition import repetition_note
from partwise.evaluate.references import dataset_references, is_plain_text
from partwise.kernels.threads import one_torch_thread
from partwise.messages import attempt, not_shown
from partwise.model import Transformer
from partwise.train.run_metadata import read_metadata
from partwise.train.samples import sample_lines

T = TypeVar("T")


def describe_runs(
    plan: RunPlan,
    gathered: Sequence[ArmResult],
    trials: Sequence[Trial],
    dataset: Dataset,
    throughput: Mapping[str, float | None],
    computation: Mapping[str, ComputePlan],
    missing_kernels: Mapping[str, Sequence[str]],
    findings: Mapping[str, tuple[PartFinding, ...]],
) -> dict[str, Any]:
    """The fields of `Results` with the facts of our training runs and their `gathered` arms.

    No verdict depends on them: one that fails is left out.
    """
    left_out: dict[str, str] = {}

    def fact(section: str, make: Callable[[], T], otherwise: T) -> T:
        def leave_out(reason: str) -> T:
            left_out[section] = reason
            return otherwise

        return attempt(section.lower(), make, leave_out)

    def arm_facts(arm: RunArm, result: ArmResult) -> dict[str, Any]:
        folder = next((trial.folder for trial in trials if trial.arm == arm.name), None)
        return {
            **describe_arm(plan, arm, result, throughput, computation[arm.name]),
            "missing_kernels": tuple(missing_kernels.get(arm.name, ())),
            "new_tensors": tuple(read_metadata(folder).get("new_tensors", ()) if folder else ()),
        }

    arms = []
    for arm, result in zip(plan.arms, gathered, strict=True):
        facts: dict[str, Any] = fact("The arms", partial(arm_facts, arm, result), {})
        shown = {"findings": findings[arm.name], "samples": write_sample(plan, arm, trials, dataset)}
        arms.append(result.model_copy(update=facts | shown))
    references = fact("References", lambda: References.from_dict(dataset_references(dataset)), References())
    losses = [x for arm in gathered for trial in arm.trials if (x := trial.validation_loss) is not None]
    far = far_below(losses, dict(references.ngrams)) if is_plain_text(dataset) else ""
    return {
        "scope": " ".join(filter(None, (scope(plan), repetition_note(dataset), far))),
        "task": fact("How it was run", lambda: describe_task(plan, dataset), None),
        "arms": tuple(arms),
        "activation_statistics": fact(
            "Activation statistics", lambda: measure_activations(plan, trials, dataset), tuple[SiteStatistic, ...]()
        ),
        "references": references,
        "tuning_note": learning_rate_note(plan),
        "left_out": left_out,
    }


def write_sample(plan: RunPlan, arm: RunArm, trials: Sequence[Trial], dataset: Dataset) -> tuple[str, ...]:
    """Two lines of text or answers by an arm, from its first trial with a trained model; none if there is none."""

    def write() -> tuple[str, ...]:
        model = trained_model(arm.name, trials)
        with one_torch_thread():  # one token at a time
            return tuple(sample_lines(model, dataset_of(plan, arm, dataset))) if model else ()

    return attempt(f"the sample of {arm.name}", write, lambda reason: (not_shown(reason),))


def describe_task(plan: RunPlan, dataset: Dataset) -> Task:
    first = plan.arms[0].config
    train, validation = (
        build_examples(dataset, name, first.seq_len, first.model.context_length) for name in ("train", "val")
    )
    tokens = first.train.steps * train.targets_per_batch(first.train.batch_size)
    return Task(
        data=str(first.data),
        name=first.data.name,
        hash=dataset.hash,
        tokenizer=first.tokenizer.name,
        steps=first.train.steps,
        batch_size=first.train.batch_size,
        seq_len=first.seq_len,
        tokens=tokens,
        epochs=train.epochs(tokens),
        validation_tokens=sum(batch.n_targets for batch in validation.eval_batches()),
        validation_estimator=first.train.validation_estimator,
    )


def scope(plan: RunPlan) -> str:
    """The setting that the verdict covers."""
    first = plan.arms[0].config
    size = f"{first.train.batch_size} x {first.seq_len} {token_name(first)}s"
    if first.data.paired:
        size = f"{first.train.batch_size} pairs"
    masked = f" with {first.data.masked_share:.0%} of the tokens masked" if first.data.masked_share else ""
    start = ""
    if first.initial_weights:
        start = f", starting from the weights with SHA-256 {first.initial_weights.sha256[:12]}... for every seed"
        if any(arm.config.initial_weights and arm.config.initial_weights.reinitialize for arm in plan.arms):
            start += " (tensors that these weights lack were initialized at random; see Shared initialization)"
    return (
        f"This holds for {first.count_parameters()} trained for {first.train.steps:,} steps of "
        f"{size} on {first.data.name}{masked}{start}; "
        "another model size, number of steps or dataset may give a different answer."
    )


def learning_rate_note(plan: RunPlan) -> str:
    learning_rates = sorted({arm.config.train.lr for arm in plan.arms})
    if len(learning_rates) == 1:
        return f"one learning rate ({learning_rates[0]:g}), untuned"
    return f"learning rates {', '.join(f'{lr:g}' for lr in learning_rates)}, set by the arms, untuned"


def describe_arm(
    plan: RunPlan, arm: RunArm, gathered: ArmResult, throughput: Mapping[str, float | None], computation: ComputePlan
) -> dict[str, Any]:
    unpaired, tensors = unpaired_tensors(plan.arms[0], arm)
    freezes = any(each.config.train.freeze is not None for each in plan.arms)
    memory = max((trial.peak_memory for trial in gathered.trials if trial.peak_memory), default=None)
    return {
        "parameters": arm.config.model.parameters(),
        "trainable_parameters": arm.config.trainable_parameters() if freezes else None,
        "flops_per_token": arm.config.flops_per_token(),
        "tokens_per_second": throughput.get(arm.name),
        "budget": training_budget(arm, throughput),
        "peak_memory": memory,
        "accuracy": pool_accuracy(gathered.trials),
        "unpaired_tensors": tuple(unpaired),
        "n_paired_tensors": tensors - len(unpaired),
        "n_tensors": tensors,
        "backends": describe_backends(computation),
    }


def describe_backends(plan: ComputePlan) -> tuple[Backends, ...]:
    """The backends of an arm, by kind of operation."""
    reasons = plan.reasons()
    return tuple(
        Backends(kind=kind, counts=dict(counts), reasons=tuple(reasons.get(kind, ())))
        for kind, counts in plan.counts().items()
        if counts
    )


def unpaired_tensors(baseline: RunArm, arm: RunArm) -> tuple[list[str], int]:
    """The names of the arm's tensors whose initial weights differ from the baseline's, and the number of all its tensors."""

    def initial_tensors(arm: RunArm) -> dict[str, torch.Tensor]:
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
