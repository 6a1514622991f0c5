"""Tuning uses its own seeds and a split of the training text, and reports both verdicts."""

import json
from pathlib import Path

import numpy as np
import pytest

import partwise
from comparisons import SETTINGS
from partwise.comparison.design.request import Request
from partwise.comparison.experiment import make_comparison, plan_comparison
from partwise.comparison.tuning import FIRST_TUNING_SEED, parse_tune
from partwise.config import ConfigError
from partwise.data import SequencePairs, build_examples, prepare
from partwise.evaluate.references import dataset_references
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


def test_tuning_uses_its_own_seeds_and_split_and_finds_the_best_value(here: Path) -> None:
    comparison = partwise.compare("mingpt", "ffn=swiglu", **SETTINGS, seeds=2, tune="train.lr=1e-5,3e-4,1e-2", name="t")
    results = comparison.results
    tuned = results.tuning
    assert tuned.seeds == (FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1) and tuned.runs == 12
    for row in tuned.arms:
        assert row.best == tuned.values[int(np.argmin(row.means))]
        assert row.interior == (row.best == "3e-4") and row.default == 3e-4
    for job in Path("runs/t/tuning").glob("*/*/job.json"):
        config = json.loads(job.read_text())["config"]
        assert config["train"]["tuning_split"] and config["train"]["seed"] >= FIRST_TUNING_SEED
    names = [(effect.arm, effect.against) for effect in results.effects]
    assert names == [
        ("ffn=swiglu", "mingpt"),
        ("ffn=swiglu train.lr=1e-2", "mingpt train.lr=1e-2"),
    ], "both verdicts: at the default, and at each arm's best"
    changes = [{key: new for key, _, new in arm.config_changes} for arm in results.arms]
    lr = results.config["train"]["lr"]
    assert [each.get("train.lr", lr) for each in changes] == [3e-4, 3e-4, 1e-2, 1e-2]
    assert "Tuned on 2 seeds" in (Path("runs/t") / "report.md").read_text()
    assert comparison.hash == json.loads((comparison.path / "compare.json").read_text())["hash"]
    assert comparison.run().claims == results.claims, "a repeated run gives the same comparison"


def test_an_estimate_counts_tuning_runs(here: Path) -> None:
    plain, tuned = (
        make_comparison(
            Request.from_dict({"preset": "mingpt", "change": ["ffn=swiglu"], **SETTINGS, "seeds": 3, **more})
        )
        for more in ({}, {"tune": "train.lr=1e-3,1e-2", "tune_seeds": 2})
    )
    assert (plain.estimate().runs, tuned.estimate().runs) == (6, 6 + 2 * (3 + 2 * 2))


@pytest.mark.parametrize("text", ["train.lr", "train.lr=", "train.lr=1", "train.lr=1,1", "=1,2"])
def test_tuning_over_fewer_than_two_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tune"):
        parse_tune(text)


def test_tuning_and_test_seeds_never_overlap(here: Path) -> None:
    with pytest.raises(ConfigError, match="are for tuning"):
        plan_comparison("mingpt", "ffn=swiglu", **SETTINGS, tune="train.lr=1e-3,1e-2", first_seed=FIRST_TUNING_SEED - 2)
