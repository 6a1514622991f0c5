"""The original transformer: a block that reads a whole source, one that writes from it, and the two masks between them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def padding_mask(source: Tensor, padding: int) -> Tensor:
    """True at the keys that fill up a short row, which nobody may read: (B, M) -> (B, 1, 1, M)."""
    return (source == padding)[:, None, None, :]


def future_mask(length: int) -> Tensor:
    """True at the keys after the query, which the decoder is to predict: (T, T)."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class Attention(nn.Module):
    """Queries from x; keys and values from `source`, which is x itself except between decoder and encoder."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.q, self.k, self.v, self.out = (nn.Linear(n_embd, n_embd) for _ in range(4))

    def forward(self, x: Tensor, source: Tensor, hidden: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, T, D) -> (B, H, T, E)
        k = self.k(source).unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, H, M, E)
        v = self.v(source).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, H, T, M)
        weights = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))  # (B, T, D)


class FeedForward(nn.Module):
    def __init__(self, n_embd: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(n_embd, hidden), nn.Linear(hidden, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class EncoderBlock(nn.Module):
    """Every token of the source reads all others but padding; each norm stands after the sum."""

    def __init__(self, n_embd: int, n_head: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(n_embd, n_head), FeedForward(n_embd, hidden)
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.ln1(x + self.attention(x, x, padding))
        return self.ln2(x + self.ffn(x))


class DecoderBlock(nn.Module):
    """Reads what was written so far, then the encoder's output `memory` (B, M, D)."""

    def __init__(self, n_embd: int, n_head: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.cross = Attention(n_embd, n_head), Attention(n_embd, n_head)
        self.ffn = FeedForward(n_embd, hidden)
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(n_embd) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        x = self.ln1(x + self.attention(x, x, future_mask(x.shape[1])))
        x = self.ln2(x + self.cross(x, memory, padding))
        return self.ln3(x + self.ffn(x))


if __name__ == "__main__":
    torch.manual_seed(0)
    encoder, decoder = EncoderBlock(16, 2, 32), DecoderBlock(16, 2, 32)
    x, source = torch.randn(1, 4, 16), torch.randn(1, 6, 16, requires_grad=True)
    padding = padding_mask(torch.tensor([[5, 3, 8, 2, 0, 0]]), padding=0)
    decoder(x, encoder(source, padding), padding).sum().backward()
    read = (source.grad.abs().sum(-1) > 0).sum().item()
    print(f"the answer depends on {read} of the 6 source tokens; the other {6 - read} are padding")
