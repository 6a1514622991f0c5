"""A search over ideas, made of stored values: each rule keeps what a calculation of its own keeps."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special, stats

from partwise.lessons.answers import ALPHA, StoredAnswer, expected, find_value, per_seed
from partwise.lessons.findings import claims_lines
from partwise.lessons.lesson import Quantity, all_lessons, find_lesson
from partwise.lessons.search import search, search_table

ARMS = ["base", "a", "b", "c", "real"]
REQUEST = find_lesson(7).head.runs["main"].model_copy(update={"seeds": 4, "margin": 0.01, "alpha": 0.05})
HEAD = SimpleNamespace(runs={"main": REQUEST}, real=["real"], labels={"real": "Real"})


def stored_answer() -> tuple[StoredAnswer, dict[str, np.ndarray]]:
    """Forty values an arm: three arms do nothing, the last lowers the loss by ten SDs."""
    noise = np.random.default_rng(5)
    shared = noise.normal(2.0, 0.01, 40)
    values = {arm: shared + noise.normal(-0.3 * (arm == "real"), 0.02, 40) for arm in ARMS}
    measured = {arm: {"loss": dict(enumerate(each.tolist()))} for arm, each in values.items()}
    lesson = SimpleNamespace(head=HEAD, seeds=4)
    return StoredAnswer(lesson, "float32", {"main": measured}, "x"), values  # type: ignore[arg-type]


def test_each_rule_keeps_what_it_says() -> None:
    answer, values = stored_answer()
    kept = dict.fromkeys([(rule, real) for rule in range(4) for real in (False, True)], 0)
    started, found = 0, list[int]()
    for group in range(10):
        for arm in ARMS[1:]:
            d = (values[arm] - values["base"])[4 * group : 4 * group + 4]
            half = d.std(ddof=1) / 2  # the standard error of four
            p = 2 * stats.t.sf(abs(d.mean() / half), 3)
            level = (started + 1) ** -1.3 * 0.025
            level += sum((started + 1 - r) ** -1.3 * (0.05 if k else 0.025) for k, r in enumerate(found))
            level /= special.zeta(1.3)
            started += 1
            online = p < level and d.mean() < 0
            if online:
                found.append(started)
            below = d.mean() + stats.t.isf(0.025, 3) * half < 0
            for rule, keeps in enumerate((d[0] < 0, d.mean() < 0, below, online)):
                kept[rule, arm == "real"] += keeps
    table = search_table(answer)
    assert table.columns == ["keep an idea if", "30 of nothing", "10 of Real"]
    assert [[int(cell) for cell in row[1:]] for row in table.rows] == [
        [kept[n, False], kept[n, True]] for n in range(4)
    ]
    assert kept[0, False] > 8 and kept[3, True] > kept[3, False]  # the example tells the rules apart
    assert len(search(answer)) == started


def test_the_best_of_several_has_a_sound_interval() -> None:
    """On each seed the lowest of the arms counts; of 3,000 simulated readers at most three times the promised are outside."""
    measured = {
        "main": {"a": {"loss": {1: 2.0, 2: 3.0}}, "b": {"loss": {1: 1.5, 2: 4.0}}, "base": {"loss": {1: 1.0, 2: 1.0}}}
    }
    best = Quantity.from_dict({"text": "x", "arm": "a", "or_arms": ["b"], "against": "base"})
    assert per_seed(best, measured) == {1: 0.5, 2: 2.0}
    measured["main"]["b"]["loss"][2] = math.nan
    assert math.isnan(find_value(best, measured))

    noise = np.random.default_rng(0)
    five = Quantity.from_dict({"text": "x", "arm": "0", "or_arms": list("1234")})
    outside = 0
    for _ in range(3000):  # five arms that share half of their variance
        values = noise.normal(0, 1, (5, 45)) + noise.normal(0, 1, 45)
        series = {str(arm): {"loss": dict(enumerate(row[:40].tolist()))} for arm, row in enumerate(values)}
        outside += values[:, 40:].min(0).mean() not in expected(five, {"main": series}, 5)
    assert outside <= 3 * ALPHA * 3000


def test_claims_are_in_the_order_of_the_page_and_may_be_of_one_arm() -> None:
    lesson = find_lesson(3)
    head = lesson.head.model_copy(update={"claims": ["swiglu arithmetic", "swiglu", "heads attention.scale"]})
    arms = [line.split()[1] for line in claims_lines(replace(lesson, head=head))]
    assert arms == ["ffn=swiglu"] * 3 + ["attention.scale=1"]  # one of the study's two comparisons, then both


def test_no_two_claims_of_a_lesson_look_alike() -> None:
    """Before the numbers; of two comparisons of a study with one arm, the line says which."""
    for lesson in all_lessons().values():
        claims = [line.partition(" parameters")[0] for line in claims_lines(lesson)]
        assert len(set(claims)) == len(claims)
    first, second = claims_lines(find_lesson(8))
    assert first.startswith("Larger: pre-norm, schedule.warmup=0 against llama on shakespeare, 0.86 million")
    assert second.startswith("Larger: post-norm, schedule.warmup=0 against llama on")  # whose rate was tuned


def test_a_stored_answer_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert list(claims_lines(find_lesson(3))) == []
