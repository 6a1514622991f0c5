"""The scale of n-gram references: a loss placed between the n-gram models of the same text."""

from collections.abc import Iterable, Mapping


def ngram_name(n: int) -> str:
    return "unigram" if n == 1 else f"{n}-gram"


def place_loss(loss: float, ngrams: Mapping[int, float]) -> str:
    """Where a loss stands among those of n-gram models: "between a 2-gram and a 3-gram model"; '' without any.

    `ngrams` maps n to the loss of the n-gram model.
    """
    better = [(value, n) for n, value in ngrams.items() if value <= loss]
    worse = [(value, n) for n, value in ngrams.items() if value > loss]
    if not ngrams:
        return ""
    if not better:
        return f"better than the best n-gram model, {_with_article(min(worse)[1])}"
    if not worse:
        return f"worse than {_with_article(max(better)[1])} model"
    return f"between {_with_article(min(worse)[1])} and {_with_article(max(better)[1])} model"


FAR_BELOW = 0.5
"""Of the best n-gram loss. Published models of plain text stay above: about 0.55 of a Kneser-Ney model's loss on enwik8 and
WikiText-103, with hundreds of millions of parameters, and 0.85 at the sizes that are compared here."""


def far_below(losses: Iterable[float], ngrams: Mapping[int, float]) -> str:
    """A sentence on a loss on plain text that no model of plain text has, next to n-gram models; '' otherwise."""
    if not ngrams:
        return ""
    n, best = min(ngrams.items(), key=lambda item: item[1])
    found = [loss for loss in losses if loss < FAR_BELOW * best]
    if not found:
        return ""
    return (
        f"A loss of {min(found):.4f} is less than half of that of the best n-gram model, {_with_article(n)} model "
        f"({best:.4f}): check that no position sees later tokens, and that neither training nor the starting weights have "
        "seen the validation text. Text that repeats itself also does this."
    )


def _with_article(n: int) -> str:
    return f"{'an' if n in (8, 11, 18) else 'a'} {ngram_name(n)}"
