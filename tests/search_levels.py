"""Simulated searches with the error control of the literature: SAFFRON, ADDIS, LORD, e-LOND."""

import numpy as np
from scipy import special

from search_methods import Rule, WithPool
from search_worlds import ALPHA


class RuleWithSaffron(Rule):
    """The same runs and looks at the levels of SAFFRON (Ramdas et al. 2018): a test that ends early spends no wealth."""

    def begin(self, best: np.ndarray) -> None:
        super().begin(best)
        self.spent = np.zeros(self.searches, int)
        self.spent_at = np.zeros((self.searches, self.world.changes + 1), int)

    def level(self) -> np.ndarray:
        def g(j: np.ndarray) -> np.ndarray:
            return np.asarray(np.maximum(j, 1.0) ** -1.6 / special.zeta(1.6))

        level = ALPHA / 2 * g(self.tests - self.spent)
        for k in range(int(self.keeps.max())):
            since = self.tests - self.known_at[:, k] - (self.spent - self.spent_at[:, k])
            level += np.where(k < self.keeps, g(since) * (ALPHA / 2 if k == 0 else ALPHA), 0.0)
        return np.minimum(self.futility, (1 - self.futility) * level)

    def decide(self, x: np.ndarray) -> np.ndarray:
        kept = super().decide(x)
        self.spent += kept | self.undecided
        self.spent_at[kept, self.keeps[kept]] = self.spent[kept]
        return kept


class TenRuns(WithPool):
    """Ten runs each, at the levels of LORD."""

    most = 10

    def decide(self, x: np.ndarray) -> np.ndarray:
        self.runs += self.most
        self.tests += 1
        return self.p(x) <= self.lord()


class Addis(TenRuns):
    """Ten runs each, at the levels of ADDIS (Tian & Ramdas 2019): p above `discard` or below `small` costs nothing."""

    discard, small = 0.5, 0.25

    def begin(self, best: np.ndarray) -> None:
        super().begin(best)
        self.counted, self.spent = np.zeros(self.searches, int), np.zeros(self.searches, int)
        self.spent_at = np.zeros((self.searches, self.world.changes + 1), int)
        self.counted_at = np.zeros_like(self.spent_at)

    def decide(self, x: np.ndarray) -> np.ndarray:
        def g(j: np.ndarray) -> np.ndarray:
            return np.asarray(np.maximum(j + 1, 1.0) ** -1.6 / special.zeta(1.6))

        self.runs += self.most
        self.tests += 1
        level = ALPHA / 2 * g(self.counted - self.spent)
        for k in range(int(self.keeps.max())):
            since = (self.counted - self.counted_at[:, k]) - (self.spent - self.spent_at[:, k])
            level += np.where(k < self.keeps, g(since) * (ALPHA / 2 if k == 0 else ALPHA), 0.0)
        p = self.p(x)
        kept = p <= np.minimum(self.small, (self.discard - self.small) * level)
        self.counted += p <= self.discard
        self.spent += p <= self.small
        self.counted_at[kept, self.keeps[kept]] = self.counted[kept]
        self.spent_at[kept, self.keeps[kept]] = self.spent[kept]
        return kept


class ELond(WithPool):
    """e-LOND (Xu & Ramdas 2024) with a t test that may be asked after each run, and the same early ends as the rule."""

    most, futility, scale = 10, 0.35, 4.0
    number = 0

    def decide(self, x: np.ndarray) -> np.ndarray:
        self.number += 1
        level = ALPHA * (1 + self.keeps) * self.number**-1.3 / special.zeta(1.3)
        alive, kept = np.ones(self.searches, bool), np.zeros(self.searches, bool)
        for n in range(1, self.most + 1):
            self.runs += alive
            t, df, effective = self.t(x[:, :n])
            wins = alive & (e_value(-t, df, effective, self.scale) >= 1 / level)
            kept |= wins
            alive &= ~wins & (special.stdtr(df, t) <= self.futility)
        return kept

    def begin(self, best: np.ndarray) -> None:
        super().begin(best)
        self.number = 0


def e_value(t: np.ndarray, df: np.ndarray, n: np.ndarray, scale: float) -> np.ndarray:
    """The Bayes factor of effects with a half-normal prior of variance `scale` against none, in the direction of t > 0."""
    shrunk = n * scale / (1 + n * scale)
    rest = 1 - shrunk * t * t / (df + t * t)
    half = t * np.sqrt(shrunk * (df + 1) / ((df + t * t) * rest))
    two_sided = rest ** (-(df + 1) / 2) / np.sqrt(1 + n * scale)
    return np.asarray(2 * two_sided * special.stdtr(df + 1, half))
