"""The contracts of a model's parts: the contexts of a layer and a forward pass, and the base classes of layers and recipes.

Shapes, everywhere in the project:

    B batch   T query positions   S key positions   D model width   H heads   K key/value heads
    E head dimension   F feed-forward width   V vocabulary
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from torch import Generator, Tensor, nn

from partwise.config import ConfigError, Part
from partwise.parts.attention.mask import AttentionMask, padding_mask, self_attention_mask
from partwise.parts.operations import MaskKind
from partwise.parts.roles import TensorSpec


class HeadLayout(NamedTuple):
    """The heads of an attention layer; keys and values have the same number of heads."""

    n_heads: int
    n_kv_heads: int
    head_dim: int  # E; under MLA, only the dimensions that RoPE rotates

    @classmethod
    def grouped(cls, n_heads: int, n_kv_heads: int | None, head_dim: int) -> "HeadLayout":
        """Groups of query heads that share keys and values (default: n_kv_heads = n_heads)."""
        if n_heads % (n_kv_heads or n_heads):
            raise ConfigError(
                f"attention.n_kv_heads={n_kv_heads} does not divide attention.n_heads={n_heads}: choose a divisor"
            )
        return cls(n_heads, n_kv_heads or n_heads, head_dim)


NO_HEAD_LAYOUT = HeadLayout(1, 1, 0)


@dataclass(frozen=True)
class LayerContext:
    """The position of a layer in the model, an argument of `build`."""

    d_model: int
    n_layers: int  # number of layers in this stack
    context_length: int
    heads: HeadLayout = NO_HEAD_LAYOUT
    layer_index: int = 0
    causal: bool = True  # True in a decoder, False in an encoder
    other_layers: int = 0  # n_layers of the other stack, in an encoder-decoder
    first_layer_heads: HeadLayout | None = None  # if the stack's first layer shares its values with later layers
    score_scale: float | None = None  # factor of the attention scores, if the parametrization sets one


class LayerCache(Protocol):
    """The cache of one layer in generation."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""

    def check_truncate(self, length: int) -> None:
        """Raises ConfigError if the cache no longer holds the entries before `length` that it needs."""

    def truncate(self, length: int) -> None:
        """Drop every position from `length` on. Raises ConfigError as `check_truncate` does."""


class CachedLayer(nn.Module):
    """A layer with a cache in generation."""

    cache_index: int = -1  # into `ForwardContext.caches`, set by the model

    def new_cache(self, batch: int, max_length: int, like: Tensor) -> LayerCache:
        """An empty cache for up to `max_length` positions, on the device and in the precision of `like`."""
        raise NotImplementedError


class AfterStepHook(nn.Module):
    """A layer with state, other than parameters, that training updates."""

    def after_step(self) -> None:
        """Called after each optimizer step."""
        raise NotImplementedError


class FittedLayer(nn.Module):
    """A layer fitted to the training text before training; the sizes of its buffers may depend on the text.

    In training mode its output must not depend on the text, which contains the targets.
    """

    def fit(self, ids: np.ndarray) -> None:
        """Fit to the ids (N,) of the training text."""
        raise NotImplementedError

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate buffers that can load these tensors of a checkpoint, by their names in this layer."""
        raise NotImplementedError

    def find_damage(self, tensors: Mapping[str, Tensor]) -> str | None:
        """The first error in the values of these tensors, as a clause that starts with a name, or None."""
        raise NotImplementedError


class PositionLayer(nn.Module):
    """Three methods through which position information enters a stack; by default, they have no effect."""

    rotates_heads: ClassVar[bool] = False  # whether `on_heads` depends on the position

    def at_input(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """(B, T, D) embeddings and their positions (T,) or (B, T) -> (B, T, D)."""
        return x

    def on_heads(self, heads: Tensor, position_ids: Tensor) -> Tensor:
        """(B, H, T, E) queries or keys and their positions (T,) or (B, T) -> (B, H, T, E)."""
        return heads

    def on_scores(self, queries: Tensor, keys: Tensor, like: Tensor) -> Tensor | None:
        """(T,) query and (S,) key positions in the row -> the (H, T, S) bias added to the scores, or None.

        It may depend only on their distance, and may have higher precision than the scores, which have that of `like`.
        """
        return None


@dataclass
class ForwardContext:
    """The inputs of one forward pass that any layer may read."""

    positions: PositionLayer
    position_ids: Tensor  # (T,) or (B, T), counted from the start of each token's document
    past_length: int = 0  # number of cached positions before x
    causal: bool = True
    document_ids: Tensor | None = None  # (B, S) document of every position; attention stays within a document
    memory: Tensor | None = None  # (B, M, D) the encoder's output
    memory_padding: Tensor | None = None  # (B, M) true where the source is padding
    caches: list[Any] | None = None  # one per CachedLayer, in generation
    first_values: Tensor | None = None  # (B, K, T, E) the values of the first layer
    aux_losses: list[Tensor] = field(default_factory=list)  # terms that layers add to the training loss
    masks: dict[Any, AttentionMask] = field(default_factory=dict)
    recomputing: bool = False  # whether the backward pass repeats a forward pass that has been counted

    def cache(self, layer: CachedLayer) -> Any:
        """The cache of a layer; None in training."""
        return None if self.caches is None else self.caches[layer.cache_index]

    def mask(self, x: Tensor, n_keys: int, window: int | None = None) -> AttentionMask:
        """The mask of the tokens x (B, T, D) over the last `n_keys` positions, shared by all layers."""
        key = n_keys, window
        if key not in self.masks:
            has_bias = type(self.positions).on_scores is not PositionLayer.on_scores
            on_scores = self.positions.on_scores if has_bias else None
            self.masks[key] = self_attention_mask(
                x, n_keys, window, self.past_length, self.causal, self.document_ids, on_scores
            )
        return self.masks[key]

    def cross_attention_mask(self, x: Tensor) -> AttentionMask:
        """The mask over the encoder's output: all of it but padding."""
        if "memory" not in self.masks:
            self.masks["memory"] = padding_mask(x, self.memory_padding)
        return self.masks["memory"]


class Positions(Part):
    """Position information, `positions=`. Built once per stack."""

    family: ClassVar[str] = "positions"
    has_parameter_per_position: ClassVar[bool] = False  # if so, none beyond the context_length of training

    def build(self, layer_ctx: LayerContext) -> PositionLayer:
        raise NotImplementedError


class NGramEmbeddings(Part):
    """Embeddings of the last n-grams, added to token embeddings, `ngram_embeddings=`. Built once per stack.

    `forward(x, tokens, ctx)`: (B, T, D) embeddings and (B, T) ids -> (B, T, D).
    """

    family: ClassVar[str] = "ngram_embeddings"

    def build(self, layer_ctx: LayerContext, vocab_size: int) -> nn.Module:
        raise NotImplementedError


class NGramLMLayer(nn.Module):
    """`forward(logits, tokens, ctx)`: (B, T, V) next-token logits after (B, T) ids -> (B, T, V)."""


class NGramLM(Part):
    """An n-gram language model of the training text, interpolated with a decoder's logits, `ngram_lm=`."""

    family: ClassVar[str] = "ngram_lm"

    def build(self, vocab_size: int) -> NGramLMLayer:
        raise NotImplementedError


class AttentionLayer(CachedLayer):
    """`forward(x, ctx)`: (B, T, D) -> (B, T, D), mixing positions."""

    def mask_kind(self, plain: MaskKind, n_tokens: int) -> MaskKind:
        """The mask of whole rows of `n_tokens`, in training; `plain` is the mask without this layer's options."""
        return plain

    def parameters_without_gradient(self, positions: PositionLayer) -> set[str]:
        """The names, in the state dict, of parameters that no output depends on."""
        return set()


class StackEnds(nn.Module):
    """Layers before the first block of a stack and after its last."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor) -> Tensor:
        return x


class Attention(Part):
    """An attention layer, `attention=`: (B, T, D) -> (B, T, D), mixing positions."""

    family: ClassVar[str] = "attention"
    by_layer: ClassVar[bool] = True
    shares_first_values: ClassVar[bool] = False  # whether the first layer sets `ctx.first_values`

    def heads(self, d_model: int) -> HeadLayout:
        """The layer's heads, which `positions=` depends on. Raises ConfigError if they do not fit d_model."""
        raise NotImplementedError

    def qk_head_dim(self, d_model: int) -> int:
        """The dimension of a query-key dot product."""
        return self.heads(d_model).head_dim

    def build(self, layer_ctx: LayerContext) -> AttentionLayer:
        raise NotImplementedError

    def build_cross(self, layer_ctx: LayerContext) -> AttentionLayer:
        """Cross-attention of the same kind, from a decoder to `ctx.memory`."""
        raise ConfigError(f"attention={self.name} has no cross-attention: choose multihead, or set encoder_layers=0")


class ShortConv(Part):
    """A short convolution before attention, `short_conv=`: (B, T, D) -> (B, T, D), mixing neighboring tokens."""

    family: ClassVar[str] = "short_conv"
    by_layer: ClassVar[bool] = True

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        raise NotImplementedError


class FeedForward(Part):
    """A feed-forward layer, `ffn=`: (B, T, D) -> (B, T, D), position by position."""

    family: ClassVar[str] = "ffn"
    by_layer: ClassVar[bool] = True

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        raise NotImplementedError


class Norm(Part):
    """A normalization layer, `norm=`: (..., D) -> (..., D)."""

    family: ClassVar[str] = "norm"

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


class MTPLayer(nn.Module):
    """`forward(x)`: (B, T, D) input of the head -> (B, T, V) logits of each token after the next; only in training."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return []

    def loss_weight_at(self, progress: float) -> float:
        """Weight of each additional loss after the fraction `progress` of training steps; at 0, they are not computed."""
        return 0.0


class MultiTokenPrediction(Part):
    """Multi-token prediction, a training objective, `mtp=`. Its parameters do not affect the logits."""

    family: ClassVar[str] = "mtp"

    def build(self, layer_ctx: LayerContext, vocab_size: int) -> MTPLayer:
        raise NotImplementedError


NewNorm = Callable[[], nn.Module]
Branch = Callable[[Tensor, ForwardContext], Tensor]


class Residual(Part):
    """The wiring of branches and norms around the residual stream, `residual=`."""

    family: ClassVar[str] = "residual"

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        """The wiring of one block, with its norms: `forward(x, ctx, branches)`."""
        raise NotImplementedError

    def build_ends(self, layer_ctx: LayerContext, new_norm: NewNorm) -> StackEnds:
        raise NotImplementedError

    def gain(self, spec: TensorSpec) -> float:
        """The factor of a tensor's initial weights."""
        return 1.0


class Init(Part):
    """Weight initialization by role, and the other settings of a parametrization, `init=`."""

    family: ClassVar[str] = "init"
    scales_head_separately: ClassVar[bool] = False  # if so, embeddings cannot be tied
    adaptive_optimizers_only: ClassVar[bool] = False  # whether `lr_factor` assumes one
    needs_activated_bias: ClassVar[bool] = False  # whether it has no effect without a bias of hidden units

    zero_output: bool = False
    """Start the output matrix of each residual branch at zero: Zhang et al. 2019, arXiv:1901.09321."""

    def fill(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        """Initialize a float32 CPU tensor in place."""
        if self.zero_output and spec.role == "output":
            values.zero_()
        else:
            self.draw(values, spec, generator)

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        """Sample a float32 CPU tensor in place; never called for the role `vector`."""
        raise NotImplementedError

    def lr_factor(self, spec: TensorSpec) -> float:
        """The factor of a tensor's learning rate."""
        return 1.0

    def score_scale(self, head_dim: int, d_model: int) -> float | None:
        """The factor of the attention scores, or None for the layer's default 1 / sqrt(head_dim)."""
        return None
