"""Frequencies, and cosine and sine tables, of sinusoidal and rotary positions."""

import torch
from torch import Tensor

from partwise.parts.contracts import PositionLayer


def inverse_frequencies(base: float, width: int) -> list[float]:
    return [base ** (-i / width) for i in range(0, width, 2)]


class AngleTable(PositionLayer):
    """cos and sin of t w_i, computed in float64, stored in float32 or higher: bfloat16 angles collapse above 256."""

    def __init__(self, context_length: int, frequencies: list[float], attention_scaling: float = 1.0) -> None:
        super().__init__()
        self.context_length, self.frequencies, self.attention_scaling = context_length, frequencies, attention_scaling
        # not buffers, which `.bfloat16()` and `.double()` would round; each dtype has its own exact copy
        self.tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def cos_sin(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Two (context_length, pairs) tables on the device of `like`, in its dtype or float32, whichever is more precise."""
        key = (like.device, torch.promote_types(like.dtype, torch.float32))
        if key not in self.tables:
            with torch.inference_mode(False):  # evaluation may build a table that training uses
                frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device="cpu")
                angles = torch.outer(torch.arange(self.context_length, dtype=torch.float64, device="cpu"), frequencies)
                self.tables[key] = (
                    (self.attention_scaling * angles.cos()).to(*key),
                    (self.attention_scaling * angles.sin()).to(*key),
                )
        return self.tables[key]
