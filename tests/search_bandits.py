"""Simulated searches that try all changes of one best at once, as bandits do: nothing is kept before the end."""

import math
from abc import ABC, abstractmethod

import numpy as np
from scipy import special

from search_worlds import ALPHA, EFFECT, Outcome, World

POOL = 16


def halving(world: World, searches: int, wanted: int, seed: int) -> Outcome:
    """Successive halving of all changes of one best to the `wanted` best: each round has half of them, and twice the runs."""
    rng = np.random.default_rng(seed)
    effects = world.effects(rng, searches)
    total, count = np.zeros(effects.shape), np.zeros(effects.shape)
    left, batch, runs = world.changes, 1, 0
    alive = np.ones(effects.shape, bool)
    while True:
        total += alive * (batch * effects + world.noise(rng, (*effects.shape, batch)).sum(-1))
        count += alive * batch
        runs += left * batch
        left = max(wanted, left // 2)
        mean = np.where(alive, total / count, np.inf)
        order = np.argsort(mean, axis=1)
        was = alive
        alive = np.zeros_like(alive)
        np.put_along_axis(alive, order[:, :left], True, axis=1)
        if was.sum(1).max() <= left or left == wanted:
            break
        batch *= 2
    return Outcome(
        (alive & (effects < 0)).sum(1), (alive & (effects >= 0)).sum(1), np.full(searches, float(runs)), world
    )


class Bandit(ABC):
    """Runs one change of each search after the other, which `choose` names, as often as the budget allows.

    The best has a pool of repeats, and the SD is told.
    """

    def search(self, world: World, searches: int, per_change: float, seed: int) -> Outcome:
        rng = np.random.default_rng(seed)
        effects = world.effects(rng, searches)
        self.best = world.noise(rng, (searches, POOL)).mean(1)[:, None]
        self.total, self.count = effects + world.noise(rng, effects.shape), np.ones(effects.shape)
        rows, budget = np.arange(searches), round(per_change * world.changes)
        for _ in range(budget - POOL - world.changes):
            chosen = self.choose(rng)
            self.total[rows, chosen] += effects[rows, chosen] + world.noise(rng, (searches,))
            self.count[rows, chosen] += 1
        kept = self.keep()
        runs = np.full(searches, float(budget))
        return Outcome((kept & (effects < 0)).sum(1), (kept & (effects >= 0)).sum(1), runs, world)

    @abstractmethod
    def choose(self, rng: np.random.Generator) -> np.ndarray:
        """The change to run next in each search."""

    @abstractmethod
    def keep(self) -> np.ndarray:
        """(searches, changes)"""


class TopTwo(Bandit):
    """Top-two Thompson sampling (Russo 2016) with a normal prior of SD EFFECT; keeps what helps with 95% of the posterior."""

    def posterior(self) -> tuple[np.ndarray, np.ndarray]:
        precision = self.count + EFFECT**-2
        return (self.total + self.best * EFFECT**-2) / precision, 1 / precision

    def choose(self, rng: np.random.Generator) -> np.ndarray:
        mean, variance = self.posterior()
        rows, drawn = np.arange(len(mean)), rng.normal(size=(2, *mean.shape)) * np.sqrt(variance) + mean
        first = drawn[0].argmin(1)
        drawn[1][rows, first] = np.inf
        return np.where(rng.random(len(mean)) < 0.5, first, drawn[1].argmin(1))

    def keep(self) -> np.ndarray:
        mean, variance = self.posterior()
        return np.asarray(special.ndtr((self.best - mean) / np.sqrt(variance + 1 / POOL)) >= 1 - ALPHA)


class UpperBounds(Bandit):
    """The most promising change by its confidence bound, of those not yet kept (Jamieson & Jain 2018).

    Kept by e-values that may be asked after each run, and e-BH over all changes (Xu, Wang & Ramdas 2021).
    """

    scale = EFFECT**2

    def choose(self, rng: np.random.Generator) -> np.ndarray:
        once = math.log(1 / ALPHA)
        width = np.sqrt((2 * once + 6 * math.log(once) + 3 * np.log(np.log(math.e * self.count / 2) + 1)) / self.count)
        return np.where(self.keep(), np.inf, self.total / self.count - width).argmin(1)

    def keep(self) -> np.ndarray:
        n = 1 / (1 / self.count + 1 / POOL)
        z = (self.best - self.total / self.count) * np.sqrt(n)
        shrunk = n * self.scale / (1 + n * self.scale)
        e = 2 / np.sqrt(1 + n * self.scale) * np.exp(shrunk * z * z / 2) * special.ndtr(z * np.sqrt(shrunk))
        ranked = -np.sort(-e, axis=1)
        needed = e.shape[1] / (ALPHA * np.arange(1, e.shape[1] + 1))
        enough = ranked >= needed
        least = np.where(enough, ranked, np.inf).min(1)
        return np.asarray(e >= least[:, None])
