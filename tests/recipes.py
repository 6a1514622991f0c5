"""Random recipes and small models for property tests, over all parts in the registry, with compatible options."""

import copy
import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pydantic.fields import FieldInfo
from torch import Tensor

import partwise
from partwise.checks.measures import perturb
from partwise.config import REGISTRY, ConfigError
from partwise.data import Windows
from partwise.evaluate.loss import mean_loss
from partwise.parts import MODEL_FAMILIES
from partwise.parts.feed_forward.moe import dense_recipes

MODEL_PARTS = [(family, name) for family in MODEL_FAMILIES for name in REGISTRY[family]]
VOCAB, LENGTH = 11, 6

SMALL: dict[str, SearchStrategy[Any]] = {
    "n_heads": st.sampled_from([1, 2, 4]),
    "n_kv_heads": st.sampled_from([None, 1, 2, 4]),
    "head_dim": st.sampled_from([None, 2, 4, 6]),
    "hidden": st.sampled_from([None, 8, 11]),
    "expansion": st.floats(1, 3),
    "n_experts": st.sampled_from([2, 3, 4]),
    "top_k": st.sampled_from([1, 2, 3]),
    "n_shared_experts": st.sampled_from([0, 1, 2]),
    "n_groups": st.sampled_from([1, 1, 2]),
    "top_k_groups": st.sampled_from([1, 2]),
    "routed_scaling_factor": st.floats(0.25, 3),
    "aux_loss_coef": st.floats(1e-3, 1),
    "bias_update_rate": st.floats(1e-3, 1),
    "rope_head_dim": st.sampled_from([None, 2, 4]),
    "v_head_dim": st.none() | st.integers(2, 5),  # a norm would reduce one dimension to its sign
    "kv_lora_rank": st.none() | st.integers(2, 6),
    "q_lora_rank": st.none() | st.integers(2, 6),
    "window": st.none() | st.integers(2, 7),
    # near the scores, where tanh is curved: it saturates for much larger scores and is linear for much smaller ones
    "softcap": st.none() | st.floats(4, 12),
    "qk_norm_eps": st.floats(1e-8, 1e-2),
    "scale": st.none() | st.floats(0.1, 1.0),
    "eps": st.floats(1e-8, 1e-2),
    "beta": st.floats(0.25, 2),
    "alpha": st.floats(0.25, 2),
    "base": st.floats(10, 1e6),
    "max_n": st.integers(2, 4),
    "n_tokens": st.integers(1, 3),
    "table_size": st.sampled_from([5, 150, 2000]),  # shared rows, one row per bigram, per trigram
    "theta": st.floats(10, 1e6),
    "std": st.floats(0.01, 0.1),
    "gain": st.floats(0.25, 4),
    "copies": st.integers(2, 4),
    "kernel_size": st.integers(2, 8),
    "partial_rotary_factor": st.sampled_from([1.0, 0.5]),
    "factor": st.floats(1, 8),
    "original_context_length": st.integers(4, 64),
    "beta_fast": st.floats(8, 64),
    "beta_slow": st.floats(0.5, 4),
    "mscale": st.none() | st.floats(0.5, 2),
    "low_freq_factor": st.floats(0.5, 2),
    "high_freq_factor": st.floats(2.5, 8),
    "buckets": st.sampled_from([4, 6, 32]),
    "max_distance": st.integers(17, 40),
}
"""Options that must be compatible in a tiny model; all others are sampled by their type and limits."""


NAMES: dict[str, SearchStrategy[str]] = {"expert": st.sampled_from(sorted(dense_recipes()))}
"""Options that name a part."""


def values(field: FieldInfo) -> SearchStrategy[Any]:
    """Any value that a field accepts, by its annotation and limits."""
    limits = {type(limit): limit for limit in field.metadata}
    low = limits[Gt].gt if Gt in limits else limits[Ge].ge if Ge in limits else None
    high = limits[Lt].lt if Lt in limits else limits[Le].le if Le in limits else None

    def of(kind: Any) -> SearchStrategy[Any]:
        if get_origin(kind) is Literal:
            return st.sampled_from(get_args(kind))
        if get_origin(kind) in (UnionType, Union):
            return st.one_of(*map(of, get_args(kind)))
        if kind is bool:
            return st.booleans()
        if kind is int:
            first = -20 if low is None else int(low) + (Gt in limits)
            return st.integers(first, first + 40 if high is None else min(int(high) - (Lt in limits), first + 40))
        if kind is float:
            floats = st.floats(low, high, exclude_min=Gt in limits, exclude_max=Lt in limits)
            return floats.filter(math.isfinite)
        if kind is NoneType:
            return st.none()
        assert kind is str, f"add a strategy for {kind} to tests/recipes.py"
        return st.text(min_size=1)

    return of(field.annotation)


@st.composite
def recipes(draw: DrawFn, family: str, name: str | None = None, small: bool = True) -> dict[str, Any]:
    """A part with random options, as plain values; `small` options are compatible in a small model."""
    name = draw(st.sampled_from(sorted(REGISTRY[family]))) if name is None else name
    fields = REGISTRY[family][name].model_fields
    known = NAMES | SMALL if small else NAMES
    options = {key: draw(known[key] if key in known else values(field)) for key, field in fields.items()}
    return {"part": name, **options}


@st.composite
def fields(draw: DrawFn, family: str, name: str | None = None, layers: tuple[int, ...] = (1,)) -> Any:
    """A part, or sometimes, in a family that may vary by layer, a pattern with the named part."""
    one = recipes(family, name)
    if not MODEL_FAMILIES[family].by_layer or draw(st.integers(0, 3)):
        return draw(one)
    others = [draw(recipes(family)) for _ in range(draw(st.integers(0, 2)))]
    if len(set(layers)) == 1 and draw(st.booleans()):
        return [draw(one), *(draw(recipes(family)) for _ in range(layers[0] - 1))]
    return {"cycle": [draw(one), *others]}


@st.composite
def configs(draw: DrawFn, family: str | None = None, name: str | None = None) -> partwise.ModelConfig:
    """A small random model, optionally with the named part."""
    n_layers, encoder_layers = draw(st.integers(1, 2)), max(0, draw(st.integers(-2, 2)))
    layers = (n_layers, encoder_layers) if encoder_layers else (n_layers,)
    parts = {each: draw(fields(each, name if each == family else None, layers)) for each in MODEL_FAMILIES}
    if encoder_layers:
        parts["ngram_lm"] = {"part": "none"}  # requires text; encoder-decoders train on pairs
    numbers = {"vocab_size": VOCAB, "context_length": LENGTH, "n_layers": n_layers, "encoder_layers": encoder_layers}
    names = ("tie_embeddings", "head_bias", "scale_embeddings", "embed_norm", "share_encoder_embeddings")
    switches: dict[str, Any] = {each: draw(st.booleans()) for each in names}
    switches["logit_softcap"] = draw(st.none() | st.floats(1, 30))
    switches["padding_idx"] = draw(st.none() | st.just(VOCAB - 1)) if encoder_layers else None
    width = draw(st.sampled_from([4, 8, 12]))
    try:
        return partwise.ModelConfig.from_dict({**numbers, **switches, **parts, "d_model": width})
    except ConfigError:
        reject()  # such as heads that do not divide the width; tests/config covers the messages


def source_of(model: partwise.Transformer, inputs: Tensor) -> Tensor | None:
    """A source for these inputs, a function of the first token of each row, partly padding."""
    if model.encoder is None:
        return None
    source = (inputs[:, :1] * 2 + torch.arange(4, device=inputs.device) * 3 + 1) % (VOCAB - 1)
    if model.config.padding_idx is not None:
        source[inputs[:, 0] % 2 == 0, 3:] = model.config.padding_idx
    return source


def logits_of(model: partwise.Transformer, inputs: Tensor, cache: Any = None, **kwargs: Any) -> Tensor:
    """The logits of a model, with a source if it has an encoder."""
    return model(inputs, cache, source=None if cache else source_of(model, inputs), **kwargs)


def new_cache(model: partwise.Transformer, inputs: Tensor, max_length: int | None = None) -> Any:
    """A cache for these inputs."""
    return model.new_cache(inputs.shape[0], max_length, source_of(model, inputs))


def perturbed(
    config: partwise.ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float64, size: float = 1.0
) -> partwise.Transformer:
    """A model in eval mode with all parameters random, so no zero or one hides a bug; `size` scales the matrices."""
    model = partwise.Transformer(config).to(dtype).eval()
    perturb(model, seed, size)
    return model


def named(name: str) -> dict[str, Any]:
    """The positions of that name, with their required options."""
    required = {"factor": 2.0, "original_context_length": 8}
    return {"part": name} | {key: required[key] for key in required if key in REGISTRY["positions"][name].model_fields}


def tokens(batch: int = 2, length: int = LENGTH, shift: int = 0) -> Tensor:
    """(B, T) ids below VOCAB; the ids of a row are distinct, and so are the rows."""
    assert length <= VOCAB
    return (torch.arange(length) * 3 + torch.arange(batch)[:, None] * 5 + shift) % VOCAB


def rounding_effect(model: partwise.Transformer, size: float) -> float:
    """The relative change of the logits if every weight and layer output changes by up to the fraction `size`, which
    bounds the effect of rounding.

    A narrow model may amplify rounding, so no fixed bound holds for all weights.
    """
    exact, largest = logits_of(model, tokens()), 0.0
    for seed in range(4):
        other = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(seed)

        def perturb(x: Any, generator: torch.Generator = generator) -> Any:
            if isinstance(x, tuple):
                return tuple(map(perturb, x))
            if not isinstance(x, Tensor) or not x.is_floating_point():
                return x
            return x * (1 + size * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1))

        for parameter in other.parameters():
            parameter.data.copy_(perturb(parameter.data))
        for module in other.modules():
            module.register_forward_hook(lambda module, inputs, output, perturb=perturb: perturb(output))
        largest = max(largest, error(logits_of(other, tokens()), exact))
    return largest


def error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest reference value if that is not 0."""
    assert actual.shape == expected.shape
    largest = expected.abs().max()
    return ((actual - expected).abs().max() / (largest if largest else 1)).item()


def split_loss(model: partwise.Transformer, ids: np.ndarray, context: int) -> float:
    """Nats per token over ids[1:], in independent windows of `context` tokens."""
    return mean_loss(model, Windows(ids, context).eval_batches())
