"""Simulated searches: the rule of `partwise`, and what else people do."""

from dataclasses import dataclass, field

import numpy as np
from scipy import special

from search_worlds import ALPHA, EFFECT, Method


class BestOf(Method):
    """Keep a candidate if the best of its k runs beats that of the present best by more than a threshold."""

    def __init__(self, k: int, threshold: float = 0.0) -> None:
        self.most, self.threshold = k, threshold

    def begin(self, best: np.ndarray) -> None:
        self.record = self.draw(best, self.most).min(1)
        self.runs += self.most

    def decide(self, x: np.ndarray) -> np.ndarray:
        self.runs += self.most
        return x.min(1) < self.record - self.threshold

    def promote(self, kept: np.ndarray, best: np.ndarray, x: np.ndarray) -> None:
        self.record = np.where(kept, x.min(1), self.record)


class AgainstFreshRun(Method):
    """Keep a candidate if its run beats a new run of the present best."""

    def begin(self, best: np.ndarray) -> None:
        self.best = best

    def decide(self, x: np.ndarray) -> np.ndarray:
        self.runs += 2
        return x[:, 0] < self.draw(self.best, 1)[:, 0]

    def promote(self, kept: np.ndarray, best: np.ndarray, x: np.ndarray) -> None:
        self.best = best


class Informed(Method):
    """Bayes' rule, told what nobody knows: the true mean of the best, the SD, the gain, and that a tenth of changes help.

    Sequential probability ratio tests need the fewest runs for their errors (Wald & Wolfowitz 1948): a bound for the others.
    """

    most, hopeless = 30, 0.02

    def begin(self, best: np.ndarray) -> None:
        self.best = best

    def decide(self, x: np.ndarray) -> np.ndarray:
        alive, kept = np.ones(self.searches, bool), np.zeros(self.searches, bool)
        for n in range(1, self.most + 1):
            self.runs += alive
            total = (x[:, :n] - self.best[:, None]).sum(1)
            shares = ((-EFFECT, 0.1), (0.0, 0.45), (EFFECT, 0.45))
            weights = [share * np.exp(effect * total - n * effect * effect / 2) for effect, share in shares]
            helps = weights[0] / sum(weights)
            kept |= alive & (helps >= 1 - ALPHA)
            alive &= (helps > self.hopeless) & (helps < 1 - ALPHA)
        return kept

    def promote(self, kept: np.ndarray, best: np.ndarray, x: np.ndarray) -> None:
        self.best = best


class WithPool(Method):
    """Candidates against repeats of the present best, with noise pooled over all groups of runs."""

    first, later = 16, 8
    shared = True

    def begin(self, best: np.ndarray) -> None:
        self.best, self.squares, self.df = best, np.zeros(self.searches), np.zeros(self.searches)
        self.center, self.size = np.zeros(self.searches), np.ones(self.searches)
        self.tests, self.keeps = np.zeros(self.searches, int), np.zeros(self.searches, int)
        self.known_at = np.zeros((self.searches, self.world.changes + 1), int)
        self.renew(np.ones(self.searches, bool), self.first)

    def renew(self, where: np.ndarray, count: int) -> None:
        x = self.draw(self.best, count)
        self.center, self.size = np.where(where, x.mean(1), self.center), np.where(where, count, self.size)
        self.add_noise(where, x)
        self.runs += where * count

    def add_noise(self, where: np.ndarray, x: np.ndarray) -> None:
        if x.shape[1] > 1:
            self.squares += where * squares(x)
            self.df += where * (x.shape[1] - 1)

    def promote(self, kept: np.ndarray, best: np.ndarray, x: np.ndarray) -> None:
        self.best = best
        self.known_at[kept, self.keeps[kept]] = self.tests[kept]
        self.keeps += kept
        if kept.any():
            self.renew(kept, self.later)

    def t(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The t statistic, degrees of freedom and effective number of runs of candidates against their pools."""
        n = x.shape[1]
        df = self.df + n - 1
        spread = np.sqrt((self.squares + squares(x)) / df)
        inverse = 1 / n + 1 / self.size
        return (x.mean(1) - self.center) / (spread * np.sqrt(inverse)), df, 1 / inverse

    def p(self, x: np.ndarray) -> np.ndarray:
        t, df, _ = self.t(x)
        return np.asarray(special.stdtr(df, t))

    def lord(self) -> np.ndarray:
        """The level of LORD for the test that has just been counted (J. Mach. Learn. Res. 22(33), algorithm LORD*)."""

        def g(j: np.ndarray) -> np.ndarray:
            return np.where(j > 0, np.maximum(j, 1.0) ** -1.3, 0.0) / special.zeta(1.3)

        level = g(np.maximum(self.tests, 1)) * ALPHA / 2
        for k in range(int(self.keeps.max())):
            since = np.where(k < self.keeps, self.tests - self.known_at[:, k], 0)
            level += g(since) * (ALPHA / 2 if k == 0 else ALPHA)
        return level


@dataclass(eq=False)
class Rule(WithPool):
    """The rule of `partwise`: a screen of one run, then a test on further runs, at the levels of LORD."""

    first: int = 16
    later: int = 8
    screen: float = 0.3
    futility: float = 0.35
    looks: dict[int, float] = field(default_factory=lambda: {3: 0.2, 6: 0.3, 10: 0.5})
    shared: bool = True
    """Whether all candidates meet one pool; if not, each has a pool of its own, which the cost leaves out."""

    def __post_init__(self) -> None:
        self.most = 1 + max(self.looks)

    def decide(self, x: np.ndarray) -> np.ndarray:
        if not self.shared:
            self.renew(np.ones(self.searches, bool), self.first)
            self.runs -= self.first
        self.runs += 1
        alive = self.p(x[:, :1]) <= self.screen
        self.tests += alive
        level, kept = self.level(), np.zeros(self.searches, bool)
        last = np.zeros(self.searches, int)
        for n in range(1, self.most):
            self.runs += alive
            last = np.where(alive, n, last)
            p = self.p(x[:, 1 : 1 + n])
            wins = alive & (p <= level * self.looks.get(n, 0.0))
            kept |= wins
            alive &= ~wins & (p <= self.futility)
        for n in range(2, self.most):
            self.add_noise(last == n, x[:, 1 : 1 + n])
        self.undecided = alive
        return kept

    def level(self) -> np.ndarray:
        return self.lord()


class Race(WithPool):
    """A race as in irace, with t tests at 5% after each run from the second on; the winner's runs stay in its pool."""

    most = 10

    def decide(self, x: np.ndarray) -> np.ndarray:
        alive, kept = np.ones(self.searches, bool), np.zeros(self.searches, bool)
        self.used = np.zeros(self.searches, int)
        for n in range(1, self.most + 1):
            self.runs += alive
            self.used += alive
            if n > 1:
                p = self.p(x[:, :n])
                kept |= alive & (p <= 0.025)
                alive &= (p > 0.025) & (p < 0.975)
        return kept

    def promote(self, kept: np.ndarray, best: np.ndarray, x: np.ndarray) -> None:
        self.best = best
        more = self.draw(best, self.later)
        for n in range(2, self.most + 1):  # its own runs, and as many more as make a pool
            where, fresh = kept & (self.used == n), max(0, self.later - n)
            pool = np.concatenate([x[:, :n], more[:, :fresh]], axis=1)
            self.center = np.where(where, pool.mean(1), self.center)
            self.size = np.where(where, pool.shape[1], self.size)
            self.add_noise(where, pool)
            self.runs += where * fresh


def squares(x: np.ndarray) -> np.ndarray:
    return np.asarray(((x - x.mean(1, keepdims=True)) ** 2).sum(1))
