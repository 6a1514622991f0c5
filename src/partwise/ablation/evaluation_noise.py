"""The noise of a loss that comes from the choice of validation text."""

import math

import numpy as np

from partwise.ablation.run_comparison import RunComparison
from partwise.checkpoint import load
from partwise.data import Dataset, build_examples
from partwise.evaluate.loss import mean_loss


def evaluation_standard_errors(comparison: RunComparison, dataset: Dataset) -> tuple[float | None, float | None]:
    """The standard errors of a loss and of a pair's difference over validation batches; None if there is only one batch."""
    losses: list[np.ndarray] = []
    for arm in comparison.plan.arms[:2]:
        folder = next(trial.folder for trial in comparison.trials if trial.arm == arm.name)
        model, _ = load(folder)
        config = arm.config
        batches = list(build_examples(dataset, "val", config.seq_len, config.model.context_length).eval_batches())
        full = [batch for batch in batches if batch.n_targets >= max(b.n_targets for b in batches) / 2]
        losses.append(np.array([mean_loss(model, [batch]) for batch in full]))
    if len(losses[0]) < 2:
        return None, None
    single, paired = (x.std(ddof=1) / math.sqrt(len(x)) for x in (losses[0], losses[1] - losses[0]))
    return float(single), float(paired)
