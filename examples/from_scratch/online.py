"""Lesson 12, forty ideas: the level at which each is tested, so that of those that are kept few are false."""

import random

from scipy.special import zeta


def share(test: int) -> float:
    """What the test number 1, 2, 3, ... after an event gets of its error: all shares sum to 1."""
    return test**-1.3 / zeta(1.3)


def online_level(tried: int, found: list[int], alpha: float = 0.05) -> float:
    """The level of the next idea after `tried` ideas.

    `found` has, for each idea that was kept, how many had been tried by then.
    """
    start = alpha / 2
    level = share(tried + 1) * start
    for number, known in enumerate(sorted(found)):
        earned = alpha if number else alpha - start
        level += share(tried + 1 - known) * earned
    return level


if __name__ == "__main__":
    noise = random.Random(1)
    searches = [[noise.random() for _ in range(40)] for _ in range(2000)]  # p-values of ideas that do nothing
    at_5 = sum(min(ideas) < 0.05 for ideas in searches) / len(searches)
    online = sum(any(p < online_level(n, []) for n, p in enumerate(ideas)) for ideas in searches) / len(searches)
    print(f"searches over 40 ideas of nothing that find one: {at_5:.1%} at 5% each, {online:.1%} with online levels")
