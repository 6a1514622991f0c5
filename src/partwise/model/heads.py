"""What positions require of the heads of all layers."""

from collections.abc import Sequence

from partwise.config import ConfigError
from partwise.parts.contracts import HeadLayout, PositionLayer


def check_heads(name: str, positions: PositionLayer, layouts: Sequence[HeadLayout]) -> None:
    """Reject heads that differ between layers where one layer of positions serves all. Raises ConfigError."""
    kind = type(positions)
    head_dims, n_heads = {heads.head_dim for heads in layouts}, {heads.n_heads for heads in layouts}
    head_dims_differ = kind.on_heads is not PositionLayer.on_heads and len(head_dims) > 1
    n_heads_differ = kind.on_scores is not PositionLayer.on_scores and len(n_heads) > 1
    if head_dims_differ or n_heads_differ:
        option = "head_dim (mla: rope_head_dim)" if head_dims_differ else "n_heads"
        raise ConfigError(f"positions={name} requires the same attention.{option} in every layer: set it")
