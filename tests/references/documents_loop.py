"""The SwiGLU post's two measurements, as it makes them: for comparison with the product's, in result and in time.

Its calculator answers one problem at a time. The prompt is everything up to and including '='; every further symbol is
drawn from the full softmax of a complete, uncached forward pass over the last `context` symbols, until '$' is drawn.
The answer is cut at the truth's length, or filled up with symbol 0, which is '$' itself: an answer that stops early
gets the last character right. The scores count every character after '=', the closing '$' included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Logits = Callable[[Tensor], Tensor]
"""(B, T) symbols -> (B, T, V)."""

SYMBOLS = "$()*+-./0123456789="
"""All 19 that its format can hold, in the order of their codes; it says 21."""


def encode(text: str) -> Tensor:
    """(T,) indices into SYMBOLS."""
    return torch.tensor([SYMBOLS.index(symbol) for symbol in text])


@dataclass(frozen=True)
class Scores:
    """Shares of right characters and of wholly right answers, and the completed problems (N, T)."""

    character_accuracy: float
    exact_match: float
    predictions: Tensor


@torch.no_grad()
def complete(
    logits: Logits, prompt: Tensor, context: int, generator: torch.Generator | None, limit: int | None
) -> Tensor:
    """The prompt (T,) and what is drawn after it, up to the first '$'; the document has no `limit` on new symbols."""
    sequence = prompt[None]
    drawn = 0
    while limit is None or drawn < limit:
        last = logits(sequence[:, -context:])[:, -1]
        symbol = torch.multinomial(torch.softmax(last, dim=-1), 1, generator=generator)
        sequence = torch.cat([sequence, symbol], dim=1)
        drawn += 1
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
) -> Scores:
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
    right = predicted[:, start:] == torch.stack(truths)[:, start:]
    return Scores(right.double().mean().item(), right.all(dim=1).double().mean().item(), predicted)


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
    """Mean next-symbol cross-entropy in nats over random windows of `symbols` (N,), drawn with replacement."""
    total = 0.0
    for _ in range(batches):
        starts = torch.randint(len(symbols) - context, (batch_size,), generator=generator)
        windows = symbols[starts[:, None] + torch.arange(context + 1)]  # (B, T + 1)
        scores = logits(windows[:, :-1])
        picked = scores.gather(-1, windows[:, 1:, None])[..., 0]
        total += (torch.logsumexp(scores, dim=-1) - picked).mean().item()
    return total / batches
