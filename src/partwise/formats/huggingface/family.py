"""A family of models in `transformers`, and what the configurations of families have in common."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from partwise.config import recipes_by_layer
from partwise.formats.huggingface.function import Function
from partwise.formats.huggingface.tensors import SAME, Layout, TensorRule, rules_for
from partwise.formats.huggingface.values import Values, show
from partwise.model import ModelConfig

Settings = dict[str, Any]
"""The settings of a `ModelConfig`, as `ModelConfig.from_dict` takes them."""

UNGATED: Mapping[str, Settings] = {
    "relu": {"part": "relu"},
    "relu2": {"part": "relu2"},
    "gelu": {"part": "gelu", "approximate": "none"},
    "gelu_new": {"part": "gelu", "approximate": "tanh"},
    "gelu_pytorch_tanh": {"part": "gelu", "approximate": "tanh"},
    "silu": {"part": "swish", "beta": 1.0, "trainable_beta": False},
    "swish": {"part": "swish", "beta": 1.0, "trainable_beta": False},
    "quick_gelu": {"part": "swish", "beta": 1.702, "trainable_beta": False},
}
GATED: Mapping[str, Settings] = {
    "relu": {"part": "reglu"},
    "gelu": {"part": "geglu", "approximate": "none"},
    "gelu_new": {"part": "geglu", "approximate": "tanh"},
    "gelu_pytorch_tanh": {"part": "geglu", "approximate": "tanh"},
    "silu": {"part": "swiglu", "beta": 1.0, "trainable_beta": False},
    "swish": {"part": "swiglu", "beta": 1.0, "trainable_beta": False},
    "quick_gelu": {"part": "swiglu", "beta": 1.702, "trainable_beta": False},
    "sigmoid": {"part": "glu"},
    "linear": {"part": "bilinear"},
}
"""The feed-forward layers of the activations' names in `transformers`."""


ROPE_TYPES = {"rope": "default", "rope_linear": "linear", "rope_yarn": "yarn", "rope_llama3": "llama3"}


class Family:
    """A correspondence in both directions; `read` restores from `write` what the family can express."""

    title: ClassVar[str]
    model_type: ClassVar[str]
    architecture: ClassVar[str]
    prefix: ClassVar[str] = "model."  # of all tensors but the head's
    head: ClassVar[str] = "lm_head"
    unused: ClassVar[str] = r".*\.rotary_emb\.inv_freq"  # names in published files of tensors that are not parameters

    @property
    def base(self) -> str:
        """The architecture without the head."""
        return re.sub("(LMHead|ForCausalLM)$", "", self.architecture.removesuffix("Model")) + "Model"

    def changes(self, function: Function) -> Settings:
        """Options that every model of the family has, and that zeros and ones in the tensors can supply."""
        return {}

    def write(self, function: Function) -> dict[str, Any]:
        """The values of `config.json`; the options that the family cannot express are left out."""
        raise NotImplementedError

    def read(self, values: Values) -> Settings:
        """The inverse of `write`. Raises ConfigError for values that our parts cannot express."""
        raise NotImplementedError

    def is_unused(self, name: str, config: ModelConfig) -> bool:
        """Whether a tensor of a published file has no effect on the next-token logits."""
        return re.fullmatch(self.unused, name) is not None

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        """All tensors of a model of the family."""
        raise NotImplementedError


def write_activation(ffn: Mapping[str, Any], known: Mapping[str, Settings]) -> str | None:
    """The name of the activation, None if there is none."""
    return next((name for name, options in known.items() if options.items() <= ffn.items()), None)


def write_rope(positions: Mapping[str, Any]) -> dict[str, Any]:
    """The `rope_parameters`."""
    names = {
        "theta": "rope_theta",
        "original_context_length": "original_max_position_embeddings",
        "mscale": "attention_factor",
        "partial_rotary_factor": "partial_rotary_factor",
    }
    kind = ROPE_TYPES.get(positions["part"])
    if kind is None:
        return {}
    options = {names.get(name, name): value for name, value in positions.items() if name not in ("part", "layout")}
    if options.get("partial_rotary_factor") == 1:
        del options["partial_rotary_factor"]
    return {"rope_type": kind} | {name: value for name, value in options.items() if value is not None}


def write_rope_values(rope: Mapping[str, Any], theta: str = "rope_theta") -> dict[str, Any]:
    """The result of `write_rope` as keys of a `config.json`, with the base of the angles as `theta`.

    Releases before 5.0 read `rope_scaling` and not `rope_parameters`; later ones take `rope_scaling` first.
    """
    values = {"rope_parameters": dict(rope), theta: rope.get("rope_theta")}
    if rope.get("rope_type", "default") != "default":
        values["rope_scaling"] = {
            name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")
        }
    return values


def read_rope(values: Values, theta: float = 10000.0, partial: float | None = None) -> Settings:
    """The positions of `rope_parameters`, or of `rope_theta` and `rope_scaling` in older files.

    `theta` and `partial` are the family's defaults; without `partial`, its heads are rotated as a whole.
    """
    older, newer = values.section("rope_scaling"), values.section("rope_parameters")
    options = older if older.values else newer  # the order of every release that knows both
    theta = options.number("rope_theta", values.number("rope_theta", theta))
    fraction = options.number("partial_rotary_factor", values.number("partial_rotary_factor", partial or 1.0))
    if partial is None and fraction != 1:
        options.values.setdefault("partial_rotary_factor", fraction)
        options.refuse("partial_rotary_factor", "this family rotates whole heads")
    common = {"theta": theta, "partial_rotary_factor": fraction, "layout": "half"}
    kind = read_rope_type(options)
    options.ignore("finetuned", "max_position_embeddings")
    result: Settings = {"part": "rope", **common}
    if kind in ("default", "linear"):
        options.ignore("original_max_position_embeddings")
    if kind == "default":
        options.ignore("factor")
    else:
        result = {"part": f"rope_{kind}", **common, "factor": options.number("factor")}
    if kind in ("yarn", "llama3"):
        original = options.get("original_max_position_embeddings", None)
        result["original_context_length"] = (
            values.integer("max_position_embeddings")
            if original is None
            else options.integer("original_max_position_embeddings")
        )
    if kind == "llama3":
        result |= {name: options.number(name) for name in ("low_freq_factor", "high_freq_factor")}
    if kind == "yarn":
        betas = {"beta_fast": 32.0, "beta_slow": 1.0}  # also in place of 0
        result |= {name: options.number(name, default) or default for name, default in betas.items()}
        result |= {"truncate": options.flag("truncate", True), "mscale": read_mscale(options, result["factor"])}
    options.finish()
    return result


def read_mscale(options: Values, factor: float) -> float | None:
    """The scale of YaRN's rotated heads, None for that of the paper."""
    names = ("mscale", "mscale_all_dim")
    scale, (upper, lower) = options.optional_number("attention_factor"), map(options.optional_number, names)
    if scale is None and upper and lower and factor > 1:  # a quotient; one alone has no effect
        return (0.1 * upper * math.log(factor) + 1) / (0.1 * lower * math.log(factor) + 1)
    return scale


def read_rope_type(options: Values) -> str:
    """The kind of scaling, which older files call `type`."""
    kinds = [key for key in ("rope_type", "type") if options.get(key, None) is not None]
    if len(kinds) == 2 and options.get("type") != options.get("rope_type"):
        options.refuse("type", f"rope_type={show(options.get('rope_type'))} is another one: remove the wrong one")
    return options.name(kinds[0], dict.fromkeys(ROPE_TYPES.values())) if kinds else "default"


def write_windows(function: Function) -> dict[str, Any]:
    """`layer_types` and `sliding_window`; several sizes cannot be expressed, so the first is written."""
    windows = [layer.get("window") for layer in function["attention"]]
    size = next((window for window in windows if window), None)
    return {
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
        "sliding_window": size,
    }


def read_windows(values: Values, n_layers: int, size: int | None, default: list[str]) -> list[int | None]:
    """The window of each layer."""
    kinds = {"full_attention": None, "sliding_attention": size}
    windows = []
    for kind in values.layers("layer_types", n_layers, default):
        if not isinstance(kind, str) or kind not in kinds:
            values.refuse("layer_types", f"{kind!r} is not supported")
        if kind == "sliding_attention" and size is None:
            values.refuse("layer_types", "sliding_attention needs sliding_window")
        windows.append(kinds[kind])
    return windows


def with_windows(attention: Settings, windows: list[int | None]) -> Any:
    """One attention layer for all, or one per layer if their windows differ."""
    if len(set(windows)) == 1:
        return attention | {"window": windows[0]}
    return [attention | {"window": window} for window in windows]


def rms_norm(values: Values, default: float) -> Settings:
    eps = values.number("rms_norm_eps", default)
    return {"part": "rmsnorm", "eps": eps, "affine": True, "bias": False, "unit_offset": False}


def block_rules(
    config: ModelConfig, layer: int, theirs: str, names: Mapping[str, str], layouts: Mapping[str, Layout]
) -> Iterator[TensorRule]:
    """The rules of a block, its tensors named `theirs` and what `names` has for each module of ours."""
    attention: Any = recipes_by_layer(config.attention, config.n_layers)[layer]
    ffn: Any = recipes_by_layer(config.ffn, config.n_layers)[layer]
    prefix = f"blocks.{layer}."
    norm_bias = norm_has_bias(config)
    for ours, name in names.items():
        first = ours.split()[0]
        if first == "attention.out":
            has_bias = bool(getattr(attention, "out_bias", False))
        elif first.startswith("attention"):
            has_bias = bool(getattr(attention, "bias", False)) and not first.endswith("_norm")
        elif first.startswith("ffn"):
            has_bias = bool(getattr(ffn, "bias", False))
        else:
            has_bias = norm_bias
        yield from rules_for(prefix, ours, f"{theirs}.{name}", has_bias, layouts.get(ours, SAME))


def norm_has_bias(config: ModelConfig) -> bool:
    return bool(getattr(config.norm, "affine", True)) and bool(getattr(config.norm, "bias", False))


def end_rules(config: ModelConfig, embed: str, norm: str | None, head: str = Family.head) -> Iterator[TensorRule]:
    """Embeddings, final norm and head."""
    yield TensorRule(f"{embed}.weight", ("embed.weight",))
    if norm is not None:
        yield from rules_for("", "residual.norm", norm, norm_has_bias(config))
    if not config.tie_embeddings:
        yield TensorRule(f"{head}.weight", ("head.weight",))
