"""The coordinate check and learning-rate transfer are correct."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import partwise
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, flatten
from partwise.inspection import attention, coordinate_check, lr_transfer, widths
from partwise.inspection.coordinate_check import FLAT, collect_outputs, measure, slope, trend
from partwise.inspection.lr_transfer import (
    RunCache,
    SweepPoint,
    best_point,
    describe_shift,
    final_loss,
    optimal_lr,
)
from partwise.inspection.subject import Subject, find_subject
from partwise.inspection.widths import small_config, with_width
from partwise.model import Transformer
from partwise.parts.attention.core import AttentionCore
from partwise.train.config import resolve_settings
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder
from recipes import configs, error, source_of, tokens

if TYPE_CHECKING:
    from partwise.train.config import RunConfig

SMALL = ["data=arithmetic", "data.train=2000", "data.validation=50", "data.test=50", "train.device=cpu"]
PLAIN = [
    "train.attention_backend=eager",
    "train.ffn_backend=eager",
    "train.block_backend=eager",
]  # no test here needs the compiled kernels
SMALL += PLAIN


@pytest.fixture(scope="module")
def tiny(tiny: "Callable[..., RunConfig]") -> "Callable[..., RunConfig]":
    return lambda *words: tiny(*PLAIN, *words)


@given(st.floats(-2, 2), st.floats(1e-3, 1e3), st.lists(st.integers(1, 4096), min_size=2, max_size=6, unique=True))
@settings(max_examples=50)
def test_the_slope_of_a_power_is_its_exponent(power: float, factor: float, widths: list[int]) -> None:
    assert slope(widths, [factor * width**power for width in widths]) == pytest.approx(power, abs=1e-9)


def test_the_slope_by_hand() -> None:
    assert slope([64, 128, 256], [1.0, 4.0, 4.0]) == pytest.approx(1.0)  # two octaves of width, a rise of two octaves
    assert slope([64, 128], [3.0, 6.0]) == pytest.approx(1.0)
    assert math.isnan(slope([64, 128], [0.0, 1.0])) and math.isnan(slope([64, 128], [1.0, math.inf]))


def test_trends() -> None:
    trends = [trend(number) for number in (-1.0, -FLAT, 0.0, FLAT, FLAT + 1e-9, math.nan)]
    assert trends == ["shrinks", "flat", "flat", "flat", "grows", ""]


def last_slopes(*words: str) -> dict[str, float]:
    """The slope of the change over four steps, from width 64 to 256, by site."""
    subject = find_subject("mingpt", [*SMALL, *words])
    config, _ = small_config(subject, steps=4, precision="float32")
    result = measure(config, subject.dataset, (64, 128, 256), 1)
    return {site: slope(result.widths, change[-1]) for site, change in result.changes.items()}


def test_mup_is_flat_where_the_standard_initialization_grows() -> None:
    rate = "train.lr=0.001"
    flat, growing = last_slopes("init=mup", rate), last_slopes("init=normal", rate)
    inside = ["attention", "ffn", "stream"]
    assert all(trend(flat[site]) == "flat" for site in ("embedding", *inside)), flat
    assert not any(trend(value) == "grows" for value in flat.values()), flat
    assert all(growing[site] > 0.5 for site in ("scores", *inside, "logits")), growing
    assert trend(growing["embedding"]) == "flat"  # an embedding is looked up, not summed over


def test_the_check_equals_separate_training(tiny: "Callable[..., RunConfig]") -> None:
    """Sizes and changes equal those of an initial and a separately trained model."""
    config = tiny("train.steps=2")
    run = Run(config)
    measured = coordinate_check.train_and_measure(run)
    inputs = torch.from_numpy(Run(config).batch().inputs)
    start, end = Transformer(config.model).eval(), run.model.eval()
    with torch.no_grad():
        before, after = start(inputs), end(inputs)
    sizes, changes = measured["logits"]
    assert sizes.shape == (3,) and changes[0] == 0
    assert sizes[[0, 2]] == pytest.approx([before.abs().mean().item(), after.abs().mean().item()], rel=1e-6)
    assert changes[2] == pytest.approx((after - before).abs().mean().item(), rel=1e-6)
    change = (end.embed(inputs) - start.embed(inputs)).abs().mean().item()
    assert measured["embedding"][1][2] == pytest.approx(change, rel=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_scores_equal_those_of_each_head(groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 5, 3, generator=generator, dtype=torch.float64)
    k = torch.randn(2, groups, 7, 3, generator=generator, dtype=torch.float64)
    scores = coordinate_check.attention_scores(AttentionCore(3, 0.3, softcap=2.0), q, k)
    for head in range(4):
        expected = 0.3 * q[:, head] @ k[:, head // (4 // groups)].mT
        assert (scores[:, head] - expected).abs().max() < 1e-12


@given(configs())
@settings(max_examples=15)
def test_every_combination_has_its_sites(config: partwise.ModelConfig) -> None:
    model = Transformer(config).double()
    source = source_of(model, tokens())
    outputs = collect_outputs(model, tokens(), source)
    with torch.no_grad():
        logits = model(tokens(), source=source)
    cap = config.logit_softcap
    head = outputs["logits"][0] if cap is None else cap * torch.tanh(outputs["logits"][0] / cap)
    assert torch.equal(head, logits)
    assert [len(outputs[site]) for site in ("attention", "ffn", "stream")] == [config.n_layers, config.n_layers, 1]
    recorded = attention.record_calls(model, tokens(), source)
    calls = [call for name, each in recorded.items() if attention.kind_and_layer(name)[0] == "self" for call in each]
    for scores, (core, q, k, _) in zip(outputs["scores"], calls, strict=True):
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        assert error(scores, q @ keys.mT * core.scale) <= 1e-12
    assert ("encoder stream" in outputs) == ("cross" in outputs) == (config.encoder_layers > 0)
    assert not any(module._forward_hooks for module in model.modules())


def trainable(config: partwise.ModelConfig, tiny: "Callable[..., RunConfig]") -> "RunConfig":
    """A random model trained on arithmetic, with an encoder on pairs."""
    values = tiny("train.steps=2").to_dict() | config.to_dict()
    values |= {"padding_idx": None, "context_length": 64, "vocab_size": 40}
    data = {"data": "arithmetic_pairs" if config.encoder_layers else "arithmetic"}
    sizes = {"data.train": 500, "data.validation": 20, "data.test": 20}
    return resolve_settings(apply_overrides(values, flatten(data | sizes)), explicit_vocab_size=True)


@given(configs())
@settings(max_examples=6, phases=[Phase.generate])  # shrinking a failure would take minutes
def test_any_combination_is_checked(tiny: "Callable[..., RunConfig]", config: partwise.ModelConfig) -> None:
    run_config = trainable(config, tiny)
    result = measure(run_config, Run(run_config).dataset, (config.d_model, 2 * config.d_model), 1)
    for site, sizes in result.sizes.items():
        assert sizes.shape == result.changes[site].shape == (3, 2)
        assert np.isfinite(sizes).all() and not result.changes[site][0].any(), site
    assert (result.changes["logits"][1:] > 0).all()


@given(configs())
@settings(max_examples=1, phases=[Phase.generate])
def test_page_of_an_encoder_decoder(tiny: "Callable[..., RunConfig]", config: partwise.ModelConfig) -> None:
    assume(config.encoder_layers > 0)
    run_config = trainable(config, tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinate_check, "WIDTHS", (config.d_model, 2 * config.d_model))
        patch.setattr(coordinate_check, "STEPS", 2)
        patch.setattr(coordinate_check, "SEEDS", 1)
        patch.setattr(widths, "original_config", lambda subject: run_config)
        page = coordinate_check.inspect(Subject("random", run_config, Path()))
    names = [row[0] for row in page.rows]
    assert {"Δ encoder ffn", "Δ cross scores", "logits", "encoder stream"} <= set(names)
    assert len(page.columns) == 5 == len(page.rows[0])
    assert "nan" not in " ".join(cell for row in page.rows for cell in row)
    assert len(page.figures) == 2 and "cross scores" in page.figures[0].svg


def test_explicit_widths_keep_their_ratio() -> None:
    config = find_subject("deepseek", SMALL).config
    wide = with_width(config, 256).model
    old, new = config.model.attention.to_dict(), wide.attention.to_dict()
    for name in ("head_dim", "rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"):
        assert new[name] == 2 * old[name], name
    assert new["n_heads"] == old["n_heads"] and wide.d_model == 256
    hidden = [[part["hidden"] for part in each.to_dict()["ffn"]] for each in (config.model, wide)]
    assert hidden[1] == [2 * each for each in hidden[0]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention.head_dim=14"], "width 64: attention.head_dim=14 at d_model=96 would become 9.33: set"),
        (["attention.n_heads=3"], "width 64: attention.n_heads=3 does not divide d_model=64: choose a divisor"),
    ],
)
def test_an_invalid_width_is_refused(words: list[str], message: str) -> None:
    subject = find_subject("mingpt", [*SMALL, *words])
    with pytest.raises(ConfigError, match=message):
        measure(small_config(subject)[0], subject.dataset, (64,), 1)


def test_the_small_config_follows_the_subject() -> None:
    config, about = small_config(find_subject("deepseek", SMALL, seq_len=16), steps=7)
    assert (config.model.n_layers, config.train.seq_len, config.train.steps) == (2, 16, 7)
    assert config.schedule.name == "constant" and "2 (not 4) layers" in about and "8 rows of 16 tokens" in about
    config, about = small_config(find_subject("mingpt", [*SMALL, "n_layers=3", "schedule=wsd"]))
    assert (config.model.n_layers, config.schedule.name) == (3, "wsd") and " 3 layers" in about
    with pytest.raises(ConfigError, match="--text: this inspection trains"):
        small_config(find_subject("mingpt", SMALL, text="1+1"))


def test_a_run_gives_only_its_configuration(tmp_path: Path, tiny: "Callable[..., RunConfig]") -> None:
    for _ in RunFolder(tmp_path / "one", tiny("n_layers=3"), command=["test"]).events():
        pass
    config, about = small_config(find_subject(str(tmp_path / "one"), []))
    assert "new initial weights" in about and config.model.n_layers == 2


RATES = (1e-3, 1e-2)


def sweep(tiny: "Callable[..., RunConfig]", folder: Path, rates: tuple[float, ...] = RATES) -> list[SweepPoint]:
    config = tiny()
    dataset = Run(config).dataset
    runs = lr_transfer.plan_runs(config, dataset, (8, 16), rates)
    return lr_transfer.train_runs(runs, dataset, RunCache(folder / "finished.json"))


def test_a_finished_run_is_not_repeated(
    tmp_path: Path, tiny: "Callable[..., RunConfig]", monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[float] = []

    def counting(run: Run) -> float | None:
        trained.append(run.config.train.lr)
        return final_loss(run)

    monkeypatch.setattr(lr_transfer, "final_loss", counting)
    first = sweep(tiny, tmp_path)
    assert trained == [1e-3, 1e-3, 1e-2, 1e-2] and [point.width for point in first] == [8, 16, 8, 16]
    assert sweep(tiny, tmp_path) == first and len(trained) == 4
    assert sweep(tiny, tmp_path, (*RATES, 1e-4))[:4] == first and trained[4:] == [1e-4, 1e-4]
    sweep(lambda: tiny("train.seed=1"), tmp_path)  # another configuration has no finished runs
    assert len(trained) == 10


def test_a_point_is_the_mean_of_the_last_losses(tiny: "Callable[..., RunConfig]") -> None:
    config = tiny("train.steps=14")
    losses = [step.loss for step in Run(config).steps()]
    assert final_loss(Run(config)) == pytest.approx(np.mean(losses[4:]), rel=1e-12)


@pytest.mark.parametrize("lr", [3.0, 1e30])
def test_a_diverged_run_has_no_loss(lr: float, tmp_path: Path, tiny: "Callable[..., RunConfig]") -> None:
    """One run with a finite loss above its first, and one with a loss that is not finite."""
    points = sweep(lambda: tiny("train.steps=12"), tmp_path, (1e-3, lr))
    assert [point.loss is None for point in points] == [False, False, True, True]
    assert [entry["loss"] for entry in json.loads((tmp_path / "finished.json").read_text())["points"].values()][2:] == [
        None,
        None,
    ]
    best = {width: best_point(points, width) for width in (8, 16)}
    assert [row[1:] for row in lr_transfer.grid_rows(points, (1e-3, lr), best)][1] == ("diverged ", "diverged ")
    assert lr_transfer.loss_figure(points, best).svg.startswith("<svg")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"points": {"a": 3}}', '{"points": {"a": {"loss": "low"}}}'])
def test_a_damaged_record_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "finished.json").write_text(content)
    with pytest.raises(ConfigError, match=r"finished.json is not a valid record of learning-rate runs: delete"):
        RunCache(tmp_path / "finished.json")


def test_the_best_rates_are_compared() -> None:
    table = {64: {1e-3: 2.0, 2e-3: 1.5, 4e-3: 1.6}, 128: {1e-3: 1.4, 2e-3: 1.5, 4e-3: None}}
    points = [SweepPoint(width, lr, loss) for width, row in table.items() for lr, loss in row.items()]
    best = {width: best_point(points, width) for width in table}
    assert best == {64: SweepPoint(64, 2e-3, 1.5), 128: SweepPoint(128, 1e-3, 1.4)}
    assert best_point([SweepPoint(64, 1e-3, None)], 64) is None
    assert "at width 128 is at the edge" in lr_transfer.edge_warning(best, [1e-3, 2e-3, 4e-3])
    assert lr_transfer.edge_warning({64: best[64]}, [1e-3, 2e-3, 4e-3]) == ""
    assert lr_transfer.excess_loss(points, best, 128) == "0.1000"


def test_shifts_in_words() -> None:
    assert (
        describe_shift({64: 2e-3, 128: 3e-3, 256: 1e-3}) == "the best rate moves 1.0 octaves down from width 64 to 256"
    )
    assert describe_shift({64: 2e-3, 128: 1.6e-2}) == "the best rate moves 3.0 octaves up from width 64 to 128"
    assert describe_shift({64: 2e-3, 128: 2.01e-3}) == "the best rate is constant from width 64 to 128"
    assert "no comparison" in describe_shift({64: None, 128: 1e-3})


@given(st.floats(-2.4, 2.4), st.floats(0.01, 10), st.floats(-5, 5))
@settings(max_examples=50)
def test_the_minimum_of_a_parabola_is_found(octave: float, curvature: float, loss: float) -> None:
    points = [SweepPoint(64, 2.0**k, loss + curvature * (k - octave) ** 2) for k in range(-3, 4)]
    rate = optimal_lr(points[::-1], 64)
    assert rate is not None and math.log2(rate) == pytest.approx(octave, abs=1e-6)


def test_at_an_edge_or_next_to_a_diverged_run_the_optimal_lr_is_on_the_grid() -> None:
    assert optimal_lr([SweepPoint(64, 1.0, 2.0), SweepPoint(64, 2.0, 3.0)], 64) == 1.0
    assert optimal_lr([SweepPoint(64, 1.0, 3.0), SweepPoint(64, 2.0, 2.0)], 64) == 2.0
    assert optimal_lr([SweepPoint(64, 1.0, 3.0), SweepPoint(64, 2.0, 2.0), SweepPoint(64, 4.0, None)], 64) == 2.0
    assert optimal_lr([SweepPoint(64, 2.0**k, 2.0) for k in range(3)], 64) == 1.0
    assert optimal_lr([SweepPoint(64, 1.0, None), SweepPoint(8, 1.0, 2.0)], 64) is None


def test_an_interrupt_keeps_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same inspection then resumes and completes."""
    subject = find_subject("mingpt", [*SMALL, "train.steps=3", "n_layers=1", "attention.n_heads=2"])
    subject = Subject(subject.name, subject.config, tmp_path)
    monkeypatch.setattr(lr_transfer, "WIDTHS", (8, 16))
    monkeypatch.setattr(lr_transfer, "OCTAVES", range(2))
    trained: list[int] = []

    def interrupted(run: Run) -> float | None:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(run.config.model.d_model)
        return final_loss(run)

    monkeypatch.setattr(lr_transfer, "final_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lr_transfer.inspect(subject)
    record = tmp_path / "inspect-lr-transfer-mingpt.json"
    assert len(json.loads(record.read_text())["points"]) == 3 and str(record) in capsys.readouterr().out
    monkeypatch.setattr(
        lr_transfer, "final_loss", lambda run: trained.append(run.config.model.d_model) or final_loss(run)
    )
    page = lr_transfer.inspect(subject)
    assert trained == [8, 16, 8, 16] and "3 steps" in page.about
    assert [row[0] for row in page.rows] == [
        "0.0003",
        "0.0006",
        "best rate",
        "shift, octaves",
        "excess loss",
    ]
    assert sum(cell.endswith("*") for row in page.rows for cell in row[1:]) == 2
