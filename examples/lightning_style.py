"""Code in the style of Lightning, without it: a module with `training_step` and `configure_optimizers`, and its trainer."""

import sys

import torch
from torch import Tensor, nn

import partwise


class LanguageModel(nn.Module):
    def __init__(self, config: partwise.ModelConfig, lr: float = 3e-3) -> None:
        super().__init__()
        self.model = partwise.Transformer(config, seed=0)
        self.lr = lr

    def training_step(self, batch: Tensor) -> Tensor:
        """(B, T + 1) ids -> the mean loss in nats per token."""
        logits = self.model(batch[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def fit(module: LanguageModel, batches: list[Tensor]) -> list[float]:
    """Take one step per batch and return the losses."""
    optimizer, losses = module.configure_optimizers(), []
    for batch in batches:
        loss = module.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    counting = torch.arange(33) + torch.randint(16, (steps, 8, 1))  # sequences that count modulo 16
    config = partwise.preset("llama", "d_model=32", "n_layers=2", "attention.n_heads=4", vocab_size=16)
    losses = fit(LanguageModel(config), list(counting % 16))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} nats per token")
