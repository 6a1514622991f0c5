"""Train a model in a loop of your own: partwise supplies the parts, torch the rest."""

import sys

import torch

import partwise

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
text = "the quick brown fox jumps over the lazy dog. " * 100
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])

config = partwise.preset(
    "mingpt", "d_model=32", "n_layers=2", "attention.n_heads=4", "ffn=swiglu", vocab_size=len(letters)
)
model = partwise.Transformer(config, seed=0)
partwise.select_backends(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

losses = []
for _ in range(steps):
    starts = torch.randint(len(ids) - 33, (8, 1))
    windows = ids[starts + torch.arange(33)]  # (B, T + 1)
    logits = model(windows[:, :-1])  # (B, T, V)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

print(f"{config.parameters():,} parameters, loss {losses[0]:.3f} -> {losses[-1]:.3f} nats per character")
