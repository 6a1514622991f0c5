"""The contract of a model's parts, over the whole registry: registering a part is enough to test it.

Identities that are exact in theory are tested in float64, at 1e-12 relative to the largest reference value.
"""

import copy
import json
import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import partwise
from backends import use_backends
from partwise.checks.measures import cached_logits, change_before, change_of_first_row, linear_function
from partwise.compute.backends import backend_names
from partwise.compute.bf16_emulation import emulate_bf16
from partwise.config import REGISTRY, recipes_by_layer
from partwise.config.overrides import apply_overrides
from partwise.parts import MODEL_FAMILIES
from partwise.parts.feed_forward.moe import ExpertLinear
from recipes import (
    LENGTH,
    MODEL_PARTS,
    SMALL,
    VOCAB,
    configs,
    error,
    logits_of,
    named,
    new_cache,
    perturbed,
    rounding_effect,
    source_of,
    tokens,
)

EXACT = 1e-12
BACKENDS = [name for name in backend_names("attention") if name not in ("auto", "cpp")]

Check = Callable[[partwise.ModelConfig], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def without_dropout(config: partwise.ModelConfig) -> partwise.ModelConfig:
    """Only the eager backend supports attention dropout; without it, all backends can be compared."""
    return partwise.ModelConfig.from_dict(apply_overrides(config.to_dict(), [(("attention", "dropout"), 0.0)]))


def gradients(model: partwise.Transformer, inputs: Tensor) -> dict[str, Tensor]:
    """Gradients of a random linear function of the logits, by the names of the state dict.

    For the parameters of `mtp=`, which are only used in training, of a linear function of the MTP logits.
    """
    mtp_logits: list[Tensor] = []
    logits = logits_of(model, inputs, mtp_logits=mtp_logits)
    model.zero_grad()
    linear_function(logits).backward(retain_graph=True)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("ahead."), name
    for parameter in model.ahead.parameters():
        (parameter.grad,) = torch.autograd.grad(linear_function(torch.cat(mtp_logits)), parameter, retain_graph=True)
    holder = copy.deepcopy(model)
    for own, copied in zip(model.parameters(), holder.parameters(), strict=True):
        assert own.grad is not None
        copied.data = own.grad
    buffers = dict(model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in holder.state_dict().items() if name not in buffers}


def chunked(model: partwise.Transformer, inputs: Tensor, bits: int) -> Tensor:
    """Logits of cached calls; the prompt is cut after position i if bit i is set."""
    cuts = [i + 1 for i in range(inputs.shape[1] - 1) if bits >> i & 1]
    return cached_logits(model, inputs, cuts, source_of(model, inputs))


@check
def json_round_trip(config: partwise.ModelConfig) -> None:
    assert partwise.ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert partwise.ModelConfig.model_validate_json(config.model_dump_json()) == config


@check
def flops_equal_torchs_count(config: partwise.ModelConfig) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = partwise.Transformer(config)
        model.reset_backends()
        inputs = torch.zeros(1, LENGTH, dtype=torch.long)
        model(inputs, source=inputs if config.encoder_layers else None, mtp_logits=[])
    assert config.flops_per_token(LENGTH) == round(3 * counter.get_total_flops() / LENGTH)


@check
def shape_and_count(config: partwise.ModelConfig) -> None:
    model = partwise.Transformer(config)
    assert logits_of(model, tokens()).shape == (2, LENGTH, VOCAB)
    assert logits_of(model, tokens(length=1)).shape == (2, 1, VOCAB)
    assert config.parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert config.parameters() == sum(tensor.data.numel() for tensor in model.logical_tensors())


def canceled_by_norm(name: str, config: partwise.ModelConfig) -> bool:
    """Whether the next norm may cancel a parameter that only scales the norm's input.

    Affects the scalar weight of a scalenorm on the residual stream, if the branch in between is homogeneous, like relu
    without biases, or on the embeddings without a residual stream; and, if nothing but a norm takes the output of a
    branch, the sink or gate of a single head and the weight of a single expert.
    """
    if config.norm.name == "scalenorm" and config.residual.name in ("post", "deepnorm", "none"):
        return name.endswith(".weight") and ("residual.norms." in name or "embed_norm" in name)
    if config.residual.name not in ("reordered", "sandwich", "none"):
        return False
    attentions, ffns = (getattr(field, "recipes", [field]) for field in (config.attention, config.ffn))
    of_a_head = re.search(r"(attention|cross)\.(scores\.sinks|gate\.weight)$", name)
    return bool(
        (of_a_head and any(recipe.n_heads == 1 for recipe in attentions))
        or (name.endswith("ffn.router.weight") and any(getattr(recipe, "top_k", 0) == 1 for recipe in ffns))
    )


@check
def every_parameter_has_an_effect(config: partwise.ModelConfig) -> None:
    model = perturbed(config)
    parameters_without_gradient, found = model.parameters_without_gradient(), gradient_shares(model)
    if any(found[name] <= 1e-9 for name in found.keys() - parameters_without_gradient):
        # scores may saturate softmax or stay in the linear range of a soft-cap; try smaller and larger weights
        others = [gradient_shares(perturbed(config, size=size)) for size in (0.3, 2.0)]
        found = {
            name: found[name] if name in parameters_without_gradient else max(share, *(other[name] for other in others))
            for name, share in found.items()
        }
    for name, share in found.items():
        if canceled_by_norm(name, config):
            continue
        if name in parameters_without_gradient:
            assert share <= EXACT, f"{name} is listed as without gradient, but has one"
        else:
            assert share > 1e-9, f"{name} has no effect"


def gradient_shares(model: partwise.Transformer) -> dict[str, float]:
    """The largest gradient of each parameter, relative to the largest of all; zero if a soft-cap saturates."""
    sizes = {name: gradient.abs().max().item() for name, gradient in gradients(model, tokens()).items()}
    largest = max(sizes.values()) or 1.0
    return {name: size / largest for name, size in sizes.items()}


def receptive_field(config: partwise.ModelConfig) -> int:
    """The number of positions that a change surely affects, including the changed one."""
    windows = [getattr(recipe, "window", None) for recipe in recipes_by_layer(config.attention, config.n_layers)]
    return LENGTH if None in windows else min(windows)


@check
def causal(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens()
    # an expert processes all its tokens in one matmul; rounding depends on their number, including later ones
    grouped = any(isinstance(module, ExpertLinear) for module in model.modules())
    with torch.no_grad():
        for backend in BACKENDS:
            use_backends(model, backend)
            before = logits_of(model, inputs)
            for position in range(LENGTH):
                change = change_before(partial(logits_of, model), inputs, position, VOCAB, before)
                assert change == 0 or (grouped and change <= EXACT)
                changed = inputs.clone()
                changed[:, position] = (changed[:, position] + 4) % VOCAB
                moved = (logits_of(model, changed) - before).abs().amax(dim=(0, 2)) > 1e-9
                assert moved[position : position + receptive_field(config)].all()  # every later position attends to it


@check
def mtp_logits_are_causal_and_do_not_change_logits(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens()
    with torch.no_grad():
        mtp_logits, changed_mtp_logits = list[Tensor](), list[Tensor]()
        assert torch.equal(logits_of(model, inputs, mtp_logits=mtp_logits), logits_of(model, inputs))
        changed = inputs.clone()
        changed[:, -2:] = (changed[:, -2:] + 4) % VOCAB
        logits_of(model, changed, mtp_logits=changed_mtp_logits)
    for one, other in zip(mtp_logits, changed_mtp_logits, strict=True):
        assert one.shape == (2, LENGTH, VOCAB)
        assert error(other[:, :-2], one[:, :-2]) <= EXACT < error(other[:, -2:], one[:, -2:])


class Tolerance:
    """`base` plus `factor` times the effect of rounding on the model, which is computed only if `base` does not suffice."""

    def __init__(self, base: float, factor: float, model: partwise.Transformer, size: float) -> None:
        self.base, self.factor, self.model, self.size = base, factor, model, size

    @cached_property
    def total(self) -> float:
        return self.base + self.factor * rounding_effect(self.model, self.size)

    def holds(self, found: float) -> bool:
        return found <= self.base or found <= self.total


def same(actual: Tensor, expected: Tensor, model: partwise.Transformer) -> bool:
    """Results agree to 1e-12, or up to the effect of rounding if the model amplifies it (nothing normalizes the stream)."""
    found = error(actual, expected)
    return found <= EXACT or found <= 8 * rounding_effect(model, 2**-53)


@check
def cached_equals_uncached(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens(3)
    with torch.no_grad():
        for backend in BACKENDS:
            use_backends(model, backend)
            full = logits_of(model, inputs)
            assert same(chunked(model, inputs, 2 ** (LENGTH - 1) - 1), full, model)
            assert same(chunked(model, inputs, 0b00101), full, model)
            cache = new_cache(model, inputs)
            logits_of(model, inputs[:, :5], cache)
            try:
                cache.truncate(2)
            except partwise.ConfigError as error_:  # positions have left the attention window
                assert "start with a new cache" in str(error_)  # the cache is unchanged
                assert error(logits_of(model, inputs[:, 5:], cache), full[:, 5:]) <= EXACT
                continue
            rows = torch.tensor([2, 0, 0, 1])
            cache.select(rows)
            other = torch.cat([inputs[rows, :2], tokens(4, LENGTH - 2, shift=1)], dim=1)
            assert error(logits_of(model, other[:, 2:], cache), logits_of(model, other)[:, 2:]) <= EXACT


@check
def cached_equals_uncached_in_bf16_emulation(config: partwise.ModelConfig) -> None:
    """A cached step may use another algorithm, such as absorbed MLA: equal sums round to equal bf16 values."""
    model, inputs = emulate_bf16(perturbed(config)), tokens(3)
    with torch.no_grad():
        assert same(chunked(model, inputs, 2 ** (LENGTH - 1) - 1), logits_of(model, inputs), model)


@check
def backends_agree(config: partwise.ModelConfig) -> None:
    model = perturbed(without_dropout(config))
    found = []
    for backend in BACKENDS:
        use_backends(model, backend)
        found.append((logits_of(model, tokens()).detach(), gradients(model, tokens())))
    for logits, grads in found[1:]:
        assert error(logits, found[0][0]) <= EXACT
        largest = max(gradient.abs().max().item() for gradient in found[0][1].values())
        for name, gradient in grads.items():
            assert (gradient - found[0][1][name]).abs().max() <= EXACT * largest, name


@check
def cpp_kernels_agree(config: partwise.ModelConfig) -> None:
    """The C++ kernels are float32 only; their tolerance is the effect of float32 rounding on the same model."""
    model, inputs = perturbed(without_dropout(config), dtype=torch.float32), tokens(length=LENGTH)
    found = []
    for backends in (("eager", "eager"), ("cpp", "cpp")):
        use_backends(model, *backends)
        found.append((logits_of(model, inputs).detach(), gradients(model, inputs)))
    allowed = Tolerance(1e-5, 8, model, 2**-24)
    with torch.no_grad():
        assert allowed.holds(error(chunked(model, inputs, 0b01101), found[0][0]))
    assert allowed.holds(error(found[1][0], found[0][0]))
    largest = max(gradient.abs().max().item() for gradient in found[0][1].values())
    for name, gradient in found[1][1].items():
        assert allowed.holds((gradient - found[0][1][name]).abs().max().item() / (50 * largest)), name


@check
def names_are_canonical(config: partwise.ModelConfig) -> None:
    values = config.to_dict()
    if not all(hasattr(recipe, "fused_qkv") for recipe in getattr(config.attention, "recipes", [config.attention])):
        return
    both = [
        partwise.Transformer(
            partwise.ModelConfig.from_dict(apply_overrides(values, [(("attention", "fused_qkv"), fused)]))
        )
        for fused in (True, False)
    ]
    state_dicts = [model.state_dict() for model in both]
    for model, state in zip(both, state_dicts, strict=True):
        assert set(state) - set(dict(model.named_buffers())) == {tensor.name for tensor in model.logical_tensors()}
        for tensor in model.logical_tensors():
            assert torch.equal(tensor.data, state[tensor.name])
    # fused or separate: same names, same initial weights, and each loads the other's checkpoint
    assert set(state_dicts[0]) == set(state_dicts[1])
    for name, tensor in state_dicts[0].items():
        assert torch.equal(tensor, state_dicts[1][name]), name
    source = perturbed(both[0].config)
    for model in both:
        model.double().eval().load_state_dict(source.state_dict())
        assert error(logits_of(model, tokens()), logits_of(source, tokens())) <= EXACT


@check
def loads_strictly_and_stays_tied(config: partwise.ModelConfig) -> None:
    source = perturbed(config)
    expected = logits_of(source, tokens())
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    loaded = partwise.Transformer(config, seed=1).double().eval()
    loaded.load_state_dict(state)
    assigned = partwise.Transformer(config, seed=2).double().eval()
    assigned.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    copied = copy.deepcopy(loaded)
    for model in (loaded, assigned, copied):
        assert (model.head.weight is model.embed.weight) == config.tie_embeddings
        assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters()
    for model in (loaded, assigned, copied):
        assert torch.equal(logits_of(model, tokens()), expected)
    absent = [*state][len(state) // 2]
    with pytest.raises(RuntimeError, match="Missing key"):
        loaded.load_state_dict({name: tensor for name, tensor in state.items() if name != absent})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        loaded.load_state_dict({**state, "blocks.0.stray.weight": torch.zeros(1)})
    if config.tie_embeddings:  # a head that differs from the embeddings
        with pytest.raises(RuntimeError, match=r"head\.weight differs"):
            loaded.load_state_dict({**state, "head.weight": state["embed.weight"] + 1})


@check
def bfloat16_is_close(config: partwise.ModelConfig) -> None:
    model = perturbed(config, dtype=torch.float32)
    with torch.no_grad():
        exact = logits_of(model, tokens())
        allowed = Tolerance(0.02, 4, model, 2**-8)  # bfloat16 epsilon
        for backend in BACKENDS:
            use_backends(model, backend)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                approximate = logits_of(model, tokens())
                cache = new_cache(model, tokens())
                cached = torch.cat(
                    [logits_of(model, tokens()[:, :4], cache), logits_of(model, tokens()[:, 4:], cache)], dim=1
                )
            assert allowed.holds(error(approximate.float(), exact))
            assert allowed.holds(error(cached.float(), exact))


@check
def rows_are_independent(config: partwise.ModelConfig) -> None:
    model, inputs = perturbed(config), tokens(4)
    with torch.no_grad():
        full = logits_of(model, inputs)
        assert change_of_first_row(partial(logits_of, model), inputs, VOCAB, full) <= EXACT
        for row in range(4):
            assert error(logits_of(model, inputs[row : row + 1]), full[row : row + 1]) <= EXACT


@check
def packed_documents_are_independent(config: partwise.ModelConfig) -> None:
    """Documents packed in a row, or padded on the left, give the logits of separate rows, cached or not."""
    model, inputs = perturbed(config), tokens(3)
    source = source_of(model, inputs)
    document_ids = torch.tensor([[0, 0, 1, 1, 1, 1], [-1, -1, -1, 0, 0, 0], [-1, 0, 0, 0, 0, 3]])
    with torch.no_grad():
        cache = model.new_cache(3, None, source)
        pieces = [
            model(inputs[:, a:b], cache, document_ids=document_ids[:, a:b]) for a, b in ((0, 2), (2, 3), (3, LENGTH))
        ]
        for full in (model(inputs, document_ids=document_ids, source=source), torch.cat(pieces, dim=1)):
            for row, first, end in ((0, 0, 2), (0, 2, 6), (1, 3, 6), (2, 1, 5), (2, 5, 6)):
                one = slice(row, row + 1)
                alone = model(inputs[one, first:end], source=None if source is None else source[one])
                assert error(full[one, first:end], alone) <= EXACT


each_part = pytest.mark.parametrize(("family", "name"), MODEL_PARTS)
relaxed: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.generate],  # failing models are small already, and shrinking takes minutes
    "suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow],
}


def test_every_option_that_tests_restrict_exists() -> None:
    """A renamed option would otherwise be sampled without limits, and most random models would be rejected unseen."""
    options = {key for family in MODEL_FAMILIES for recipe in REGISTRY[family].values() for key in recipe.model_fields}
    assert SMALL.keys() <= options, SMALL.keys() - options


@pytest.mark.promise
@each_part
@settings(max_examples=2, **relaxed)
@given(data=st.data())
def test_every_part_satisfies_the_contract(family: str, name: str, data: st.DataObject) -> None:
    config = data.draw(configs(family, name))
    for one in CHECKS:
        one(config)


def run_checks(number: int, models: int) -> None:
    """Every check on `models` random models, with the seed `number`."""

    @seed(number)
    @settings(max_examples=models, **relaxed)
    @given(config=configs())
    def keeps_the_contract(config: partwise.ModelConfig) -> None:
        for one in CHECKS:
            one(config)

    keeps_the_contract()


@pytest.mark.parametrize("number", range(6))
def test_random_models_keep_the_contract(number: int) -> None:
    """60 combinations of all families; `make test-combinations N=10000` for more."""
    run_checks(number, 10)


SIZES = {"vocab_size": VOCAB, "context_length": LENGTH, "d_model": 8, "n_layers": 2}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("positions", "n_kv_heads"), [*((name, 2) for name in sorted(REGISTRY["positions"])), ("alibi", 1), ("rope", 4)]
)
def test_every_chunking_of_a_prompt_gives_its_logits(positions: str, n_kv_heads: int, backend: str) -> None:
    attention = {"part": "multihead", "n_heads": 4, "n_kv_heads": n_kv_heads, "head_dim": 4}
    model = perturbed(partwise.ModelConfig.from_dict({**SIZES, "positions": named(positions), "attention": attention}))
    use_backends(model, backend)
    with torch.no_grad():
        for length in (1, 2, LENGTH):
            inputs = tokens(length=length)
            full = model(inputs)
            for bits in range(2 ** (length - 1)):
                assert error(chunked(model, inputs, bits), full) <= EXACT, f"cuts at {bits:b}"


def test_cache_rejects_too_many_tokens() -> None:
    model = partwise.Transformer(partwise.ModelConfig.from_dict(SIZES))
    cache = model.new_cache(1, 4)
    model(tokens(1, 4), cache)
    for call in (lambda: model(tokens(1, 1), cache), lambda: model(tokens(1, LENGTH + 1))):
        with pytest.raises(partwise.ConfigError, match="do not fit context_length"):
            call()


@pytest.mark.parametrize(
    "family, swap", [(family, name) for family, name in MODEL_PARTS if family not in ("init", "positions")]
)
def test_swapping_a_part_keeps_the_initial_weights_of_all_other_tensors(family: str, swap: str) -> None:
    """Pairing: tensors with the same name and shape have equal initial weights, whatever the other parts."""
    base = partwise.Transformer(partwise.ModelConfig.from_dict(SIZES), seed=3).state_dict()
    model = partwise.Transformer(partwise.ModelConfig.from_dict({**SIZES, family: swap}), seed=3)
    other = model.state_dict()
    gains = {tensor.name: model.config.residual.gain(model.spec(tensor)) for tensor in model.logical_tensors()}
    common = [name for name in base if name in other and base[name].shape == other[name].shape]
    assert {"embed.weight", "head.weight", "blocks.1.attention.k.weight"} <= set(common)
    assert all(torch.equal(base[name] * gains[name], other[name]) for name in common)
    again = partwise.Transformer(partwise.ModelConfig.from_dict(SIZES), seed=4).state_dict()
    assert not torch.equal(again["embed.weight"], base["embed.weight"])


def test_building_a_model_does_not_change_the_global_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    partwise.Transformer(partwise.ModelConfig.from_dict(SIZES))
    assert torch.equal(torch.rand(3), expected)


def assert_compiles(config: partwise.ModelConfig) -> None:
    """One graph without breaks; logits, gradients and state dict names equal eager."""
    torch._dynamo.reset()
    model, twin = perturbed(config), perturbed(config)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    assert error(compiled(tokens(), source=source_of(model, tokens())), logits_of(model, tokens())) <= EXACT
    expected = gradients(model, tokens())
    mtp_logits: list[Tensor] = []
    linear_function(compiled(tokens(), source=source_of(model, tokens()), mtp_logits=mtp_logits)).backward(
        retain_graph=True
    )
    for parameter in twin.ahead.parameters():
        (parameter.grad,) = torch.autograd.grad(linear_function(torch.cat(mtp_logits)), parameter, retain_graph=True)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert own.grad is not None and other.grad is not None
        assert (own.grad - other.grad).abs().max() <= EXACT * largest
    assert set(twin.state_dict()) == set(model.state_dict())


COMPILED = [
    {"attention": {"part": "multihead", "n_kv_heads": 2}, "ffn": {"part": "swiglu", "trainable_beta": True}},
    {"positions": "learned", "ffn": "relu", "norm": "layernorm", "residual": "post", "tie_embeddings": True},
    {"positions": "sinusoidal", "ffn": "gelu", "attention": {"part": "multihead", "fused_qkv": False, "bias": True}},
    {
        "encoder_layers": 1,
        "padding_idx": VOCAB - 1,
        "residual": "post",
        "tie_embeddings": True,
        "attention": "multihead",
    },
]


@pytest.mark.parametrize("parts", COMPILED, ids=["rope", "learned", "sinusoidal", "pairs"])
def test_compiled_equals_eager(parts: dict[str, Any]) -> None:
    assert_compiles(partwise.ModelConfig.from_dict({**SIZES, "n_layers": 1, **parts}))


@pytest.mark.long
@each_part
@settings(max_examples=1, **relaxed)
@given(data=st.data())
def test_every_part_compiles(family: str, name: str, data: st.DataObject) -> None:
    config = data.draw(configs(family, name))
    assert_compiles(partwise.ModelConfig.from_dict({**config.to_dict(), "encoder_layers": 0}))
