"""Simulated searches: the changes, the noise of a run, and what is counted.

Shares no function with the product. A run of the first best has mean 0 and an SD of 1; lower is better. A change that helps
lowers the mean of the present best by EFFECT, and one that harms raises it: changes that are kept add up.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

ALPHA, EFFECT = 0.05, 2.0

STUDIES = Path(__file__).parents[1] / "src" / "partwise" / "studies" / "library"

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@cache
def residuals() -> np.ndarray:
    """Final losses of language models in the published studies: deviations from the mean of an arm's eight seeds, in SDs.

    The SD is pooled over the arms of a comparison, so arms that vary more or less than the others stay different.
    """
    found, seen = [], set[tuple[float, ...]]()
    for path in sorted(STUDIES.glob("*/results.json")):
        for comparison in json.loads(path.read_text(encoding="utf-8"))["comparisons"].values():
            arms = []
            for arm in comparison["arms"]:
                trials = arm["trials"]
                values = tuple(trial["value"] for trial in trials)
                scored = any(trial["accuracy"] is not None for trial in trials)  # arithmetic
                if len(values) == 8 and None not in values and not scored and values not in seen:
                    seen.add(values)  # studies share baselines
                    arms.append(np.array(values) - np.mean(values))
            if arms:
                together = np.concatenate(arms)
                found.append(together / np.sqrt(np.mean(together**2)))
    return np.concatenate(found)


NOISES: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails (Student's t, 4 degrees of freedom)": lambda rng, shape: rng.standard_t(4, shape) / math.sqrt(2),
    "a long tail of bad runs (exponential)": lambda rng, shape: rng.exponential(size=shape) - 1,
    "a long tail of good runs (exponential)": lambda rng, shape: 1 - rng.exponential(size=shape),
}
MEASURED = "residuals of real runs"
ALL_NOISES: dict[str, Noise] = {**NOISES, MEASURED: lambda rng, shape: rng.choice(residuals(), shape)}


@dataclass(frozen=True)
class World:
    """How many changes, how many of them help, and which part of the others harms."""

    changes: int = 40
    helpful: int = 4
    harmful: float = 0.5
    noise: Noise = NOISES["normal"]
    spread: float = 1.0
    """The SD of the candidates' runs, if it is not that of the best."""
    digit: float = 0.0
    """The unit to which values are printed, in SDs; 0 for exact values."""

    def effects(self, rng: np.random.Generator, searches: int) -> np.ndarray:
        """(searches, changes), in random order."""
        row = np.zeros(self.changes)
        row[: self.helpful] = -EFFECT
        row[self.helpful : self.helpful + round(self.harmful * (self.changes - self.helpful))] = EFFECT
        return rng.permuted(np.tile(row, (searches, 1)), axis=1)

    def printed(self, values: np.ndarray) -> np.ndarray:
        return np.round(values / self.digit) * self.digit if self.digit else values


@dataclass
class Outcome:
    """What many searches kept and cost."""

    true: np.ndarray
    false: np.ndarray
    runs: np.ndarray
    world: World

    @property
    def false_proportion(self) -> float:
        return float(np.mean(self.false / np.maximum(self.true + self.false, 1)))

    @property
    def any_false(self) -> float:
        return float(np.mean(self.false > 0))

    @property
    def found(self) -> float:
        return float(np.mean(self.true)) / max(self.world.helpful, 1)

    @property
    def cost(self) -> float:
        return float(np.mean(self.runs)) / self.world.changes


class Method:
    """A way to search: `decide` says for the runs x of one candidate per search (searches, MOST) which are kept."""

    most = 1

    def start(self, world: World, searches: int, rng: np.random.Generator) -> None:
        self.world, self.searches, self.rng = world, searches, rng
        self.runs = np.zeros(searches)
        self.begin(np.zeros(searches))

    def begin(self, best: np.ndarray) -> None:
        raise NotImplementedError

    def decide(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def promote(self, kept: np.ndarray, best: np.ndarray, x: np.ndarray) -> None:
        """The best has changed where `kept`; its true mean is `best`, and x were the runs that won."""

    def draw(self, mean: np.ndarray, count: int) -> np.ndarray:
        return self.world.printed(mean[:, None] + self.world.noise(self.rng, (self.searches, count)))


def simulate(method: Method, world: World, searches: int, seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    effects, best = world.effects(rng, searches), np.zeros(searches)
    method.start(world, searches, rng)
    true, false = np.zeros(searches, int), np.zeros(searches, int)
    for change in range(world.changes):
        mean = best + effects[:, change]
        x = world.printed(mean[:, None] + world.spread * world.noise(rng, (searches, method.most)))
        kept = method.decide(x)
        true += kept & (effects[:, change] < 0)
        false += kept & (effects[:, change] >= 0)
        best = np.where(kept, mean, best)
        method.promote(kept, best, x)
    return Outcome(true, false, method.runs, world)
