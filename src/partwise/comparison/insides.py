"""Where activations and gradients differ between the arms: one trained model of each, over the same text."""

from typing import Any

import torch
from torch.nn import functional as F

from partwise.checkpoint import load
from partwise.comparison.plan import Plan, dataset_of
from partwise.comparison.pool import Job
from partwise.data import IGNORED, Dataset, examples
from partwise.inspection.activations import observe
from partwise.inspection.gradients import grouped, recording_norms
from partwise.model import Transformer

TOKENS = 2048


def insides(plan: Plan, jobs: list[Job], dataset: Dataset) -> list[dict[str, Any]]:
    """Rows of a site, what is measured there, and its value in each arm; None where an arm has no such site.

    Deviations of activations, shares of exact zeros, and norms of the gradient, of the first seed of each arm that did not
    diverge.
    """
    seen: list[dict[tuple[str, str], float]] = []
    for arm in plan.arms:
        finished = [job for job in jobs if job.arm == arm.name and job.status == "done"]
        if not finished:
            seen.append({})
            continue
        model, _ = load(finished[0].folder)
        split = examples(dataset_of(plan, arm, dataset), "val", arm.config.context, arm.config.model.max_len)
        seen.append(sites(model.eval(), split.batch("inside", 0, 0, max(1, TOKENS // split.tokens_in(1)))))
    places = dict.fromkeys(place for found in seen for place in found)
    return [
        {"site": site, "what": what, "values": [found.get((site, what)) for found in seen]} for site, what in places
    ]


def sites(model: Transformer, batch: Any) -> dict[tuple[str, str], float]:
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    source = None if batch.source is None else torch.from_numpy(batch.source)
    found: dict[tuple[str, str], float] = {}
    for place, tally in observe(model, inputs, source).tallies.items():
        site = f"{'encoder ' * (place.stack == 'encoder')}layer {place.layer} {place.site}"
        if tally.count:
            found[site, "deviation"] = tally.variance**0.5
        if place.site.endswith("hidden") and tally.zeros:
            found[site, "share of zeros"] = tally.zeros / tally.count
    model.counts.train()  # the gradient that training has
    with recording_norms(model) as norms:
        logits = model(inputs, source=source)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).backward()
    model.zero_grad(set_to_none=True)
    for site, value in grouped({name: [norm.item()] for name, norm in norms.items()}).items():
        found[site, "norm of the gradient"] = float(value[0])
    return found
