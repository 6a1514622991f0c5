"""The SwiGLU post's training loop and two evaluations, to compare results and speed; its model is `from_scratch.gpt`.

It trains like its series: batches of windows sampled with replacement, AdamW at a constant learning rate, and at every
500th step and the last the mean loss over 200 random batches of each split.

Its calculator answers one problem at a time. The prompt is everything up to and including '='; each further symbol is
sampled from the full softmax of an uncached forward pass over the last `context` symbols, until '$'. The answer is
truncated to the length of the truth or padded with symbol 0, which is '$' as well: an answer that stops early gets the
last character right. The scores count every character after '=', including the closing '$'.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from from_scratch.gpt import GPT

Logits = Callable[[Tensor], Tensor]
"""(B, T) symbols -> (B, T, V)."""

SYMBOLS = "$()*+-./0123456789="
"""All 19 symbols of its format, in the order of their codes; the post states 21."""


def encode(text: str) -> Tensor:
    """(T,) indices into SYMBOLS."""
    return torch.tensor([SYMBOLS.index(symbol) for symbol in text])


@dataclass(frozen=True)
class ArithmeticScores:
    """Character accuracy, exact match, and the completed problems (N, T)."""

    character_accuracy: float
    exact_match: float
    predictions: Tensor


def complete(
    logits: Logits, prompt: Tensor, context: int, generator: torch.Generator | None, limit: int | None
) -> Tensor:
    """The prompt (T,) and its sampled continuation up to the first '$'; the post has no `limit` on new symbols.

    Like the post, it does not disable gradients.
    """
    sequence = prompt[None]
    n_new = 0
    while limit is None or n_new < limit:
        last = logits(sequence[:, -context:])[:, -1]
        symbol = torch.multinomial(torch.softmax(last, dim=-1), 1, generator=generator)
        sequence = torch.cat([sequence, symbol], dim=1)
        n_new += 1
        if symbol.item() == 0:
            break
    return sequence[0]


def score_arithmetic(
    logits: Logits,
    problems: Sequence[str],
    *,
    context: int = 128,
    generator: torch.Generator | None = None,
    limit: int | None = None,
) -> ArithmeticScores:
    """Score the calculator on whole problems such as '$(0000000400/0000000344)=61.1000000$', all of one length."""
    truths, predictions = [], []
    for problem in problems:
        truth = encode(problem)
        prompt = encode(problem[: problem.index("=") + 1])
        answer = complete(logits, prompt, context, generator, limit)[: len(truth)]
        truths.append(truth)
        predictions.append(torch.cat([answer, torch.zeros(len(truth) - len(answer), dtype=answer.dtype)]))
    start = problems[0].index("=") + 1
    predicted = torch.stack(predictions)
    correct = predicted[:, start:] == torch.stack(truths)[:, start:]
    return ArithmeticScores(correct.double().mean().item(), correct.all(dim=1).double().mean().item(), predicted)


def sample_batch(
    symbols: Tensor, batch_size: int, context: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Random windows of `symbols` (N,) and their targets, shifted by one: (B, T) each."""
    starts = torch.randint(len(symbols) - context, (batch_size,), generator=generator)
    inputs = torch.stack([symbols[start : start + context] for start in starts])
    return inputs, torch.stack([symbols[start + 1 : start + context + 1] for start in starts])


@torch.no_grad()
def estimate_loss(
    logits: Logits,
    symbols: Tensor,
    *,
    batches: int = 200,
    batch_size: int = 16,
    context: int = 128,
    generator: torch.Generator | None = None,
) -> float:
    """Mean next-symbol cross-entropy in nats over random windows of `symbols` (N,), sampled with replacement."""
    total = 0.0
    for _ in range(batches):
        inputs, targets = sample_batch(symbols, batch_size, context, generator)
        total += F.cross_entropy(logits(inputs).flatten(0, 1), targets.flatten()).item()
    return total / batches


class Training:
    """The post's training loop, on the first 90 % of `symbols` (N,)."""

    def __init__(self, model: GPT, symbols: Tensor, *, batch_size: int = 16, context: int = 128) -> None:
        self.model, self.batch_size, self.context = model, batch_size, context
        split_point = int(0.9 * len(symbols))
        self.splits = {"train": symbols[:split_point], "val": symbols[split_point:]}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def run(self, steps: int = 5000, every: int = 500, batches: int = 200) -> dict[int, dict[str, float]]:
        """Train, and return the losses before the evaluated steps, counted from 0."""
        losses = {}
        for step in range(steps):
            if step in evaluated_steps(steps, every):
                losses[step] = self.evaluate(batches)
            self.update()
        return losses

    def update(self) -> None:
        inputs, targets = sample_batch(self.splits["train"], self.batch_size, self.context, None)
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def evaluate(self, batches: int = 200) -> dict[str, float]:
        self.model.eval()
        losses = {
            name: estimate_loss(self.model, symbols, batches=batches, batch_size=self.batch_size, context=self.context)
            for name, symbols in self.splits.items()
        }
        self.model.train()
        return losses


def evaluated_steps(steps: int = 5000, every: int = 500) -> list[int]:
    """The steps before which the post evaluates, counted from 0: every 500th and the last."""
    return sorted({*range(0, steps, every), steps - 1})
