"""A plain GPT-2, written from nanoGPT's documentation, for machines without it: the same layers, sizes and optimizer.

Pre-norm blocks without biases, LayerNorm, the exact GELU, torch's SDPA, learned positions, a tied head; the loss is torch's
cross-entropy on all logits; AdamW decays matrices only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 1024
    vocab: int = 50304
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.p = sizes.heads, sizes.dropout
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm_1(x)).split(D, dim=2))
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


class PlainGPT(nn.Module):
    """(B, T) ids and targets -> logits (B, T, V) and the mean loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(sizes.vocab, sizes.width), nn.Embedding(sizes.context, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width, bias=False)
        self.head = nn.Linear(sizes.width, sizes.vocab, bias=False)
        self.head.weight = self.embed.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = (2 * sizes.layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embed(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(
        self, weight_decay: float, lr: float, betas: tuple[float, float], device: str
    ) -> torch.optim.Optimizer:
        groups = [
            {"params": [p for p in self.parameters() if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in self.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=device == "cuda")
