"""Calibrating, planning, tuning, matching, confirming: what is done around a comparison so that its verdict holds."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

import partwise
from partwise.cli import app
from partwise.commands import comparing
from partwise.comparison.calibration import false_positives
from partwise.comparison.claims import markdown, overall, scope
from partwise.comparison.experiment import Comparison, plan_comparison, planned
from partwise.comparison.matching import match_arms
from partwise.comparison.plan import amounts
from partwise.comparison.request import Request
from partwise.comparison.results import difference_over_time, warnings
from partwise.comparison.sequels import FRESH, confirming, winner
from partwise.comparison.statistics import grubbs, judge
from partwise.comparison.store import STORE, expected_noise, planted_power, read_store
from partwise.comparison.study import answer, find_study
from partwise.comparison.tuning import FIRST_SEED, parse_tune
from partwise.config import ConfigError
from partwise.data import Pairs, examples, prepare
from partwise.evaluate.scores import dataset_floors
from partwise.model import Transformer
from partwise.train.loop import Run
from partwise.train.settings import run_config
from test_comparison import ARITHMETIC, TINY, here  # noqa: F401  (a fixture)

SETTINGS: dict[str, Any] = {"data": "text.txt", "common": TINY, "margin": 0.05}


def request(**values: Any) -> Request:
    return Request.from_dict({"preset": "mingpt", "change": ["ffn=swiglu"], "data": "arithmetic", **values})


# null pairs


def test_redrawing_changes_one_family_and_nothing_else(here: Path) -> None:  # noqa: F811
    own, other = (run_config("mingpt", *ARITHMETIC, *words, data="arithmetic") for words in ([], ["train.redraw=ffn"]))
    one, two = (Run(config) for config in (own, other))
    for mine, theirs in zip(one.model.logical_tensors(), two.model.logical_tensors(), strict=True):
        drawn_again = ".ffn." in mine.name and mine.role != "vector"
        assert torch.equal(mine.data, theirs.data) == (not drawn_again), mine.name
        if drawn_again:
            assert math.isclose(mine.data.std().item(), theirs.data.std().item(), rel_tol=0.25)
    assert (one.batch().inputs == two.batch().inputs).all()


def test_redrawing_an_unknown_family_is_refused(here: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=r"train\.redraw=fnn: .* attention.*ffn"):
        Transformer(partwise.preset("mingpt", vocab_size=9), redraw="fnn")


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=8))
def test_relabellings_are_counted_one_by_one(differences: list[float]) -> None:
    x = np.array(differences)
    if np.abs(x).min() == 0 or len(set(np.abs(x).tolist())) == 1:
        return
    found = [
        stats.ttest_1samp(np.array(signs) * x, 0.0).pvalue < 0.05 for signs in itertools.product((1, -1), repeat=len(x))
    ]
    share, number = false_positives(x)
    assert number == len(found) / 2
    assert math.isclose(share, float(np.mean(found)), abs_tol=1e-12)


def test_what_is_calibrated_is_used_for_the_same_task_alone(here: Path) -> None:  # noqa: F811
    words = ["calibrate", "mingpt", *ARITHMETIC, "--data", "arithmetic", "--seeds", "4", "--name", "noise"]
    done = CliRunner().invoke(app, [*words, "--planted", "d_model=32"])
    assert done.exit_code == 0, done.output
    assert "seed SD" in done.output and "false positives" in done.output and "planted: d_model=32" in done.output
    (entry,) = read_store().values()
    results = json.loads((Path("runs") / "noise" / "results.json").read_text())
    assert entry["sd"] == results["comparisons"][0]["sd_pooled"] and math.isclose(
        entry["df"], 6 / (1 + entry["correlation"] ** 2)
    )
    df = entry["df"]
    low, high = (entry["sd"] * math.sqrt(df / stats.chi2.ppf(p, df)) for p in (0.975, 0.025))
    assert math.isclose(entry["sd_low"], low, rel_tol=1e-9) and math.isclose(entry["sd_high"], high, rel_tol=1e-9)
    same = planned(request(common=ARITHMETIC))
    assert expected_noise(same.plan, same.prepare()).sd == entry["sd"]
    longer = planned(request(common=[*ARITHMETIC, "train.steps=13"]))
    assert "guessed" in expected_noise(longer.plan, longer.prepare()).source
    asked = request(common=ARITHMETIC, seeds=8, control_planted="d_model=32")
    store = read_store()
    for effect, refused in ((-100 * entry["sd"], False), (-0.1 * entry["sd"], True)):
        STORE.write_text(json.dumps({key: {**value, "planted_effect": effect} for key, value in store.items()}))
        plan = planned(asked).plan
        if refused:
            with pytest.raises(ConfigError, match="a control needs 95%"):
                planted_power(plan, same.prepare())
        else:
            assert planted_power(plan, same.prepare()) == 1.0
            assert planted_power(same.plan, same.prepare()) is None
    STORE.write_text("{ not json")
    assert "noise" in expected_noise(same.plan, same.prepare()).source  # the comparison itself is still there

    common = [word for each in ARITHMETIC for word in ("--common", each)]
    told = CliRunner().invoke(app, ["plan", "mingpt", "ffn=swiglu", *common, "--data", "arithmetic", "--effect", "0.1"])
    assert told.exit_code == 0 and "8, 16, 32" in told.output and "shows 0.1" in told.output


# a tenth held out


@pytest.mark.parametrize("data", ["arithmetic", "arithmetic_pairs"])
def test_what_is_held_out_is_training_text_alone(here: Path, data: str) -> None:  # noqa: F811
    words = ["data.train=300", "data.validation=20", "data.test=20"]
    words += ["d_model=16", "n_layers=1", "encoder_layers=1"] if data == "arithmetic_pairs" else []
    config = run_config("mingpt", *words, data=data)
    whole = prepare(config.data, config.tokenizer)
    part = config.model_copy(update={"train": config.train.model_copy(update={"held_out": True})}).prepare()
    train = np.asarray(whole.split("train"))
    assert np.array_equal(np.concatenate([part.split("train"), part.split("val")]), train)
    assert abs(len(part.split("val")) / len(train) - 0.1) < 0.02
    assert part.names == ("train", "val") and part.hash != whole.hash and whole.names == ("train", "val", "test")
    floors = dataset_floors(part)
    assert "constant_answer" not in floors and dataset_floors(whole)["unigram"] != floors["unigram"]
    if data == "arithmetic_pairs":
        assert all(isinstance(examples(part, name, 64, 64), Pairs) for name in part.names)  # no pair is cut in two


# the protocol


def test_a_protocol_stops_early_continues_and_cannot_be_changed(here: Path) -> None:  # noqa: F811
    arguments = {**SETTINGS, "looks": [2, 4, 6], "name": "p", "control_null": "ffn"}
    comparison = plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0})
    results = comparison.run()
    first, null = results["comparisons"]
    assert first["verdict"] == "equivalent" and first["look"] == 1 and first["n"] == 2
    assert len(results["arms"][1]["values"]) == 2 and results["protocol"] == comparison.hash
    assert null["role"] == "null" and [control["passed"] for control in results["controls"]] == [True]
    assert not any((comparison.path / "runs").glob("1-*/seed-2")), "arms of closed claims are not trained on"
    again = plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0}).run()
    assert again["comparisons"] == results["comparisons"]
    for change in ({"looks": [2, 4]}, {"margin": 0.9}, {"variance": "residual"}, {"alpha": 0.01}, {"first_seed": 3}):
        with pytest.raises(ConfigError, match="holds another comparison"):
            plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0, **change}).run()
    card = comparison.path / "compare.json"
    card.write_text(card.read_text().replace(comparison.hash, "0" * 64))
    with pytest.raises(ConfigError, match="hash does not fit"):
        plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0}).run()


def test_an_undecided_protocol_goes_to_its_last_look(here: Path) -> None:  # noqa: F811
    results = partwise.compare("mingpt", "ffn=gelu", **{**SETTINGS, "margin": 1e-9}, looks=[2, 3], name="u").results
    (row,) = results["comparisons"]
    if row["verdict"] == "undecided":
        assert row["look"] == 2 and row["n"] == 3
    assert row["p_looks"] >= row["p"] and row["confidence"] > 0.95


def test_an_interaction_is_the_difference_of_differences(here: Path) -> None:  # noqa: F811
    results = partwise.compare(
        "mingpt", interaction=["ffn=swiglu", "norm=rmsnorm"], **SETTINGS, seeds=3, name="two"
    ).results
    base, first, second, both = (np.array(arm["values"]) for arm in results["arms"])
    contrast = results["comparisons"][-1]
    assert contrast["against"] == "ffn=swiglu and norm=rmsnorm apart"
    assert np.allclose(contrast["differences"], both - first - second + base, atol=1e-12)
    assert [row["comparisons"] for row in results["comparisons"]] == [4] * 4


def test_a_ladder_compares_each_arm_with_the_one_before_it(here: Path) -> None:  # noqa: F811
    rungs = ["ffn=swiglu", "norm=rmsnorm", "train.lr=1e-3"]
    comparison = partwise.compare("mingpt", ladder=True, arms=rungs, control_null="ffn", **SETTINGS, seeds=3, name="l")
    arms = comparison.results["arms"]
    assert [arm["name"] for arm in arms] == [
        "mingpt",
        "+ ffn=swiglu",
        "+ norm=rmsnorm",
        "+ train.lr=1e-3",
        "train.redraw=ffn",
    ]
    assert [arm["overrides"] for arm in arms[:4]] == [[], rungs[:1], rungs[:2], rungs]
    for number, row in enumerate(comparison.results["comparisons"][:3], start=1):
        assert (row["arm"], row["against"]) == (arms[number]["name"], arms[number - 1]["name"])
        differences = np.array(arms[number]["values"]) - np.array(arms[number - 1]["values"])
        assert np.allclose(row["differences"], differences, atol=1e-12)
    assert comparison.results["comparisons"][3]["against"] == "mingpt"
    assert comparison.plan.question.startswith(
        "Does any of ffn=swiglu, norm=rmsnorm, train.lr=1e-3, each on top of those"
    )
    with pytest.raises(ConfigError, match="same configuration as 'mingpt'"):
        plan_comparison("mingpt", ladder=True, arms=["ffn=swiglu", "ffn=relu"], **SETTINGS)
    for refused in ({"tune": "train.lr=1e-3,1e-2"}, {"match": "flops"}, {"interaction": ["ffn=gelu", "norm=rmsnorm"]}):
        with pytest.raises(ConfigError, match="a ladder compares"):
            plan_comparison("mingpt", ladder=True, arms=rungs, **refused, **SETTINGS)


@pytest.mark.parametrize("metric", ["exact", "characters"])
def test_right_answers_can_be_what_is_compared(here: Path, metric: str) -> None:  # noqa: F811
    """Of forms of the same problems too, which the loss cannot compare."""
    counts = ["data.train=200", "data.validation=10", "data.test=20"]
    asked = {**SETTINGS, "data": "arithmetic", "common": [*TINY, *counts], "metric": metric, "seeds": 2}
    comparison = partwise.compare("mingpt", "data.reverse=false", **asked, name=metric)
    assert [arm["config"]["data"]["reverse"] for arm in comparison.results["arms"]] == [True, False]
    for arm, folder in zip(comparison.results["arms"], sorted(Path("runs", metric, "runs").iterdir()), strict=True):
        shares = [
            json.loads((folder / f"seed-{seed}" / "result.json").read_text())["accuracy"]["all"] for seed in range(2)
        ]
        assert arm["values"] == [share[metric]["right"] / share[metric]["total"] for share in shares]
    assert not comparison.results["lower_is_better"]
    with pytest.raises(ConfigError, match=f"metric={metric}: data=python has no answers"):
        plan_comparison("mingpt", "ffn=swiglu", **{**asked, "common": TINY, "data": "python"})


@settings(max_examples=30)
@given(st.data())
def test_the_command_asks_for_the_same(data: st.DataObject) -> None:
    """What a comparison prints as its command is read back as the same request."""
    draw = data.draw
    text = st.sampled_from
    values = {
        "preset": "mingpt",
        "change": draw(text([["ffn=swiglu"], ["ffn=geglu", "norm=rmsnorm"]])),
        "arms": draw(text([[], ["ffn=gelu norm=rmsnorm", "attention={cycle: [multihead]}"]])),
        "interaction": draw(text([[], ["ffn=gelu", "norm=rmsnorm"]])),
        "ladder": draw(st.booleans()),
        "common": draw(text([[], ["train.steps=7", "train.lr=1e-3"]])),
        "data": draw(text([None, "shakespeare"])),
        "variance": draw(text(["pair", "residual"])),
        "margin": draw(text([0.005, 1e-5])),
        "alpha": draw(text([0.05, 0.01])),
        "control_null": draw(text([None, "ffn"])),
        "control_planted": draw(text([None, "ffn.expansion=8 norm=rmsnorm"])),
        "tune": draw(text([None, "train.lr=1e-3,3e-3"])),
        "tune_seeds": draw(text([2, 5])),
        "match": draw(text([None, "flops"])),
        "metric": draw(text(["loss", "exact", "characters"])),
        "first_seed": draw(text([0, 7])),
        **draw(text([{"looks": [4, 8]}, {"seeds": 9}])),
    }
    asked = Request.from_dict(values)
    read: list[Request] = []

    def take(given: dict[str, Any], *, protocol: bool, **_: Any) -> None:
        read.append(comparing.request_of(given, protocol))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "compare_variants", take)
        import shlex

        done = CliRunner().invoke(app, shlex.split(asked.command("n"))[1:])
    assert done.exit_code == 0, done.output
    assert read == [asked]


# held equal, tuned, confirmed


def arms_of(*change: str, **values: Any) -> Comparison:
    return planned(Request.from_dict({"preset": "mingpt", "change": list(change), **SETTINGS, **values}))


@pytest.mark.parametrize(
    "change", [["ffn=swiglu", "ffn.expansion=4"], ["norm=rmsnorm"], ["tied=true", "head_bias=false"]]
)
def test_parameters_are_matched_by_width(here: Path, change: list[str]) -> None:  # noqa: F811
    plan = arms_of(*change, common=[*TINY, "d_model=32"]).plan
    matched, (found,) = match_arms(plan, "parameters", {})
    base, arm = (each.config.model.parameters() for each in matched.arms)
    assert abs(arm / base - 1) <= 0.01 and math.isclose(found.residual, arm / base - 1, abs_tol=1e-12)
    wider = {**matched.arms[1].config.to_dict()["ffn"]}
    assert wider["hidden"] == found.new or found.new == found.old


@pytest.mark.parametrize("measure", ["flops", "seconds", "tokens"])
def test_work_is_matched_by_steps_and_the_schedule_stretches(here: Path, measure: Any) -> None:  # noqa: F811
    common = [*TINY, "train.steps=400", "train.eval_every=100", "schedule=cosine"]
    plan = arms_of("ffn=swiglu", "ffn.expansion=4", common=common).plan
    rates: dict[str, float | None] = {"mingpt": 1000.0, "ffn=swiglu ffn.expansion=4": 900.0}
    matched, (found,) = match_arms(plan, measure, rates)
    mine, theirs = (amounts(arm, rates)[measure] for arm in reversed(matched.arms))
    assert mine is not None and theirs is not None and abs(mine / theirs - 1) <= 0.01
    steps = matched.arms[1].config.train.steps
    assert steps == {"tokens": 400, "seconds": 360}.get(measure, steps) and found.new == steps
    assert math.ceil(steps / (matched.arms[1].config.train.eval_every or 1)) == 4, "as many evaluations as the baseline"
    schedule = matched.arms[1].config.schedule
    assert math.isclose(schedule.factor(steps - 1, steps), 0.1, rel_tol=1e-3), "it ends where the baseline's ends"


def test_what_cannot_be_matched_is_refused(here: Path) -> None:  # noqa: F811
    plan = arms_of("ffn=swiglu", "ffn.expansion=4").plan
    with pytest.raises(ConfigError, match="no rate"):
        match_arms(plan, "seconds", {"mingpt": None})
    with pytest.raises(ConfigError, match=r"leaves [-+]\d.*more than 1%"):
        match_arms(plan, "flops", {})  # 12 steps cannot be cut that finely


def test_tuning_uses_its_own_seeds_and_text_and_finds_the_best(here: Path) -> None:  # noqa: F811
    comparison = partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, tune="train.lr=1e-5,3e-4,1e-2", name="t")
    results = comparison.results
    tuned = results["tuned"]
    assert tuned["seeds"] == [FIRST_SEED, FIRST_SEED + 1] and tuned["runs"] == 12
    for row in tuned["arms"]:
        assert row["best"] == tuned["values"][int(np.argmin(row["means"]))]
        assert row["inside"] == (row["best"] == "3e-4") and row["default"] == 3e-4
    for job in Path("runs/t/tuning").glob("*/*/job.json"):
        config = json.loads(job.read_text())["config"]
        assert config["train"]["held_out"] and config["train"]["seed"] >= FIRST_SEED
    names = [(row["arm"], row["against"]) for row in results["comparisons"]]
    assert names == [
        ("ffn=swiglu", "mingpt"),
        ("ffn=swiglu train.lr=1e-2", "mingpt train.lr=1e-2"),
    ], "both verdicts: at the default, and at each arm's best"
    assert [arm["config"]["train"]["lr"] for arm in results["arms"]] == [3e-4, 3e-4, 1e-2, 1e-2]
    assert "Tuned on 2 seeds" in (Path("runs/t") / "report.md").read_text()
    assert comparison.hash == json.loads((comparison.path / "compare.json").read_text())["hash"]
    assert comparison.run()["comparisons"] == results["comparisons"], "run again, it is the same comparison"


def test_an_estimate_counts_what_tuning_takes(here: Path) -> None:  # noqa: F811
    plain, tuned = (
        planned(Request.from_dict({"preset": "mingpt", "change": ["ffn=swiglu"], **SETTINGS, "seeds": 3, **more}))
        for more in ({}, {"tune": "train.lr=1e-3,1e-2", "tune_seeds": 2})
    )
    assert (plain.estimate()["runs"], tuned.estimate()["runs"]) == (6, 6 + 2 * (3 + 2 * 2))


def test_a_winner_at_its_default_is_confirmed_at_its_default(here: Path) -> None:  # noqa: F811
    """The baseline is best at another rate than the arm: both are trained again as they were."""
    common = [*TINY, "train.lr=1e-2"]
    asked = {**SETTINGS, "common": common, "arms": ["d_model=32"], "seeds": 3, "tune": "train.lr=1e-2,1e-3"}
    comparison = planned(Request.from_dict({"preset": "mingpt", **asked}), "w")
    comparison.run()
    row = next(row for row in comparison.results["comparisons"] if row["arm"].startswith("d_model"))
    comparison.results["comparisons"] = [row | {"verdict": "better", "against": "mingpt"}]
    again = confirming(comparison)
    assert again is not None
    assert [arm.config for arm in again.plan.arms] == [
        comparison.plan.arm(name).config for name in ("mingpt", row["arm"])
    ]


def test_curves_of_matched_arms_meet_at_equal_shares_of_training() -> None:
    mine = [[step, 2.0 - step / 1000] for step in (*range(9, 850, 9), 850)]
    theirs = [[step, 2.0] for step in range(10, 1001, 10)]
    found = difference_over_time(mine, theirs)
    assert found[-1] == [1000, mine[-1][1] - 2.0], "the last with the last"
    assert all(abs(2.0 + gap - (2.0 - 0.85 * step / 1000)) < 0.01 for step, gap in found)


@pytest.mark.parametrize("text", ["train.lr", "train.lr=", "train.lr=1", "train.lr=1,1", "=1,2"])
def test_a_tuning_without_a_choice_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tune"):
        parse_tune(text)


def test_a_seed_never_serves_both_tuning_and_test(here: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="none may serve both"):
        plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, tune="train.lr=1e-3,1e-2", first_seed=FIRST_SEED - 2)


def test_a_winner_is_confirmed_on_fresh_seeds(here: Path) -> None:  # noqa: F811
    asked = Request.from_dict(
        {"preset": "mingpt", **SETTINGS, "arms": ["train.lr=3e-2", "train.lr=1e-6"], "seeds": 4, "margin": 1e-6}
    )
    comparison = planned(asked, "c")
    results = comparison.run()
    row = winner(results)
    assert row is not None and row["arm"] == "train.lr=3e-2"
    again = confirming(comparison)
    assert again is not None and again.plan.first_seed == FRESH and len(again.plan.arms) == 2
    assert not set(range(FRESH, FRESH + 4)) & set(results["seeds"])
    assert [arm.config for arm in again.plan.arms] == [
        comparison.plan.arms[0].config,
        comparison.plan.arm(row["arm"]).config,
    ]


def test_a_grid_says_nothing_beyond_its_cells(here: Path) -> None:  # noqa: F811
    common = [word for each in TINY for word in ("--common", each)]
    words = ["compare", "mingpt", "ffn=swiglu", *common, "--data", "text.txt", "--seeds", "2", "--name", "g"]
    done = CliRunner().invoke(app, [*words, "--grid", "train.steps=4,8", "--grid", "n_layers=1"])
    assert done.exit_code == 0, done.output
    rows = json.loads(Path("runs/g/grid.json").read_text())["rows"]
    assert [row["cell"] for row in rows] == ["train.steps=4 n_layers=1", "train.steps=8 n_layers=1"]
    assert "nothing is extrapolated" in done.output and "<svg" in Path("runs/g/grid.html").read_text()
    for text in ("n_layers", "n_layers=2,2"):
        refused = CliRunner().invoke(app, [*words, "--grid", text])
        assert isinstance(refused.exception, ConfigError)


# noise that is not normal, and noise that is known


@pytest.mark.parametrize(("n", "critical"), [(4, 1.481), (8, 2.126), (10, 2.290), (16, 2.586)])
def test_grubbs_critical_values_are_the_published_ones(n: int, critical: float) -> None:
    """Two-sided at 5 %, Grubbs & Beck 1972: values whose farthest lies just there."""

    def with_g(g: float) -> list[float]:
        rest = np.linspace(-1, 1, n - 1)
        low, high = 0.0, 1e3
        for _ in range(200):
            x = np.append(rest, (low + high) / 2)
            low, high = ((low + high) / 2, high) if (x[-1] - x.mean()) / x.std(ddof=1) < g else (low, (low + high) / 2)
        return x.tolist()

    p = grubbs(with_g(critical))
    assert p is not None and abs(p - 0.05) < 0.002


def test_one_pair_far_from_the_others_is_warned_of() -> None:
    values = dict(enumerate([0.001, 0.002, 0.0, -0.001, 0.0015, 0.0005, 0.2, 0.001]))
    zero = dict.fromkeys(values, 0.0)
    (warning,) = warnings([judge("odd", "base", values, zero)])
    assert "seed 6 of odd" in warning
    assert warnings([judge("even", "base", {**values, 6: 0.0012}, zero)]) == []


def test_a_known_sd_gives_the_pairwise_rule_of_speed_runs(tmp_path: Path) -> None:
    """A difference of 0.004 sqrt(1/n1 + 1/n2) at an SD of 0.0013 is 3.08 standard errors."""
    a, b = {0: 3.2790, 1: 3.2801, 2: 3.2785}, {7: 3.2840, 8: 3.2829}
    effect = judge("new", "old", a, b, known_sd=0.0013, margin=0.0)
    mean = sum(a.values()) / 3 - sum(b.values()) / 2
    z = mean / (0.0013 * math.sqrt(1 / 3 + 1 / 2))
    assert math.isclose(effect.p or 0.0, 2 * stats.norm.sf(abs(z)), rel_tol=1e-9)
    assert math.isclose(effect.high or 0.0, mean + stats.norm.isf(0.025) * mean / z, rel_tol=1e-9)
    file = tmp_path / "runs.csv"
    rows = [f"{seed},{arm},{value}" for arm, runs in (("old", b), ("new", a)) for seed, value in runs.items()]
    file.write_text("\n".join(["seed,arm,value", *rows]) + "\n")
    done = CliRunner().invoke(app, ["verdict", str(file), "--known-sd", "0.0013", "--margin", "0.0005"])
    assert done.exit_code == 0 and "new is better than old" in done.output
    assert f"is {abs(mean) / math.sqrt(1 / 3 + 1 / 2):.4f}, which" in done.output
    assert isinstance(CliRunner().invoke(app, ["verdict", str(file), "--known-sd", "0"]).exception, ConfigError)


# claims


@pytest.mark.parametrize(
    ("expected", "verdict", "diverged", "said"),
    [
        ("better", "better", 0, "reproduced"),
        ("better", "worse", 0, "not reproduced"),
        ("better", "equivalent", 0, "not reproduced"),
        ("better", "undecided", 0, "not testable here"),
        ("equivalent", "equivalent", 0, "reproduced"),
        ("worse", None, 2, "not testable here"),
        ("diverges", None, 2, "reproduced"),
        ("diverges", "worse", 0, "not reproduced"),
        (None, "better", 0, ""),
    ],
)
def test_a_claim_is_answered_by_the_verdict_alone(
    expected: str | None, verdict: str | None, diverged: int, said: str
) -> None:
    row = {"verdict": verdict, "diverged_arm": diverged, "n_arm": 3, "diverged_against": 0}
    assert answer(expected, row) == said


def test_a_study_is_answered_and_speaks_of_its_setting_alone(here: Path) -> None:  # noqa: F811
    folder = here / "studies"
    folder.mkdir()
    text = "claim: it helps\nsource: a paper\nfigure: 1 to 2\ncomparisons:\n  one:\n    preset: mingpt\n"
    text += f"    change: [attention.fused=false]\n    data: text.txt\n    seeds: 2\n    common: {json.dumps(TINY)}\n"
    (folder / "same.yaml").write_text(text + "    grid: [train.steps=4]\n    expect: equivalent\n")
    study = find_study("same")
    assert overall(study) == "not run yet" and list(study.comparisons) == ["one train.steps=4"]
    done = CliRunner().invoke(app, ["study", "run", "same"])
    assert done.exit_code == 0, done.output
    assert overall(study) == "reproduced" and scope(study) == "text.txt, 4 and 12 steps alone"
    assert (
        "| **reproduced** |" in markdown([study]) and "reproduced" in CliRunner().invoke(app, ["study", "list"]).output
    )
    assert "## The claim" in (Path("runs/study-same-one-train.steps=4") / "report.md").read_text()
    stored = json.loads((folder / "same" / "results.json").read_text())
    assert "curves" not in json.dumps(stored) and stored["comparisons"]["one train.steps=4"]["expect"] == {
        "": "equivalent"
    }
    for word, message in (
        ("expect: good", "expect='good'"),
        ("expect: {ffn=x: better}", "names no arm"),
        ("seed: 3", "seed"),
    ):
        (folder / "bad.yaml").write_text(text + f"    {word}\n")
        with pytest.raises(ConfigError, match=message):
            list(find_study("bad").plan())
