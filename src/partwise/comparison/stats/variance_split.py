"""How much of the noise between runs comes from initialization and how much from data order. Imports no torch.

A crossed design: every initialization is trained in every order, once. The variance components are those of a two-way
analysis of variance with random effects (Searle, Casella & McCulloch 1992, Variance Components, section 4.2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from partwise.config import ConfigError


@dataclass(frozen=True)
class Component:
    """The standard deviation that one source adds, with its interval; 0 if the estimate of its variance is negative."""

    sd: float
    low: float
    high: float


@dataclass(frozen=True)
class VarianceSplit:
    """The components of one run's variance.

    `rest` is what neither source explains alone: their interaction, since training is chaotic in both.
    """

    init: Component
    order: Component
    rest: Component
    total_sd: float
    n_init: int
    n_order: int


def split_variance(values: Sequence[Sequence[float]], alpha: float = 0.05) -> VarianceSplit:
    """The split of the values of runs, a row per initialization and a column per order; intervals at 1 - alpha.

    Raises ConfigError for a value that is not finite, or for fewer than two rows or columns.
    """
    table = np.array(values, dtype=float)
    rows, columns = table.shape
    if not np.isfinite(table).all():
        raise ConfigError(
            "a run failed, so the variance cannot be split: fix that first, for example with a lower train.lr"
        )
    if min(rows, columns) < 2:
        raise ConfigError(
            f"{rows} x {columns} runs cannot be split: at least two initializations and two orders are needed"
        )
    grand = table.mean()
    row_means, column_means = table.mean(axis=1), table.mean(axis=0)
    residuals = table - row_means[:, None] - column_means[None, :] + grand
    df = (rows - 1, columns - 1, (rows - 1) * (columns - 1))
    ms_init = columns * float(((row_means - grand) ** 2).sum()) / df[0]
    ms_order = rows * float(((column_means - grand) ** 2).sum()) / df[1]
    ms_rest = float((residuals**2).sum()) / df[2]
    init = component(ms_init, df[0], ms_rest, df[2], columns, alpha)
    order = component(ms_order, df[1], ms_rest, df[2], rows, alpha)
    rest = scaled_chi(math.sqrt(ms_rest), df[2], alpha)
    total = math.sqrt(max(0.0, (ms_init - ms_rest) / columns) + max(0.0, (ms_order - ms_rest) / rows) + ms_rest)
    return VarianceSplit(init, order, rest, total, rows, columns)


def scaled_chi(sd: float, df: int, alpha: float) -> Component:
    """An SD with its interval from the chi-square distribution."""
    low, high = (sd * math.sqrt(df / float(special.chdtri(df, p))) for p in (alpha / 2, 1 - alpha / 2))
    return Component(sd, low, high)


def component(ms: float, df: int, ms_rest: float, df_rest: int, n: int, alpha: float) -> Component:
    """The SD of an effect with mean square `ms`, each of whose levels has `n` runs; the interval of Williams (1962)."""
    sd = math.sqrt(max(0.0, (ms - ms_rest) / n))
    ends = []
    for p in (alpha / 2, 1 - alpha / 2):  # upper tail probabilities
        quantile = float(special.fdtri(df, df_rest, 1 - p))
        variance = (ms - quantile * ms_rest) * df / (n * float(special.chdtri(df, p)))
        ends.append(math.sqrt(max(0.0, variance)))
    return Component(sd, ends[0], ends[1])
