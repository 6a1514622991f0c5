"""Lesson 2, how far apart are two runs of nothing? Seeds that both arms share cancel in the difference."""

import math
import random

from scipy.special import stdtrit  # quantiles of Student's t


def mean(x: list[float]) -> float:
    return sum(x) / len(x)


def sd(x: list[float]) -> float:
    """The standard deviation of a sample: divided by n - 1, since the mean was estimated from the same numbers."""
    center = mean(x)
    return math.sqrt(sum((value - center) ** 2 for value in x) / (len(x) - 1))


def t_interval(x: list[float], level: float = 0.95) -> tuple[float, float]:
    """mean +- t SD / sqrt(n): has the true mean in 95 of 100 experiments."""
    t = stdtrit(len(x) - 1, (1 + level) / 2)
    half = t * sd(x) / math.sqrt(len(x))
    return mean(x) - half, mean(x) + half


def paired_difference(arm: list[float], baseline: list[float]) -> list[float]:
    """Seed by seed: what both runs of a seed have in common, such as the order of the data, drops out."""
    return [a - b for a, b in zip(arm, baseline, strict=True)]


def seeds_needed(sd_of_difference: float, difference: float, confidence: float = 0.95) -> int:
    """The fewest seeds whose interval is shorter than the difference on each side."""
    n = 2
    while stdtrit(n - 1, (1 + confidence) / 2) * sd_of_difference / math.sqrt(n) >= difference:
        n += 1
    return n


if __name__ == "__main__":
    noise = random.Random(1)
    seed_effect = [noise.gauss(0, 0.02) for _ in range(50)]  # both runs of a seed have it
    baseline = [1.50 + effect + noise.gauss(0, 0.003) for effect in seed_effect]
    arm = [1.49 + effect + noise.gauss(0, 0.003) for effect in seed_effect]
    spread = sd(paired_difference(arm, baseline))
    unpaired = math.sqrt(sd(arm) ** 2 + sd(baseline) ** 2)
    print(
        f"SD of a run {sd(arm):.4f}, of a paired difference {spread:.4f}. Seeds that show a difference of 0.01: "
        f"{seeds_needed(spread, 0.01)} paired, {seeds_needed(unpaired, 0.01)} unpaired"
    )
