"""A search over ideas, made of stored seeds: what each rule keeps of the ideas that do nothing, and of the real ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.online import online_level
from partwise.lessons.answers import StoredAnswer, final_losses, judge
from partwise.plots.text_table import TextTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOISE, LOWER, FOUND = "#9aa0a6", "#d1651a", "#c5221f"


@dataclass(frozen=True)
class Idea:
    """An arm that is judged on its own, on one group of seeds."""

    arm: str
    effect: Effect
    """At the request's alpha."""
    on_one_seed: float
    """The difference on the first seed of the group."""
    online: bool
    """Whether it is better at the level of its place in the sequence."""

    @property
    def mean(self) -> float:
        assert self.effect.mean is not None
        return self.effect.mean

    @property
    def interval(self) -> tuple[float, float]:
        assert self.effect.low is not None and self.effect.high is not None
        return self.effect.low, self.effect.high


RULES = {
    "the loss of one seed is lower": lambda idea: idea.on_one_seed < 0,
    "the mean over {seeds} seeds is lower": lambda idea: idea.mean < 0,
    "the 95% interval is below 0": lambda idea: idea.interval[1] < 0,
    "its verdict is better, with --online": lambda idea: idea.online,
}


def search(answer: StoredAnswer) -> list[Idea]:
    """The arms of the main run in rounds, each round with seeds that no other has, in the order in which they are tried."""
    request = answer.lesson.head.runs["main"]
    losses = final_losses(answer.measured["main"])
    first, *arms = losses
    seeds = sorted(losses[first])
    ideas: list[Idea] = []
    found: list[int] = []
    for start in range(0, len(seeds) - request.seeds + 1, request.seeds):
        chosen = seeds[start : start + request.seeds]
        for arm in arms:
            pair = {first: losses[first], arm: losses[arm]}
            [effect] = judge(pair, request, chosen)
            level = online_level(len(ideas), found, request.alpha)
            [online] = judge(pair, request.model_copy(update={"alpha": level}), chosen)
            ideas.append(
                Idea(arm, effect, losses[arm][chosen[0]] - losses[first][chosen[0]], online.verdict == "better")
            )
            if online.verdict == "better":
                found.append(len(ideas))
    return ideas


def search_table(answer: StoredAnswer) -> TextTable:
    """What each rule keeps."""
    ideas, head = search(answer), answer.lesson.head
    nothing = [each for each in ideas if each.arm not in head.real]
    columns = {f"{len(nothing)} of nothing": nothing}
    for arm in head.real:
        tries = [each for each in ideas if each.arm == arm]
        columns[f"{len(tries)} of {head.labels.get(arm, arm)}"] = tries
    rows = [
        [text.format(seeds=answer.lesson.seeds), *(str(sum(map(rule, tried))) for tried in columns.values())]
        for text, rule in RULES.items()
    ]
    return TextTable(["keep an idea if", *columns], rows)


def draw_search(axes: "Axes", answer: StoredAnswer, before: bool = False) -> None:
    """The difference that each idea makes that does nothing, with its interval, in the order of the search."""
    nothing = [each for each in search(answer) if each.arm not in answer.lesson.head.real]
    for number, idea in enumerate(nothing, 1):
        low, high = idea.interval
        color = FOUND if high < 0 else LOWER if idea.mean < 0 else NOISE
        axes.plot([number, number], [low, high], color=color, lw=1.5)
        axes.plot(number, idea.mean, "o", color=color, ms=4)
    axes.axhline(0, color="#3c4043", lw=0.8)
    axes.set_xlabel("ideas that do nothing, in the order of the search")
    axes.set_ylabel(f"difference, {answer.lesson.asked.unit}")
    kept = [sum(each.mean < 0 for each in nothing), sum(each.interval[1] < 0 for each in nothing)]
    axes.set_title(f"below 0: {kept[0]} of {len(nothing)} means, {kept[1]} of {len(nothing)} intervals", fontsize=10)
