"""Does the effect of a part depend on the size of the model, the corpus and the number of steps?

The studies named in `GROWTH` repeat claims of another protocol in further settings. Here are the differences of each
part in all of them, with intervals of one level, and how they change from one setting to another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from partwise.comparison.horizons import differences_at_ends
from partwise.comparison.results import Results, StepEffect
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.families import holm
from partwise.comparison.stats.samples import mean, sd, t_critical, t_interval, t_sf, welch
from partwise.comparison.stats.tuning_noise import TuningNoise
from partwise.studies.claims import ClaimOutcome, find_outcomes
from partwise.studies.study import Study

GROWTH, BASE = ("growth", "growth-3m", "growth-10m"), "decoder-1m"
"""The studies that repeat claims in other settings, and the protocol of the original claims."""

ALPHA = 0.05
"""The confidence of every interval here, unadjusted: adjusted levels differ from study to study."""

WIDTHS = ("ffn.hidden=",)
"""Begin the settings that grow with the model, and so do not tell one part from another."""


@dataclass(frozen=True)
class Setting:
    """A size of model, and a corpus."""

    parameters: int
    """The parameters of the baseline."""
    corpus: str

    def __str__(self) -> str:
        return f"{self.size} {self.corpus}"

    @property
    def size(self) -> str:
        millions = self.parameters / 1e6
        return f"{millions:.3g}M" if millions >= 10 else f"{millions:.2g}M"


@dataclass(frozen=True)
class GrowthLine:
    """The differences of one part in one setting, in the unit of its effect."""

    setting: Setting
    differences: dict[int, tuple[float, ...]]
    """By number of steps, one for each seed."""
    effect: Effect
    """After the largest number of steps."""
    tuning_df: int = 0
    """The degrees of freedom of the noise of tuning."""

    @property
    def points(self) -> tuple[StepEffect, ...]:
        """The mean after each number of steps. The intervals exclude the noise of tuning."""
        return tuple(step_effect(step, values) for step, values in self.differences.items())

    @property
    def change(self) -> StepEffect | None:
        """From the smallest number of steps to the largest, over seeds; None with one number of steps."""
        steps = [*self.differences]
        if len(steps) < 2:
            return None
        pairs = zip(self.differences[steps[0]], self.differences[steps[-1]], strict=True)
        return step_effect(steps[-1], [last - first for first, last in pairs])

    @property
    def most_steps(self) -> int:
        return max(self.differences)


@dataclass(frozen=True)
class Change:
    """How a difference changes from one setting to another."""

    mean: float
    low: float
    high: float
    p: float
    """p of the t test of no change; in a `Contrast` adjusted for all its parts by Holm's method."""
    first: float
    second: float
    """The differences in both settings."""


@dataclass(frozen=True)
class Contrast:
    """The changes from one setting to another, of every part with a verdict in both."""

    first: Setting
    second: Setting
    steps: int
    """The most steps that both have."""
    at_end: bool
    """Whether neither has more."""
    changes: dict[str, Change]

    @property
    def title(self) -> str:
        """`0.34M to 2.7M`, or `shakespeare to python`; `0.34M to 11M, 500 steps` if one of them has more steps."""
        of_size = self.first.corpus == self.second.corpus
        title = " to ".join(each.size if of_size else each.corpus for each in (self.first, self.second))
        return title if self.at_end else f"{title}, {self.steps:,} steps"


def step_effect(step: int, values: Sequence[float]) -> StepEffect:
    low, high = t_interval(values, ALPHA)
    return StepEffect(step=step, mean=mean(values), low=low, high=high)


def growth_lines(studies: Sequence[Study]) -> dict[str, list[GrowthLine]]:
    """For each part of these studies that has results, its lines: the corpus of the protocol first, sizes in order."""
    found = find_outcomes(studies)
    repeated = [finding for study in studies if study.name in GROWTH for finding in found[study.name]]
    claims = [finding for study in studies if study.protocol == BASE for finding in found[study.name]]
    lines: dict[str, list[GrowthLine]] = {}
    for finding in repeated:
        first = [line_of(claim) for claim in claims if is_same_part(claim, finding)][:1]
        lines.setdefault(part_of(finding), first).append(line_of(finding))
    corpora = {line_of(claim).setting.corpus for claim in claims}

    def order(line: GrowthLine) -> tuple[bool, str, int]:
        return line.setting.corpus not in corpora, line.setting.corpus, line.setting.parameters

    complete = {part: [line for line in each if line.differences] for part, each in lines.items()}
    return {part: sorted(each, key=order) for part, each in complete.items() if each}


def settings_of(lines: dict[str, list[GrowthLine]]) -> tuple[list[Setting], list[Setting]]:
    """The settings of the first corpus, by size, and those of other corpora."""
    settings = list(dict.fromkeys(line.setting for part in lines.values() for line in part))
    own = [each for each in settings if each.corpus == settings[0].corpus]
    return sorted(own, key=lambda each: each.parameters), [each for each in settings if each not in own]


def part_of(finding: ClaimOutcome) -> str:
    """The part that an arm changes: its first override."""
    return finding.short_name.split()[0]


def is_same_part(claim: ClaimOutcome, finding: ClaimOutcome) -> bool:
    """Whether both arms have the same overrides, except for widths, and both were tuned or neither."""
    overrides = [{word for word in each.short_name.split() if not word.startswith(WIDTHS)} for each in (claim, finding)]
    return overrides[0] == overrides[1] and (claim.results.tuning is None) == (finding.results.tuning is None)


def line_of(finding: ClaimOutcome) -> GrowthLine:
    """Without differences if a run failed."""
    results, effect = finding.results, finding.effect
    baseline = results.arms[0]
    corpus = (results.task.name or results.task.data) if results.task else ""
    seeds = differences_of(results, effect)
    steps = sorted({step for seed in seeds for step in seed})
    complete = all(len(seed) == len(steps) for seed in seeds)
    differences = {step: tuple(seed[step] for seed in seeds) for step in steps} if complete else {}
    tuning_df = len(results.tuning.seeds) - 1 if results.tuning else 0
    return GrowthLine(Setting(baseline.parameters or 0, corpus), differences, effect, tuning_df)


def differences_of(results: Results, effect: Effect) -> list[dict[int, float]]:
    """The differences of every seed by number of steps, for runs of each length or of the only one."""
    arm, baseline = results.arm(effect.arm), results.arms[0]
    if arm is None:
        return []
    ends = [dict(seed) for seed in differences_at_ends(arm, baseline, effect)]
    if any(ends) or results.task is None:
        return ends
    steps = results.task.steps or 0
    return [{} if difference is None else {steps: difference} for difference in effect.differences]


def contrasts(lines: dict[str, list[GrowthLine]]) -> list[Contrast]:
    """From each size on the first corpus that was trained at least as long as the smallest to each larger one that no still
    larger one exceeds in steps; and to each other corpus from the one of them that is nearest in size."""
    if not lines:
        return []
    own, others = settings_of(lines)
    steps = {line.setting: line.most_steps for each in lines.values() for line in each}
    as_long = [each for each in own if steps[each] >= steps[own[0]]]
    pairs = [(first, second) for first in as_long for second in larger_settings(first, own, steps)]
    for other in others:
        pairs.append((min(as_long, key=lambda each: abs(math.log(each.parameters / other.parameters))), other))
    return [found for found in (contrast(lines, *pair) for pair in pairs) if found.changes]


def larger_settings(first: Setting, own: Sequence[Setting], steps: dict[Setting, int]) -> list[Setting]:
    """The larger sizes that no still larger one exceeds in steps, of those that both have."""
    found, longest = list[Setting](), 0
    for each in reversed(own[own.index(first) + 1 :]):
        if min(steps[each], steps[first]) > longest:
            found.insert(0, each)
            longest = steps[each]
    return found


def contrast(lines: dict[str, list[GrowthLine]], first: Setting, second: Setting) -> Contrast:
    """The changes after the most steps that all lines of both settings have."""
    pairs = {
        part: (by_setting[first], by_setting[second])
        for part, by_setting in ((part, {line.setting: line for line in each}) for part, each in lines.items())
        if first in by_setting and second in by_setting
    }
    both = [line for pair in pairs.values() for line in pair]
    steps = max(set.intersection(*(set(line.differences) for line in both)), default=0) if both else 0
    found = {part: change_between(*pair, steps) for part, pair in pairs.items()}
    changes = {part: change for part, change in found.items() if change}
    adjusted = holm([change.p for change in changes.values()])
    return Contrast(
        first,
        second,
        steps,
        all(line.most_steps == steps for line in both),
        {part: replace(change, p=p) for (part, change), p in zip(changes.items(), adjusted, strict=True)},
    )


def change_between(first: GrowthLine, second: GrowthLine, steps: int) -> Change | None:
    """The change of the difference after a number of steps, with an interval that includes the noise of tuning of both.

    The settings are not paired: equal seeds give models of different sizes, or text, nothing in common. The standard error
    is Welch's, with degrees of freedom that hold for few seeds (`welch`). None without a verdict on one of the two, without
    runs of these steps, or if all differences are equal.
    """
    one, two = first.differences.get(steps, ()), second.differences.get(steps, ())
    if any(line.effect.verdict is None or line.effect.mean is None for line in (first, second)):
        return None
    if min(len(one), len(two)) < 2:
        return None
    error, df = welch(sd(one), len(one), sd(two), len(two))
    for line in (first, second):
        error, df = TuningNoise(line.effect.tuning_error or 0.0, line.tuning_df).add_to(error, df)
    if not error:
        return None
    change, half = mean(two) - mean(one), t_critical(df, ALPHA) * error
    p = 2 * t_sf(df, abs(change) / error)
    return Change(change, change - half, change + half, p, mean(one), mean(two))
