"""The scale of n-gram references: a loss placed between the n-gram models of the same text."""

from collections.abc import Mapping


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


def _with_article(n: int) -> str:
    return f"{'an' if n in (8, 11, 18) else 'a'} {ngram_name(n)}"
