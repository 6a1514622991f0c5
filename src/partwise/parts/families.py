"""The contracts of the model's parts on one page: where a layer stands, what flows past it, what each family builds.

Shapes, everywhere in the project:

    B batch   T query positions   S key positions   D model width   H heads   K key/value heads
    E head width   F feed-forward width   V vocabulary
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from torch import Generator, Tensor, nn

from partwise.config import Part

Role = Literal["table", "hidden", "output", "head", "bias", "vector"]
"""What a tensor is for. Initialisation (and later the choice of optimizer) follows from it:
`table` maps ids to vectors, `hidden` is a matrix inside a branch, `output` the matrix that ends a residual branch,
`head` gives the logits, `bias` belongs to a linear map, and any other `vector` (a norm's scale, a trainable beta) keeps
the value that its layer gave it."""


@dataclass(frozen=True)
class Site:
    """Where a layer stands. Every `build` takes one."""

    d_model: int
    n_layers: int
    max_len: int
    layer: int = 0
    head_dim: int = 0


class State(Protocol):
    """What a layer remembers between the calls of a cached generation."""

    def select(self, rows: Tensor) -> None: ...
    def truncate(self, length: int) -> None: ...


@dataclass
class Flow:
    """What one forward pass carries beside x. Every forward may read it; most do not."""

    positions: "PositionLayer"
    ids: Tensor  # (T,) the position of each token of x
    mask: (
        Tensor | None
    )  # (T, S) added to the scores: 0 where a query may look, -inf where not; None: it may look anywhere
    states: list[Any] | None = None  # one per layer while generating
    losses: list[Tensor] = field(default_factory=list)


class PositionLayer(nn.Module):
    """Hooks by which a stack knows the order of its tokens; each leaves its argument alone unless overridden."""

    def at_input(self, x: Tensor, ids: Tensor) -> Tensor:
        """(B, T, D) embeddings and (T,) positions -> (B, T, D)."""
        return x

    def on_heads(self, heads: Tensor, ids: Tensor) -> Tensor:
        """(B, H, T, E) queries or keys and (T,) positions -> (B, H, T, E)."""
        return heads


class Positions(Part):
    """What may stand at `positions=`: how the model knows the order of its tokens. Built once per stack."""

    family: ClassVar[str] = "positions"

    def build(self, site: Site) -> PositionLayer:
        raise NotImplementedError


class AttentionLayer(nn.Module):
    """`forward(x, flow)`: (B, T, D) -> (B, T, D), mixing positions."""

    def new_state(self, batch: int, length: int, like: Tensor) -> State:
        """What the layer remembers of up to `length` positions, on the device and in the precision of `like`."""
        raise NotImplementedError

    def use_path(self, path: str) -> None:
        """Compute scores by 'products' or 'fused', where the layer has the choice."""


class StackEnds(nn.Module):
    """What happens once per stack, before its first block and after its last."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor) -> Tensor:
        return x


class Attention(Part):
    """What may stand at `attention=`: (B, T, D) -> (B, T, D), mixing positions."""

    family: ClassVar[str] = "attention"

    def head_width(self, d_model: int) -> int:
        """E, which rotary positions need to know."""
        raise NotImplementedError

    def build(self, site: Site) -> AttentionLayer:
        raise NotImplementedError


class FeedForward(Part):
    """What may stand at `ffn=`: (B, T, D) -> (B, T, D), each position alone."""

    family: ClassVar[str] = "ffn"

    def build(self, site: Site) -> nn.Module:
        raise NotImplementedError


class Norm(Part):
    """What may stand at `norm=`: (..., D) -> (..., D)."""

    family: ClassVar[str] = "norm"

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


class Residual(Part):
    """What may stand at `residual=`: how branches and norms are wired around the residual stream."""

    family: ClassVar[str] = "residual"

    def build(self, branches: list[str], new_norm: Callable[[], nn.Module]) -> nn.Module:
        """The wiring of one block: `forward(x, flow, branches)` with as many norms as it needs."""
        raise NotImplementedError

    def build_ends(self, new_norm: Callable[[], nn.Module]) -> StackEnds:
        raise NotImplementedError


class Init(Part):
    """What may stand at `init=`: how a tensor is drawn from its role."""

    family: ClassVar[str] = "init"

    def draw(self, tensor: Tensor, role: Role, fan_in: int, n_layers: int, generator: Generator) -> None:
        """Fill a float32 CPU tensor in place; never called for the role `vector`."""
        raise NotImplementedError


MODEL_FAMILIES: Mapping[str, type[Part]] = {
    kind.family: kind for kind in (Positions, Attention, FeedForward, Norm, Residual, Init)
}
