"""The rule of searches against its independent simulation: equal decisions, the goals of the page, and the page's figures."""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from partwise.comparison.search.rule import Action, Design, Pool, Search, confirm, next_action
from search_bandits import TopTwo, UpperBounds
from search_errors import END, PAGE, START
from search_methods import AgainstFreshRun, Rule
from search_worlds import World, residuals, simulate


class Product(Rule):
    """The simulated search in which the product decides, on the same runs."""

    def renew(self, where: np.ndarray, count: int) -> None:
        x = self.draw(self.best, count)
        if not hasattr(self, "found"):
            self.found = [Search(Pool(tuple(row))) for row in x.tolist()]
            self.made = np.full(len(x), len(x[0]))
        for index in np.flatnonzero(where):
            if self.kept[index] is not None:
                runs, action = self.kept[index]
                repeats = x[index].tolist()
                self.found[index] = self.found[index].ended(runs, confirm(action, repeats, Design()), repeats)
                self.made[index] += count

    @property
    def kept(self) -> list[tuple[list[float], Action] | None]:
        return self.__dict__.setdefault("_kept", [None] * self.searches)

    def decide(self, x: np.ndarray) -> np.ndarray:
        for index, row in enumerate(x.tolist()):
            search, runs, action = self.found[index], list[float](), Action(kind="run", reason="first run")
            level = search.level(Design())
            while action.kind == "run":
                action = next_action(runs, search.pool, level, Design())
                runs += row[len(runs) : len(runs) + action.runs]
            self.made[index] += len(runs)
            self.kept[index] = (runs, action) if action.kind == "keep" else None
            if action.kind != "keep":
                self.found[index] = search.ended(runs, action)
        return np.array([each is not None for each in self.kept])


def test_the_product_decides_as_the_simulation_does() -> None:
    world, product, independent = World(changes=60, helpful=12), Product(), Rule()
    ours, theirs = (simulate(method, world, 25, seed=3) for method in (product, independent))
    assert np.array_equal(ours.true, theirs.true) and np.array_equal(ours.false, theirs.false)
    assert np.array_equal(product.made, theirs.runs)
    assert ours.true.sum() > 150


@pytest.mark.parametrize(("world", "searches", "most_runs"), [(World(), 300, 3.5), (World(400, 40), 12, 2.5)])
def test_the_goal_of_the_rule(world: World, searches: int, most_runs: float) -> None:
    outcome = simulate(Rule(), world, searches, seed=4)
    assert outcome.false_proportion <= 0.02 and outcome.cost <= most_runs
    assert outcome.found >= 0.75 - 0.06  # two standard errors of so few searches


def test_the_residuals_of_real_runs_are_those_that_the_page_describes() -> None:
    found = residuals()
    assert f"{len(found)} final losses" in PAGE.read_text(encoding="utf-8") and len(found) == 8 * 46
    assert abs(found.mean()) < 1e-12 and found.std() == pytest.approx(1) and abs(found).max() < 4


def test_bandits_never_keep_what_their_bounds_do_not_show() -> None:
    """As many runs as they were given; of changes that do nothing, e-BH keeps hardly any and Thompson sampling many."""
    world = World(40, 0)
    bounds, thompson = (bandit().search(world, 60, 2.9, seed=6) for bandit in (UpperBounds, TopTwo))
    assert bounds.cost == thompson.cost == 2.9
    assert bounds.any_false < 0.05 < 0.2 < thompson.any_false


def figures() -> Iterator[tuple[str, list[str]]]:
    text = PAGE.read_text(encoding="utf-8").split(START)[1].split(END)[0]
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        name, *cells = line.split(" | ")
        yield name, cells


def test_the_figures_of_the_page_are_those_of_the_simulation() -> None:
    """`python tests/search_errors.py` writes them."""
    rows = dict(figures())
    outcome = simulate(AgainstFreshRun(), World(), 400, seed=5)
    false, proportion, found = rows["one run each, against a new run of the best"][:3]
    assert float(false) == pytest.approx(outcome.false.mean(), abs=0.5)
    assert float(proportion.strip("%")) == pytest.approx(100 * outcome.false_proportion, abs=2)
    assert float(found.strip("%")) == pytest.approx(100 * outcome.found, abs=3)
    rule = [float(cell.strip("%")) for cell in rows["`partwise`"]]
    assert rule[1] <= 5 and rule[2] >= 75 and rule[3] <= 3.5 and rule[4] <= 5 and rule[6] <= 2.5
