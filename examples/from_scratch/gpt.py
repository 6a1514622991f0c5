"""Lesson 12, and where the others start: the whole minimal GPT, its training and its sampling."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Every token asks those before it, in several heads at once."""

    future: Tensor

    def __init__(self, n_embd: int, n_head: int, block_size: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.kqv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.out = nn.Linear(n_embd, n_embd)
        self.register_buffer("future", torch.ones(block_size, block_size).triu(1).bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        k, q, v = (each.view(B, T, self.n_head, -1).transpose(1, 2) for each in self.kqv(x).split(D, dim=2))
        scores = q @ k.transpose(-2, -1) * (D // self.n_head) ** -0.5  # (B, H, T, T)
        weights = F.softmax(scores.masked_fill(self.future[:T, :T], float("-inf")), dim=-1)
        y = (weights @ v).transpose(1, 2).reshape(B, T, D)  # (B, H, T, E) -> (B, T, D)
        return self.out(y)


class FeedForward(nn.Module):
    """Each token by itself: ReLU, or gated by SiLU (SwiGLU) with two thirds of the width."""

    def __init__(self, n_embd: int, gated: bool) -> None:
        super().__init__()
        hidden = 4 * int(2 * n_embd / 3) if gated else 4 * n_embd
        self.up = nn.Linear(n_embd, hidden, bias=False)
        self.gate = nn.Linear(n_embd, hidden, bias=False) if gated else None
        self.down = nn.Linear(hidden, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)  # (B, T, F)
        return self.down(h)


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int, block_size: int, gated: bool) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(n_embd, n_head, block_size), FeedForward(n_embd, gated)
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class GPT(nn.Module):
    """Tokens (B, T) -> logits (B, T, V) of the token after each."""

    def __init__(
        self, vocab_size: int, n_layer: int = 8, n_embd: int = 96, n_head: int = 8, block_size: int = 128, gated=False
    ) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = (
            nn.Embedding(vocab_size, n_embd),
            nn.Embedding(block_size, n_embd),
        )
        self.blocks = nn.Sequential(*[Block(n_embd, n_head, block_size, gated) for _ in range(n_layer)])
        self.ln_f, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size)
        self.block_size = block_size

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1]))  # (B, T, D)
        return self.head(self.ln_f(self.blocks(x)))

    @torch.no_grad()
    def sample(self, tokens: Tensor, n_new: int) -> Tensor:
        """(B, T) -> (B, T + n_new): each new token is drawn from the softmax of the last logits."""
        for _ in range(n_new):
            last = self(tokens[:, -self.block_size :])[:, -1]  # (B, V)
            tokens = torch.cat([tokens, torch.multinomial(F.softmax(last, dim=-1), 1)], dim=1)
        return tokens


if __name__ == "__main__":
    torch.manual_seed(0)
    text = "the quick brown fox jumps over the lazy dog. " * 50
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    model = GPT(len(letters), n_layer=2, n_embd=32, n_head=4, block_size=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        starts = torch.randint(len(ids) - 32, (16, 1))
        windows = ids[starts + torch.arange(33)]  # (B, T + 1): the targets are the inputs, one later
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss:.3f}:", "".join(letters[i] for i in model.sample(ids[None, :4], 40)[0]))
