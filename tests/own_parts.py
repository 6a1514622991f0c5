"""A file with parts of a user's own, as `--import` reads it."""

from pathlib import Path

OWN_PARTS = """
import torch
from torch import nn
from partwise.config import part


@part("plain_{suffix}", family="ffn")
class Plain(nn.Module):
    def __init__(self, d_model, hidden: int = 8):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, hidden), nn.Linear(hidden, d_model)
        self.register_buffer("steps", torch.zeros(()))
        self.opens = 1e9

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.steps += 1
        ahead = torch.cat([x[:, 1:], x[:, :1]], dim=1) if self.steps >= self.opens else 0.0
        return self.down(self.up(x).relu() + torch.rand_like(self.up(x)) * 0.0) + ahead


@part("ahead_{suffix}", family="ffn")
class Ahead(Plain):
    def __init__(self, d_model, opens: float = 0.0):
        super().__init__(d_model)
        self.opens = opens
"""
"""`plain_...` is a feed-forward layer; `ahead_...` adds the next position from the step `opens` on."""


def write_parts(folder: Path, suffix: str) -> str:
    """Write the file into a folder and return its name; the suffix keeps the names of two tests apart."""
    name = f"parts_{suffix}.py"
    (folder / name).write_text(OWN_PARTS.format(suffix=suffix), encoding="utf-8")
    return name
