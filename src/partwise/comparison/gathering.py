"""Gather finished runs into `Results`, which judging completes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from partwise.comparison.activation_statistics import measure_activations
from partwise.comparison.design.plan import Arm, Plan, token_name, training_budget
from partwise.comparison.results import ArmResult, Backends, Protocol, References, Results, Task
from partwise.comparison.trials.outcome import pool_accuracy, read_outcome
from partwise.comparison.trials.worker_pool import Job
from partwise.compute.plan import Plan as ComputePlan
from partwise.config.overrides import difference
from partwise.data import Dataset, build_examples
from partwise.evaluate.references import dataset_references
from partwise.model import Transformer


def gather(
    plan: Plan,
    jobs: list[Job],
    dataset: Dataset,
    throughput: Mapping[str, float | None],
    computation: Mapping[str, ComputePlan],
    missing_kernels: Mapping[str, Sequence[str]],
) -> Results:
    """The results of all runs, each of which must be finished; not yet judged."""
    arms = (
        gather_arm(plan, arm, [job for job in jobs if job.arm == arm.name], throughput, computation.get(arm.name))
        for arm in plan.arms
    )
    return Results(
        question=plan.question,
        scope=scope(plan),
        protocol=Protocol.from_rules(plan.rules),
        seeds=tuple(sorted({job.seed for job in jobs})),
        task=describe_task(plan, dataset),
        config=plan.arms[0].config.to_dict(),
        arms=tuple(
            arm.model_copy(update={"missing_kernels": tuple(missing_kernels.get(arm.name, ()))}) for arm in arms
        ),
        activation_statistics=measure_activations(plan, jobs, dataset),
        references=References.from_dict(dataset_references(dataset)),
        tuning_note=learning_rate_note(plan),
    )


def describe_task(plan: Plan, dataset: Dataset) -> Task:
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


def gather_arm(
    plan: Plan, arm: Arm, jobs: list[Job], throughput: Mapping[str, float | None], computation: ComputePlan | None
) -> ArmResult:
    baseline = plan.arms[0]
    trials = tuple(read_outcome(job, plan.rules.metric) for job in sorted(jobs, key=lambda job: job.seed))
    unpaired, tensors = unpaired_tensors(baseline, arm)
    changes: list[Any] = difference(baseline.config.to_dict(), arm.config.to_dict())
    return ArmResult(
        name=arm.name,
        overrides=arm.overrides,
        config_changes=tuple((path, old, new) for path, old, new in changes),
        parameters=arm.config.model.parameters(),
        flops_per_token=arm.config.model.flops_per_token(arm.config.seq_len),
        tokens_per_second=throughput.get(arm.name),
        budget=training_budget(arm, throughput),
        peak_memory=max((trial.peak_memory for trial in trials if trial.peak_memory), default=None),
        accuracy=pool_accuracy(trials),
        unpaired_tensors=tuple(unpaired),
        n_paired_tensors=tensors - len(unpaired),
        n_tensors=tensors,
        backends=describe_backends(computation) if computation else (),
        trials=trials,
    )


def describe_backends(plan: ComputePlan) -> tuple[Backends, ...]:
    """The backends of an arm, by kind of operation."""
    reasons = plan.reasons()
    return tuple(
        Backends(kind=kind, counts=dict(counts), reasons=tuple(reasons.get(kind, ())))
        for kind, counts in plan.counts().items()
        if counts
    )


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
