"""The roles of tensors, which determine initialization, learning rate and optimizer."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["table", "score", "hidden", "output", "head", "bias", "vector"]
"""The role of a tensor determines its initialization, its learning rate under muP and its optimizer:
`table` is an embedding, `score` projects to queries or keys, `hidden` is any other matrix inside a branch, `output` the
last matrix of a residual branch, `head` projects to logits, `bias` is the bias of a linear layer, and any other `vector`
(a norm's weight, a trainable beta) keeps the value that its layer sets."""


@dataclass(frozen=True)
class TensorSpec:
    """The properties of a tensor that its initialization depends on, besides the random stream."""

    role: Role
    fan_in: int
    fan_out: int
    d_model: int
    layers: tuple[int, int] = (1, 0)  # depth of its own stack, and of the other one in an encoder-decoder
    causal: bool = True  # True in the decoder
    activated: bool = False  # whether it is a bias of the hidden units, in the input of their activation function
