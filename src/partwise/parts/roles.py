"""What a tensor is for: initial values, learning rates and the choice of optimizer follow from it."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["table", "score", "hidden", "output", "head", "bias", "vector"]
"""What a tensor is for. Initialisation, its learning rate under muP and the choice of optimizer follow from it:
`table` maps ids to vectors, `score` makes queries or keys, `hidden` is any other matrix inside a branch, `output` the
matrix that ends a residual branch, `head` gives the logits, `bias` belongs to a linear map, and any other `vector` (a
norm's scale, a trainable beta) keeps the value that its layer gave it."""


@dataclass(frozen=True)
class TensorSpec:
    """What an initial value depends on beside its stream."""

    role: Role
    fan_in: int
    fan_out: int
    d_model: int
    layers: tuple[int, int] = (1, 0)  # of its stack, and of the other one in an encoder-decoder
    causal: bool = True  # whether it stands in the decoder
