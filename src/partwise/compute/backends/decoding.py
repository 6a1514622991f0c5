"""Generation with the C++ decoding kernel: one call computes all layers of a pre-norm decoder over a preallocated cache.

`Decoder` has the interface of a `Transformer` in generation and holds a copy of the weights in the kernel's layout; sums
are float32. `unsupported_reason` names what the kernel does not support.
"""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from partwise.compute.backends import known_activation, token_shift
from partwise.config import ConfigError
from partwise.kernels.decoding_weights import (
    LAYER_NORM,
    NO_NORM,
    RMS_NORM,
    CLayer,
    CModel,
    CNorm,
    LinearWeights,
    PackedWeights,
    library,
    pointer_array,
    round_up,
)
from partwise.kernels.library import openmp_functions, openmp_parallel
from partwise.kernels.mlp import ACTIVATIONS
from partwise.kernels.threads import kernel_threads
from partwise.model import Transformer
from partwise.model.operations import model_spec
from partwise.parts.attention.multihead import MultiHeadAttention
from partwise.parts.feed_forward.mlp import GatedMLP
from partwise.parts.layers import GroupRMSNorm
from partwise.parts.norms import UnitOffsetRMSNormLayer
from partwise.parts.operations import (
    AttentionSpec,
    BlockSpec,
    EndsSpec,
    MLPSpec,
    MultiHeadSpec,
    NormSpec,
    OperationSpec,
    PositionsSpec,
    ResidualSpec,
    Rule,
    nested,
    unsupported_option,
)
from partwise.parts.positions.rotary import InterleavedRotary, Rotary
from partwise.parts.residual.wirings import FinalNorm

PREFILL_CHUNK = 48
"""Tokens of a prefill that a layer processes together: enough to amortize reading its weights."""


class UnsupportedModelError(ConfigError):
    """The kernel does not support this model on this machine."""


def unsupported_reason(model: Transformer) -> str | None:
    """Why the kernel does not support this model on this machine, as a clause, or None if it does."""
    if not all(each.is_cpu and each.dtype == torch.float32 for each in model.parameters()):
        return "only float32 weights on a CPU are supported"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is not supported"
    reason = unsupported_layer(model)
    if reason is None and library() is None:
        return "the C++ compiler is missing or failed (see above)"
    return reason


def unsupported_layer(model: Transformer) -> str | None:
    """The first layer that the kernel does not support, as a clause, or None."""
    return unsupported_option(model_spec(model), MODEL)


def supported_norm(norm: OperationSpec | None) -> str | None:
    if norm is None:
        return None
    return nested(NormSpec, **dict.fromkeys(("kind", "width", "eps", "weight", "bias", "unit_offset"), True))(norm)


def each_of(rule: Callable[[Any], str | None]) -> Callable[[Iterable[Any]], str | None]:
    """The first reason of a sequence of options."""
    return lambda values: next((reason for value in values if (reason := rule(value)) is not None), None)


BLOCK = nested(
    BlockSpec,
    attention=nested(
        MultiHeadSpec,
        **dict.fromkeys(("d_model", "n_heads", "n_kv_heads", "fused_qkv", "bias", "out_bias", "window"), True),
        **dict.fromkeys(("q_norm", "k_norm"), supported_norm),
        core=nested(
            AttentionSpec,
            **dict.fromkeys(("head_dim", "v_head_dim", "scale", "mask", "softcap", "sinks", "dropout"), True),
        ),
    ),
    ffn=nested(
        MLPSpec,
        **dict.fromkeys(("d_model", "hidden", "gated", "bias", "hidden_dropout", "output_dropout"), True),
        activation=known_activation,
    ),
    residual=nested(ResidualSpec, kind=True, norms=each_of(supported_norm), dropout=True),
    positions=nested(PositionsSpec, rotation=True),
    short_conv=token_shift,
    causal=(True,),
    shares_values=True,  # refused where a layer reads them
)
MODEL: dict[str, Rule] = {
    "blocks": each_of(BLOCK),
    "ends": nested(EndsSpec, final_norm=supported_norm),
    **dict.fromkeys(("scale_embeddings", "embed_norm", "head_bias", "logit_softcap"), True),
    "encoder_layers": lambda layers: "encoder-decoder models are not supported" if layers else None,
}
"""The options that the kernel supports in generation, without dropout; unlisted options must be neutral."""


class DecodingCache:
    """The keys and values of all positions so far, in the kernel's layout; the `Cache` of a `Decoder`.

    For layers with token shift, also the inputs of the last position.
    """

    def __init__(self, layers: list[CLayer], d_model: int, batch: int, max_length: int) -> None:
        W = library().W
        self.max_length, self.length, self.batch, self.blocks = max_length, 0, batch, -(-max_length // W)
        shapes = [(batch, layer.n_kv_heads, self.blocks, W * layer.head_dim) for layer in layers]
        self.keys = [torch.empty(shape) for shape in shapes]
        shapes = [(batch, layer.n_kv_heads, self.blocks, W * round_up(layer.head_dim, W)) for layer in layers]
        self.values = [torch.empty(shape) for shape in shapes]
        self.previous = [torch.empty(batch, d_model if layer.mu else 0) for layer in layers]
        self.update_pointers()

    def update_pointers(self) -> None:
        self.pointers = [pointer_array(tensors) for tensors in (self.keys, self.values, self.previous)]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        used = -(-self.length // library().W)  # later blocks are still uninitialized

        def selected(old: Tensor) -> Tensor:
            new = old.new_empty(len(rows), *old.shape[1:])
            new[:, :, :used] = old[rows, :, :used]
            return new

        self.keys, self.values = [selected(x) for x in self.keys], [selected(x) for x in self.values]
        self.previous = [x[rows] for x in self.previous]
        self.batch = len(rows)
        self.update_pointers()

    def truncate(self, length: int) -> None:
        """Drop every position from `length` on. Raises ConfigError if that needs inputs of earlier positions."""
        if 0 < length < self.length and any(x.shape[1] for x in self.previous):
            raise ConfigError(
                f"cannot truncate the cache to length {length}: it keeps only the last inputs; start with a new cache"
            )
        self.length = min(self.length, length)


class Decoder:
    """A model run by the C++ decoding kernel: logits of the last token only, no gradients.

    It holds a copy of the model's current matrices. With `bf16` they are stored in bfloat16 and their inputs are rounded
    to it; pass a model from `emulate_bf16`, so that storing its matrices is exact. Raises UnsupportedModelError.
    """

    def __init__(self, model: Transformer, bf16: bool = False) -> None:
        reason = unsupported_reason(model)
        if reason is not None:
            raise UnsupportedModelError(f"backend=cpp does not support this model: {reason}; use backend=auto")
        self.model, self.config, self.embed = model, model.config, model.embed
        self.weights = PackedWeights(linear_weights(model), bf16)
        matrices = iter(self.weights.matrices)
        self.layers = [
            layer_descriptor(self.weights, block, [next(matrices) for _ in range(4)]) for block in model.blocks
        ]
        self.array = (CLayer * len(self.layers))(*self.layers)
        final_norm = model.residual.norm if isinstance(model.residual, FinalNorm) else nn.Identity()
        rotary = model.positions if isinstance(model.positions, Rotary) else None
        cosines, sines = rotary.cos_sin(model.embed.weight) if rotary else (None, None)
        self.struct = CModel(
            n_layers=len(self.layers),
            d_model=model.config.d_model,
            bf16=bf16,
            max_inputs=max(matrix.inputs for matrix in self.weights.matrices),
            rotary_pairs=0 if cosines is None else cosines.shape[1],
            interleaved=isinstance(model.positions, InterleavedRotary),
            cosines=self.weights.float_pointer(cosines),
            sines=self.weights.float_pointer(sines),
            final_norm=norm_descriptor(self.weights, final_norm),
            head=next(matrices),
            layers=ctypes.addressof(self.array),
        )
        self.workspace = torch.empty(0)

    def new_cache(self, batch: int, length: int | None = None, source: None = None) -> DecodingCache:
        """An empty cache for up to `length` positions (default: the model's context_length)."""
        max_length = min(length or self.config.context_length, self.config.context_length)
        return DecodingCache(self.layers, self.config.d_model, batch, max_length)

    @torch.no_grad()
    def __call__(self, tokens: Tensor, cache: DecodingCache | None = None, source: None = None) -> Tensor:
        """(B, T) ids -> (B, 1, V) logits of the last token; without a cache, the model's own logits (B, T, V).

        Raises ConfigError if a row is too long.
        """
        if cache is None:
            return self.model(tokens)
        T, chunk = tokens.shape[1], max(1, PREFILL_CHUNK // tokens.shape[0])
        if cache.length + T > cache.max_length:
            raise ConfigError(
                f"{cache.length + T} tokens do not fit context_length={cache.max_length}: shorten the text or raise "
                "context_length"
            )
        for start in range(0, T, chunk):
            logits = self.step(tokens[:, start : start + chunk], cache, needs_logits=start + chunk >= T)
        cap = self.config.logit_softcap
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return logits.unsqueeze(1)

    def step(self, tokens: Tensor, cache: DecodingCache, needs_logits: bool) -> Tensor:
        model, kernel, threads = self.model, library(), kernel_threads()
        B, T = tokens.shape
        ids = torch.arange(cache.length, cache.length + T)
        x = model.embed(tokens)
        x = x * model.embedding_scale if model.embedding_scale != 1.0 else x
        x = model.embed_norm(model.positions.at_input(x, ids)).contiguous()  # (B, T, D)
        size = kernel.decoding_workspace_size(ctypes.byref(self.struct), B * T, cache.blocks, threads)
        if len(self.workspace) < size:
            self.workspace = torch.empty(size)
        logits = torch.empty(B, self.struct.head.outputs)
        kernel.decoding_step(
            ctypes.byref(self.struct),
            *(B, T, cache.length, needs_logits),
            *(x.data_ptr(), *cache.pointers, cache.blocks),
            *(self.workspace.data_ptr(), logits.data_ptr(), threads, openmp_parallel(), *openmp_functions()),
        )
        cache.length += T
        return logits[:, : self.config.vocab_size]


def linear_weights(model: Transformer) -> list[LinearWeights]:
    """The four linear layers of every block, in order of use, and the head."""
    linears = list[LinearWeights]()
    blocks: Any = model.blocks
    for block in blocks:
        attention, ffn = block.attention, block.ffn
        linears += [
            qkv_weights(attention),
            LinearWeights(attention.out.weight, attention.out.bias),
            LinearWeights(ffn.input_projection().weight, ffn.input_projection().bias, isinstance(ffn, GatedMLP)),
            LinearWeights(ffn.down.weight, ffn.down.bias),
        ]
    return [*linears, LinearWeights(model.head.weight, model.head.bias)]


def qkv_weights(attention: MultiHeadAttention) -> LinearWeights:
    if attention.fused_qkv:
        return LinearWeights(attention.qkv.weight, attention.qkv.bias)
    projections = attention.q, attention.k, attention.v
    bias = None if attention.q.bias is None else torch.cat([each.bias for each in projections])
    return LinearWeights(torch.cat([each.weight for each in projections]), bias)


def layer_descriptor(weights: PackedWeights, block: Any, matrices: list[Any]) -> CLayer:
    attention, ffn = block.attention, block.ffn
    head_dim, n_kv_heads = attention.head_dim, attention.n_kv_heads
    n_heads = attention.out.in_features // head_dim
    qk_norm_widths = [
        each.width if isinstance(each, GroupRMSNorm) else head_dim for each in (attention.q_norm, attention.k_norm)
    ]
    return CLayer(
        norm_descriptor(weights, block.residual.norms["attention"]),
        norm_descriptor(weights, block.residual.norms["ffn"]),
        norm_descriptor(weights, attention.q_norm),
        norm_descriptor(weights, attention.k_norm),
        *matrices,
        n_heads,
        n_kv_heads,
        head_dim,
        *qk_norm_widths,
        attention.window or 2**62,
        ACTIVATIONS.index(ffn.activation_name),
        isinstance(ffn, GatedMLP),
        attention.scores.scale,
        attention.scores.softcap or 0.0,
        weights.float_pointer(attention.scores.sinks),
        weights.float_pointer(getattr(block.mixing, "mu", None)),
    )


def norm_descriptor(weights: PackedWeights, layer: Any) -> CNorm:
    if isinstance(layer, nn.Identity):
        return CNorm(NO_NORM, None, None, 0.0)
    kind = LAYER_NORM if isinstance(layer, nn.LayerNorm) else RMS_NORM
    weight = 1 + layer.weight if isinstance(layer, UnitOffsetRMSNormLayer) else layer.weight
    return CNorm(kind, weights.float_pointer(weight), weights.float_pointer(getattr(layer, "bias", None)), layer.eps)
