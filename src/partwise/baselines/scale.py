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
    if set(ngrams) == {1}:
        return f"{'worse' if better else 'better'} than a unigram model, which predicts the same for every token"
    if not better:
        return f"better than the best n-gram model, {_with_article(min(worse)[1])}"
    if not worse:
        return f"worse than {_with_article(max(better)[1])} model"
    return f"between {_with_article(min(worse)[1])} and {_with_article(max(better)[1])} model"


FAR_BELOW = 0.5
"""A fraction of the best n-gram loss, below any known loss of plain text. The best models of the studies have 0.85. On One
Billion Word, Transformer-XL (perplexity 21.8) has 0.73 of the loss of a Kneser-Ney model (67.6)."""


def far_below(losses: Iterable[float], ngrams: Mapping[int, float]) -> str:
    """A sentence if a loss on plain text is below FAR_BELOW of the best n-gram model's; '' otherwise."""
    if not ngrams:
        return ""
    n, best = min(ngrams.items(), key=lambda item: item[1])
    found = [loss for loss in losses if loss < FAR_BELOW * best]
    if not found:
        return ""
    return (
        f"A loss of {min(found):.4f} is less than half of that of the best n-gram model, {_with_article(n)} "
        f"({best:.4f}): check that no position sees later tokens, and that neither training nor the starting weights have "
        "seen the validation text. Text that repeats itself also does this."
    )


def _with_article(n: int) -> str:
    return f"{'an' if n in (8, 11, 18) else 'a'} {ngram_name(n)}"
