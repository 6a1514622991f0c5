"""Activation statistics equal an independent computation; curves and bias shifts of the activation functions."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn import functional as F

import partwise
from partwise.config import REGISTRY, ConfigError
from partwise.inspection import activation_functions
from partwise.inspection.activation_page import inspect, percentage
from partwise.inspection.activations import (
    ActivationRecorder,
    ActivationSite,
    ActivationStatistics,
    record_activations,
)
from partwise.inspection.hooks import find_modules, watch_modules
from partwise.inspection.subject import Subject
from partwise.parts.contracts import LayerContext
from partwise.parts.feed_forward.dense import FeedForwardOptions, Gated
from partwise.parts.feed_forward.mlp import MLP, GatedMLP
from partwise.parts.feed_forward.moe import GatedExperts, MixtureOfExperts
from partwise.plots.page import write_page
from recipes import LENGTH, VOCAB, configs, logits_of, perturbed, source_of

EXACT = 1e-12
VARIANTS = list(activation_functions.iter_variants())
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


def rows(batch: int = 5) -> Tensor:
    """(B, T) ids, some of which may be padding, also inside a row."""
    return (torch.arange(LENGTH) * 3 + torch.arange(batch)[:, None] * 5) % VOCAB


def expected_values(model: partwise.Transformer, tokens: Tensor) -> dict[ActivationSite, Tensor]:
    """The activations at every site without padding: (N, U), nan for the units of experts not selected."""
    outputs: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    pattern = r"(encoder\.)?blocks\.\d+(\.(mixing|attention|cross|ffn))?"
    layers = find_modules(model, r"(encoder\.)?blocks\.\d+\.ffn").items()

    def take(name: str, args: tuple[Tensor, ...], output: Tensor) -> None:
        outputs[name], inputs[name] = output.clone(), args[0].flatten(0, 1).clone()

    with torch.no_grad(), watch_modules(model, pattern, take):
        logits_of(model, tokens)
    inputs_of = {"decoder": tokens, "encoder": source_of(model, tokens)}
    padding = -1 if model.config.padding_idx is None else model.config.padding_idx
    real = {stack: ids.flatten() != padding for stack, ids in inputs_of.items() if ids is not None}
    result: dict[ActivationSite, Tensor] = {}

    def store(name: str, values: Tensor) -> None:
        words = name.removeprefix("encoder.").split(".", 2)
        stack = "encoder" if name.startswith("encoder.") else "decoder"
        result[ActivationSite(stack, int(words[1]), words[2] if len(words) > 2 else "stream")] = values[real[stack]]

    for name, output in outputs.items():
        store(name, output.flatten(0, 1).flatten(1))
    for name, module in layers:
        for path, values in expected_feed_forward(name, module, inputs[name]).items():
            store(path, values)
    return result


@torch.no_grad()
def expected_feed_forward(name: str, module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Values before and after the activation, computed from the saved weights and the input (N, D)."""
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
    values = {f"{name}.experts: pre": pre.flatten(1), f"{name}.experts: hidden": hidden.flatten(1)}
    return values if module.shared is None else values | expected_feed_forward(f"{name}.shared", module.shared, x)


def times(activated: Tensor, maps: list[Tensor]) -> Tensor:
    return activated if len(maps) == 1 else activated * maps[1]


def assert_equal(recorder: ActivationRecorder, expected: dict[ActivationSite, Tensor]) -> None:
    for location, statistics in recorder.statistics.items():
        values = expected[location]
        known = ~values.isnan()
        numbers, size = values[known], values[known].abs().max().item() + 1e-300
        assert statistics.count == len(numbers)
        assert abs(statistics.mean - numbers.mean().item()) <= EXACT * size, location
        assert abs(statistics.variance - numbers.var(correction=0).item()) <= EXACT * size**2, location
        assert statistics.n_zeros == int((numbers == 0).sum()), location
        assert statistics.nonzero.numel() == values.shape[1], location
        assert statistics.n_dead == int(((values == 0) | ~known).all(0).sum()), location
        assert torch.equal(statistics.positive.flatten(), (values > 0).sum(0)), location


@settings(max_examples=20)
@given(
    config=st.one_of(configs(), configs("ffn", "moe"), configs("ffn", "relu")),
    tokens_per_pass=st.sampled_from([1, 14, 1000]),
)
def test_statistics_equal_those_of_the_activations(config: partwise.ModelConfig, tokens_per_pass: int) -> None:
    """They are equal for any parts and batch size, without padding, with experts computed token by token."""
    model, tokens = perturbed(config), rows()
    expected = expected_values(model, tokens)
    recorder = record_activations(model, tokens, source_of(model, tokens), tokens_per_pass=tokens_per_pass)
    mixing = {location for location in expected if location.site == "mixing"}
    assert set(expected) - mixing <= set(recorder.statistics) <= set(expected)
    assert_equal(recorder, expected)
    assert recorder.n_tokens["decoder"] == sum(index != config.padding_idx for index in tokens.flatten().tolist())


@settings(max_examples=10)
@given(config=st.one_of(configs(), configs("ffn", "moe")))
def test_patterns_show_the_first_tokens(config: partwise.ModelConfig) -> None:
    """Independent of later tokens: 1 for positive, 0 otherwise, nan if the token was not routed to the expert."""
    model, tokens = perturbed(config), rows()
    recorder = record_activations(model, tokens, source_of(model, tokens), pattern_tokens=3, tokens_per_pass=2 * LENGTH)
    first = expected_values(model, tokens[:1])
    for location, statistics in recorder.statistics.items():
        if location.is_preactivation:
            expected = torch.where(first[location].isnan(), torch.nan, (first[location] > 0).double())[:3]
            assert torch.equal(statistics.pattern.flatten(1).double().nan_to_num(-1), expected.nan_to_num(-1)), location


@settings(max_examples=8)
@given(config=configs())
def test_recording_leaves_the_model_unchanged(config: partwise.ModelConfig) -> None:
    model, tokens = perturbed(config), rows()
    with torch.no_grad():
        before = logits_of(model, tokens)
        record_activations(model, tokens, source_of(model, tokens), pattern_tokens=2)
        assert torch.equal(logits_of(model, tokens), before)
        with pytest.raises(ConfigError):
            record_activations(model, rows().repeat(1, 2), source_of(model, tokens))
    assert not any(module._forward_hooks for module in model.modules())


PAIRS = "d_model=16 n_layers=2 encoder_layers=2 context_length=16 attention.n_heads=2 vocab_size=20 padding_idx=19"


def test_padding_is_excluded() -> None:
    """Longer padding changes no statistic."""
    model = partwise.Transformer(partwise.preset("original", *PAIRS.split())).double().eval()
    generator = torch.Generator().manual_seed(0)
    tokens, source = (torch.randint(0, 19, (3, length), generator=generator) for length in (5, 7))
    short = record_activations(model, tokens, source)
    long = record_activations(model, F.pad(tokens, (0, 4), value=19), F.pad(source, (0, 6), value=19))
    assert long.n_tokens == short.n_tokens == {"encoder": 21, "decoder": 15}
    for location, statistics in short.statistics.items():
        other = long.statistics[location]
        assert other.count == statistics.count and torch.equal(other.nonzero, statistics.nonzero)
        assert [other.mean, other.variance] == pytest.approx(
            [statistics.mean, statistics.variance], rel=EXACT, abs=EXACT
        )


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 400), max_size=8), seed=st.integers(0, 99))
def test_moments_are_stable_with_a_large_mean(cuts: list[int], seed: int) -> None:
    """At a mean of 1e8, E[x^2] - E[x]^2 is off by about 1; merging batches of any size is accurate to 1e-7."""
    generator = torch.Generator().manual_seed(seed)
    values = 1e8 + torch.randn(400, 3, generator=generator, dtype=torch.float64)
    statistics = ActivationStatistics()
    for piece in values.tensor_split(sorted(cuts)):
        statistics.update(piece, torch.zeros(len(piece), dtype=torch.long))
    exact = np.asarray(values.numpy(), dtype=np.longdouble)
    assert statistics.mean == pytest.approx(float(exact.mean()), rel=1e-15)
    assert statistics.variance == pytest.approx(float(exact.var()), rel=1e-7)


@pytest.mark.parametrize("kind", ["relu", "relu2", "reglu"])
def test_dead_units_never_fire(kind: str) -> None:
    """In the first layer, biases keep three units below zero and one above; the second layer is unchanged."""
    words = [f"ffn={kind}", "ffn.bias=true", "ffn.hidden=12", "n_layers=2", "d_model=16", "attention.n_heads=2"]
    model = partwise.Transformer(partwise.preset("mingpt", *words)).eval()
    state = model.state_dict()
    bias = state[f"blocks.0.ffn.{'gate' if kind == 'reglu' else 'up'}.bias"]
    bias[:3], bias[3] = -1e6, 1e6
    state["blocks.0.ffn.down.weight"][:, 3] = 0  # its huge output would dominate the residual stream
    model.load_state_dict(state)
    tokens = torch.randint(0, 65, (8, 64), generator=torch.Generator().manual_seed(0))
    recorder = record_activations(model, tokens, pattern_tokens=4)
    pre, hidden = (recorder.statistics[ActivationSite("decoder", 0, f"ffn: {site}")] for site in ("pre", "hidden"))
    assert hidden.n_dead == 3 and not hidden.nonzero[0, :3].any() and hidden.nonzero[0, 3] == 512
    assert torch.equal(pre.positive, hidden.nonzero)
    assert pre.n_dead == 0 and pre.n_zeros == 0  # recorded before relu works in place
    assert not pre.pattern[:, 0, :3].any() and pre.pattern[:, 0, 3].all()
    assert recorder.statistics[ActivationSite("decoder", 1, "ffn: hidden")].n_dead == 0


def test_units_of_an_unused_expert_are_dead() -> None:
    words = "ffn=moe ffn.n_experts=4 ffn.top_k=1 ffn.norm_topk_prob=false ffn.hidden=6"
    sizes = "n_layers=1 d_model=16 attention.n_heads=2"
    model = partwise.Transformer(partwise.preset("mingpt", *words.split(), *sizes.split())).eval()
    ffn: Any = model.blocks[0].ffn
    with torch.no_grad():
        ffn.router.weight[2:] = 0
        ffn.router.weight[0], ffn.router.weight[1] = 1, -1  # one of the two scores is positive for every token
    recorder = record_activations(model, torch.arange(64)[None])
    hidden = recorder.statistics[ActivationSite("decoder", 0, "ffn.experts: hidden")]
    assert hidden.nonzero.shape == (4, 6) and hidden.n_dead == 12 and not hidden.nonzero[2:].any()
    assert hidden.expert_tokens.flatten().tolist()[2:] == [0, 0] and hidden.expert_tokens.sum() == 64


def test_percentages_round_to_0_or_100_only_if_exact() -> None:
    assert [percentage(*pair) for pair in ((0, 9), (1, 10**6), (1, 4), (10**6 - 1, 10**6), (9, 9), (0, 0))] == [
        *("0%", "<0.1%", "25.0%", ">99.9%", "100%", "0%"),
    ]


def test_every_registered_activation_is_shown() -> None:
    """The variants are the functions that the layers apply, with the options that change them."""
    kinds = {name: recipe for name, recipe in REGISTRY["ffn"].items() if issubclass(recipe, FeedForwardOptions)}
    assert {variant.kind for variant in VARIANTS} == set(kinds)
    assert {"gelu approximate=tanh", "gelu approximate=none", "swish beta=0.5", "swiglu gate beta=2.0"} <= {
        variant.name for variant in VARIANTS
    }
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    for variant in VARIANTS:
        chosen = dict(word.split("=") for word in variant.options.split(", ") if word)
        options: dict[str, Any] = {key: float(value) if key == "beta" else value for key, value in chosen.items()}
        layer: Any = kinds[variant.kind](**options).build(LayerContext(4, 1, 8))
        assert torch.equal(
            layer.activation(x.clone()), activation_functions.value_and_gradient(variant.activation, x)[0]
        )
        assert isinstance(layer, GatedMLP) == variant.gated == issubclass(kinds[variant.kind], Gated)


@each_variant
def test_gradients_equal_finite_differences(variant: activation_functions.Variant) -> None:
    x = torch.linspace(-4, 4, 80, dtype=torch.float64)  # without 0, where some have a kink
    step = 1e-5
    (above, _), (below, _) = (
        activation_functions.value_and_gradient(variant.activation, x + side) for side in (step, -step)
    )
    _, gradient = activation_functions.value_and_gradient(variant.activation, x)
    assert (gradient - (above - below) / (2 * step)).abs().max() < 1e-9


def relu_mean(width: int | None) -> float:
    """E max(x, 0) for a standard normal x, or for one of n standardized numbers: half of E |x| on the sphere S^(n-2)."""
    if width is None:
        return 1 / math.sqrt(2 * math.pi)
    ratio = math.exp(math.lgamma((width - 1) / 2) - math.lgamma(width / 2))
    return math.sqrt((width - 1) / math.pi) / 2 * ratio


def test_the_three_bias_shifts_of_relu() -> None:
    """0.3989 in a wide layer, 0.4502 on average after LayerNorm of width 3, and 0.43 for a 3 x 3 matrix."""
    for width in (None, 3, 4, 10, 1000):
        assert activation_functions.output_moments(F.relu, width)[0] == pytest.approx(relu_mean(width), rel=EXACT)
    assert relu_mean(None) == pytest.approx(0.3989, abs=5e-5) and relu_mean(3) == pytest.approx(0.4502, abs=5e-5)
    assert relu_mean(3) == pytest.approx(math.sqrt(2) / math.pi, rel=EXACT)

    def matrix(seed: int) -> Tensor:
        return F.layer_norm(torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)), (3,))

    assert matrix(42).mean().abs() < 1e-6 and matrix(42).relu().mean() == pytest.approx(0.43, abs=5e-3)
    example = matrix(178570)  # reproduces all published values of that matrix
    assert example.var() == pytest.approx(1.125, abs=5e-4)
    assert [example.relu().mean(), example.relu().var()] == pytest.approx([0.4306, 0.4179], abs=5e-5)
    angles = torch.linspace(0, 2 * math.pi, 1801, dtype=torch.float64)[:, None]
    row = math.sqrt(2) * torch.cos(angles + 2 * math.pi / 3 * torch.arange(3))  # every standardized row of three
    means = row.relu().mean(1)
    assert means.min() == pytest.approx(1 / math.sqrt(6)) and means.max() == pytest.approx(math.sqrt(2) / 3)


CLOSED: dict[str, Callable[[], float]] = {
    "relu2": lambda: 0.5,
    "gelu approximate=none": lambda: 1 / (2 * math.sqrt(math.pi)),
    "elu": lambda: relu_mean(None) + math.exp(0.5) * math.erfc(1 / math.sqrt(2)) / 2 - 0.5,
    "glu gate": lambda: 0.5,
    "bilinear gate": lambda: 0.0,
    "reglu gate": lambda: relu_mean(None),
    "geglu gate approximate=none": lambda: 1 / (2 * math.sqrt(math.pi)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_bias_shifts_in_closed_form(name: str) -> None:
    variant = next(variant for variant in VARIANTS if variant.name == name)
    assert activation_functions.output_moments(variant.activation)[0] == pytest.approx(
        CLOSED[name](), rel=EXACT, abs=EXACT
    )


SAMPLES = 100_000


@each_variant
@pytest.mark.parametrize("width", [None, 3, 8])
def test_bias_shifts_by_sampling(variant: activation_functions.Variant, width: int | None) -> None:
    """Output mean and variance are within 5 standard errors of a sample's."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, width or 1, generator=generator, dtype=torch.float64)
    x = x if width is None else F.layer_norm(x, (width,), eps=0)
    with torch.no_grad():
        y = variant.activation(x.clone()[:, 0])
    mean, variance = activation_functions.output_moments(variant.activation, width)
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


def test_page_of_experts_and_a_text(tiny: Any, tmp_path: Path) -> None:
    config = tiny(
        "ffn=moe", "ffn.n_shared_experts=1", "residual=hyper_connections", "short_conv=token_shift", "train.seq_len=16"
    )
    page = inspect(Subject("tiny", config, tmp_path, text="$(1+1)=2$"))
    assert page.title == "activation statistics over 9 tokens"
    names = [row[0] for row in page.rows]
    assert names[:3] == ["0 mixing", "0 attention", "0 ffn.experts: pre"] and names[-1] == "1 stream"
    assert len(page.figures) == 5 and len(page.rows) == 16
    assert all("expert" in text for text in (page.about, page.figures[0].caption, page.figures[1].caption))
    write_page(tmp_path / "a.html", "tiny", page)
    ids = [part.split('"')[0] for part in (tmp_path / "a.html").read_text().split(' id="')[1:]]
    assert len(set(ids)) == len(ids)
    with pytest.raises(ConfigError, match="--text '' has no tokens"):
        inspect(Subject("tiny", config, tmp_path, text=""))


def test_a_dense_model_has_no_experts_and_its_units_are_sorted(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_functions, "figures", list)
    drawn: list[np.ndarray] = []

    def record(axes: Axes, image: Any, *args: Any, **options: Any) -> Any:
        drawn.append(np.asarray(image))
        return imshow(axes, image, *args, **options)

    imshow = Axes.imshow
    monkeypatch.setattr(Axes, "imshow", record)
    page = inspect(Subject("tiny", tiny("ffn=relu"), tmp_path))
    assert not any("expert" in text for text in (page.about, *(figure.caption for figure in page.figures)))
    patterns = [image.mean(0) for image in drawn if image.shape[0] > 2]
    assert patterns
    for rates in patterns:  # the units that fire for the fewest tokens of the sample are at the left
        third = len(rates) // 3
        assert rates[:third].mean() < rates[third:-third].mean() < rates[-third:].mean()


def test_page_of_an_encoder_decoder(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_functions, "figures", list)  # independent of the model, and slow to plot
    config = tiny("data=arithmetic_pairs", "encoder_layers=1", "ffn={cycle: [relu, bilinear]}", "context_length=32")
    subject = Subject("pairs", config, tmp_path)
    page = inspect(subject)
    assert page.title.endswith(" decoder tokens")
    tokens = [int(word.replace(",", "")) for word in page.title.split() if word[0].isdigit()]
    assert tokens[0] > tokens[1] and 3500 < tokens[1] < 4700  # sources are longer than targets
    assert tokens[1] == subject.sample().n_targets
    assert [figure.title.rpartition(": ")[2] for figure in page.figures[1:3]] == ["encoder", "decoder"]
    assert "decoder 1 cross" in [row[0] for row in page.rows]
    assert inspect(Subject("pairs", config, tmp_path, text="1+2\t3")).title.endswith(
        "3 encoder tokens and 2 decoder tokens"
    )
    with pytest.raises(ConfigError, match="separated by a tab"):
        inspect(Subject("pairs", config, tmp_path, text="1"))
