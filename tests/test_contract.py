"""The contract of a model's parts, over everything in the registry: a new part is tested by registering it.

Identities that are exact in theory are tested in float64, at 1e-12 relative to the largest reference value.
"""

import copy
import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import partwise
from partwise.config import REGISTRY, recipes_by_layer
from partwise.overrides import apply_overrides
from partwise.parts.experts import ExpertLinear
from partwise.rounding import rounded
from partwise.train.settings import TrainConfig
from recipes import LENGTH, MODEL_PARTS, VOCAB, ask, begin, configs, error, named, perturbed, shaken, source_of, tokens

EXACT = 1e-12
PATHS = [
    path for path in get_args(TrainConfig.model_fields["attention_path"].annotation) if path not in ("auto", "kernel")
]

Check = Callable[[partwise.ModelConfig], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def without_dropout(config: partwise.ModelConfig) -> partwise.ModelConfig:
    """Dropped weights exist on one attention path only: without dropout all paths can be compared."""
    return partwise.ModelConfig.from_dict(apply_overrides(config.to_dict(), [(("attention", "dropout"), 0.0)]))


def gradients(model: partwise.Transformer, inputs: Tensor) -> dict[str, Tensor]:
    """Of a random linear function of the logits, under the canonical names (queries, keys and values apart).

    Of what stands at `ahead=`, which serves training alone, of one of what it gives to training.
    """
    ahead: list[Tensor] = []
    logits = ask(model, inputs, ahead=ahead)
    model.zero_grad()
    linear_function(logits).backward(retain_graph=True)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("ahead."), name
    for parameter in model.ahead.parameters():
        (parameter.grad,) = torch.autograd.grad(linear_function(torch.cat(ahead)), parameter, retain_graph=True)
    holder = copy.deepcopy(model)
    for own, copied in zip(model.parameters(), holder.parameters(), strict=True):
        assert own.grad is not None
        copied.data = own.grad
    buffers = dict(model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in holder.state_dict().items() if name not in buffers}


def linear_function(logits: Tensor) -> Tensor:
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(7), dtype=logits.dtype)
    return (logits * weights).sum()


def chunked(model: partwise.Transformer, inputs: Tensor, bits: int) -> Tensor:
    """Logits by cached calls; the prompt is cut after position i where bit i is set."""
    cuts = [0, *(i + 1 for i in range(inputs.shape[1] - 1) if bits >> i & 1), inputs.shape[1]]
    states = begin(model, inputs, inputs.shape[1])
    return torch.cat([ask(model, inputs[:, a:b], states) for a, b in pairwise(cuts)], dim=1)


@check
def json_round_trip(config: partwise.ModelConfig) -> None:
    assert partwise.ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert partwise.ModelConfig.model_validate_json(config.model_dump_json()) == config


@check
def operations_as_torch_counts_them(config: partwise.ModelConfig) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = partwise.Transformer(config)
        model.use_path("products")
        inputs = torch.zeros(1, LENGTH, dtype=torch.long)
        model(inputs, source=inputs if config.encoder_layers else None, ahead=[])
    assert config.flops_per_token(LENGTH) == round(3 * counter.get_total_flops() / LENGTH)


@check
def shape_and_count(config: partwise.ModelConfig) -> None:
    model = partwise.Transformer(config)
    assert ask(model, tokens()).shape == (2, LENGTH, VOCAB)
    assert ask(model, tokens(length=1)).shape == (2, 1, VOCAB)
    assert config.parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert config.parameters() == sum(tensor.data.numel() for tensor in model.logical_tensors())


def swallowed(name: str, config: partwise.ModelConfig) -> bool:
    """Whether the next norm may undo a parameter, as a norm does not see by what number its input was multiplied.

    So with the one number of a scalenorm, where the stream is what it scales and the branch between is as homogeneous as
    relu without biases; and, where what a branch gives is normalised, with the sink or the gate of a single head and the
    weight of a single expert.
    """
    if config.norm.name == "scalenorm" and config.residual.name in ("post", "deepnorm"):
        return "residual.norms." in name and name.endswith(".weight")
    if config.residual.name not in ("reordered", "sandwich"):
        return False
    attentions, ffns = (getattr(field, "recipes", [field]) for field in (config.attention, config.ffn))
    of_a_head = re.search(r"(attention|cross)\.(scores\.sinks|gate\.weight)$", name)
    return bool(
        (of_a_head and any(recipe.n_heads == 1 for recipe in attentions))
        or (name.endswith("ffn.router.weight") and any(getattr(recipe, "k", 0) == 1 for recipe in ffns))
    )


@check
def every_parameter_counts(config: partwise.ModelConfig) -> None:
    model = perturbed(config)
    nulls, found = model.nulls(), shares(model)
    if any(found[name] <= 1e-9 for name in found.keys() - nulls):
        # scores so large that softmax is flat, or so small that a soft-cap is straight, where nothing norms them: what
        # counts does so in a calmer or in a wilder model
        others = [shares(perturbed(config, size=size)) for size in (0.3, 2.0)]
        found = {
            name: found[name] if name in nulls else max(share, *(other[name] for other in others))
            for name, share in found.items()
        }
    for name, share in found.items():
        if swallowed(name, config):
            continue
        if name in nulls:
            assert share <= EXACT, f"{name} is declared null, and is not"
        else:
            assert share > 1e-9, f"{name} changes nothing"


def shares(model: partwise.Transformer) -> dict[str, float]:
    """The largest gradient of each parameter, as a share of the largest of all; zeros where a soft-cap lets none pass."""
    sizes = {name: gradient.abs().max().item() for name, gradient in gradients(model, tokens()).items()}
    largest = max(sizes.values()) or 1.0
    return {name: size / largest for name, size in sizes.items()}


def reach(config: partwise.ModelConfig) -> int:
    """How many places a change is sure to spread over, the changed one included."""
    windows = [getattr(recipe, "window", None) for recipe in recipes_by_layer(config.attention, config.n_layers)]
    return LENGTH if None in windows else min(windows)


@check
def causal(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens()
    # an expert takes its tokens in one product, whose rounding depends on how many there are, later ones included
    grouped = any(isinstance(module, ExpertLinear) for module in model.modules())
    with torch.no_grad():
        for path in PATHS:
            model.use_path(path)
            before = ask(model, inputs)
            for place in range(LENGTH):
                changed = inputs.clone()
                changed[:, place] = (changed[:, place] + 4) % VOCAB
                after = ask(model, changed)
                earlier = after[:, :place], before[:, :place]
                assert torch.equal(*earlier) or (grouped and error(*earlier) <= EXACT)
                moved = (after - before).abs().amax(dim=(0, 2)) > 1e-9
                assert moved[place : place + reach(config)].all()  # and every later position looks back


@check
def what_training_predicts_further_ahead_is_causal_and_changes_nothing(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens()
    with torch.no_grad():
        ahead, changed_ahead = list[Tensor](), list[Tensor]()
        assert torch.equal(ask(model, inputs, ahead=ahead), ask(model, inputs))
        changed = inputs.clone()
        changed[:, -2:] = (changed[:, -2:] + 4) % VOCAB
        ask(model, changed, ahead=changed_ahead)
    for one, other in zip(ahead, changed_ahead, strict=True):
        assert one.shape == (2, LENGTH, VOCAB)
        assert error(other[:, :-2], one[:, :-2]) <= EXACT < error(other[:, -2:], one[:, -2:])


def same(actual: Tensor, expected: Tensor, model: partwise.Transformer) -> bool:
    """Equal to 1e-12; where nothing norms the stream and a model magnifies rounding itself, to what rounding does to it."""
    found = error(actual, expected)
    return found <= EXACT or found <= 8 * shaken(model, 2**-53)


@check
def cached_equals_uncached(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens(3)
    with torch.no_grad():
        for path in PATHS:
            model.use_path(path)
            whole = ask(model, inputs)
            assert same(chunked(model, inputs, 2 ** (LENGTH - 1) - 1), whole, model)
            assert same(chunked(model, inputs, 0b00101), whole, model)
            states = begin(model, inputs)
            ask(model, inputs[:, :5], states)
            try:
                states.truncate(2)
            except partwise.ConfigError as error_:  # a window has moved on: it says so rather than to answer wrongly
                assert "start anew" in str(error_)  # and nothing is forgotten
                assert error(ask(model, inputs[:, 5:], states), whole[:, 5:]) <= EXACT
                continue
            rows = torch.tensor([2, 0, 0, 1])
            states.select(rows)
            other = torch.cat([inputs[rows, :2], tokens(4, LENGTH - 2, shift=1)], dim=1)
            assert error(ask(model, other[:, 2:], states), ask(model, other)[:, 2:]) <= EXACT


@check
def rounded_models_go_on_as_they_began(config: partwise.ModelConfig) -> None:
    """Also where a cached step takes another way through a layer: the same sums round to the same neighbours."""
    model, inputs = rounded(perturbed(config)), tokens(3)
    with torch.no_grad():
        assert same(chunked(model, inputs, 2 ** (LENGTH - 1) - 1), ask(model, inputs), model)


@check
def paths_agree(config: partwise.ModelConfig) -> None:
    model = perturbed(without_dropout(config))
    found = []
    for path in PATHS:
        model.use_path(path)
        found.append((ask(model, tokens()).detach(), gradients(model, tokens())))
    for logits, grads in found[1:]:
        assert error(logits, found[0][0]) <= EXACT
        largest = max(gradient.abs().max().item() for gradient in found[0][1].values())
        for name, gradient in grads.items():
            assert (gradient - found[0][1][name]).abs().max() <= EXACT * largest, name


@check
def the_kernels_agree(config: partwise.ModelConfig) -> None:
    """Our kernels know float32 alone: they are held to what a shake of the weights by its unit does to the same model."""
    model, inputs = perturbed(without_dropout(config), dtype=torch.float32), tokens(length=LENGTH)
    found = []
    for paths in (("products", "torch"), ("kernel", "kernel")):
        model.use_path(*paths)
        found.append((ask(model, inputs).detach(), gradients(model, inputs)))
    allowed = 1e-5 + 8 * shaken(model, 2**-24)
    with torch.no_grad():
        assert error(chunked(model, inputs, 0b01101), found[0][0]) <= allowed
    assert error(found[1][0], found[0][0]) <= allowed
    largest = max(gradient.abs().max().item() for gradient in found[0][1].values())
    for name, gradient in found[1][1].items():
        assert (gradient - found[0][1][name]).abs().max() <= 50 * allowed * largest, name


@check
def names_are_canonical(config: partwise.ModelConfig) -> None:
    values = config.to_dict()
    if not all(hasattr(recipe, "fused") for recipe in getattr(config.attention, "recipes", [config.attention])):
        return
    both = [
        partwise.Transformer(partwise.ModelConfig.from_dict(apply_overrides(values, [(("attention", "fused"), fused)])))
        for fused in (True, False)
    ]
    states = [model.state_dict() for model in both]
    for model, state in zip(both, states, strict=True):
        assert set(state) - set(dict(model.named_buffers())) == {tensor.name for tensor in model.logical_tensors()}
        for tensor in model.logical_tensors():
            assert torch.equal(tensor.data, state[tensor.name])
    # fused or apart: the same names, the same initial values, and each loads the other's checkpoint
    assert set(states[0]) == set(states[1])
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    source = perturbed(both[0].config)
    for model in both:
        model.double().eval().load_state_dict(source.state_dict())
        assert error(ask(model, tokens()), ask(source, tokens())) <= EXACT


@check
def loads_strictly_and_stays_tied(config: partwise.ModelConfig) -> None:
    source = perturbed(config)
    expected = ask(source, tokens())
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    loaded = partwise.Transformer(config, seed=1).double().eval()
    loaded.load_state_dict(state)
    assigned = partwise.Transformer(config, seed=2).double().eval()
    assigned.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    copied = copy.deepcopy(loaded)
    for model in (loaded, assigned, copied):
        assert (model.head.weight is model.embed.weight) == config.tied
        assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters()
    for model in (loaded, assigned, copied):
        assert torch.equal(ask(model, tokens()), expected)
    absent = [*state][len(state) // 2]
    with pytest.raises(RuntimeError, match="Missing key"):
        loaded.load_state_dict({name: tensor for name, tensor in state.items() if name != absent})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        loaded.load_state_dict({**state, "blocks.0.stray.weight": torch.zeros(1)})
    if config.tied:  # another head than the table is another model
        with pytest.raises(RuntimeError, match=r"head\.weight differs"):
            loaded.load_state_dict({**state, "head.weight": state["embed.weight"] + 1})


@check
def bfloat16_is_close(config: partwise.ModelConfig) -> None:
    model = perturbed(config, dtype=torch.float32)
    with torch.no_grad():
        exact = ask(model, tokens())
        allowed = 0.02 + 4 * shaken(model, 2**-8)  # bfloat16's unit
        for path in PATHS:
            model.use_path(path)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                rough = ask(model, tokens())
                states = begin(model, tokens())
                cached = torch.cat([ask(model, tokens()[:, :4], states), ask(model, tokens()[:, 4:], states)], dim=1)
            assert error(rough.float(), exact) < allowed
            assert error(cached.float(), exact) < allowed


@check
def rows_are_alone(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens(4)
    with torch.no_grad():
        whole = ask(model, inputs)
        for row in range(4):
            assert error(ask(model, inputs[row : row + 1]), whole[row : row + 1]) <= EXACT


@check
def packed_documents_are_alone(config: partwise.ModelConfig) -> None:
    """Rows that hold several documents, or padding before the only one, give each what it has alone; cached as well."""
    model, inputs = perturbed(config), tokens(3)
    source = source_of(model, inputs)
    segments = torch.tensor([[0, 0, 1, 1, 1, 1], [-1, -1, -1, 0, 0, 0], [-1, 0, 0, 0, 0, 3]])
    with torch.no_grad():
        states = model.start(3, None, source)
        pieces = [model(inputs[:, a:b], states, segments=segments[:, a:b]) for a, b in ((0, 2), (2, 3), (3, LENGTH))]
        for whole in (model(inputs, segments=segments, source=source), torch.cat(pieces, dim=1)):
            for row, first, end in ((0, 0, 2), (0, 2, 6), (1, 3, 6), (2, 1, 5), (2, 5, 6)):
                one = slice(row, row + 1)
                alone = model(inputs[one, first:end], source=None if source is None else source[one])
                assert error(whole[one, first:end], alone) <= EXACT


each_part = pytest.mark.parametrize(("family", "name"), MODEL_PARTS)
relaxed: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.generate],  # a failing model is small as drawn: shrinking it takes minutes
    "suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow],
}


@each_part
@settings(max_examples=2, **relaxed)
@given(data=st.data())
def test_every_part_keeps_the_contract(family: str, name: str, data: st.DataObject) -> None:
    config = data.draw(configs(family, name))
    for one in CHECKS:
        one(config)


def run_checks(number: int, models: int) -> None:
    """Every check on so many random models, other ones for every number."""

    @seed(number)
    @settings(max_examples=models, **relaxed)
    @given(config=configs())
    def keeps_the_contract(config: partwise.ModelConfig) -> None:
        for one in CHECKS:
            one(config)

    keeps_the_contract()


@pytest.mark.parametrize("number", range(15))
def test_random_models_keep_the_contract(number: int) -> None:
    """300 combinations of all families; `make test-combinations N=10000` for more."""
    run_checks(number, 20)


SIZES = {"vocab_size": VOCAB, "max_len": LENGTH, "d_model": 8, "n_layers": 2}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("positions", sorted(REGISTRY["positions"]))
def test_every_chunking_of_a_prompt_gives_its_logits(positions: str, n_kv_heads: int, path: str) -> None:
    attention = {"part": "multihead", "n_heads": 4, "n_kv_heads": n_kv_heads, "head_dim": 4}
    model = perturbed(partwise.ModelConfig.from_dict({**SIZES, "positions": named(positions), "attention": attention}))
    model.use_path(path)
    with torch.no_grad():
        for length in (1, 2, LENGTH):
            inputs = tokens(length=length)
            whole = model(inputs)
            for bits in range(2 ** (length - 1)):
                assert error(chunked(model, inputs, bits), whole) <= EXACT, f"cuts at {bits:b}"


def test_states_refuse_what_does_not_fit() -> None:
    model = partwise.Transformer(partwise.ModelConfig.from_dict(SIZES))
    states = model.start(1, 4)
    model(tokens(1, 4), states)
    for call in (lambda: model(tokens(1, 1), states), lambda: model(tokens(1, LENGTH + 1))):
        with pytest.raises(partwise.ConfigError, match="do not fit max_len"):
            call()


@pytest.mark.parametrize(
    "family, swap", [(family, name) for family, name in MODEL_PARTS if family not in ("init", "positions")]
)
def test_a_swap_leaves_every_other_tensors_start_alone(family: str, swap: str) -> None:
    """Pairing: tensors of the same name and shape start equal, whatever the other parts are."""
    base = partwise.Transformer(partwise.ModelConfig.from_dict(SIZES), seed=3).state_dict()
    model = partwise.Transformer(partwise.ModelConfig.from_dict({**SIZES, family: swap}), seed=3)
    other = model.state_dict()
    gains = {tensor.name: model.config.residual.gain(model.spec(tensor)) for tensor in model.logical_tensors()}
    alike = [name for name in base if name in other and base[name].shape == other[name].shape]
    assert {"embed.weight", "head.weight", "blocks.1.attention.k.weight"} <= set(alike)
    assert all(torch.equal(base[name] * gains[name], other[name]) for name in alike)
    again = partwise.Transformer(partwise.ModelConfig.from_dict(SIZES), seed=4).state_dict()
    assert not torch.equal(again["embed.weight"], base["embed.weight"])


def test_building_a_model_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    partwise.Transformer(partwise.ModelConfig.from_dict(SIZES))
    assert torch.equal(torch.rand(3), expected)


def assert_compiles(config: partwise.ModelConfig) -> None:
    """One graph without breaks, in logits and gradients what eager gives; names stay canonical below the wrapper."""
    torch._dynamo.reset()
    model, twin = perturbed(config), perturbed(config)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    assert error(compiled(tokens(), source=source_of(model, tokens())), ask(model, tokens())) <= EXACT
    expected = gradients(model, tokens())
    ahead: list[Tensor] = []
    linear_function(compiled(tokens(), source=source_of(model, tokens()), ahead=ahead)).backward(retain_graph=True)
    for parameter in twin.ahead.parameters():
        (parameter.grad,) = torch.autograd.grad(linear_function(torch.cat(ahead)), parameter, retain_graph=True)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert own.grad is not None and other.grad is not None
        assert (own.grad - other.grad).abs().max() <= EXACT * largest
    assert set(twin.state_dict()) == set(model.state_dict())


COMPILED = [
    {"attention": {"part": "multihead", "n_kv_heads": 2}, "ffn": {"part": "swiglu", "trainable_beta": True}},
    {"positions": "learned", "ffn": "relu", "norm": "layernorm", "residual": "post", "tied": True},
    {"positions": "sinusoidal", "ffn": "gelu", "attention": {"part": "multihead", "fused": False, "bias": True}},
    {"encoder_layers": 1, "padding_idx": VOCAB - 1, "residual": "post", "tied": True, "attention": "multihead"},
]


@pytest.mark.parametrize("parts", COMPILED, ids=["rope", "learned", "sinusoidal", "pairs"])
def test_compiled_equals_eager(parts: dict[str, Any]) -> None:
    assert_compiles(partwise.ModelConfig.from_dict({**SIZES, "n_layers": 1, **parts}))


@pytest.mark.slow
@each_part
@settings(max_examples=1, **relaxed)
@given(data=st.data())
def test_every_part_compiles(family: str, name: str, data: st.DataObject) -> None:
    config = data.draw(configs(family, name))
    assert_compiles(partwise.ModelConfig.from_dict({**config.to_dict(), "encoder_layers": 0}))
