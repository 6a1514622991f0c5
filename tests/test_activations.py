"""What `inspect ... activations` reports is what flows, counted by other means; and activations have their curves."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import partwise
from partwise.config import REGISTRY, ConfigError
from partwise.inspection import curves
from partwise.inspection.activations import Activations, Place, Tally, look, observe, share
from partwise.inspection.page import write_page
from partwise.inspection.recording import sites, watching
from partwise.inspection.subject import Subject
from partwise.parts.experts import GatedExperts, MixtureOfExperts
from partwise.parts.families import Site
from partwise.parts.feed_forward import Gated, Wide
from partwise.parts.mlp import MLP, GatedMLP
from recipes import LENGTH, VOCAB, ask, configs, perturbed, source_of

EXACT = 1e-12
VARIANTS = list(curves.variants())
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


def rows(batch: int = 5) -> Tensor:
    """(B, T) ids, some of which may be padding: no model can tell whether a row ends there."""
    return (torch.arange(LENGTH) * 3 + torch.arange(batch)[:, None] * 5) % VOCAB


def by_hand(model: partwise.Transformer, tokens: Tensor) -> dict[Place, Tensor]:
    """What flows at every place, of the tokens that are no padding: (N, U), nan for the units of experts not chosen."""
    found: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    pattern = r"(encoder\.)?blocks\.\d+(\.(mixing|attention|cross|ffn))?"
    layers = sites(model, r"(encoder\.)?blocks\.\d+\.ffn").items()

    def take(name: str, args: tuple[Tensor, ...], output: Tensor) -> None:
        found[name], inputs[name] = output.clone(), args[0].flatten(0, 1).clone()

    with torch.no_grad(), watching(model, pattern, take):
        ask(model, tokens)
    read = {"decoder": tokens, "encoder": source_of(model, tokens)}
    padding = -1 if model.config.padding_idx is None else model.config.padding_idx
    real = {stack: ids.flatten() != padding for stack, ids in read.items() if ids is not None}
    result: dict[Place, Tensor] = {}

    def note(name: str, values: Tensor) -> None:
        words = name.removeprefix("encoder.").split(".", 2)
        stack = "encoder" if name.startswith("encoder.") else "decoder"
        result[Place(stack, int(words[1]), words[2] if len(words) > 2 else "stream")] = values[real[stack]]

    for name, output in found.items():
        note(name, output.flatten(0, 1).flatten(1))
    for name, module in layers:
        for path, values in feed_forward_by_hand(name, module, inputs[name]).items():
            note(path, values)
    return result


@torch.no_grad()
def feed_forward_by_hand(name: str, module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Before and after the activation, from the weights as they are saved and the input (N, D)."""
    if isinstance(module, MLP | GatedMLP):
        state, weights = module.state_dict(), ("gate", "up") if isinstance(module, GatedMLP) else ("up",)
        maps = [x @ state[f"{key}.weight"].T + state.get(f"{key}.bias", torch.zeros(())) for key in weights]
        return {f"{name}: pre": maps[0], f"{name}: hidden": times(module.activation(maps[0].clone()), maps)}
    assert isinstance(module, MixtureOfExperts)
    experts = module.experts
    stacked = [experts.gate.weight, experts.up.weight] if isinstance(experts, GatedExperts) else [experts.up.weight]
    pre = x.new_full((len(x), *stacked[0].shape[:2]), torch.nan)  # (N, X, F)
    hidden = pre.clone()
    for token, chosen in enumerate(module.router(x, None)[1]):
        for expert in chosen:
            maps = [weight[expert] @ x[token] for weight in stacked]
            pre[token, expert] = maps[0]
            hidden[token, expert] = times(experts.activation(maps[0].clone()), maps)
    found = {f"{name}.experts: pre": pre.flatten(1), f"{name}.experts: hidden": hidden.flatten(1)}
    return found if module.shared is None else found | feed_forward_by_hand(f"{name}.shared", module.shared, x)


def times(activated: Tensor, maps: list[Tensor]) -> Tensor:
    return activated if len(maps) == 1 else activated * maps[1]


def agree(seen: Activations, expected: dict[Place, Tensor]) -> None:
    for place, tally in seen.tallies.items():
        values = expected[place]
        known = ~values.isnan()
        numbers, size = values[known], values[known].abs().max().item() + 1e-300
        assert tally.count == len(numbers)
        assert abs(tally.mean - numbers.mean().item()) <= EXACT * size, place
        assert abs(tally.variance - numbers.var(correction=0).item()) <= EXACT * size**2, place
        assert tally.zeros == int((numbers == 0).sum()), place
        assert tally.nonzero.numel() == values.shape[1], place
        assert tally.dead == int(((values == 0) | ~known).all(0).sum()), place
        assert torch.equal(tally.positive.flatten(), (values > 0).sum(0)), place


@settings(max_examples=20)
@given(
    config=st.one_of(configs(), configs("ffn", "moe"), configs("ffn", "relu")), at_once=st.sampled_from([1, 14, 1000])
)
def test_statistics_are_those_of_what_flows(config: partwise.ModelConfig, at_once: int) -> None:
    """On any combination of parts, in pieces of any size, without padding, and with experts token by token."""
    model, tokens = perturbed(config), rows()
    expected = by_hand(model, tokens)
    seen = observe(model, tokens, source_of(model, tokens), at_once=at_once)
    mixed = {place for place in expected if place.site == "mixing"}
    assert set(expected) - mixed <= set(seen.tallies) <= set(expected)
    agree(seen, expected)
    assert seen.tokens["decoder"] == sum(index != config.padding_idx for index in tokens.flatten().tolist())


@settings(max_examples=10)
@given(config=st.one_of(configs(), configs("ffn", "moe")))
def test_pictures_are_of_the_first_tokens(config: partwise.ModelConfig) -> None:
    """Whatever else goes through: white for positive, black for not, nan where a token did not choose the expert."""
    model, tokens = perturbed(config), rows()
    seen = observe(model, tokens, source_of(model, tokens), shown=3, at_once=2 * LENGTH)
    first = by_hand(model, tokens[:1])
    for place, tally in seen.tallies.items():
        if place.fires:
            expected = torch.where(first[place].isnan(), torch.nan, (first[place] > 0).double())[:3]
            assert torch.equal(tally.picture.flatten(1).double().nan_to_num(-1), expected.nan_to_num(-1)), place


@settings(max_examples=8)
@given(config=configs())
def test_looking_changes_nothing(config: partwise.ModelConfig) -> None:
    model, tokens = perturbed(config), rows()
    with torch.no_grad():
        before = ask(model, tokens)
        observe(model, tokens, source_of(model, tokens), shown=2)
        assert torch.equal(ask(model, tokens), before)
        with pytest.raises(ConfigError):
            observe(model, rows().repeat(1, 2), source_of(model, tokens))
    assert not any(module._forward_hooks for module in model.modules())


PAIRS = "d_model=16 n_layers=2 encoder_layers=2 max_len=16 attention.n_heads=2 vocab_size=20 padding_idx=19"


def test_padding_counts_nowhere() -> None:
    """Neither its own numbers nor what longer rows do to a batch."""
    model = partwise.Transformer(partwise.preset("original", *PAIRS.split())).double().eval()
    generator = torch.Generator().manual_seed(0)
    tokens, source = (torch.randint(0, 19, (3, length), generator=generator) for length in (5, 7))
    short = observe(model, tokens, source)
    long = observe(model, F.pad(tokens, (0, 4), value=19), F.pad(source, (0, 6), value=19))
    assert long.tokens == short.tokens == {"encoder": 21, "decoder": 15}
    for place, tally in short.tallies.items():
        other = long.tallies[place]
        assert other.count == tally.count and torch.equal(other.nonzero, tally.nonzero)
        assert [other.mean, other.variance] == pytest.approx([tally.mean, tally.variance], rel=EXACT, abs=EXACT)


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 400), max_size=8), seed=st.integers(0, 99))
def test_moments_survive_a_large_mean_in_any_pieces(cuts: list[int], seed: int) -> None:
    """Around 1e8 the mean of squares less the square of the mean is wrong by about 1; merged pieces are to 1e-7."""
    generator = torch.Generator().manual_seed(seed)
    values = 1e8 + torch.randn(400, 3, generator=generator, dtype=torch.float64)
    tally = Tally()
    for piece in values.tensor_split(sorted(cuts)):
        tally.add(piece, torch.zeros(len(piece), dtype=torch.long))
    exact = np.asarray(values.numpy(), dtype=np.longdouble)
    assert tally.mean == pytest.approx(float(exact.mean()), rel=1e-15)
    assert tally.variance == pytest.approx(float(exact.var()), rel=1e-7)


@pytest.mark.parametrize("kind", ["relu", "relu2", "reglu"])
def test_dead_units_are_those_that_never_fire(kind: str) -> None:
    """Three units are pushed below zero in the first layer, one is held above, and the second layer is left alone."""
    words = [f"ffn={kind}", "ffn.bias=true", "ffn.hidden=12", "n_layers=2", "d_model=16", "attention.n_heads=2"]
    model = partwise.Transformer(partwise.preset("mingpt", *words)).eval()
    state = model.state_dict()
    bias = state[f"blocks.0.ffn.{'gate' if kind == 'reglu' else 'up'}.bias"]
    bias[:3], bias[3] = -1e6, 1e6
    state["blocks.0.ffn.down.weight"][:, 3] = 0  # what it gives would drown all else
    model.load_state_dict(state)
    seen = observe(model, torch.randint(0, 65, (8, 64), generator=torch.Generator().manual_seed(0)), shown=4)
    pre, hidden = (seen.tallies[Place("decoder", 0, f"ffn: {site}")] for site in ("pre", "hidden"))
    assert hidden.dead == 3 and not hidden.nonzero[0, :3].any() and hidden.nonzero[0, 3] == 512
    assert torch.equal(pre.positive, hidden.nonzero)
    assert pre.dead == 0 and pre.zeros == 0  # what relu overwrites was seen before
    assert not pre.picture[:, 0, :3].any() and pre.picture[:, 0, 3].all()
    assert seen.tallies[Place("decoder", 1, "ffn: hidden")].dead == 0


def test_an_expert_that_nobody_asks_is_dead() -> None:
    words = "ffn=moe ffn.n_experts=4 ffn.k=1 ffn.normalise=false ffn.hidden=6 n_layers=1 d_model=16 attention.n_heads=2"
    model = partwise.Transformer(partwise.preset("mingpt", *words.split())).eval()
    ffn: Any = model.blocks[0].ffn
    with torch.no_grad():
        ffn.router.weight[2:] = 0
        ffn.router.weight[0], ffn.router.weight[1] = 1, -1  # one of the two is above zero for every token
    seen = observe(model, torch.arange(64)[None])
    hidden = seen.tallies[Place("decoder", 0, "ffn.experts: hidden")]
    assert hidden.nonzero.shape == (4, 6) and hidden.dead == 12 and not hidden.nonzero[2:].any()
    assert hidden.seen.flatten().tolist()[2:] == [0, 0] and hidden.seen.sum() == 64


def test_shares_round_neither_to_none_nor_to_all() -> None:
    assert [share(*pair) for pair in ((0, 9), (1, 10**6), (1, 4), (10**6 - 1, 10**6), (9, 9), (0, 0))] == [
        *("0%", "<0.1%", "25.0%", ">99.9%", "100%", "0%"),
    ]


def test_every_activation_of_the_registry_is_drawn() -> None:
    """The very functions that the layers apply, with the options that make another function of them."""
    kinds = {name: recipe for name, recipe in REGISTRY["ffn"].items() if issubclass(recipe, Wide)}
    assert {variant.kind for variant in VARIANTS} == set(kinds)
    assert {"gelu approximate=tanh", "gelu approximate=none", "swish beta=0.5", "swiglu gate beta=2.0"} <= {
        variant.name for variant in VARIANTS
    }
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    for variant in VARIANTS:
        chosen = dict(word.split("=") for word in variant.options.split(", ") if word)
        options: dict[str, Any] = {key: float(value) if key == "beta" else value for key, value in chosen.items()}
        layer: Any = kinds[variant.kind](**options).build(Site(4, 1, 8))
        assert torch.equal(layer.activation(x.clone()), curves.curve(variant.activation, x)[0])
        assert isinstance(layer, GatedMLP) == variant.gated == issubclass(kinds[variant.kind], Gated)


@each_variant
def test_gradients_are_those_of_finite_differences(variant: curves.Variant) -> None:
    x = torch.linspace(-4, 4, 80, dtype=torch.float64)  # without 0, where some have a corner
    step = 1e-5
    (above, _), (below, _) = (curves.curve(variant.activation, x + side) for side in (step, -step))
    _, gradient = curves.curve(variant.activation, x)
    assert (gradient - (above - below) / (2 * step)).abs().max() < 1e-9


def moment(width: int | None) -> float:
    """E max(x, 0) of a unit normal number, or of one of n standardised: half of E |x| on the sphere S^(n-2)."""
    if width is None:
        return 1 / math.sqrt(2 * math.pi)
    ratio = math.exp(math.lgamma((width - 1) / 2) - math.lgamma(width / 2))
    return math.sqrt((width - 1) / math.pi) / 2 * ratio


def test_the_three_bias_shifts_of_relu() -> None:
    """0.3989 in a wide layer, 0.4502 on average behind LayerNorm of width 3, and 0.43 in a table of three by three."""
    for width in (None, 3, 4, 10, 1000):
        assert curves.shifted(F.relu, width)[0] == pytest.approx(moment(width), rel=EXACT)
    assert moment(None) == pytest.approx(0.3989, abs=5e-5) and moment(3) == pytest.approx(0.4502, abs=5e-5)
    assert moment(3) == pytest.approx(math.sqrt(2) / math.pi, rel=EXACT)

    def table(seed: int) -> Tensor:
        return F.layer_norm(torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)), (3,))

    assert table(42).mean().abs() < 1e-6 and table(42).relu().mean() == pytest.approx(0.43, abs=5e-3)
    found = table(178570)  # one that gives all the figures of that table
    assert found.var() == pytest.approx(1.125, abs=5e-4)
    assert [found.relu().mean(), found.relu().var()] == pytest.approx([0.4306, 0.4179], abs=5e-5)
    angles = torch.linspace(0, 2 * math.pi, 1801, dtype=torch.float64)[:, None]
    row = math.sqrt(2) * torch.cos(angles + 2 * math.pi / 3 * torch.arange(3))  # every standardised row of three
    means = row.relu().mean(1)
    assert means.min() == pytest.approx(1 / math.sqrt(6)) and means.max() == pytest.approx(math.sqrt(2) / 3)


CLOSED: dict[str, Callable[[], float]] = {
    "relu2": lambda: 0.5,
    "gelu approximate=none": lambda: 1 / (2 * math.sqrt(math.pi)),
    "elu": lambda: moment(None) + math.exp(0.5) * math.erfc(1 / math.sqrt(2)) / 2 - 0.5,
    "glu gate": lambda: 0.5,
    "bilinear gate": lambda: 0.0,
    "reglu gate": lambda: moment(None),
    "geglu gate approximate=none": lambda: 1 / (2 * math.sqrt(math.pi)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_bias_shifts_in_closed_form(name: str) -> None:
    variant = next(variant for variant in VARIANTS if variant.name == name)
    assert curves.shifted(variant.activation)[0] == pytest.approx(CLOSED[name](), rel=EXACT, abs=EXACT)


SAMPLES = 100_000


@each_variant
@pytest.mark.parametrize("width", [None, 3, 8])
def test_bias_shifts_by_drawing(variant: curves.Variant, width: int | None) -> None:
    """Mean and variance of what comes out, within 5 standard errors of a sample."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, width or 1, generator=generator, dtype=torch.float64)
    x = x if width is None else F.layer_norm(x, (width,), eps=0)
    with torch.no_grad():
        y = variant.activation(x.clone()[:, 0])
    mean, variance = curves.shifted(variant.activation, width)
    assert abs(y.mean() - mean) <= 5 * y.std() / SAMPLES**0.5
    assert abs(y.var() - variance) <= 5 * (y - mean).square().std() / SAMPLES**0.5 + 1e-12


def test_a_product_with_an_independent_up_has_no_bias_shift() -> None:
    generator = torch.Generator().manual_seed(2)
    gate, up = torch.randn(2, SAMPLES, generator=generator, dtype=torch.float64)
    for variant in VARIANTS:
        if variant.gated:
            with torch.no_grad():
                y = variant.activation(gate.clone()) * up
            assert abs(y.mean()) <= 5 * y.std() / SAMPLES**0.5


def test_the_look_at_experts_and_a_text(tiny: Any, tmp_path: Path) -> None:
    config = tiny("ffn=moe", "ffn.n_shared=1", "residual=hyper", "mixing=shift", "train.context=16")
    found = look(Subject("tiny", config, tmp_path, text="$(1+1)=2$"))
    assert found.title == "activations over 9 tokens"
    names = [row[0] for row in found.rows]
    assert names[:3] == ["0 mixing", "0 attention", "0 ffn.experts: pre"] and names[-1] == "1 stream"
    assert len(found.figures) == 4 and len(found.rows) == 16
    write_page(tmp_path / "a.html", "tiny", found)
    ids = [part.split('"')[0] for part in (tmp_path / "a.html").read_text().split(' id="')[1:]]
    assert len(set(ids)) == len(ids)
    with pytest.raises(ConfigError, match="--text '' is no token"):
        look(Subject("tiny", config, tmp_path, text=""))


def test_the_look_at_pairs(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "figures", list)  # they depend on no model, and take a second to draw
    config = tiny("data=arithmetic_pairs", "encoder_layers=1", "ffn={cycle: [relu, bilinear]}", "max_len=32")
    subject = Subject("pairs", config, tmp_path)
    found = look(subject)
    assert found.title.endswith(" decoder tokens")
    tokens = [int(word.replace(",", "")) for word in found.title.split() if word[0].isdigit()]
    assert tokens[0] > tokens[1] and 3500 < tokens[1] < 4700  # sources are longer than targets
    assert tokens[1] == subject.sample().count
    assert [figure.title.rpartition(": ")[2] for figure in found.figures[1:3]] == ["the encoder", "the decoder"]
    assert "decoder 1 cross" in [row[0] for row in found.rows]
    assert look(Subject("pairs", config, tmp_path, text="1+2\t3")).title.endswith(
        "3 encoder tokens and 2 decoder tokens"
    )
    with pytest.raises(ConfigError, match="with a tab between them"):
        look(Subject("pairs", config, tmp_path, text="1"))
