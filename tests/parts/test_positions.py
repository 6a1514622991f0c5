"""Rotary positions and position biases against their equations in float64 and against transformers."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import partwise
from backends import use_layer_backend
from partwise.config import REGISTRY, ConfigError
from partwise.parts.contracts import ForwardContext, HeadLayout, LayerContext, PositionLayer
from recipes import error, named, perturbed, tokens

EXACT = 1e-12


def build(
    name: str, width: int = 16, n_heads: int = 2, context_length: int = 64, causal: bool = True, **options: Any
) -> Any:
    layer_ctx = LayerContext(n_heads * width, 2, context_length, HeadLayout(n_heads, n_heads, width), causal=causal)
    layer = REGISTRY["positions"][name].from_dict(options, prefix="positions").build(layer_ctx)
    generator = torch.Generator().manual_seed(3)
    for parameter in layer.double().parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return layer


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def relative_error(found: list[float], expected: list[float]) -> float:
    """The largest relative error of a frequency; low frequencies are a millionth of high ones."""
    assert len(found) == len(expected)
    return max(abs(a - b) / b for a, b in zip(found, expected, strict=True))


def plain(theta: float, width: int) -> list[float]:
    return [theta ** -(2 * i / width) for i in range(width // 2)]


YARN = {"factor": 4.0, "original_context_length": 2048}
LLAMA3 = {"factor": 8.0, "original_context_length": 8192}
SCALED: list[tuple[str, dict[str, Any]]] = [
    ("rope_linear", {"factor": 4.0}),
    ("rope_linear", {"factor": 1.5, "theta": 5e5}),
    ("rope_ntk", {"factor": 3.0}),
    ("rope_ntk", {"factor": 7.0, "theta": 5e5}),
    ("rope_yarn", YARN),
    ("rope_yarn", {"factor": 40.0, "original_context_length": 4096, "theta": 1e6}),
    ("rope_yarn", {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "mscale": 1.3}),
    ("rope_yarn", {"factor": 32.0, "original_context_length": 4096, "theta": 1.5e5, "truncate": False}),
    ("rope_yarn", {"factor": 4.0, "original_context_length": 128}),  # the range starts before the first pair
    ("rope_yarn", {"factor": 2.0, "original_context_length": 560, "theta": 10.0}),  # the range ends after the last pair
    ("rope_llama3", LLAMA3),
    ("rope_llama3", {**LLAMA3, "theta": 5e5, "factor": 32.0}),
    ("rope_llama3", {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 16.0, "original_context_length": 1024}),
]
each_scaled = pytest.mark.parametrize(("name", "options"), SCALED, ids=[f"{n}-{i}" for i, (n, _) in enumerate(SCALED)])


def published(name: str, width: int, **options: Any) -> list[float]:
    """The frequencies by the papers' formulas: in wavelengths, positions and bases instead of weights."""
    theta, factor = options.get("theta", 1e4), options["factor"]
    if name == "rope_linear":
        return [(1 / factor) * w for w in plain(theta, width)]  # the angle of position t / factor
    if name == "rope_ntk":
        return plain(theta * factor ** (width / (width - 2)), width)
    length, found = options["original_context_length"], []
    wavelengths = [2 * math.pi / w for w in plain(theta, width)]
    if name == "rope_llama3":
        low, high = options.get("low_freq_factor", 1.0), options.get("high_freq_factor", 4.0)
        for wavelength in wavelengths:
            if wavelength < length / high:
                found.append(2 * math.pi / wavelength)
            elif wavelength > length / low:
                found.append(2 * math.pi / wavelength / factor)
            else:
                smooth = (length / wavelength - low) / (high - low)
                found.append((1 - smooth) * (2 * math.pi / wavelength) / factor + smooth * (2 * math.pi / wavelength))
        return found
    ends = [
        width / 2 * math.log(length / (beta * 2 * math.pi), theta)
        for beta in (options.get("beta_fast", 32.0), options.get("beta_slow", 1.0))
    ]
    if options.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], width - 1)
    for i, wavelength in enumerate(wavelengths):
        ramp = min(1, max(0, (i - low) / (high - low)))
        found.append(ramp * 2 * math.pi / (factor * wavelength) + (1 - ramp) * 2 * math.pi / wavelength)
    return found


@each_scaled
@pytest.mark.parametrize("width", [16, 64, 128])
def test_scaled_frequencies_follow_their_papers(name: str, options: dict[str, Any], width: int) -> None:
    layer = build(name, width, **options)
    assert relative_error(layer.frequencies, published(name, width, **options)) <= EXACT
    mscale = options.get("mscale", 0.1 * math.log(options["factor"]) + 1) if name == "rope_yarn" else 1.0
    angles = torch.outer(torch.arange(64.0, dtype=torch.float64), numbers(published(name, width, **options)))
    cos, sin = layer.cos_sin(numbers([0.0]))
    assert (cos - mscale * angles.cos()).abs().max() <= EXACT
    assert (sin - mscale * angles.sin()).abs().max() <= EXACT


@each_scaled
@pytest.mark.parametrize("width", [16, 64, 128])
def test_scaled_frequencies_equal_transformers(name: str, options: dict[str, Any], width: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is a development dependency")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind, length, words = name.removeprefix("rope_"), None, dict(options)
    words["rope_theta"] = words.pop("theta", 1e4)
    if kind == "ntk":  # its dynamic NTK at the length for which 2 length / 512 - 1 is our factor
        kind, length = "dynamic", round(512 * (words["factor"] + 1) / 2)
        words["factor"] = 2.0
    if "original_context_length" in words:
        words["original_max_position_embeddings"] = words.pop("original_context_length")
    if "mscale" in words:
        words["attention_factor"] = words.pop("mscale")
    if kind == "llama3":
        words = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **words}
    config = transformers.LlamaConfig(
        head_dim=width, max_position_embeddings=512, rope_parameters={"rope_type": kind, **words}
    )
    expected, attention_scaling = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", seq_len=length)
    layer = build(name, width, **options)
    assert relative_error(layer.frequencies, expected.double().tolist()) <= 1e-6  # theirs are float32
    assert layer.attention_scaling == pytest.approx(attention_scaling, rel=1e-15)


ROPES = [("rope", {}), ("rope", {"theta": 500.0}), *SCALED]


@pytest.mark.parametrize(("fraction", "layout"), [(1.0, "interleaved"), (0.25, "half")])
@pytest.mark.parametrize(("name", "options"), ROPES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ROPES)])
def test_each_pair_is_rotated_by_its_angle(name: str, options: dict[str, Any], fraction: float, layout: str) -> None:
    """A pair is a complex number, multiplied by e^(i t w); the other dimensions pass through."""
    layer = build(name, 16, context_length=300, partial_rotary_factor=fraction, layout=layout, **options)
    width = round(16 * fraction)
    heads, ids = normal(2, 3, 5, 16), torch.tensor([0, 1, 7, 256, 299])
    own = plain(options.get("theta", 1e4), width) if name == "rope" else published(name, width, **options)
    found, expected = layer.on_heads(heads, ids), heads.clone()
    for index, t in enumerate(ids.tolist()):
        for i, frequency in enumerate(own):
            first, second = (i, i + width // 2) if layout == "half" else (2 * i, 2 * i + 1)
            pair = torch.complex(heads[:, :, index, first], heads[:, :, index, second])
            pair = pair * complex(math.cos(t * frequency), math.sin(t * frequency)) * layer.attention_scaling
            expected[:, :, index, first], expected[:, :, index, second] = pair.real, pair.imag
    assert error(found, expected) <= EXACT
    assert torch.equal(found[..., width:], heads[..., width:])


def test_partial_rotary_factor_is_decimal() -> None:
    assert int(0.7 * 180) == 125
    assert build("rope", 180, partial_rotary_factor=0.7).frequencies == pytest.approx(plain(1e4, 126), rel=EXACT)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("name", ["rope", "rope_yarn"])
def test_position_ids_per_row(name: str, layout: str) -> None:
    layer = build(name, 8, layout=layout, partial_rotary_factor=0.5, **(YARN if name == "rope_yarn" else {}))
    heads, ids = normal(2, 3, 4, 8), torch.tensor([[0, 1, 2, 3], [5, 0, 63, 1]])
    rows = [layer.on_heads(heads[row : row + 1], ids[row]) for row in range(2)]
    assert torch.equal(layer.on_heads(heads, ids), torch.cat(rows))


def test_partial_rotary_equals_gpt_neox_and_interleaved_equals_gpt_j() -> None:
    pytest.importorskip("transformers", reason="transformers is a development dependency")
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as neox
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj

    q, k, ids = normal(2, 3, 9, 8), normal(2, 3, 9, 8, seed=2), torch.arange(9)
    layer = build("rope", 8, partial_rotary_factor=0.5)
    cos, sin = (torch.cat((table[:9], table[:9]), -1)[None] for table in layer.cos_sin(q))
    for own, other in zip((q, k), neox(q, k, cos, sin), strict=True):
        assert error(layer.on_heads(own, ids), other) <= EXACT
    layer = build("rope", 8, layout="interleaved")
    cos, sin = (table[None, :9] for table in layer.cos_sin(q))
    other = gptj(q.transpose(1, 2), sin, cos).transpose(1, 2)  # its layout is (B, T, H, E)
    assert error(layer.on_heads(q, ids), other) <= EXACT


scaled_options = st.fixed_dictionaries(
    {
        "theta": st.floats(10, 1e7),
        "factor": st.floats(1, 100),
        "original_context_length": st.integers(1, 2**20),
        "width": st.sampled_from([4, 6, 16, 64]),
    }
)


@settings(max_examples=200)
@given(name=st.sampled_from(["rope_linear", "rope_ntk", "rope_yarn", "rope_llama3"]), sampled=scaled_options)
def test_scaling_divides_frequencies_by_at_most_the_factor(name: str, sampled: dict[str, Any]) -> None:
    options = dict(sampled)
    width = options.pop("width")
    base = plain(options["theta"], width)
    if name in ("rope_linear", "rope_ntk"):
        del options["original_context_length"]
    found = build(name, width, **options).frequencies
    assert all(
        w / options["factor"] * (1 - EXACT) <= own <= w * (1 + EXACT) for own, w in zip(found, base, strict=True)
    )
    assert all(fast > slow for fast, slow in pairwise(found))
    unscaled = build(name, width, **{**options, "factor": 1.0})
    assert relative_error(unscaled.frequencies, base) <= EXACT and unscaled.attention_scaling == 1.0
    if name == "rope_ntk":
        assert found[0] == 1.0 and found[-1] == pytest.approx(base[-1] / options["factor"], rel=EXACT)


@pytest.mark.parametrize("name", ["rope_yarn", "rope_llama3"])
def test_original_context_length_beyond_all_pairs(name: str) -> None:
    """If no pair makes a full rotation, all are interpolated; if all rotate often, none is."""
    shared = {"factor": 4.0, "theta": 100.0}
    assert (
        relative_error(build(name, original_context_length=6, **shared).frequencies, [w / 4 for w in plain(100.0, 16)])
        <= EXACT
    )
    assert relative_error(build(name, original_context_length=2**24, **shared).frequencies, plain(100.0, 16)) <= EXACT


def test_extreme_options_do_not_fail() -> None:
    build("rope_ntk", theta=1e308, factor=1e308)
    build("rope_yarn", theta=1.0 + 2**-52, factor=1e308, original_context_length=1, beta_fast=1e308, beta_slow=5e-324)
    build(
        "rope_llama3",
        theta=1e308,
        factor=1e308,
        original_context_length=1,
        low_freq_factor=5e-324,
        high_freq_factor=1e308,
    )
    for n_heads in (1, 2**16):
        build("alibi", 2, n_heads)


# Position biases


def test_alibi_slopes_equal_the_papers() -> None:
    assert build("alibi", n_heads=8).slopes == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert build("alibi", n_heads=1).slopes == [1 / 256]
    eight, sixteen = [2.0**-i for i in range(1, 9)], [2 ** (-i / 2) for i in range(1, 17)]
    assert build("alibi", n_heads=12).slopes == pytest.approx(eight + sixteen[:8:2], rel=EXACT)


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 20, 25, 32, 112])
def test_alibi_slopes_equal_those_of_bloom(n_heads: int) -> None:
    pytest.importorskip("transformers", reason="transformers is a development dependency")
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    reference = build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)[:, 0, 1]
    assert error(numbers(build("alibi", n_heads=n_heads).slopes), reference.double()) <= 1e-6


@pytest.mark.parametrize("causal", [True, False])
def test_alibi_is_proportional_to_distance(causal: bool) -> None:
    layer = build("alibi", n_heads=3, causal=causal)
    queries, keys = torch.tensor([2, 3, 4]), torch.arange(5)
    found = layer.on_scores(queries, keys, normal(1))
    for head, slope in enumerate([2**-4, 2**-8, 2**-2]):
        for row, i in enumerate(queries.tolist()):
            for j in range(5):
                assert found[head, row, j].item() == -slope * abs(i - j)


def test_alibi_is_exact_in_bfloat16_models() -> None:
    layer, like = build("alibi", n_heads=16).bfloat16(), torch.zeros(1, dtype=torch.bfloat16)
    found = layer.on_scores(torch.tensor([1000]), torch.tensor([743, 744]), like)
    assert found.dtype == torch.float32
    exact = -numbers([2 ** (-(head + 1) / 2) for head in range(16)])[:, None] * numbers([257.0, 256.0])
    assert error(found[:, 0].double(), exact) <= 2**-23


T5_SETTINGS = [(32, 128), (16, 64), (8, 20), (12, 100), (64, 256), (32, 256), (6, 50), (4, 3), (32, 17), (256, 4096)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), T5_SETTINGS)
def test_t5_buckets_equal_transformers(buckets: int, max_distance: int, causal: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is a development dependency")
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        d_model=12,
        d_kv=4,
        num_heads=3,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=max_distance,
        is_decoder=causal,
    )
    other = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    layer = build("t5", n_heads=3, causal=causal, buckets=buckets, max_distance=max_distance)
    other.relative_attention_bias.weight.data = layer.weight.data
    length = min(3 * max_distance, 700)
    position_ids = torch.arange(length)
    found = layer.on_scores(position_ids, position_ids, normal(1))
    assert torch.equal(found, other.compute_bias(length, length)[0])
    distances = position_ids[:, None] - 3 * max_distance + torch.tensor([0, 2 * max_distance, 4 * max_distance])
    bucket = T5Attention._relative_position_bucket(distances, not causal, buckets, max_distance)
    rows = [layer.on_scores(torch.tensor([0]), row, normal(1))[:, 0] for row in distances]
    assert torch.equal(torch.stack(rows), layer.weight[bucket].transpose(1, 2))


@settings(max_examples=150)
@given(half=st.integers(2, 40), beyond=st.integers(1, 400), causal=st.booleans())
def test_t5_buckets_are_complete_and_sorted(half: int, beyond: int, causal: bool) -> None:
    layer = build("t5", n_heads=1, causal=causal, buckets=2 * half, max_distance=half + beyond)
    layer.weight.data = torch.arange(2.0 * half, dtype=torch.float64)[:, None]
    farther = half + beyond + 3
    before, after = (
        layer.on_scores(torch.tensor([start]), torch.arange(start, end, step), normal(1))[0, 0].tolist()
        for start, end, step in ((farther, -1, -1), (0, farther + 1, 1))
    )
    own = 2 * half if causal else half
    assert before == sorted(before) and before[: own // 2] == [*range(own // 2)] and before[-4:] == [own - 1] * 4
    assert after == ([0.0] * len(before) if causal else [0.0, *(bucket + half for bucket in before[1:])])


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_scores_get_the_bias(name: str, causal: bool, n_kv_heads: int, backend: str) -> None:
    """softmax(q k^T scale + bias) v, one head at a time."""
    layer_ctx = LayerContext(16, 2, 70, HeadLayout(4, n_kv_heads, 4), causal=causal)
    positions = build(name, 4, 4, 70, causal)
    recipe = REGISTRY["attention"]["multihead"].from_dict({"n_heads": 4, "n_kv_heads": n_kv_heads})
    layer: Any = recipe.build(layer_ctx).double()
    for number, parameter in enumerate(layer.parameters()):
        parameter.data = normal(*parameter.shape, seed=number) / 4
    use_layer_backend(layer, backend)
    x, w, position_ids = normal(2, 70, 16), layer.state_dict(), torch.arange(70)
    found = layer(x, ForwardContext(positions, position_ids, causal=causal))
    bias = positions.on_scores(position_ids, position_ids, x)
    hidden = torch.ones(70, 70, dtype=torch.bool).triu(1) if causal else torch.zeros(70, 70, dtype=torch.bool)
    heads = []
    for head in range(4):
        group = head * n_kv_heads // 4
        q = x @ w["q.weight"][4 * head : 4 * head + 4].T
        k, v = (x @ w[f"{role}.weight"][4 * group : 4 * group + 4].T for role in "kv")
        scores = (q @ k.transpose(1, 2) / 2 + bias[head]).masked_fill(hidden, -math.inf)
        heads.append((scores.exp() / scores.exp().sum(-1, keepdim=True)) @ v)
    assert error(found, torch.cat(heads, -1) @ w["out.weight"].T) <= EXACT


SIZES = {"vocab_size": 11, "d_model": 16, "n_layers": 2, "context_length": 12}


def test_t5_has_one_table_per_stack() -> None:
    config = partwise.ModelConfig.from_dict({**SIZES, "positions": "t5", "encoder_layers": 2})
    tables = {
        tensor.name: (tensor.role, tuple(tensor.data.shape), tensor.fan_in)
        for tensor in partwise.Transformer(config).logical_tensors()
        if "positions" in tensor.name
    }
    assert tables == dict.fromkeys(("positions.weight", "encoder.positions.weight"), ("table", (32, 4), 1))


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_biases_are_bidirectional_in_encoders(name: str) -> None:
    """ALiBi is symmetric: reversing the source reverses the output. T5 distinguishes the directions."""
    model = perturbed(partwise.ModelConfig.from_dict({**SIZES, "positions": name, "encoder_layers": 1}))
    assert model.encoder is not None
    source = tokens(2, 9)
    backwards = model.encoder(source.flip(1), None, []).flip(1)
    difference = error(backwards, model.encoder(source, None, []))
    assert difference <= EXACT if name == "alibi" else difference > 1e-3


@pytest.mark.parametrize("name", sorted(REGISTRY["positions"]))
def test_packed_documents_equal_separate_documents(name: str) -> None:
    model = perturbed(partwise.ModelConfig.from_dict({**SIZES, "positions": named(name)}))
    row = tokens(2, 9)
    document_ids = torch.tensor([[0] * 4 + [1] * 5, [-1] * 2 + [0] * 7])
    with torch.no_grad():
        packed = model(row, document_ids=document_ids)
        for number, start, end in ((0, 0, 4), (0, 4, 9), (1, 2, 9)):
            alone = model(row[number : number + 1, start:end])
            assert error(packed[number : number + 1, start:end], alone) <= EXACT


INVALID = [
    ("rope_linear", {}, "'positions.factor' is missing"),
    ("rope_ntk", {}, "'positions.factor' is missing"),
    ("rope_yarn", {"original_context_length": 8}, "'positions.factor' is missing"),
    ("rope_yarn", {"factor": 2.0}, "'positions.original_context_length' is missing"),
    ("rope_llama3", {"original_context_length": 8}, "'positions.factor' is missing"),
    ("rope_linear", {"factor": 0.5}, "positions.factor=0.5: input should be greater than or equal to 1"),
    ("rope", {"factor": 2.0}, "unknown option 'positions.factor'"),
    ("rope", {"layout": "pairs"}, "positions.layout=pairs: input should be 'half' or 'interleaved'"),
    ("rope", {"partial_rotary_factor": 0.0}, "positions.partial_rotary_factor=0.0: input should be greater than 0"),
    (
        "rope",
        {"partial_rotary_factor": 0.75},
        "positions.partial_rotary_factor=0.75 rotates 3 of the 4 dimensions of a head",
    ),
    (
        "rope",
        {"partial_rotary_factor": 0.1},
        "positions.partial_rotary_factor=0.1 rotates 0 of the 4 dimensions of a head",
    ),
    (
        "rope_ntk",
        {"factor": 2.0, "partial_rotary_factor": 0.5},
        "rotates 2 dimensions of a head: must be at least 4",
    ),
    (
        "rope_yarn",
        {**YARN, "beta_fast": 1.0},
        "positions.beta_fast=1 does not exceed positions.beta_slow=1: raise positions.beta_fast",
    ),
    ("rope_llama3", {**LLAMA3, "low_freq_factor": 5.0}, "positions.high_freq_factor=4 does not exceed"),
    ("t5", {"buckets": 5}, "positions.buckets=5 cannot be split between two directions: choose an even number"),
    ("t5", {"buckets": 2}, "positions.buckets=2: input should be greater than or equal to 4"),
    ("t5", {"max_distance": 16}, "positions.max_distance=16 must exceed 16, the number of one-distance buckets"),
]


@pytest.mark.parametrize(("name", "options", "message"), INVALID)
def test_errors_of_invalid_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        partwise.ModelConfig.from_dict({**SIZES, "positions": {"part": name, **options}})
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_overrides_select_scaled_rope() -> None:
    config = partwise.preset("llama", "positions=rope_linear", "positions.factor=4")
    assert config.positions.to_dict() == {
        "part": "rope_linear",
        "theta": 1e4,
        "partial_rotary_factor": 1.0,
        "layout": "half",
        "factor": 4.0,
    }
    with pytest.raises(
        ConfigError, match=r"^'positions\.factor' is missing: give it a value, as in positions\.factor="
    ):
        partwise.preset("llama", "positions=rope_linear")


def test_key_bias_has_a_gradient_only_with_rope() -> None:
    attention = {"part": "multihead", "bias": True}
    for name in REGISTRY["positions"]:
        model = partwise.Transformer(
            partwise.ModelConfig.from_dict({**SIZES, "positions": named(name), "attention": attention})
        )
        assert bool(model.parameters_without_gradient()) != name.startswith("rope"), name


def test_unused_hooks_return_their_input() -> None:
    x, ids = normal(2, 4, 16), torch.arange(4)
    for name in ("rope", "rope_linear", "alibi", "t5"):
        options = {key: value for key, value in named(name).items() if key != "part"}
        assert build(name, **options).at_input(x, ids) is x
    for name in ("alibi", "t5"):
        assert build(name).on_heads(x, ids) is x
    assert PositionLayer().on_scores(ids, ids, x) is None


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotations_of_bfloat16_heads_are_exact_at_late_positions(layout: str) -> None:
    """Only the result is rounded: cosines in bfloat16 would add errors of their own, and angles whole turns above 256."""
    layer, ids = build("rope", context_length=2048, layout=layout), torch.tensor([3, 255, 257, 1031, 2047])
    heads = normal(1, 2, 5, 16).bfloat16()
    exact = layer.on_heads(heads.double(), ids)
    rounded = layer.on_heads(heads, ids)
    assert rounded.dtype == torch.bfloat16
    assert ((rounded.double() - exact).abs() <= 1.01 * 2**-8 * exact.abs() + 1e-6).all()
