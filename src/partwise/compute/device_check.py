"""Whether an accelerator computes what the CPU computes: the loss, every gradient and a few steps of two small models.

Metal has returned wrong numbers without an error, and more than once (the trackers of torch and of small GPTs name cases in
cumsum, in masked softmax and in AdamW on tensors that are not contiguous): a device is checked where it is used.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch.nn import functional as F

from partwise.config.overrides import apply_overrides, parse_overrides
from partwise.model import ModelConfig, Transformer

SIZES = ["context_length=32", "d_model=64", "n_layers=2", "attention.n_heads=4"]
MODELS = {
    "a GPT": [],
    "a Llama": ["positions=rope", "norm=rmsnorm", "ffn=swiglu", "attention.n_kv_heads=2", "tie_embeddings=true"],
}
VOCABULARY, STEPS, LR = 65, 5, 1e-3
LOSS_TOLERANCE = 1e-4
"""Relative; float32 sums in another order differ by about 1e-6."""
GRADIENT_TOLERANCE = 1e-3
"""Of the largest entry of a tensor."""


@lru_cache
def device_faults(device: str) -> tuple[str, ...]:
    """What the device computes differently from the CPU, in float32, one line each; empty if nothing."""
    return tuple(
        f"{name}: {fault}" for name, words in MODELS.items() for fault in model_faults(words, torch.device(device))
    )


def model_faults(words: list[str], device: torch.device) -> Iterator[str]:
    base = ModelConfig.from_dict({"vocab_size": VOCABULARY}).to_dict()
    config = ModelConfig.from_dict(apply_overrides(base, parse_overrides([*SIZES, *words])))
    expected, found = (trained(config, each) for each in (torch.device("cpu"), device))
    for step, (loss, value) in enumerate(zip(expected.losses, found.losses, strict=True)):
        if not abs(value - loss) <= LOSS_TOLERANCE * loss:
            yield f"the loss after {step} steps is {value:.6g}, on the CPU {loss:.6g}"
            return
    for name, right in expected.gradients.items():
        error = (found.gradients[name] - right).abs().max().item() / max(right.abs().max().item(), 1e-12)
        if not error <= GRADIENT_TOLERANCE:
            yield f"the gradient of {name} differs by {error:.1g} of its largest entry"


class Trained:
    """The loss before each step and after the last, and the gradients of the first."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradients: dict[str, torch.Tensor] = {}


def trained(config: ModelConfig, device: torch.device) -> Trained:
    """A few steps of AdamW on one batch, from the same weights on every device."""
    model = Transformer(config).to(device).train()
    tokens = torch.randint(config.vocab_size, (4, 33), generator=torch.Generator().manual_seed(0)).to(device)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=LR), Trained()
    for step in range(STEPS + 1):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if not step:
            found.gradients = {
                name: each.grad.detach().cpu().clone()
                for name, each in model.named_parameters()
                if each.grad is not None
            }
        found.losses.append(loss.item())
        optimizer.step()
    return found
