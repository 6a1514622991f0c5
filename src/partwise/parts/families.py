"""The contracts of the model's parts on one page: where a layer stands, what flows past it, what each family builds.

Shapes, everywhere in the project:

    B batch   T query positions   S key positions   D model width   H heads   K key/value heads
    E head width   F feed-forward width   V vocabulary
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Generator, Tensor, nn

from partwise.config import ConfigError, Part
from partwise.parts.roles import TensorSpec
from partwise.parts.sight import Sight


class Heads(NamedTuple):
    """The heads of an attention layer: queries, keys and values (of equal number), and the width that is turned."""

    n_heads: int
    n_kv_heads: int
    width: int  # E, what rotary positions see

    @classmethod
    def in_groups(cls, n_heads: int, n_kv_heads: int | None, width: int) -> "Heads":
        """Query heads over keys and values that groups of them share; as many of these where no number is given."""
        if n_heads % (n_kv_heads or n_heads):
            raise ConfigError(
                f"attention.n_kv_heads={n_kv_heads} does not divide attention.n_heads={n_heads}: choose a divisor"
            )
        return cls(n_heads, n_kv_heads or n_heads, width)


NO_HEADS = Heads(1, 1, 0)


@dataclass(frozen=True)
class Site:
    """Where a layer stands. Every `build` takes one."""

    d_model: int
    n_layers: int  # of this stack
    max_len: int
    heads: Heads = NO_HEADS
    layer: int = 0
    causal: bool = True  # a decoder's stack, which looks back only; an encoder's looks both ways
    other_layers: int = 0  # of the other stack, in an encoder-decoder
    first: Heads | None = None  # of the stack's first layer, where it hands its values on
    score_scale: float | None = None  # what attention scores are multiplied by, where the parametrisation says it


class State(Protocol):
    """What a layer remembers between the calls of a cached generation."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""

    def check(self, length: int) -> None:
        """Raises ConfigError where what stood before `length` is no longer known."""

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on. Raises ConfigError as `check` does."""


class Remembering(nn.Module):
    """A layer that keeps a state while generating; the model numbers these layers."""

    number: int = -1

    def new_state(self, batch: int, length: int, like: Tensor) -> State:
        """What the layer remembers of up to `length` positions, on the device and in the precision of `like`."""
        raise NotImplementedError


class Trained(nn.Module):
    """A layer with something that training changes beside its parameters."""

    def after_step(self) -> None:
        """Called once after each update."""
        raise NotImplementedError


class PositionLayer(nn.Module):
    """Hooks by which a stack knows the order of its tokens; each leaves its argument alone unless overridden."""

    turns_heads: ClassVar[bool] = False  # whether `on_heads` depends on the position

    def at_input(self, x: Tensor, ids: Tensor) -> Tensor:
        """(B, T, D) embeddings and their positions (T,) or (B, T) -> (B, T, D)."""
        return x

    def on_heads(self, heads: Tensor, ids: Tensor) -> Tensor:
        """(B, H, T, E) queries or keys and their positions (T,) or (B, T) -> (B, H, T, E)."""
        return heads

    def on_scores(self, queries: Tensor, keys: Tensor, like: Tensor) -> Tensor | None:
        """(T,) and (S,) places in the row -> (H, T, S) added to the scores; only their distance may count.

        Scores have the precision of `like`; what is added may be finer.
        """
        return None


@dataclass
class Flow:
    """What one forward pass carries beside x. Every forward may read it; most do not."""

    positions: PositionLayer
    ids: Tensor  # (T,) or (B, T) the position of each token of x, counted from the start of its document
    past: int = 0  # how many places of the row stand before x: they are known from `states`
    causal: bool = True
    segments: Tensor | None = None  # (B, S) the document of every place so far: a token sees its own alone
    memory: Tensor | None = None  # (B, M, D) what the encoder made of the source
    memory_padding: Tensor | None = None  # (B, M) true where the source is padding, which nothing looks at
    states: list[Any] | None = None  # one per remembering layer while generating
    first_values: Tensor | None = None  # (B, K, T, E) the values of the first layer
    losses: list[Tensor] = field(default_factory=list)  # what layers add to the training loss
    sights: dict[Any, Sight] = field(default_factory=dict)

    def state(self, layer: Remembering) -> Any:
        """What a layer remembers; None in training."""
        return None if self.states is None else self.states[layer.number]

    def sight(self, x: Tensor, keys: int, window: int | None = None) -> Sight:
        """What the tokens of x (B, T, D) see of the last `keys` places; made once and shared by the layers."""
        if (keys, window) not in self.sights:
            T, adds = x.shape[1], type(self.positions).on_scores is not PositionLayer.on_scores
            plain = self.segments is None and not adds and (window is None or window >= keys)
            self.sights[keys, window] = Sight(
                lambda: self.bias(x, keys, window),
                everything=plain and (T == 1 or not self.causal),
                triangle=plain and self.causal and keys == T,
                aligned=plain and self.causal,
            )
        return self.sights[keys, window]

    def bias(self, x: Tensor, keys: int, window: int | None) -> Tensor:
        places = torch.arange(self.past + x.shape[1], device=x.device)
        queries, seen = places[self.past :], places[len(places) - keys :]
        distance = queries[:, None] - seen  # (T, S)
        hidden = distance < 0 if self.causal else torch.zeros_like(distance, dtype=torch.bool)
        if window is not None:
            hidden = hidden | (distance.abs() >= window)
        added = self.positions.on_scores(queries, seen, x)  # (H, T, S)
        if self.segments is not None:
            own, other = self.segments[:, self.past :], self.segments[:, len(places) - keys :]
            hidden = (hidden | (own[:, :, None] != other[:, None, :])).unsqueeze(1)  # (B, 1, T, S)
        if added is None:
            added = torch.zeros(hidden.shape, device=x.device)
        return added.to(x.dtype).masked_fill(hidden, float("-inf"))

    def memory_sight(self, x: Tensor) -> Sight:
        """What the tokens of x see of the memory: all but its padding."""
        if "memory" not in self.sights:
            self.sights["memory"] = Sight(lambda: self.memory_bias(x), everything=self.memory_padding is None)
        return self.sights["memory"]

    def memory_bias(self, x: Tensor) -> Tensor:
        assert self.memory_padding is not None
        zeros = x.new_zeros(self.memory_padding.shape)
        return zeros.masked_fill(self.memory_padding, float("-inf"))[:, None, None, :]  # (B, 1, 1, M)


class Positions(Part):
    """What may stand at `positions=`: how the model knows the order of its tokens. Built once per stack."""

    family: ClassVar[str] = "positions"

    def build(self, site: Site) -> PositionLayer:
        raise NotImplementedError


class Lookup(Part):
    """What may stand at `lookup=`: what the last tokens find in tables, added to the embedding. Built once per stack.

    `forward(x, tokens, flow)`: (B, T, D) embeddings and (B, T) ids -> (B, T, D).
    """

    family: ClassVar[str] = "lookup"

    def build(self, site: Site, vocab_size: int) -> nn.Module:
        raise NotImplementedError


class CountsLayer(nn.Module):
    """`forward(logits, tokens, flow)`: (B, T, V) logits of what follows (B, T) ids -> (B, T, V)."""

    def count(self, ids: np.ndarray) -> None:
        """Learn from the ids (N,) of the training text, before training."""

    def make_room(self, length: int) -> None:
        """Be ready to load what was learned from so many ids, or from as many as there may be."""


class Counts(Part):
    """What may stand at `counts=`: what was counted in the training text, mixed into a decoder's logits."""

    family: ClassVar[str] = "counts"

    def build(self, vocab_size: int) -> CountsLayer:
        raise NotImplementedError


class AttentionLayer(Remembering):
    """`forward(x, flow)`: (B, T, D) -> (B, T, D), mixing positions."""

    def use_path(self, path: str) -> None:
        """Compute scores by 'products' or 'fused', where the layer has the choice."""

    def nulls(self, positions: PositionLayer) -> set[str]:
        """The layer's parameters, by the names they are saved under, that no output can depend on."""
        return set()


class StackEnds(nn.Module):
    """What happens once per stack, before its first block and after its last."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor) -> Tensor:
        return x


class Attention(Part):
    """What may stand at `attention=`: (B, T, D) -> (B, T, D), mixing positions."""

    family: ClassVar[str] = "attention"
    by_layer: ClassVar[bool] = True
    hands_values_on: ClassVar[bool] = False  # whether a first layer of this kind sets `flow.first_values`

    def heads(self, d_model: int) -> Heads:
        """The heads of the layer, which positions need to know. Raises ConfigError where they do not fit."""
        raise NotImplementedError

    def score_width(self, d_model: int) -> int:
        """How many products a score sums."""
        return self.heads(d_model).width

    def build(self, site: Site) -> AttentionLayer:
        raise NotImplementedError

    def build_cross(self, site: Site) -> AttentionLayer:
        """The same kind of attention, of a decoder over `flow.memory`."""
        raise ConfigError(f"attention={self.name} has no form that reads a source: choose multihead, or no encoder")


class Mixing(Part):
    """What may stand at `mixing=`: (B, T, D) -> (B, T, D), neighbouring tokens mixed before attention."""

    family: ClassVar[str] = "mixing"
    by_layer: ClassVar[bool] = True

    def build(self, site: Site) -> nn.Module:
        raise NotImplementedError


class FeedForward(Part):
    """What may stand at `ffn=`: (B, T, D) -> (B, T, D), each position alone."""

    family: ClassVar[str] = "ffn"
    by_layer: ClassVar[bool] = True

    def build(self, site: Site) -> nn.Module:
        raise NotImplementedError


class Norm(Part):
    """What may stand at `norm=`: (..., D) -> (..., D)."""

    family: ClassVar[str] = "norm"

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


class AheadLayer(nn.Module):
    """`forward(x)`: (B, T, D) what the head reads -> (B, T, V) logits of each token beyond the next, for training alone."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return []

    def weight_at(self, done: float) -> float:
        """What the loss of each counts for, after that share of the training's steps; at zero they are not computed."""
        return 0.0


class Ahead(Part):
    """What may stand at `ahead=`: what training predicts beyond the next token. Its parameters touch no logits."""

    family: ClassVar[str] = "ahead"

    def build(self, site: Site, vocab_size: int) -> AheadLayer:
        raise NotImplementedError


NewNorm = Callable[[], nn.Module]
Branch = Callable[[Tensor, Flow], Tensor]


class Residual(Part):
    """What may stand at `residual=`: how branches and norms are wired around the residual stream."""

    family: ClassVar[str] = "residual"

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        """The wiring of one block: `forward(x, flow, branches)` with as many norms as it needs."""
        raise NotImplementedError

    def build_ends(self, site: Site, new_norm: NewNorm) -> StackEnds:
        raise NotImplementedError

    def gain(self, spec: TensorSpec) -> float:
        """What initial values are multiplied by."""
        return 1.0


class Init(Part):
    """What may stand at `init=`: how a tensor is drawn from its role, and what else a parametrisation sets."""

    family: ClassVar[str] = "init"
    scales_tables_apart: ClassVar[bool] = False  # then no table can be the head as well
    for_adaptive_optimizers: ClassVar[bool] = False  # whether `lr_factor` holds for such alone

    zero_output: bool = False  # matrices that end a residual branch start at zero: Zhang et al. 2019, arXiv:1901.09321

    def fill(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        """Give a float32 CPU tensor its initial values in place."""
        if self.zero_output and spec.role == "output":
            values.zero_()
        else:
            self.draw(values, spec, generator)

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        """Fill a float32 CPU tensor in place; never called for the role `vector`."""
        raise NotImplementedError

    def lr_factor(self, spec: TensorSpec) -> float:
        """By which the learning rate of a tensor is multiplied."""
        return 1.0

    def score_scale(self, head_width: int, d_model: int) -> float | None:
        """What attention scores are multiplied by, where that is not the layer's own 1 / sqrt(head_width)."""
        return None
