"""Activation and gradient statistics of one trained model per arm, over the same text."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from partwise.ablation.run_plan import RunPlan, dataset_of
from partwise.ablation.run_trial import trained_model
from partwise.comparison.results import SiteStatistic
from partwise.comparison.trials.trial import Trial
from partwise.data import IGNORE_INDEX, Dataset, build_examples
from partwise.inspection.activations import record_activations
from partwise.inspection.gradients import gradient_norms, group_norms
from partwise.model import Transformer

TOKENS = 2048


def measure_activations(plan: RunPlan, trials: Sequence[Trial], dataset: Dataset) -> tuple[SiteStatistic, ...]:
    """Rows of site, quantity, and its value in each arm; None where an arm lacks the site.

    The quantities are standard deviations of activations, fractions of exact zeros, and gradient norms, for the first seed of
    each arm that has a trained model.
    """
    by_arm: list[dict[tuple[str, str], float]] = []
    for arm in plan.arms:
        model = trained_model(arm.name, trials)
        if model is None:
            by_arm.append({})
            continue
        split = build_examples(
            dataset_of(plan, arm, dataset), "val", arm.config.seq_len, arm.config.model.context_length
        )
        batch = split.batch("inside", 0, 0, max(1, TOKENS // split.targets_per_batch(1)))
        by_arm.append(site_statistics(model.eval(), batch))
    keys = dict.fromkeys(key for values in by_arm for key in values)
    return tuple(
        SiteStatistic(site=site, quantity=quantity, values=tuple(values.get((site, quantity)) for values in by_arm))
        for site, quantity in keys
    )


def site_statistics(model: Transformer, batch: Any) -> dict[tuple[str, str], float]:
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    source = None if batch.source is None else torch.from_numpy(batch.source)
    values: dict[tuple[str, str], float] = {}
    for location, statistics in record_activations(model, inputs, source).statistics.items():
        site = f"{'encoder ' * (location.stack == 'encoder')}layer {location.layer} {location.site}"
        if statistics.count:
            values[site, "standard deviation"] = statistics.variance**0.5
        if location.site.endswith("hidden") and statistics.n_zeros:
            values[site, "fraction of zeros"] = statistics.n_zeros / statistics.count
    for layer in model.fitted_layers.values():
        layer.train()  # the same gradient as in training
    with gradient_norms(model) as norms:
        logits = model(inputs, source=source)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX).backward()
    model.zero_grad(set_to_none=True)
    for site, value in group_norms({name: [norm.item()] for name, norm in norms.items()}).items():
        values[site, "gradient norm"] = float(value[0])
    return values
