"""Simulated searches: worlds, the rule of `partwise`, what else people do, and methods of the literature.

Shares no function with the product. A run of the first best has mean 0 and an SD of 1; lower is better. A change that helps
lowers the mean of the present best by EFFECT, and one that harms raises it: changes that are kept add up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import special

ALPHA, EFFECT = 0.05, 2.0

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
NOISES: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails (Student's t, 4 degrees of freedom)": lambda rng, shape: rng.standard_t(4, shape) / math.sqrt(2),
    "a long tail of bad runs (exponential)": lambda rng, shape: rng.exponential(size=shape) - 1,
    "a long tail of good runs (exponential)": lambda rng, shape: 1 - rng.exponential(size=shape),
}


@dataclass(frozen=True)
class World:
    """How many changes, how many of them help, and which part of the others harms."""

    changes: int = 40
    helpful: int = 4
    harmful: float = 0.5
    noise: Noise = NOISES["normal"]
    spread: float = 1.0
    """The SD of the candidates' runs, if it is not that of the best."""

    def effects(self, rng: np.random.Generator, searches: int) -> np.ndarray:
        """(searches, changes), in random order."""
        row = np.zeros(self.changes)
        row[: self.helpful] = -EFFECT
        row[self.helpful : self.helpful + round(self.harmful * (self.changes - self.helpful))] = EFFECT
        return rng.permuted(np.tile(row, (searches, 1)), axis=1)


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
        return mean[:, None] + self.world.noise(self.rng, (self.searches, count))


def simulate(method: Method, world: World, searches: int, seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    effects, best = world.effects(rng, searches), np.zeros(searches)
    method.start(world, searches, rng)
    true, false = np.zeros(searches, int), np.zeros(searches, int)
    for change in range(world.changes):
        mean = best + effects[:, change]
        x = mean[:, None] + world.spread * world.noise(rng, (searches, method.most))
        kept = method.decide(x)
        true += kept & (effects[:, change] < 0)
        false += kept & (effects[:, change] >= 0)
        best = np.where(kept, mean, best)
        method.promote(kept, best, x)
    return Outcome(true, false, method.runs, world)


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


def e_value(t: np.ndarray, df: np.ndarray, n: np.ndarray, scale: float) -> np.ndarray:
    """The Bayes factor of effects with a half-normal prior of variance `scale` against none, in the direction of t > 0."""
    shrunk = n * scale / (1 + n * scale)
    rest = 1 - shrunk * t * t / (df + t * t)
    half = t * np.sqrt(shrunk * (df + 1) / ((df + t * t) * rest))
    two_sided = rest ** (-(df + 1) / 2) / np.sqrt(1 + n * scale)
    return np.asarray(2 * two_sided * special.stdtr(df + 1, half))


def squares(x: np.ndarray) -> np.ndarray:
    return np.asarray(((x - x.mean(1, keepdims=True)) ** 2).sum(1))
