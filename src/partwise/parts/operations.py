"""Operation specs: what a layer computes, as frozen values that hold all its options; and the layers that have backends.

A backend (`partwise.compute.backends`) reads a spec, never a layer, and refuses what it does not know: an option added to a
part later is refused by every backend until its author extends the backend.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

from torch import nn

MaskKind = Literal["causal", "full", "bias"]
"""Kinds of masks for whole rows: each token and those before it; all tokens; or another mask or bias."""
MASK_KINDS: tuple[MaskKind, ...] = ("causal", "full", "bias")


@dataclass(frozen=True, kw_only=True)
class OperationSpec:
    """The specification of an operation: all its options, but no weights.

    The default of a field is its neutral value: an operation with that value computes what one without the option does.
    A backend that does not know a field supports only its neutral value; a field without a default has none.
    """

    family: ClassVar[str] = ""  # prefix of the options' names in messages

    def variants(self) -> Iterator[Self]:
        """The specs of all calls that differ from training on whole rows, such as evaluation, after this one."""
        yield self


Rule = bool | Collection[Any] | Callable[[Any], str | None]
"""The supported values of an option: all (True), a collection, or a function that returns None or the reason."""


def unsupported_option(spec: OperationSpec, rules: Mapping[str, Rule]) -> str | None:
    """The first option of a spec that these rules do not support, as a clause, or None if they support all."""
    if isinstance(spec, OpaqueSpec):
        return f"{spec.option} is not supported"
    for field in fields(spec):
        value, rule = getattr(spec, field.name), rules.get(field.name)
        if callable(rule):
            reason = rule(value)
            if reason is not None:
                return reason
            continue
        if rule is None:
            supported = field.default is not MISSING and value == field.default
        else:
            supported = rule is True or (not isinstance(rule, bool) and value in rule)
        if not supported:
            return f"{describe_option(spec.family, field.name, value)} is not supported"
    return None


def nested(expected: type[OperationSpec], /, **rules: Rule) -> Callable[[OperationSpec], str | None]:
    """The rule for an operation within another: it must be of this kind, with options that the rules support."""

    def check(spec: OperationSpec) -> str | None:
        if not isinstance(spec, expected):
            return unsupported_option(spec, {}) or f"{type(spec).__name__} is not supported"
        return unsupported_option(spec, rules)

    return check


def describe_option(family: str, name: str, value: Any) -> str:
    """An option as the user would write it: `attention.softcap=30`."""
    if isinstance(value, OpaqueSpec):
        return value.option
    if isinstance(value, OperationSpec):
        text = getattr(value, "kind", value.family)
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{family}.{name}={text}" if family else f"{name}={text}"


@dataclass(frozen=True, kw_only=True)
class OpaqueSpec(OperationSpec):
    """A layer that does not describe itself: only its own `forward` computes it."""

    option: str  # that chose the layer: "residual=sandwich"


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(OperationSpec):
    """softmax(cap(q k^T scale) + bias) v, from queries, keys and values to their weighted sums."""

    family: ClassVar[str] = "attention"

    head_dim: int
    v_head_dim: int
    scale: float
    mask: MaskKind  # of whole rows in training
    softcap: float | None = None
    sinks: bool = False
    dropout: float = 0.0

    def variants(self) -> Iterator[Self]:
        """Any mask may occur outside of training: single tokens attend to a whole cache."""
        for mask in sorted(MASK_KINDS, key=lambda kind: kind != self.mask):
            yield replace(self, mask=mask)


@dataclass(frozen=True, kw_only=True)
class NormSpec(OperationSpec):
    """A normalization over `width` elements."""

    family: ClassVar[str] = "norm"

    kind: Literal["layernorm", "rmsnorm", "none"]
    width: int
    eps: float
    weight: bool = False
    bias: bool = False
    unit_offset: bool = False  # whether the factor is 1 + weight


@dataclass(frozen=True, kw_only=True)
class MultiHeadSpec(OperationSpec):
    """Self-attention from the layer's input to its output, projections included."""

    family: ClassVar[str] = "attention"

    d_model: int
    n_heads: int
    n_kv_heads: int
    fused_qkv: bool
    bias: bool = False
    out_bias: bool = False
    window: int | None = None
    q_norm: OperationSpec | None = None
    k_norm: OperationSpec | None = None
    gate: bool = False
    value_residual: bool = False
    core: AttentionSpec


@dataclass(frozen=True, kw_only=True)
class MLPSpec(OperationSpec):
    """down(dropout(act(up x))), or gated down(dropout(act(gate x) * up x)); then another dropout."""

    family: ClassVar[str] = "ffn"

    d_model: int
    hidden: int
    gated: bool
    activation: str  # "gelu_tanh"; "other" for those without a name in `partwise.parts.feed_forward.mlp`
    bias: bool = False
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0

    def variants(self) -> Iterator[Self]:
        """Evaluation is without dropout."""
        yield self
        if self.hidden_dropout or self.output_dropout:
            yield replace(self, hidden_dropout=0.0, output_dropout=0.0)


@dataclass(frozen=True, kw_only=True)
class PositionsSpec(OperationSpec):
    """What positions do within blocks; what they add to embeddings is computed before the blocks."""

    family: ClassVar[str] = "positions"

    rotation: Literal["none", "half", "interleaved"] = "none"


@dataclass(frozen=True, kw_only=True)
class ShortConvSpec(OperationSpec):
    """A short convolution before attention."""

    family: ClassVar[str] = "short_conv"

    kind: Literal["token_shift"]


@dataclass(frozen=True, kw_only=True)
class ResidualSpec(OperationSpec):
    """The wiring of a block's branches and norms."""

    family: ClassVar[str] = "residual"

    kind: Literal["pre"]
    norms: tuple[OperationSpec, ...]
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BlockSpec(OperationSpec):
    """A whole block of a stack."""

    causal: bool
    positions: OperationSpec
    attention: OperationSpec
    ffn: OperationSpec
    residual: OperationSpec
    short_conv: OperationSpec | None = None
    cross_attention: OperationSpec | None = None
    shares_values: bool = False  # whether layers of the stack read the values of its first layer

    def variants(self) -> Iterator[Self]:
        """Evaluation is without dropout."""
        yield self
        evaluated = replace(
            self,
            attention=without_dropout(self.attention),
            ffn=without_dropout(self.ffn),
            residual=without_dropout(self.residual),
        )
        if evaluated != self:
            yield evaluated


@dataclass(frozen=True, kw_only=True)
class EndsSpec(OperationSpec):
    """The layers before the first block and after the last."""

    family: ClassVar[str] = "residual"

    final_norm: OperationSpec


@dataclass(frozen=True, kw_only=True)
class ModelSpec(OperationSpec):
    """A whole decoder in generation, which computes neither dropout nor the logits of multi-token prediction."""

    encoder_layers: int = 0
    blocks: tuple[BlockSpec, ...]
    ends: OperationSpec
    scale_embeddings: bool = False
    embed_norm: bool = False
    head_bias: bool = False
    logit_softcap: float | None = None
    ngram_embeddings: OperationSpec | None = None
    ngram_lm: OperationSpec | None = None


def without_dropout(spec: OperationSpec) -> OperationSpec:
    """The spec of the same layer in evaluation."""
    values = {field.name: 0.0 for field in fields(spec) if field.name.endswith("dropout")}
    nested = {
        field.name: without_dropout(value)
        for field in fields(spec)
        if isinstance(value := getattr(spec, field.name), OperationSpec)
    }
    return replace(spec, **values, **nested)


def spec_of(layer: nn.Module, option: str, *arguments: Any) -> OperationSpec:
    """The spec by which a layer describes itself, with its method `spec`; an OpaqueSpec if it has none.

    A subclass may compute something else, so it does not inherit `spec`: it describes itself again, or is opaque.
    """
    if "spec" not in vars(type(layer)):
        return OpaqueSpec(option=option)
    spec: OperationSpec = layer.spec(*arguments)  # type: ignore[operator]
    return spec


def norm_spec(layer: nn.Module, option: str) -> OperationSpec:
    """The spec of a norm over its last dimension, torch's included."""
    if type(layer) is nn.Identity:
        return NormSpec(kind="none", width=0, eps=0.0)
    if type(layer) is nn.LayerNorm:
        (width,) = layer.normalized_shape
        return NormSpec(
            kind="layernorm",
            width=width,
            eps=layer.eps,
            weight=layer.weight is not None,
            bias=layer.bias is not None,
        )
    return spec_of(layer, option)


def norm_specs(layers: Iterable[nn.Module], option: str) -> tuple[OperationSpec, ...]:
    return tuple(norm_spec(layer, option) for layer in layers)


class Operation(nn.Module):
    """A layer that backends can compute. Its own equation computes the calls that none of `backends` takes.

    A backend of a layer has two methods with the inputs of `forward`: `takes` returns whether it supports this call,
    `__call__` computes it. A plan sets them, in order of preference; see `partwise.compute.backend_plan`.
    """

    backends: tuple[Any, ...] = ()

    def backend_for(self, *inputs: Any) -> Any:
        """The first backend that takes this call, or None."""
        for backend in self.backends:
            if backend.takes(*inputs):
                return backend
        return None
