"""The options of a configuration that determine the function that a model computes, in one form for equal functions."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from partwise.config import recipes_by_layer
from partwise.model import ModelConfig
from partwise.parts.contracts import LayerContext

TRAINING_ONLY = {
    "dropout",
    "hidden_dropout",
    "output_dropout",
    "embed_dropout",
    "fused_qkv",
    "aux_loss_coef",
    "bias_update_rate",
    "init",
    "init_value",
    "mtp",
    "padding_idx",
    "share_encoder_embeddings",
}
"""Options without effect on the next-token logits of a trained decoder."""

Function = dict[str, Any]
"""Option -> value; the options of a part are a nested mapping, those of attention and feed-forward a list by layer."""


def describe(config: ModelConfig) -> Function:
    """The options that determine the function, with defaults that depend on other options replaced by their values."""
    values = config.to_dict()
    function = {name: value for name, value in values.items() if name not in TRAINING_ONLY}
    for name, value in function.items():
        if isinstance(value, dict) and "part" in value:
            function[name] = strip(value)
    n_layers, width = config.n_layers, config.d_model
    attentions, ffns, convs = (
        recipes_by_layer(field, n_layers) for field in (config.attention, config.ffn, config.short_conv)
    )
    function["attention"] = [describe_attention(recipe, config) for recipe in attentions]
    layer_ctx = LayerContext(width, n_layers, config.context_length)
    function["ffn"] = [describe_ffn(recipe, layer_ctx) for recipe in ffns]
    function["short_conv"] = [strip(recipe.to_dict()) for recipe in convs]
    norm = function["norm"]
    if norm.get("affine") is False:
        norm.pop("bias", None)
    return function


def strip(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in TRAINING_ONLY}


def describe_attention(recipe: Any, config: ModelConfig) -> dict[str, Any]:
    options = strip(recipe.to_dict())
    width = config.d_model
    if "scale" in options:
        head_dim = recipe.qk_head_dim(width)
        options["scale"] = recipe.scale or config.init.score_scale(head_dim, width) or 1 / math.sqrt(head_dim)
    layout = recipe.heads(width)
    if recipe.name == "multihead":
        options |= {"n_kv_heads": layout.n_kv_heads, "head_dim": layout.head_dim}
        if recipe.qk_norm == "none":
            options = {name: value for name, value in options.items() if not name.startswith("qk_norm_")}
        if recipe.window is not None and recipe.window >= config.context_length:
            options["window"] = None
    elif recipe.name == "mla":
        nope_head_dim = recipe.nope_head_dim(width)
        options |= {"head_dim": nope_head_dim, "rope_head_dim": layout.head_dim}
        options |= {"v_head_dim": recipe.v_head_dim or nope_head_dim}
        options |= {"kv_lora_rank": recipe.kv_lora_rank or 4 * nope_head_dim}
    return options


def describe_ffn(recipe: Any, layer_ctx: LayerContext) -> dict[str, Any]:
    options = strip(recipe.to_dict())
    if "expansion" in options:
        options["hidden"] = recipe.hidden or round(recipe.expansion * layer_ctx.d_model)
        del options["expansion"]
    if options.get("load_balancing") == "aux_loss":
        options["load_balancing"] = "none"  # a term of the training loss
    return options


def differences(ours: Function, theirs: Function) -> Iterator[tuple[str, Any, Any]]:
    """Each option with different values, as (path, ours, theirs); layers with the same difference are listed once."""
    seen = set()
    for path, left, right in walk(ours, theirs):
        if (path, repr(left)) not in seen:
            seen.add((path, repr(left)))
            yield path, left, right


def walk(left: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        if left.get("part") != right.get("part"):
            yield path, left.get("part"), right.get("part")
            return
        for name in {**left, **right}:
            yield from walk(left.get(name), right.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for one, other in zip(left, right, strict=True):
            yield from walk(one, other, path)
    elif not equal(left, right):
        yield path, left, right


def equal(left: Any, right: Any) -> bool:
    if type(left) is float and type(right) is float:
        return math.isclose(left, right, rel_tol=1e-14, abs_tol=0.0)
    return bool(left == right)
