"""The coordinate check and the learning-rate transfer: what they say of widths is true of the models."""

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
from partwise.inspection import attention, coordinates, transfer, widths
from partwise.inspection.coordinates import FLAT, activations, check, reading, slope
from partwise.inspection.subject import Subject, find_subject
from partwise.inspection.transfer import Kept, Point, best_of, last_loss, lowest_rate, moved
from partwise.inspection.widths import trial, widened
from partwise.model import Transformer
from partwise.overrides import apply_overrides, flatten
from partwise.parts.scores import Scores
from partwise.train.folder import RunFolder
from partwise.train.loop import Run
from partwise.train.settings import resolve
from recipes import configs, error, source_of, tokens

if TYPE_CHECKING:
    from partwise.train.settings import RunConfig

SMALL = ["data=arithmetic", "data.train=2000", "data.validation=50", "data.test=50", "train.device=cpu"]
PLAIN = [
    "train.attention_path=fused",
    "train.ffn_path=torch",
    "train.block_path=layers",
]  # nothing here needs the compiled kernels
SMALL += PLAIN


@pytest.fixture(scope="module")
def tiny(tiny: "Callable[..., RunConfig]") -> "Callable[..., RunConfig]":
    return lambda *words: tiny(*PLAIN, *words)


@given(st.floats(-2, 2), st.floats(1e-3, 1e3), st.lists(st.integers(1, 4096), min_size=2, max_size=6, unique=True))
@settings(max_examples=50)
def test_the_slope_of_a_power_is_its_exponent(power: float, factor: float, widths: list[int]) -> None:
    assert slope(widths, [factor * width**power for width in widths]) == pytest.approx(power, abs=1e-9)


def test_the_slope_by_hand() -> None:
    assert slope([64, 128, 256], [1.0, 4.0, 4.0]) == pytest.approx(1.0)  # mean of two octaves up by two
    assert slope([64, 128], [3.0, 6.0]) == pytest.approx(1.0)
    assert math.isnan(slope([64, 128], [0.0, 1.0])) and math.isnan(slope([64, 128], [1.0, math.inf]))


def test_readings() -> None:
    found = [reading(number) for number in (-1.0, -FLAT, 0.0, FLAT, FLAT + 1e-9, math.nan)]
    assert found == ["shrinks", "flat", "flat", "flat", "grows", ""]


def last_slopes(*words: str) -> dict[str, float]:
    """By site, how steeply the change by four updates grows from width 64 to 256."""
    subject = find_subject("mingpt", [*SMALL, *words])
    config, _ = trial(subject, steps=4, precision="float32")
    found = check(config, subject.dataset, (64, 128, 256), 1)
    return {site: slope(found.widths, change[-1]) for site, change in found.changes.items()}


def test_mup_is_flat_where_the_usual_rule_grows() -> None:
    rate = "train.lr=0.001"
    flat, growing = last_slopes("init=mup", rate), last_slopes("init=normal", rate)
    inside = ["attention", "ffn", "stream"]
    assert all(reading(flat[site]) == "flat" for site in ("embedding", *inside)), flat
    assert not any(reading(steep) == "grows" for steep in flat.values()), flat
    assert all(growing[site] > 0.5 for site in ("scores", *inside, "logits")), growing
    assert reading(growing["embedding"]) == "flat"  # a row of the table is picked, not summed over


def test_the_check_measures_what_training_did(tiny: "Callable[..., RunConfig]") -> None:
    """Sizes and changes as of two models that were trained apart from it."""
    config = tiny("train.steps=2")
    run = Run(config)
    found = coordinates.train(run)
    inputs = torch.from_numpy(Run(config).batch().inputs)
    start, end = Transformer(config.model).eval(), run.model.eval()
    with torch.no_grad():
        before, after = start(inputs), end(inputs)
    sizes, changes = found["logits"]
    assert sizes.shape == (3,) and changes[0] == 0
    assert sizes[[0, 2]] == pytest.approx([before.abs().mean().item(), after.abs().mean().item()], rel=1e-6)
    assert changes[2] == pytest.approx((after - before).abs().mean().item(), rel=1e-6)
    moved = (end.embed(inputs) - start.embed(inputs)).abs().mean().item()
    assert found["embedding"][1][2] == pytest.approx(moved, rel=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_scores_are_those_of_each_head(groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 5, 3, generator=generator, dtype=torch.float64)
    k = torch.randn(2, groups, 7, 3, generator=generator, dtype=torch.float64)
    found = coordinates.products(Scores(0.3, 2.0, 0, 0.0), q, k)
    for head in range(4):
        expected = 0.3 * q[:, head] @ k[:, head // (4 // groups)].mT
        assert (found[:, head] - expected).abs().max() < 1e-12


@given(configs())
@settings(max_examples=15)
def test_every_combination_has_its_sites(config: partwise.ModelConfig) -> None:
    model = Transformer(config).double()
    source = source_of(model, tokens())
    found = activations(model, tokens(), source)
    with torch.no_grad():
        logits = model(tokens(), source=source)
    cap = config.head_softcap
    head = found["logits"][0] if cap is None else cap * torch.tanh(found["logits"][0] / cap)
    assert torch.equal(head, logits)
    assert [len(found[site]) for site in ("attention", "ffn", "stream")] == [config.n_layers, config.n_layers, 1]
    every_call = attention.calls_of(model, tokens(), source)
    calls = [call for name, each in every_call.items() if attention.place_of(name)[0] == "self" for call in each]
    for scores, (layer, q, k, _) in zip(found["scores"], calls, strict=True):
        shared = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        assert error(scores, q @ shared.mT * layer.scale) <= 1e-12
    assert ("encoder stream" in found) == ("cross" in found) == (config.encoder_layers > 0)
    assert not any(module._forward_hooks for module in model.modules())


def trainable(config: partwise.ModelConfig, tiny: "Callable[..., RunConfig]") -> "RunConfig":
    """A random model as one that learns arithmetic, where it has an encoder from pairs."""
    values = tiny("train.steps=2").to_dict() | config.to_dict()
    values |= {"padding_idx": None, "max_len": 64, "vocab_size": 40}
    data = {"data": "arithmetic_pairs" if config.encoder_layers else "arithmetic"}
    sizes = {"data.train": 500, "data.validation": 20, "data.test": 20}
    return resolve(apply_overrides(values, flatten(data | sizes)), own_vocabulary=True)


@given(configs())
@settings(max_examples=6, phases=[Phase.generate])  # a failure is not worth the minutes of making it smaller
def test_any_combination_is_checked(tiny: "Callable[..., RunConfig]", config: partwise.ModelConfig) -> None:
    whole = trainable(config, tiny)
    found = check(whole, Run(whole).dataset, (config.d_model, 2 * config.d_model), 1)
    for site, sizes in found.sizes.items():
        assert sizes.shape == found.changes[site].shape == (3, 2)
        assert np.isfinite(sizes).all() and not found.changes[site][0].any(), site
    assert (found.changes["logits"][1:] > 0).all()


@given(configs())
@settings(max_examples=1, phases=[Phase.generate])
def test_a_look_at_an_encoder_decoder(tiny: "Callable[..., RunConfig]", config: partwise.ModelConfig) -> None:
    assume(config.encoder_layers > 0)
    whole = trainable(config, tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinates, "WIDTHS", (config.d_model, 2 * config.d_model))
        patch.setattr(coordinates, "UPDATES", 2)
        patch.setattr(coordinates, "SEEDS", 1)
        patch.setattr(widths, "before_overrides", lambda subject: whole)
        found = coordinates.look(Subject("random", whole, Path()))
    names = [row[0] for row in found.rows]
    assert {"Δ encoder ffn", "Δ cross scores", "logits", "encoder stream"} <= set(names)
    assert len(found.columns) == 5 == len(found.rows[0])
    assert "nan" not in " ".join(cell for row in found.rows for cell in row)
    assert len(found.figures) == 2 and "cross scores" in found.figures[0].svg


def test_widths_given_as_numbers_keep_their_proportion() -> None:
    config = find_subject("deepseek", SMALL).config
    wide = widened(config, 256).model
    old, new = config.model.attention.to_dict(), wide.attention.to_dict()
    for name in ("head_dim", "rope_dim", "value_dim", "kv_rank", "q_rank"):
        assert new[name] == 2 * old[name], name
    assert new["n_heads"] == old["n_heads"] and wide.d_model == 256
    hidden = [[part["hidden"] for part in each.to_dict()["ffn"]] for each in (config.model, wide)]
    assert hidden[1] == [2 * each for each in hidden[0]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention.head_dim=14"], "width 64: attention.head_dim=14 of d_model=96 would be 9.33 there: set"),
        (["attention.n_heads=3"], "width 64: attention.n_heads=3 does not divide d_model=64: choose a divisor"),
    ],
)
def test_a_width_that_does_not_fit_is_refused(words: list[str], message: str) -> None:
    subject = find_subject("mingpt", [*SMALL, *words])
    with pytest.raises(ConfigError, match=message):
        check(trial(subject)[0], subject.dataset, (64,), 1)


def test_what_is_tried_follows_the_subject() -> None:
    config, about = trial(find_subject("deepseek", SMALL, context=16), steps=7)
    assert (config.model.n_layers, config.train.context, config.train.steps) == (2, 16, 7)
    assert config.schedule.name == "constant" and "2 (not 4) layers" in about and "8 rows of 16 tokens" in about
    config, about = trial(find_subject("mingpt", [*SMALL, "n_layers=3", "schedule=wsd"]))
    assert (config.model.n_layers, config.schedule.name) == (3, "wsd") and " 3 layers" in about
    with pytest.raises(ConfigError, match="--text: this look trains"):
        trial(find_subject("mingpt", SMALL, text="1+1"))


def test_a_run_lends_its_configuration_alone(tmp_path: Path, tiny: "Callable[..., RunConfig]") -> None:
    for _ in RunFolder(tmp_path / "one", tiny("n_layers=3"), command=["test"]).events():
        pass
    config, about = trial(find_subject(str(tmp_path / "one"), []))
    assert "fresh initial values" in about and config.model.n_layers == 2


RATES = (1e-3, 1e-2)


def tried(tiny: "Callable[..., RunConfig]", folder: Path, rates: tuple[float, ...] = RATES) -> list[Point]:
    config = tiny()
    dataset = Run(config).dataset
    return transfer.transfer(transfer.plan(config, dataset, (8, 16), rates), dataset, Kept(folder / "kept.json"))


def test_a_kept_run_is_not_trained_again(
    tmp_path: Path, tiny: "Callable[..., RunConfig]", monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[float] = []

    def counting(run: Run) -> float | None:
        trained.append(run.config.train.lr)
        return last_loss(run)

    monkeypatch.setattr(transfer, "last_loss", counting)
    first = tried(tiny, tmp_path)
    assert trained == [1e-3, 1e-3, 1e-2, 1e-2] and [point.width for point in first] == [8, 16, 8, 16]
    assert tried(tiny, tmp_path) == first and len(trained) == 4
    assert tried(tiny, tmp_path, (*RATES, 1e-4))[:4] == first and trained[4:] == [1e-4, 1e-4]
    tried(lambda: tiny("train.seed=1"), tmp_path)  # of another configuration nothing is kept
    assert len(trained) == 10


def test_a_point_is_the_mean_of_the_last_losses(tiny: "Callable[..., RunConfig]") -> None:
    config = tiny("train.steps=14")
    losses = [step.loss for step in Run(config).steps()]
    assert last_loss(Run(config)) == pytest.approx(np.mean(losses[4:]), rel=1e-12)


@pytest.mark.parametrize("lr", [3.0, 1e30])
def test_a_run_that_diverges_has_no_number(lr: float, tmp_path: Path, tiny: "Callable[..., RunConfig]") -> None:
    """One whose loss is finite and higher than at the start, and one whose loss is not."""
    points = tried(lambda: tiny("train.steps=12"), tmp_path, (1e-3, lr))
    assert [point.loss is None for point in points] == [False, False, True, True]
    assert [entry["loss"] for entry in json.loads((tmp_path / "kept.json").read_text())["points"].values()][2:] == [
        None,
        None,
    ]
    best = {width: best_of(points, width) for width in (8, 16)}
    assert [row[1:] for row in transfer.grid_of(points, (1e-3, lr), best)][1] == ("diverged ", "diverged ")
    assert transfer.curves(points, best).svg.startswith("<svg")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"points": {"a": 3}}', '{"points": {"a": {"loss": "low"}}}'])
def test_a_damaged_record_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(content)
    with pytest.raises(ConfigError, match=r"kept.json is no record of such runs: delete it"):
        Kept(tmp_path / "kept.json")


def test_the_best_rates_are_compared() -> None:
    table = {64: {1e-3: 2.0, 2e-3: 1.5, 4e-3: 1.6}, 128: {1e-3: 1.4, 2e-3: 1.5, 4e-3: None}}
    points = [Point(width, lr, loss) for width, row in table.items() for lr, loss in row.items()]
    best = {width: best_of(points, width) for width in table}
    assert best == {64: Point(64, 2e-3, 1.5), 128: Point(128, 1e-3, 1.4)}
    assert best_of([Point(64, 1e-3, None)], 64) is None
    assert "at width 128 is at the end" in transfer.at_the_end(best, [1e-3, 2e-3, 4e-3])
    assert transfer.at_the_end({64: best[64]}, [1e-3, 2e-3, 4e-3]) == ""
    assert transfer.cost_of(points, best, 128) == "0.1000"


def test_moves_in_words() -> None:
    assert moved({64: 2e-3, 128: 3e-3, 256: 1e-3}) == "the best rate moves 1.0 octaves down from width 64 to 256"
    assert moved({64: 2e-3, 128: 1.6e-2}) == "the best rate moves 3.0 octaves up from width 64 to 128"
    assert moved({64: 2e-3, 128: 2.01e-3}) == "the best rate stays from width 64 to 128"
    assert "nothing to compare" in moved({64: None, 128: 1e-3})


@given(st.floats(-2.4, 2.4), st.floats(0.01, 10), st.floats(-5, 5))
@settings(max_examples=50)
def test_the_lowest_rate_of_a_parabola_is_found(octave: float, bend: float, loss: float) -> None:
    points = [Point(64, 2.0**k, loss + bend * (k - octave) ** 2) for k in range(-3, 4)]
    rate = lowest_rate(points[::-1], 64)
    assert rate is not None and math.log2(rate) == pytest.approx(octave, abs=1e-6)


def test_at_an_end_or_beside_a_diverged_run_the_lowest_rate_is_one_that_was_tried() -> None:
    assert lowest_rate([Point(64, 1.0, 2.0), Point(64, 2.0, 3.0)], 64) == 1.0
    assert lowest_rate([Point(64, 1.0, 3.0), Point(64, 2.0, 2.0)], 64) == 2.0
    assert lowest_rate([Point(64, 1.0, 3.0), Point(64, 2.0, 2.0), Point(64, 4.0, None)], 64) == 2.0
    assert lowest_rate([Point(64, 2.0**k, 2.0) for k in range(3)], 64) == 1.0
    assert lowest_rate([Point(64, 1.0, None), Point(8, 1.0, 2.0)], 64) is None


def test_an_interrupt_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the same look continues, and says what it found."""
    subject = find_subject("mingpt", [*SMALL, "train.steps=3", "n_layers=1", "attention.n_heads=2"])
    subject = Subject(subject.name, subject.config, tmp_path)
    monkeypatch.setattr(transfer, "WIDTHS", (8, 16))
    monkeypatch.setattr(transfer, "OCTAVES", range(2))
    made: list[int] = []

    def interrupted(run: Run) -> float | None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(run.config.model.d_model)
        return last_loss(run)

    monkeypatch.setattr(transfer, "last_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transfer.look(subject)
    kept = tmp_path / "inspect-transfer-mingpt.json"
    assert len(json.loads(kept.read_text())["points"]) == 3 and str(kept) in capsys.readouterr().out
    monkeypatch.setattr(transfer, "last_loss", lambda run: made.append(run.config.model.d_model) or last_loss(run))
    found = transfer.look(subject)
    assert made == [8, 16, 8, 16] and "3 steps" in found.about
    assert [row[0] for row in found.rows] == [
        "0.0003",
        "0.0006",
        "best rate",
        "moved, octaves",
        "lost at 8's *",
    ]
    assert sum(cell.endswith("*") for row in found.rows for cell in row[1:]) == 2
