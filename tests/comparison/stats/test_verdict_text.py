"""The sentences of verdicts, word for word: no other test repeats them, so that a change of one changes this file alone."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from partwise.comparison.stats.effect import MAX_SEEDS_TO_DECIDE, Effect
from partwise.comparison.stats.families import decide
from partwise.comparison.stats.intervals import judge, measure
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.value_verdicts import judge_arms, render_verdicts
from partwise.comparison.stats.verdict_text import details, explanations, exploratory_sentence, headline

BASE = {0: 1.50, 1: 1.51, 2: 1.49, 3: 1.52, 4: 1.48}
LOWER = {s: v - 0.051 + d for (s, v), d in zip(BASE.items(), (0.008, -0.008, 0.008, -0.008, 0.0), strict=True)}


def test_sentences() -> None:
    """Of a difference that is shown, and of equivalence."""
    assert judge("swiglu", "baseline", LOWER, BASE).sentence == (
        "swiglu is better than baseline: its validation loss is lower by 0.0510 nats per character "
        "(95% interval 0.0411 to 0.0609, 5 paired seeds)."
    )
    assert judge("baseline", "swiglu", BASE, LOWER, alpha=0.0125).sentence == (
        "baseline is worse than swiglu: its validation loss is higher by 0.0510 nats per character "
        "(98.75% interval 0.0356 to 0.0664, 5 paired seeds)."
    )
    accuracy = judge("swiglu", "baseline", LOWER, BASE, lower_is_better=False, unit="", metric="accuracy")
    assert accuracy.sentence == (
        "swiglu is worse than baseline: its accuracy is lower by 0.0510 (95% interval 0.0411 to 0.0609, 5 paired seeds)."
    )
    assert judge("swiglu", "baseline", LOWER, BASE, margin=0.1).sentence == (
        "equivalent: the validation loss of swiglu and baseline differs by no more than the margin of 0.1 nats per "
        "character (swiglu minus baseline: -0.0510, 95% interval -0.0609 to -0.0411, 5 paired seeds), although the "
        "interval excludes zero. No run failed, but 5 runs per arm do not rule out failure rates up to 45%."
    )
    assert judge("swiglu", "baseline", LOWER, BASE, paired=False, margin=0.02).sentence.endswith(
        "5 and 5 unpaired runs)."
    )


def one_of_ten() -> Effect:
    """Nine arms differ far; the tenth's interval is inside the margin at 95%, but not at the level of ten such tests."""
    noise = np.random.default_rng(0).normal(0, 0.005, 16)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    rows = np.vstack([np.zeros(16), *(0.001 * noise + (0.0029 if i == 9 else 0.1) for i in range(10))])
    values = {f"a{i}": dict(enumerate(row.tolist())) for i, row in enumerate(rows)}
    return Rules(margin=0.0035, looks=(16,)).judge(values, [Claim(f"a{i}", "a0") for i in range(1, 11)])[-1]


def two_one_sided() -> Effect:
    narrow = [0.0010, -0.0060, 0.0072, 0.0030, -0.0020, 0.0015, 0.0042, -0.0018]
    values = {"a": dict.fromkeys(range(8), 0.0), "b": dict(enumerate(narrow))}
    return Rules(margin=0.006, looks=()).judge(values, [Claim("b", "a")])[0]


def failed_more_often(looks: tuple[int, ...] = (), look: int = 1) -> Effect:
    runs, bad = dict.fromkeys(range(8), 1.0), {**dict.fromkeys(range(5), math.nan), **dict.fromkeys(range(5, 8), 1.0)}
    return decide([measure("b", "a", bad, runs, looks=looks, look=look)], 0.05)[0]


def failed_most_often() -> Effect:
    good = {seed: 1.5 + 0.01 * math.sin(seed) for seed in range(8)}
    values = {"a": good, "b": {**dict.fromkeys(range(7), 9.0), 7: 1.5}, "c": {s: v + 0.1 for s, v in good.items()}}
    return Rules(looks=(), failure=4.0).judge(values, [Claim("b", "a"), Claim("c", "a")])[0]


def rounded() -> Effect:
    values = {arm: {0: 1.43, 1: 1.47} for arm in "ab"}
    return Rules(margin=0.005, looks=()).judge(values, [Claim("a", "b")])[0]


def first_look() -> Effect:
    return Rules(looks=(2, 8)).judge({"a": {0: 0.0, 1: 1.0}, "b": {0: 0.0, 1: 0.2}}, [Claim("a", "b")])[0]


def covariate() -> Effect:
    rng = np.random.default_rng(0)
    base = dict(enumerate(rng.normal(0, 1, 12).tolist()))
    arm = {seed: base[seed] + noise for seed, noise in enumerate(rng.normal(0, 1, 4).tolist())}
    rules = Rules(looks=(), design="covariate", baseline_runs=3)
    return rules.judge({"a": arm, "b": base}, [Claim("a", "b")])[0]


ZEROS = dict.fromkeys(range(4), 0.0)
SPREAD = {0: 0.1, 1: 0.4, 2: 0.2}


@pytest.mark.parametrize(
    ("effect", "sentence"),
    [
        (
            lambda: judge("a", "b", {3: 1.0}, {3: 1.5}),
            "undecided: a single pair of runs gives no interval (a minus b is -0.5000 nats per character); run at least 2 "
            "seeds per arm, preferably 5.",
        ),
        (
            lambda: judge("a", "b", {3: 1.0}, {4: 1.5, 5: 1.6}),
            "undecided: an arm with a single run gives no interval (a minus b is -0.5500 nats per character); run at least "
            "2 seeds per arm, preferably 5. a has 1 run fewer than b.",
        ),
        (
            lambda: judge("a", "b", {0: 0.2, 1: 0.2}, {0: 0.1, 1: 0.1}),
            "undecided: the differences do not vary at all (a minus b is 0.1000 nats per character at every seed), so the "
            "spread between seeds is unknown.",
        ),
        (
            lambda: judge("a", "b", SPREAD, SPREAD),
            "equivalent: the validation loss of a and b differs by no more than the margin of 0.005 nats per character "
            "(a minus b: 0.0000, 95% interval 0.0000 to 0.0000, 3 paired seeds); the differences do not vary at all, so the "
            "interval has zero width. No run failed, but 3 runs per arm do not rule out failure rates up to 63%.",
        ),
        (
            rounded,
            "undecided: the validation loss of a and b is equal at every seed, but the values are rounded to multiples of "
            "0.01 nats per character, more than the margin of 0.005, so a difference of the margin may be hidden: print "
            "more digits, or measure an accuracy on more examples.",
        ),
        (
            lambda: judge("a", "b", {0: 0.02, 1: -0.01, 2: 0.0, 3: 0.01}, ZEROS),
            "undecided: the 95% interval of a minus b, -0.0155 to 0.0255 nats per character (4 paired seeds), includes zero "
            "and exceeds the margin of 0.005; about 55 seeds would likely decide in a new comparison.",
        ),
        (
            lambda: judge("a", "b", {0: -1.0, 1: 1.0, 7: 9.0, 8: 9.0}, {0: 0.0, 1: 0.0, 9: 9.0}, margin=0),
            "undecided: the 95% interval of a minus b, -12.7062 to 12.7062 nats per character (2 paired seeds), includes "
            f"zero and exceeds the margin of 0; more than {MAX_SEEDS_TO_DECIDE} seeds would likely decide in a new "
            "comparison. Left out: 2 runs of a (no such seed in b) and 1 run of b (no such seed in a).",
        ),
        (
            lambda: judge("a", "b", {s: (-1.0) ** s for s in range(2000)}, dict.fromkeys(range(2000), 0.0), margin=0),
            "undecided: the 95% interval of a minus b, -0.0439 to 0.0439 nats per character (2000 paired seeds), includes "
            "zero and exceeds the margin of 0; more than 2000 seeds would likely decide in a new comparison.",
        ),
        (
            lambda: judge("a", "b", {0: 1.0}, {seed + 1: 1.5 for seed in range(3)} | {0: 1.5}),
            "undecided: a single pair of runs gives no interval (a minus b is -0.5000 nats per character); run at least 2 "
            "seeds per arm, preferably 5. Left out: 3 runs of b (no such seed in a); verdict --unpaired uses all.",
        ),
        (
            one_of_ten,
            "a10 is worse than a0: its validation loss is higher by 0.00290 nats per character (95% interval 0.00237 to "
            "0.00343, 16 paired seeds); it may be smaller than the margin of 0.0035: equivalence has an adjusted p of 0.3.",
        ),
        (
            two_one_sided,
            "equivalent: the validation loss of b and a differs by no more than the margin of 0.006 nats per character: the "
            "90% interval, -0.0019 to 0.0036, lies within the margin (b minus a: 0.0009, 95% interval -0.0026 to 0.0043, 8 "
            "paired seeds). No run failed, but 8 runs per arm do not rule out failure rates up to 31%.",
        ),
        (
            failed_more_often,
            "b is worse than a: it fails more often, 5 of 8 runs against 0 of 8 (failure rates compared by Fisher's exact "
            "test: p = 0.026).",
        ),
        (
            failed_most_often,
            "b is worse than a: it fails more often, 7 of 8 runs against 0 of 8 (failure rates compared by Fisher's exact "
            "test: adjusted p = 0.0028).",
        ),
        (
            lambda: judge("a", "b", {0: math.nan, 1: 1.0}, {0: 1.0, 1: 1.1}),
            "no verdict: 1 of 2 runs of a and 0 of 2 runs of b failed (failure rates compared by Fisher's exact test: p = "
            "1); averaging the others would hide that.",
        ),
        (
            lambda: failed_more_often((4, 8, 16), 2),
            "no verdict so far: 5 of 8 runs of b and 0 of 8 runs of a failed (failure rates compared by Fisher's exact "
            "test: adjusted p = 0.1); averaging the others would hide that; the next look is at 16 seeds.",
        ),
        (
            first_look,
            "undecided so far: the 95% interval of a minus b is -19.9692 to 20.7692 nats per character (2 paired seeds, "
            "look 1 of 2); the next look is at 8 seeds.",
        ),
    ],
)
def test_other_sentences(effect: Callable[[], Effect], sentence: str) -> None:
    """Of no difference and no equivalence, and with notes."""
    assert effect().sentence == sentence


def test_the_sample_of_a_covariate() -> None:
    assert "(4 seeds, 12 of b as covariate), includes zero" in covariate().sentence


def test_the_sentence_of_an_estimate_from_more_seeds() -> None:
    (estimate,) = judge_arms({"b": BASE, "a": LOWER}, Rules(looks=()), judged=2)[1]
    assert (
        exploratory_sentence(estimate)
        == estimate.sentence
        == (
            "exploratory, over 5 paired seeds: a minus b is -0.0510 (95% interval -0.0609 to -0.0411); no verdict, because "
            "seeds were added after the first one."
        )
    )


def test_explanations() -> None:
    values = {"base": {0: 1.0, 1: 1.2, 2: 1.1}, "a": {0: 1.1, 1: 1.0, 2: 1.3}, "b": {0: 1.2, 1: 1.0, 2: 1.2}}
    undecided = (
        "Undecided: the interval includes zero and exceeds the margin, so neither difference nor equivalence is shown."
    )
    unfailed = "No run failed, but 3 runs per arm do not rule out failure rates up to 63%."
    assert explained(values, "a") == [undecided, unfailed]
    assert explained(values, "a", "b") == [
        "p adjusted: adjusted for the 2 comparisons (Holm); arms differ if it is at most alpha. Each interval has the "
        "confidence of the test that its verdict follows from; all intervals together hold the true differences less often.",
        undecided,
        unfailed,
    ]
    assert explained(values | {"a": {0: 1.1, 1: 1.0}}, "a") == [
        undecided,
        "If a run is missing because it failed, the difference is biased: give the run the value nan instead.",
        "No run failed, but 2 runs per arm do not rule out failure rates up to 78%.",
    ]
    assert explained(values | {"a": {0: math.nan, 1: 1.0, 2: 1.1}}, "a") == [
        "Failed runs have no mean: failure rates compared by Fisher's exact test."
    ]
    assert explained({"base": {0: 1.5}, "a": {0: 1.0}}, "a")[-1] == (
        "No run failed, but 1 run per arm does not rule out failure rates up to 95%."
    )


def explained(values: dict[str, dict[int, float]], *arms: str) -> list[str]:
    return [*explanations(Rules(looks=()).judge(values, [Claim(arm, "base") for arm in arms]))]


def test_runs_that_are_missing_are_named_whatever_the_verdict() -> None:
    """A run that its owner left out because it was bad biases the difference."""
    biased = "If a run is missing because it failed, the difference is biased: give the run the value nan instead."
    b = BASE
    a = {seed: value - 0.05 + 0.001 * (seed % 2) for seed, value in b.items()}
    ties, single = {seed: value + 0.1 for seed, value in b.items()}, {3: 1.5}

    def told(arm: dict[int, float], margin: float = 0.0, **options: Any) -> tuple[str, str, bool]:
        values = {"b": b, "a": arm}
        (effect,) = judge_arms(values, Rules(looks=(), margin=margin, **options))[0]
        _, space, rest = effect.sentence.partition(". ")
        return str(effect.verdict), space[1:] + rest, biased in render_verdicts([effect], values)

    missing = {seed: value for seed, value in a.items() if seed != 3}
    left_out = " Left out: 1 run of b (no such seed in a)."
    assert told(a) == ("better", "", False)
    assert told(missing)[0] == "better" and told(missing)[1:] == (left_out, True)
    assert told(missing, margin=1.0)[0] == "equivalent" and told(missing, margin=1.0)[1].endswith(left_out)
    for kind in (single, {**ties, 9: 1.0}, {seed: b[seed] for seed in (0, 1)}):
        assert " Left out: " in told(kind)[1] and told(kind)[2], kind
    assert (
        told({**missing, 9: 1.4})[1] == " Left out: 1 run of a (no such seed in b) and 1 run of b (no such seed in a)."
    )
    assert told(missing, design="unpaired")[1:] == (" a has 1 run fewer than b.", True)
    assert told({seed + 10: value for seed, value in missing.items()})[1:] == (" a has 1 run fewer than b.", True)
    assert told(a, design="unpaired")[2] is False
    assert told({**missing, 3: math.nan})[1:] == ("", False)  # a failed run is counted, not missing
    later = judge_arms({"b": b, "a": missing}, Rules(looks=()), judged=2)[1]
    assert later[0].sentence.endswith(left_out)


def test_a_verdict_is_two_lines_before_its_details() -> None:
    """Direction and size; interval, sample and p, which is adjusted for several claims."""
    b = {0: 1.50, 1: 1.51, 2: 1.49, 3: 1.52, 4: 1.48}
    a = {s: v - 0.051 + d for (s, v), d in zip(b.items(), (0.008, -0.008, 0.008, -0.008, 0.0), strict=True)}
    near = {seed: value + 0.0001 * (-1) ** seed for seed, value in b.items()}
    better, equivalent = judge("swiglu", "relu", a, b), judge("rmsnorm", "relu", near, b)
    assert headline(better) == [
        "swiglu is better than relu: lower by 0.0510 nats per character",
        "0.0411 to 0.0609 (95% interval, 5 paired seeds), p = 0.00014",
    ]
    assert headline(equivalent) == [
        "rmsnorm is equivalent to relu: within 0.005 nats per character",
        "difference 0.00002, -0.00012 to 0.00016 (95% interval, 5 paired seeds)",
    ]
    assert headline(judge("swiglu", "relu", a, b, lower_is_better=False, unit="", margin=0.001))[0] == (
        "swiglu is worse than relu: lower by 0.0510"
    )
    wide = judge("a", "b", {0: 1.4, 1: 1.6, 2: 1.5}, {0: 1.5, 1: 1.5, 2: 1.4})
    interval = "difference 0.0333, -0.2535 to 0.3202 (95% interval, 3 paired seeds)"
    seeds = f"about {wide.seeds_to_decide} seeds would likely decide"
    assert headline(wide) == ["a against b: undecided", f"{interval}; {seeds}"]
    failed = judge("a", "b", dict.fromkeys(range(8), math.nan), dict.fromkeys(range(8), 1.5))
    assert headline(failed) == [
        "a is worse than b: it fails more often",
        "8 of 8 runs failed, 0 of 8 of b; p = 0.00016",
    ]
    single = judge("a", "b", {0: 1.0}, {0: 1.5})
    assert headline(single) == [single.sentence]
    assert [*details([single, better])] == [better.sentence], "a sentence that stands first is not repeated"
