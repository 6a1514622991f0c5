"""Plans: protocols, interactions, cumulative ablations and metrics."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partwise
from comparisons import SETTINGS, TINY
from partwise.ablation.run_comparison import plan_comparison
from partwise.config import ConfigError


def test_a_protocol_stops_early_continues_and_cannot_be_changed(here: Path) -> None:
    arguments = {**SETTINGS, "looks": [2, 4, 6], "name": "p", "negative_control": "ffn"}
    comparison = plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0})
    results = comparison.run()
    first, null = results.claims
    effect = first.effect
    assert effect.verdict == "equivalent" and effect.look == 1 and effect.n == 2
    assert len(results.arms[1].trials) == 2 and results.provenance.protocol_hash == comparison.hash
    assert null.role == "negative" and [control.passed for control in results.controls] == [True]
    assert not any((comparison.path / "runs").glob("1-*/seed-2")), "arms of closed claims are not trained further"
    again = plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0}).run()
    assert again.claims == results.claims
    for change in ({"looks": [2, 4]}, {"margin": 0.9}, {"failure": 9.0}, {"alpha": 0.01}, {"first_seed": 3}):
        with pytest.raises(ConfigError, match="holds another comparison"):
            plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0, **change}).run()
    card = comparison.path / "compare.json"
    card.write_text(card.read_text().replace(comparison.hash, "0" * 64))
    with pytest.raises(ConfigError, match="hash does not match"):
        plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0}).run()


def test_an_undecided_protocol_runs_to_its_last_look(here: Path) -> None:
    results = partwise.compare("mingpt", "ffn=gelu", **{**SETTINGS, "margin": 1e-9}, looks=[2, 3], name="u").results
    (effect,) = results.effects
    if effect.verdict == "undecided":
        assert effect.look == 2 and effect.n == 3
    assert effect.p_looks >= effect.p and effect.confidence == 0.95 and effect.nominal_alpha < 0.05


def test_an_interaction_is_the_difference_of_differences(here: Path) -> None:
    results = partwise.compare(
        "mingpt", interaction=["ffn=swiglu", "norm=rmsnorm"], **SETTINGS, seeds=2, name="two"
    ).results
    base, first, second, both = (np.array(arm.values) for arm in results.arms)
    contrast = results.effects[-1]
    assert contrast.against == "ffn=swiglu and norm=rmsnorm (additive)"
    assert np.allclose(contrast.differences, both - first - second + base, atol=1e-12)
    assert [effect.n_comparisons for effect in results.effects] == [4] * 4


def test_a_cumulative_ablation_compares_each_arm_with_the_previous_one(here: Path) -> None:
    changes = ["ffn=swiglu", "norm=rmsnorm", "train.lr=1e-3"]
    comparison = partwise.compare(
        "mingpt", cumulative=True, arms=changes, negative_control="ffn", **SETTINGS, seeds=2, name="l"
    )
    arms = comparison.results.arms
    assert [arm.name for arm in arms] == [
        "mingpt",
        "+ ffn=swiglu",
        "+ norm=rmsnorm",
        "+ train.lr=1e-3",
        "A/A control (ffn re-initialized)",
    ]
    assert [list(arm.overrides) for arm in arms[:4]] == [[], changes[:1], changes[:2], changes]
    for number, effect in enumerate(comparison.results.effects[:3], start=1):
        assert (effect.arm, effect.against) == (arms[number].name, arms[number - 1].name)
        differences = np.array(arms[number].values) - np.array(arms[number - 1].values)
        assert np.allclose(effect.differences, differences, atol=1e-12)
    assert comparison.results.effects[3].against == "mingpt"
    question = "Does any of ffn=swiglu, norm=rmsnorm and train.lr=1e-3, each added to the previous ones"
    assert comparison.plan.question.startswith(question)
    with pytest.raises(ConfigError, match="same configuration as 'mingpt'"):
        plan_comparison("mingpt", cumulative=True, arms=["ffn=swiglu", "ffn=relu"], **SETTINGS)
    for refused in ({"tune": "train.lr=1e-3,1e-2"}, {"match": "flops"}, {"interaction": ["ffn=gelu", "norm=rmsnorm"]}):
        with pytest.raises(ConfigError, match="cannot be combined with interaction, tune or match"):
            plan_comparison("mingpt", cumulative=True, arms=changes, **refused, **SETTINGS)


@pytest.mark.parametrize("metric", ["exact_match", "char_accuracy"])
def test_accuracies_can_be_compared(here: Path, metric: str) -> None:
    """Accuracies can be compared between different forms of the same problems, unlike losses."""
    counts = ["data.train=200", "data.validation=10", "data.test=20"]
    options = {
        **SETTINGS,
        "data": "arithmetic",
        "common": [*TINY, *counts],
        "metric": metric,
        "seeds": 2,
        "failure": None,
    }
    comparison = partwise.compare("mingpt", "data.reverse=false", **options, name=metric)
    assert comparison.results.config["data"]["reverse"] is True
    assert comparison.results.arms[1].config_changes == (("data.reverse", True, False),)
    for arm, folder in zip(comparison.results.arms, sorted(Path("runs", metric, "runs").iterdir()), strict=True):
        accuracies = [
            json.loads((folder / f"seed-{seed}" / "result.json").read_text())["accuracy"]["all"] for seed in range(2)
        ]
        assert list(arm.values) == [each[metric]["correct"] / each[metric]["total"] for each in accuracies]
    assert not comparison.results.protocol.lower_is_better
    with pytest.raises(ConfigError, match=f"metric={metric}: data=python has no answers"):
        plan_comparison("mingpt", "ffn=swiglu", **{**options, "common": TINY, "data": "python"})


def test_an_arm_that_changes_several_settings_is_told(here: Path) -> None:
    """Once for each claim; what all arms share, the steps of a cumulative ablation and an interaction are one change each."""

    def told(*change: str, **request: Any) -> list[str]:
        return plan_comparison("mingpt", *change, **{**SETTINGS, **request}).plan.mixed_changes

    end = "its difference cannot be attributed to one"
    assert told("ffn=swiglu", "norm=rmsnorm") == [f"arm 'ffn=swiglu norm=rmsnorm' changes 2 parts: ffn, norm; {end}"]
    mixed = told("ffn=swiglu", arms=["optimizer=muon train.lr=1e-2 optimizer.beta2=0.9"])
    arm = "optimizer=muon train.lr=1e-2 optimizer.beta2=0.9"
    assert mixed == [f"arm {arm!r} changes 2 settings: optimizer, train.lr; {end}"]
    assert told("ffn=swiglu", "ffn.expansion=2", positive_control="norm=none attention.n_heads=1") == []
    assert told(arms=["ffn=swiglu", "norm=rmsnorm", "train.lr=1e-3"], cumulative=True) == []
    assert told(interaction=["ffn=swiglu", "norm=rmsnorm"]) == []
    assert told("ffn=swiglu", "train.threads=1") == []


@pytest.mark.parametrize(
    ("request_", "key"),
    [
        ({"arms": ["ffn=swiglu ffn=gelu"]}, "ffn"),
        ({"arms": ["ffn=swiglu train.threads=1", "norm=l2 train.threads=2"]}, "train.threads"),
        ({"arms": ["ffn=swiglu train.steps=2"]}, "train.steps"),
        ({"arms": ["ffn=swiglu data=shakespeare"]}, "data"),
        ({"interaction": ["ffn=swiglu", "ffn=gelu"]}, "ffn"),
    ],
)
def test_a_value_given_twice_is_refused(here: Path, request_: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} is given twice, as"):
        plan_comparison("mingpt", **{**SETTINGS, **request_})
