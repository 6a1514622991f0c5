"""Calibration, planning, tuning, matching and replication of comparisons."""

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
from comparisons import ARITHMETIC, TINY
from partwise.cli import app
from partwise.cli.commands import compare as comparing
from partwise.comparison.calibration import false_positive_rate
from partwise.comparison.design.matching import match_arms
from partwise.comparison.design.plan import training_budget
from partwise.comparison.design.request import Request
from partwise.comparison.experiment import Comparison, make_comparison, plan_comparison
from partwise.comparison.followups import REPLICATION_SEED_OFFSET, make_replication, winner
from partwise.comparison.noise_store import CALIBRATIONS_FILE, expected_noise, positive_control_power, read_calibrations
from partwise.comparison.results import difference_over_training, outlier_warnings
from partwise.comparison.stats.intervals import grubbs, judge
from partwise.comparison.tuning import FIRST_TUNING_SEED, parse_tune
from partwise.config import ConfigError
from partwise.data import SequencePairs, build_examples, prepare
from partwise.evaluate.references import dataset_references
from partwise.model import Transformer
from partwise.studies.claims import markdown, overall, scope
from partwise.studies.study import answer, find_study
from partwise.train.config import run_config
from partwise.train.loop import Run

SETTINGS: dict[str, Any] = {"data": "text.txt", "common": TINY, "margin": 0.05}


def request(**values: Any) -> Request:
    return Request.from_dict({"preset": "mingpt", "change": ["ffn=swiglu"], "data": "arithmetic", **values})


# A/A pairs


def test_reinitialization_changes_one_family_only(here: Path) -> None:
    own, other = (
        run_config("mingpt", *ARITHMETIC, *words, data="arithmetic") for words in ([], ["train.reinitialize=ffn"])
    )
    one, two = (Run(config) for config in (own, other))
    for a, b in zip(one.model.logical_tensors(), two.model.logical_tensors(), strict=True):
        reinitialized = ".ffn." in a.name and a.role != "vector"
        assert torch.equal(a.data, b.data) == (not reinitialized), a.name
        if reinitialized:
            assert math.isclose(a.data.std().item(), b.data.std().item(), rel_tol=0.25)
    assert (one.batch().inputs == two.batch().inputs).all()


def test_reinitializing_an_unknown_family_is_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.reinitialize=fnn: .* attention.*ffn"):
        Transformer(partwise.preset("mingpt", vocab_size=9), reinitialize="fnn")


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=8))
def test_false_positive_rate_equals_enumeration(differences: list[float]) -> None:
    x = np.array(differences)
    if np.abs(x).min() == 0 or len(set(np.abs(x).tolist())) == 1:
        return
    found = [
        stats.ttest_1samp(np.array(signs) * x, 0.0).pvalue < 0.05 for signs in itertools.product((1, -1), repeat=len(x))
    ]
    share, number = false_positive_rate(x)
    assert number == len(found) / 2
    assert math.isclose(share, float(np.mean(found)), abs_tol=1e-12)


def test_a_calibration_is_used_for_the_same_task_only(here: Path) -> None:
    words = ["calibrate", "mingpt", *ARITHMETIC, "--data", "arithmetic", "--seeds", "4", "--name", "noise"]
    done = CliRunner().invoke(app, [*words, "--positive-control", "d_model=32"])
    assert done.exit_code == 0, done.output
    assert (
        "seed SD" in done.output and "false positives" in done.output and "positive control: d_model=32" in done.output
    )
    (entry,) = read_calibrations().values()
    results = json.loads((Path("runs") / "noise" / "results.json").read_text())
    assert entry["sd"] == results["comparisons"][0]["sd_pooled"] and math.isclose(
        entry["df"], 6 / (1 + entry["correlation"] ** 2)
    )
    df = entry["df"]
    low, high = (entry["sd"] * math.sqrt(df / stats.chi2.ppf(p, df)) for p in (0.975, 0.025))
    assert math.isclose(entry["sd_low"], low, rel_tol=1e-9) and math.isclose(entry["sd_high"], high, rel_tol=1e-9)
    same = make_comparison(request(common=ARITHMETIC))
    assert expected_noise(same.plan, same.prepare()).sd == entry["sd"]
    longer = make_comparison(request(common=[*ARITHMETIC, "train.steps=13"]))
    assert "guessed" in expected_noise(longer.plan, longer.prepare()).source
    asked = request(common=ARITHMETIC, seeds=8, positive_control="d_model=32")
    store = read_calibrations()
    for effect, refused in ((-100 * entry["sd"], False), (-0.1 * entry["sd"], True)):
        CALIBRATIONS_FILE.write_text(
            json.dumps({key: {**value, "control_effect": effect} for key, value in store.items()})
        )
        plan = make_comparison(asked).plan
        if refused:
            with pytest.raises(ConfigError, match="a control needs 95%"):
                positive_control_power(plan, same.prepare())
        else:
            assert positive_control_power(plan, same.prepare()) == 1.0
            assert positive_control_power(same.plan, same.prepare()) is None
    CALIBRATIONS_FILE.write_text("{ not json")
    assert "noise" in expected_noise(same.plan, same.prepare()).source  # falls back to the comparison itself

    common = [word for each in ARITHMETIC for word in ("--common", each)]
    planned = CliRunner().invoke(
        app, ["plan", "mingpt", "ffn=swiglu", *common, "--data", "arithmetic", "--effect", "0.1"]
    )
    assert planned.exit_code == 0 and "8, 16, 32" in planned.output and "power for 0.1" in planned.output


# the tuning split


@pytest.mark.parametrize("data", ["arithmetic", "arithmetic_pairs"])
def test_the_tuning_split_is_training_text_only(here: Path, data: str) -> None:
    words = ["data.train=300", "data.validation=20", "data.test=20"]
    words += ["d_model=16", "n_layers=1", "encoder_layers=1"] if data == "arithmetic_pairs" else []
    config = run_config("mingpt", *words, data=data)
    whole = prepare(config.data, config.tokenizer)
    part = config.model_copy(update={"train": config.train.model_copy(update={"tuning_split": True})}).prepare()
    train = np.asarray(whole.split("train"))
    assert np.array_equal(np.concatenate([part.split("train"), part.split("val")]), train)
    assert abs(len(part.split("val")) / len(train) - 0.1) < 0.02
    assert (
        part.split_names == ("train", "val")
        and part.hash != whole.hash
        and whole.split_names == ("train", "val", "test")
    )
    references = dataset_references(part)
    assert "constant_exact_match" not in references and dataset_references(whole)["unigram"] != references["unigram"]
    if data == "arithmetic_pairs":
        assert all(
            isinstance(build_examples(part, name, 64, 64), SequencePairs) for name in part.split_names
        )  # no pair is cut in two


# the protocol


def test_a_protocol_stops_early_continues_and_cannot_be_changed(here: Path) -> None:
    arguments = {**SETTINGS, "looks": [2, 4, 6], "name": "p", "negative_control": "ffn"}
    comparison = plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0})
    results = comparison.run()
    first, null = results["comparisons"]
    assert first["verdict"] == "equivalent" and first["look"] == 1 and first["n"] == 2
    assert len(results["arms"][1]["values"]) == 2 and results["protocol_hash"] == comparison.hash
    assert null["role"] == "negative" and [control["passed"] for control in results["controls"]] == [True]
    assert not any((comparison.path / "runs").glob("1-*/seed-2")), "arms of closed claims are not trained further"
    again = plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0}).run()
    assert again["comparisons"] == results["comparisons"]
    for change in ({"looks": [2, 4]}, {"margin": 0.9}, {"variance": "residual"}, {"alpha": 0.01}, {"first_seed": 3}):
        with pytest.raises(ConfigError, match="holds another comparison"):
            plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0, **change}).run()
    card = comparison.path / "compare.json"
    card.write_text(card.read_text().replace(comparison.hash, "0" * 64))
    with pytest.raises(ConfigError, match="hash does not match"):
        plan_comparison("mingpt", "ffn=geglu", "ffn.expansion=2", **{**arguments, "margin": 1.0}).run()


def test_an_undecided_protocol_runs_to_its_last_look(here: Path) -> None:
    results = partwise.compare("mingpt", "ffn=gelu", **{**SETTINGS, "margin": 1e-9}, looks=[2, 3], name="u").results
    (row,) = results["comparisons"]
    if row["verdict"] == "undecided":
        assert row["look"] == 2 and row["n"] == 3
    assert row["p_looks"] >= row["p"] and row["confidence"] > 0.95


def test_an_interaction_is_the_difference_of_differences(here: Path) -> None:
    results = partwise.compare(
        "mingpt", interaction=["ffn=swiglu", "norm=rmsnorm"], **SETTINGS, seeds=3, name="two"
    ).results
    base, first, second, both = (np.array(arm["values"]) for arm in results["arms"])
    contrast = results["comparisons"][-1]
    assert contrast["against"] == "ffn=swiglu and norm=rmsnorm (additive)"
    assert np.allclose(contrast["differences"], both - first - second + base, atol=1e-12)
    assert [row["n_comparisons"] for row in results["comparisons"]] == [4] * 4


def test_a_cumulative_ablation_compares_each_arm_with_the_previous_one(here: Path) -> None:
    changes = ["ffn=swiglu", "norm=rmsnorm", "train.lr=1e-3"]
    comparison = partwise.compare(
        "mingpt", cumulative=True, arms=changes, negative_control="ffn", **SETTINGS, seeds=3, name="l"
    )
    arms = comparison.results["arms"]
    assert [arm["name"] for arm in arms] == [
        "mingpt",
        "+ ffn=swiglu",
        "+ norm=rmsnorm",
        "+ train.lr=1e-3",
        "train.reinitialize=ffn",
    ]
    assert [arm["overrides"] for arm in arms[:4]] == [[], changes[:1], changes[:2], changes]
    for number, row in enumerate(comparison.results["comparisons"][:3], start=1):
        assert (row["arm"], row["against"]) == (arms[number]["name"], arms[number - 1]["name"])
        differences = np.array(arms[number]["values"]) - np.array(arms[number - 1]["values"])
        assert np.allclose(row["differences"], differences, atol=1e-12)
    assert comparison.results["comparisons"][3]["against"] == "mingpt"
    question = "Does any of ffn=swiglu, norm=rmsnorm, train.lr=1e-3, each added to the previous ones"
    assert comparison.plan.question.startswith(question)
    with pytest.raises(ConfigError, match="same configuration as 'mingpt'"):
        plan_comparison("mingpt", cumulative=True, arms=["ffn=swiglu", "ffn=relu"], **SETTINGS)
    for refused in ({"tune": "train.lr=1e-3,1e-2"}, {"match": "flops"}, {"interaction": ["ffn=gelu", "norm=rmsnorm"]}):
        with pytest.raises(ConfigError, match="cannot be combined with interaction, tune or match"):
            plan_comparison("mingpt", cumulative=True, arms=changes, **refused, **SETTINGS)


@pytest.mark.parametrize("metric", ["exact_match", "char_accuracy"])
def test_accuracies_can_be_compared(here: Path, metric: str) -> None:
    """Also between different forms of the same problems, which the loss cannot compare."""
    counts = ["data.train=200", "data.validation=10", "data.test=20"]
    asked = {**SETTINGS, "data": "arithmetic", "common": [*TINY, *counts], "metric": metric, "seeds": 2}
    comparison = partwise.compare("mingpt", "data.reverse=false", **asked, name=metric)
    assert comparison.results["config"]["data"]["reverse"] is True
    assert comparison.results["arms"][1]["config_changes"] == [["data.reverse", True, False]]
    for arm, folder in zip(comparison.results["arms"], sorted(Path("runs", metric, "runs").iterdir()), strict=True):
        shares = [
            json.loads((folder / f"seed-{seed}" / "result.json").read_text())["accuracy"]["all"] for seed in range(2)
        ]
        assert arm["values"] == [share[metric]["correct"] / share[metric]["total"] for share in shares]
    assert not comparison.results["lower_is_better"]
    with pytest.raises(ConfigError, match=f"metric={metric}: data=python has no answers"):
        plan_comparison("mingpt", "ffn=swiglu", **{**asked, "common": TINY, "data": "python"})


@settings(max_examples=30)
@given(st.data())
def test_the_command_round_trips(data: st.DataObject) -> None:
    """Parsing the command that a comparison prints gives the same request."""
    draw = data.draw
    text = st.sampled_from
    values = {
        "preset": "mingpt",
        "change": draw(text([["ffn=swiglu"], ["ffn=geglu", "norm=rmsnorm"]])),
        "arms": draw(text([[], ["ffn=gelu norm=rmsnorm", "attention={cycle: [multihead]}"]])),
        "interaction": draw(text([[], ["ffn=gelu", "norm=rmsnorm"]])),
        "cumulative": draw(st.booleans()),
        "common": draw(text([[], ["train.steps=7", "train.lr=1e-3"]])),
        "data": draw(text([None, "shakespeare"])),
        "variance": draw(text(["pair", "residual"])),
        "margin": draw(text([0.005, 1e-5])),
        "alpha": draw(text([0.05, 0.01])),
        "negative_control": draw(text([None, "ffn"])),
        "positive_control": draw(text([None, "ffn.expansion=8 norm=rmsnorm"])),
        "tune": draw(text([None, "train.lr=1e-3,3e-3"])),
        "tune_seeds": draw(text([2, 5])),
        "match": draw(text([None, "flops"])),
        "metric": draw(text(["loss", "exact_match", "char_accuracy"])),
        "first_seed": draw(text([0, 7])),
        **draw(text([{"looks": [4, 8]}, {"seeds": 9}])),
    }
    asked = Request.from_dict(values)
    read: list[Request] = []

    def take(given: dict[str, Any], *, protocol: bool, **_: Any) -> None:
        read.append(comparing.make_request(given, protocol))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "compare_variants", take)
        import shlex

        done = CliRunner().invoke(app, shlex.split(asked.command("n"))[1:])
    assert done.exit_code == 0, done.output
    assert read == [asked]


# matching, tuning, replication


def arms_of(*change: str, **values: Any) -> Comparison:
    return make_comparison(Request.from_dict({"preset": "mingpt", "change": list(change), **SETTINGS, **values}))


@pytest.mark.parametrize(
    "change", [["ffn=swiglu", "ffn.expansion=4"], ["norm=rmsnorm"], ["tie_embeddings=true", "head_bias=false"]]
)
def test_parameters_are_matched_by_hidden_width(here: Path, change: list[str]) -> None:
    plan = arms_of(*change, common=[*TINY, "d_model=32"]).plan
    matched, (found,) = match_arms(plan, "parameters", {})
    base, arm = (each.config.model.parameters() for each in matched.arms)
    assert abs(arm / base - 1) <= 0.01 and math.isclose(found.residual, arm / base - 1, abs_tol=1e-12)
    wider = {**matched.arms[1].config.to_dict()["ffn"]}
    assert wider["hidden"] == found.new or found.new == found.old


@pytest.mark.parametrize("measure", ["flops", "seconds", "tokens"])
def test_budgets_are_matched_by_steps_and_schedules_stretch(here: Path, measure: Any) -> None:
    common = [*TINY, "train.steps=400", "train.eval_every=100", "schedule=cosine"]
    plan = arms_of("ffn=swiglu", "ffn.expansion=4", common=common).plan
    rates: dict[str, float | None] = {"mingpt": 1000.0, "ffn=swiglu ffn.expansion=4": 900.0}
    matched, (found,) = match_arms(plan, measure, rates)
    used, baseline = (training_budget(arm, rates)[measure] for arm in reversed(matched.arms))
    assert used is not None and baseline is not None and abs(used / baseline - 1) <= 0.01
    steps = matched.arms[1].config.train.steps
    assert steps == {"tokens": 400, "seconds": 360}.get(measure, steps) and found.new == steps
    assert math.ceil(steps / (matched.arms[1].config.train.eval_every or 1)) == 4, "as many evaluations as the baseline"
    schedule = matched.arms[1].config.schedule
    assert math.isclose(schedule.factor(steps - 1, steps), 0.1, rel_tol=1e-3), "it ends where the baseline's ends"


def test_unmatchable_arms_are_refused(here: Path) -> None:
    plan = arms_of("ffn=swiglu", "ffn.expansion=4").plan
    with pytest.raises(ConfigError, match="throughput is unknown"):
        match_arms(plan, "seconds", {"mingpt": None})
    with pytest.raises(ConfigError, match=r"differs by [-+]\d.*more than 1%"):
        match_arms(plan, "flops", {})  # 12 steps cannot be cut that finely


def test_tuning_uses_its_own_seeds_and_split_and_finds_the_best_value(here: Path) -> None:
    comparison = partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, tune="train.lr=1e-5,3e-4,1e-2", name="t")
    results = comparison.results
    tuned = results["tuning"]
    assert tuned["seeds"] == [FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1] and tuned["runs"] == 12
    for row in tuned["arms"]:
        assert row["best"] == tuned["values"][int(np.argmin(row["means"]))]
        assert row["interior"] == (row["best"] == "3e-4") and row["default"] == 3e-4
    for job in Path("runs/t/tuning").glob("*/*/job.json"):
        config = json.loads(job.read_text())["config"]
        assert config["train"]["tuning_split"] and config["train"]["seed"] >= FIRST_TUNING_SEED
    names = [(row["arm"], row["against"]) for row in results["comparisons"]]
    assert names == [
        ("ffn=swiglu", "mingpt"),
        ("ffn=swiglu train.lr=1e-2", "mingpt train.lr=1e-2"),
    ], "both verdicts: at the default, and at each arm's best"
    changes = [{key: new for key, _, new in arm["config_changes"]} for arm in results["arms"]]
    lr = results["config"]["train"]["lr"]
    assert [each.get("train.lr", lr) for each in changes] == [3e-4, 3e-4, 1e-2, 1e-2]
    assert "Tuned on 2 seeds" in (Path("runs/t") / "report.md").read_text()
    assert comparison.hash == json.loads((comparison.path / "compare.json").read_text())["hash"]
    assert comparison.run()["comparisons"] == results["comparisons"], "a repeated run gives the same comparison"


def test_an_estimate_counts_tuning_runs(here: Path) -> None:
    plain, tuned = (
        make_comparison(
            Request.from_dict({"preset": "mingpt", "change": ["ffn=swiglu"], **SETTINGS, "seeds": 3, **more})
        )
        for more in ({}, {"tune": "train.lr=1e-3,1e-2", "tune_seeds": 2})
    )
    assert (plain.estimate()["runs"], tuned.estimate()["runs"]) == (6, 6 + 2 * (3 + 2 * 2))


def test_a_winner_at_its_default_is_replicated_at_its_default(here: Path) -> None:
    """Also if the baseline's best learning rate differs from the arm's: both are repeated unchanged."""
    common = [*TINY, "train.lr=1e-2"]
    asked = {**SETTINGS, "common": common, "arms": ["d_model=32"], "seeds": 3, "tune": "train.lr=1e-2,1e-3"}
    comparison = make_comparison(Request.from_dict({"preset": "mingpt", **asked}), "w")
    comparison.run()
    row = next(row for row in comparison.results["comparisons"] if row["arm"].startswith("d_model"))
    comparison.results["comparisons"] = [row | {"verdict": "better", "against": "mingpt"}]
    again = make_replication(comparison)
    assert again is not None
    assert [arm.config for arm in again.plan.arms] == [
        comparison.plan.arm(name).config for name in ("mingpt", row["arm"])
    ]


def test_curves_of_matched_arms_are_compared_at_equal_fractions_of_training() -> None:
    curve = [[step, 2.0 - step / 1000] for step in (*range(9, 850, 9), 850)]
    baseline = [[step, 2.0] for step in range(10, 1001, 10)]
    differences = difference_over_training(curve, baseline)
    assert differences[-1] == [1000, curve[-1][1] - 2.0], "the last point with the last"
    assert all(abs(2.0 + difference - (2.0 - 0.85 * step / 1000)) < 0.01 for step, difference in differences)


@pytest.mark.parametrize("text", ["train.lr", "train.lr=", "train.lr=1", "train.lr=1,1", "=1,2"])
def test_tuning_over_fewer_than_two_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tune"):
        parse_tune(text)


def test_tuning_and_test_seeds_never_overlap(here: Path) -> None:
    with pytest.raises(ConfigError, match="are for tuning"):
        plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, tune="train.lr=1e-3,1e-2", first_seed=FIRST_TUNING_SEED - 2)


def test_a_winner_is_replicated_on_fresh_seeds(here: Path) -> None:
    asked = Request.from_dict(
        {"preset": "mingpt", **SETTINGS, "arms": ["train.lr=3e-2", "train.lr=1e-6"], "seeds": 4, "margin": 1e-6}
    )
    comparison = make_comparison(asked, "c")
    results = comparison.run()
    row = winner(results)
    assert row is not None and row["arm"] == "train.lr=3e-2"
    again = make_replication(comparison)
    assert again is not None and again.plan.first_seed == REPLICATION_SEED_OFFSET and len(again.plan.arms) == 2
    assert not set(range(REPLICATION_SEED_OFFSET, REPLICATION_SEED_OFFSET + 4)) & set(results["seeds"])
    assert [arm.config for arm in again.plan.arms] == [
        comparison.plan.arms[0].config,
        comparison.plan.arm(row["arm"]).config,
    ]


def test_a_grid_has_one_verdict_per_cell(here: Path) -> None:
    common = [word for each in TINY for word in ("--common", each)]
    words = ["compare", "mingpt", "ffn=swiglu", *common, "--data", "text.txt", "--seeds", "2", "--name", "g"]
    done = CliRunner().invoke(app, [*words, "--grid", "train.steps=4,8", "--grid", "n_layers=1"])
    assert done.exit_code == 0, done.output
    rows = json.loads(Path("runs/g/grid.json").read_text())["rows"]
    assert [row["cell"] for row in rows] == ["train.steps=4 n_layers=1", "train.steps=8 n_layers=1"]
    assert "do not extend to other settings" in done.output and "<svg" in Path("runs/g/grid.html").read_text()
    for text in ("n_layers", "n_layers=2,2"):
        refused = CliRunner().invoke(app, [*words, "--grid", text])
        assert isinstance(refused.exception, ConfigError)


# outliers, and a known SD


@pytest.mark.parametrize(("n", "critical"), [(4, 1.481), (8, 2.126), (10, 2.290), (16, 2.586)])
def test_grubbs_critical_values_are_the_published_ones(n: int, critical: float) -> None:
    """Two-sided at 5 %, Grubbs & Beck 1972: samples whose outlier is exactly at the critical value."""

    def with_g(g: float) -> list[float]:
        rest = np.linspace(-1, 1, n - 1)
        low, high = 0.0, 1e3
        for _ in range(200):
            x = np.append(rest, (low + high) / 2)
            low, high = ((low + high) / 2, high) if (x[-1] - x.mean()) / x.std(ddof=1) < g else (low, (low + high) / 2)
        return x.tolist()

    p = grubbs(with_g(critical))
    assert p is not None and abs(p - 0.05) < 0.002


def test_an_outlying_pair_gives_a_warning() -> None:
    values = dict(enumerate([0.001, 0.002, 0.0, -0.001, 0.0015, 0.0005, 0.2, 0.001]))
    zero = dict.fromkeys(values, 0.0)
    (warning,) = outlier_warnings([judge("odd", "base", values, zero)])
    assert "seed 6 of odd" in warning
    assert outlier_warnings([judge("even", "base", {**values, 6: 0.0012}, zero)]) == []


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
def test_a_claim_is_answered_by_the_verdict_only(
    expected: str | None, verdict: str | None, diverged: int, said: str
) -> None:
    row = {"verdict": verdict, "diverged_arm": diverged, "n_arm": 3, "diverged_against": 0}
    assert answer(expected, row) == said


def test_a_study_is_answered_for_its_setting_only(here: Path) -> None:
    folder = here / "studies"
    folder.mkdir()
    text = "claim: it helps\nsource: a paper\npublished: 1 to 2\ncomparisons:\n  one:\n    preset: mingpt\n"
    text += (
        f"    change: [attention.fused_qkv=false]\n    data: text.txt\n    seeds: 2\n    common: {json.dumps(TINY)}\n"
    )
    (folder / "same.yaml").write_text(text + "    grid: [train.steps=4]\n    expect: equivalent\n")
    study = find_study("same")
    assert overall(study) == "not run yet" and list(study.comparisons) == ["one train.steps=4"]
    done = CliRunner().invoke(app, ["study", "run", "same"])
    assert done.exit_code == 0, done.output
    assert overall(study) == "reproduced" and scope(study) == "text.txt, 4 and 12 steps only"
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
