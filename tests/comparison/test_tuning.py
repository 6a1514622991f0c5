"""Tuning uses its own seeds and a split of the training text, and reports both verdicts."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import partwise
from comparisons import SETTINGS
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import make_comparison, plan_comparison
from partwise.ablation.run_workload import FinishedRuns
from partwise.comparison.design.plan import Plan
from partwise.comparison.experiment import Comparison
from partwise.comparison.results import Tuning
from partwise.comparison.stats.protocol import Claim, Rules, is_open
from partwise.comparison.stats.tuning_noise import TuningNoise
from partwise.comparison.tuning import FIRST_TUNING_SEED, edges, next_value, parse_tune, run_tuning
from partwise.comparison.tuning_file import TUNING_FILE, TuningFile, read_tuning_file
from partwise.config import ConfigError
from partwise.data import SequencePairs, build_examples, prepare
from partwise.evaluate.references import dataset_references
from partwise.json_files import write_hashed, write_json
from partwise.train.config import run_config


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
    assert "constant_exact_match" not in references and dataset_references(whole)["ngrams"] != references["ngrams"]
    if data == "arithmetic_pairs":
        assert all(
            isinstance(build_examples(part, name, 64, 64), SequencePairs) for name in part.split_names
        )  # no pair is cut in two


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("1e-3,0.001,2e-3", "at least two different values"),
        ("1e-3", "at least two different values"),
        ("1e-3,inf", "finite values"),
        ("nan,1e-3", "finite values"),
    ],
)
def test_values_are_distinct_and_finite(values: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_tune(f"train.lr={values}")


def test_an_interaction_is_not_judged_at_tuned_values_alone(here: Path) -> None:
    settings = {"interaction": ["ffn=swiglu", "norm=rmsnorm"], "tune": "train.lr=1e-3,1e-2", "tuned_only": True}
    with pytest.raises(ConfigError, match="an interaction is judged at the defaults"):
        plan_comparison("mingpt", data="text.txt", **settings)


def test_tuning_uses_its_own_seeds_and_split_and_finds_the_best_value(here: Path) -> None:
    comparison = partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, tune="train.lr=1e-3,1e-2,1e-1", name="t")
    results = comparison.results
    tuned = results.tuning
    assert tuned.seeds == tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + 4))
    assert tuned.runs == 2 * 4 * len(tuned.values) and {"1e-3", "1e-2", "1e-1"} <= set(tuned.values)
    for row in tuned.arms:
        assert row.best == tuned.values[int(np.argmin(row.means))]
        assert row.interior == (row.best not in (tuned.values[0], tuned.values[-1])) and row.default == 3e-4
        for mean, losses in zip(row.means, row.losses, strict=True):
            assert (mean is None) == (None in losses) and (mean is None or math.isclose(mean, np.mean(losses)))
    for job in Path("runs/t/tuning").glob("*/*/job.json"):
        config = json.loads(job.read_text())["config"]
        assert config["train"]["tuning_split"] and config["train"]["seed"] >= FIRST_TUNING_SEED
    names = [(effect.arm, effect.against) for effect in results.effects]
    assert names == [
        ("ffn=swiglu", "mingpt"),
        tuple(f"{row.arm} train.lr={row.best}" for row in reversed(tuned.arms)),
    ], "both verdicts: at the default, and at each arm's best"
    assert results.effects[0].tuning_error is None
    changes = [{key: new for key, _, new in arm.config_changes} for arm in results.arms]
    lr = results.config["train"]["lr"]
    assert [each.get("train.lr", lr) for each in changes] == [3e-4, 3e-4, *(float(row.best) for row in tuned.arms)]
    assert "Tuned on 4 seeds" in (Path("runs/t") / "report.md").read_text()
    assert comparison.hash == json.loads((comparison.path / "compare.json").read_text())["hash"]
    assert comparison.run().claims == results.claims, "a repeated run gives the same comparison"
    again = plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, tune="train.lr=1e-3,1e-2,1e-1", name="t")
    finished = again.finished_runs()
    assert set(finished.values()) == {FinishedRuns(test=2 * 2, tuning=4 * len(tuned.values), values=len(tuned.values))}
    estimate = again.estimate(finished)
    assert estimate.finished == estimate.runs == 2 * (2 * 2 + 4 * len(tuned.values))
    assert estimate.minutes > estimate.minutes_left == 0
    grown = again.estimate({"ffn=swiglu": FinishedRuns(values=len(tuned.values) + 1)})
    assert grown.runs == estimate.runs + 2 * 4, "an arm at a further value: all arms will be trained there"
    fresh = again.estimate()
    assert fresh.runs == 2 * (2 * 2 + 4 * 3) and 0 < fresh.minutes_per_value < fresh.minutes
    shutil.rmtree(next(Path("runs/t/runs").glob("1-*/seed-1")))
    more = replace(again, plan=replace(again.plan, seeds=3)).finished_runs()
    assert more["ffn=swiglu"].test == 3 and more["mingpt"].test == 4


TUNED = {**SETTINGS, "seeds": 2, "tune": "train.lr=1e-3,1e-2", "tuned_only": True, "name": "t"}


def tuning_runs(folder: Path) -> set[str]:
    """The arm, value and seed of each tuning run in a comparison's folder."""
    return {str(job.parent.relative_to(folder / "tuning")) for job in folder.glob("tuning/*/*/job.json")}


def move(folder: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go on in another folder, with the data and the file of tuning alone."""
    (to / "runs/t").mkdir(parents=True)
    for name in ("text.txt", f"runs/t/{TUNING_FILE}"):
        shutil.copy(folder / name, to / name)
    monkeypatch.chdir(to)
    return to


def test_the_file_of_tuning_spares_its_runs_on_another_machine(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted comparison moves to another folder with this file alone: what it lacks is trained there, only that."""
    comparison = plan_comparison("mingpt", "ffn=swiglu", **TUNED)

    def interrupt(running: Comparison) -> None:
        done = [trial for trial in running.trials if trial.finished]
        if len(done) >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comparison.run(interrupt)
    other = move(here, here / "other machine", monkeypatch)
    losses = json.loads((other / "runs/t" / TUNING_FILE).read_text())["losses"]
    n_finished = sum(map(len, losses.values()))
    assert n_finished >= 3
    monkeypatch.chdir(here)
    whole = comparison.run()
    monkeypatch.chdir(other)
    moved = plan_comparison("mingpt", "ffn=swiglu", **TUNED)
    assert sum(each.tuning for each in moved.finished_runs().values()) == n_finished
    results = moved.run()
    assert whole.tuning is not None and results.tuning is not None
    assert results.tuning.model_copy(update={"seconds": 0.0}) == whole.tuning.model_copy(update={"seconds": 0.0})
    assert [claim.effect.mean for claim in results.claims] == [claim.effect.mean for claim in whole.claims]
    kept = {path.relative_to(here).parts[2] for path in here.glob("runs/t/**/model.safetensors")}
    assert kept == {"runs"}, "weights of the test only"
    all_runs, trained = tuning_runs(here / "runs/t"), tuning_runs(other / "runs/t")
    assert trained < all_runs and len(all_runs - trained) == n_finished

    last = move(other, here / "third machine", monkeypatch)
    third = plan_comparison("mingpt", "ffn=swiglu", **TUNED)
    assert all(each.tuning == 4 * len(whole.tuning.values) for each in third.finished_runs().values())
    assert third.run().tuning == results.tuning and not tuning_runs(last / "runs/t")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("plan", "0" * 64, "another comparison"),
        ("data", "0" * 64, "other data"),
        ("precision", "float16", "another precision"),
        ("seconds", 1.5, "was changed after it was written"),
        ("format", 2, "format 2"),
        ("losses", {"a": {"1000000": "low"}}, "not a number"),
        ("losses", {"a": {"first": 1.0}}, "whole numbers.*: delete it to tune again"),
        ("text", "{", "is damaged.*: delete it to tune again"),
    ],
)
def test_a_file_of_another_tuning_is_refused(tmp_path: Path, key: str, value: object, message: str) -> None:
    purpose = {"plan": "1" * 64, "data": "2" * 64, "device": "cpu", "precision": "bfloat16"}
    content = {"format": 1, **purpose, "losses": {"a": {"1000000": 1.0, "1000001": None}}, "seconds": 2.0}
    write_hashed(tmp_path / TUNING_FILE, content)
    arguments = tmp_path, purpose["plan"], purpose["data"], {"device": "cpu", "precision": "bfloat16"}
    read = read_tuning_file(*arguments)
    assert read.losses["a"][1000000] == 1.0 and math.isnan(read.losses["a"][1000001]) and read.seconds == 2
    if key == "text":
        (tmp_path / TUNING_FILE).write_text(str(value))
    elif key == "seconds":
        write_json(tmp_path / TUNING_FILE, {**json.loads((tmp_path / TUNING_FILE).read_text()), key: value})
    else:
        write_hashed(tmp_path / TUNING_FILE, {**content, key: value})
    with pytest.raises(ConfigError, match=message):
        read_tuning_file(*arguments)


def test_an_estimate_counts_tuning_runs(here: Path) -> None:
    plain, tuned = (
        make_comparison(
            Request.from_dict({"preset": "mingpt", "change": ["ffn=swiglu"], **SETTINGS, "seeds": 3, **more})
        )
        for more in ({}, {"tune": "train.lr=1e-3,1e-2", "tune_seeds": 4})
    )
    assert (plain.estimate().runs, tuned.estimate().runs) == (6, 6 + 2 * (3 + 2 * 4))


@pytest.mark.parametrize("text", ["train.lr", "train.lr=", "train.lr=1", "train.lr=1,1", "=1,2"])
def test_tuning_over_fewer_than_two_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tune"):
        parse_tune(text)


def test_tuning_and_test_seeds_never_overlap(here: Path) -> None:
    with pytest.raises(ConfigError, match="are for tuning"):
        plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, tune="train.lr=1e-3,1e-2", first_seed=FIRST_TUNING_SEED - 2)


def test_fewer_than_four_tuning_seeds_are_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match="tune_seeds"):
        plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, tune="train.lr=1e-3,1e-2", tune_seeds=3)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ("1e-4,3e-4,9e-4", "3.33333e-05", "0.0027"),
        ("1e-3,1e-2", "0.0001", "0.1"),
        ("2,4,6", "0", "8"),
        ("2,4,8", "1", "16"),
        ("0,0.1,0.2", "-0.1", "0.3"),
        ("silu,gelu", None, None),
    ],
)
def test_the_grid_goes_on_by_its_ratio_or_step(values: str, low: str | None, high: str | None) -> None:
    tried = parse_tune(f"key={values}").values
    assert next_value(tried, tried[0], tried[1]) == low and next_value(tried, tried[-1], tried[-2]) == high


def tune_curve(
    here: Path, tune: str, loss: Callable[[str, float], float], monkeypatch: pytest.MonkeyPatch
) -> tuple[Plan, Tuning, list[str]]:
    """Tune two arms whose losses follow a curve instead of training; with the values in the order in which they ran."""
    comparison = plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, tune=tune)
    ran: list[str] = []

    def final_values(trials: list[SimpleNamespace]) -> dict[str, dict[int, float]]:
        values: dict[str, dict[int, float]] = {}
        for trial in trials:
            name, _, value = trial.arm.partition(" train.lr=")
            noise = 1e-3 * (trial.seed % 4)
            values.setdefault(trial.arm, {})[trial.seed] = loss(name, math.log10(float(value))) + noise
            ran.extend([value] if value not in ran else [])
        return values

    monkeypatch.setattr("partwise.comparison.tuning_file.final_values", final_values)
    assert comparison.tune is not None
    plan, tuning = run_tuning(
        comparison.plan,
        comparison.tune,
        4,
        lambda *_: here,
        lambda arm, seed, folder: SimpleNamespace(arm=arm.name, seed=seed, finished=True),
        lambda trials: None,
        TuningFile(here / "tuning.json", {}),
    )
    return plan, tuning, ran


def test_an_optimum_at_the_edge_widens_the_grid(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optima, 10^-1.9 and 10^-3, are bracketed after one value more on the upper side."""
    plan, tuning, ran = tune_curve(
        here, "train.lr=1e-4,1e-3,1e-2", lambda arm, x: (x + (1.9 if "swiglu" in arm else 3)) ** 2, monkeypatch
    )
    assert ran == ["1e-4", "1e-3", "1e-2", "0.1"] and tuning.values == ("1e-4", "1e-3", "1e-2", "0.1")
    assert tuning.runs == 4 * 2 * 4 and all(row.interior for row in tuning.arms)
    assert [row.best for row in tuning.arms] == ["1e-3", "1e-2"]
    noise = plan.claims[-1].tuning
    assert noise is not None and not noise.not_bracketed and plan.claims[-1].arm == "ffn=swiglu train.lr=1e-2"


def test_a_best_value_that_is_never_bracketed_gets_no_verdict(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, tuning, ran = tune_curve(here, "train.lr=1e-4,1e-3", lambda arm, x: -x, monkeypatch)
    assert len(ran) == 5 and tuning.values[-1] == "1" and not any(row.interior for row in tuning.arms)
    claim = plan.claims[-1]
    rng = np.random.default_rng(0)
    values = {name: dict(enumerate((rng.normal(0, 0.01, 8) + shift).tolist())) for shift, name in enumerate(claim[:2])}
    (effect,) = replace(plan.rules, looks=(4, 8)).judge(values, [claim])
    assert effect.verdict is None and effect.look == 1 and not is_open(effect)
    assert "the best train.lr is not bracketed" in effect.sentence and "mingpt (1)" in effect.sentence
    assert effect.low is None and effect.p_adjusted is None


def test_values_at_a_limit_of_valid_ones_count_as_bracketed(here: Path) -> None:
    comparison = plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, tune="embed_dropout=0,0.5")
    assert comparison.tune is not None
    assert list(edges(comparison.tune, comparison.plan.arms, comparison.tune.values)) == []


def test_the_interval_of_a_tuned_claim_has_the_noise_of_tuning() -> None:
    x = np.random.default_rng(1).normal(0, 0.01, (2, 8))
    values = {name: dict(enumerate(row.tolist())) for name, row in zip("ab", x, strict=True)}
    (plain,) = Rules(looks=(8,)).judge(values, [Claim("b", "a")])
    (tuned,) = Rules(looks=(8,)).judge(values, [Claim("b", "a", "claim", TuningNoise(0.02, 3))])
    d = x[1] - x[0]
    pairs = d.std(ddof=1) / math.sqrt(8)
    error = math.hypot(pairs, 0.02)
    df = error**4 / (pairs**4 / 7 + 0.02**4 / 3)
    assert plain.standard_error == pytest.approx(pairs) and tuned.standard_error == pytest.approx(error)
    assert tuned.df == pytest.approx(df) and tuned.mean == plain.mean
    assert tuned.p == pytest.approx(2 * stats.t.sf(abs(d.mean()) / error, df))
    assert tuned.sentence.endswith("The interval includes the noise of tuning.")
