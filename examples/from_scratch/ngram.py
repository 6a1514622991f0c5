"""Lesson 1, which n-gram model will it tie? Counting alone, made as good as counting gets: modified Kneser-Ney."""

import bz2
import math
from collections import Counter
from pathlib import Path


def unigram_loss(train: list[int], ids: list[int], vocab_size: int) -> float:
    """Nats per token of how often each token occurs; one is added to each count, so that no probability is 0."""
    counts = Counter(train)
    losses = [-math.log((counts[token] + 1) / (len(train) + vocab_size)) for token in ids[1:]]
    return sum(losses) / len(losses)


def count(train: list[int], n: int, longest: int) -> Counter:
    """How often each n-gram occurs; one shorter than the longest counts the different tokens that stand before it."""
    if n == longest:
        return Counter(zip(*[train[i:] for i in range(n)], strict=False))
    longer = set(zip(*[train[i:] for i in range(n + 1)], strict=False))
    return Counter(gram[1:] for gram in longer)


def discounts(counts: Counter) -> list[float]:
    """What to take from a count of 0, 1, 2, and 3 or more, and give to the n-grams that were never seen."""
    of = Counter(counts.values())  # of[k]: how many n-grams have the count k
    result = [0.0, 0.5, 1.0, 1.5]  # for texts too small to tell
    for k in (1, 2, 3):
        if of[1] and of[2] and of[k] and of[k + 1]:
            kept = (of[1] + 2 * of[2]) * of[k]
            discount = (k * kept - (k + 1) * of[1] * of[k + 1]) / kept
            result[k] = discount if discount > 0 else result[k]
    return result


class KneserNey:
    """P(token | context): its share of the counts, less a discount, plus the discounted mass times P of a shorter context."""

    def __init__(self, train: list[int], vocab_size: int, n: int) -> None:
        self.vocab_size = vocab_size
        self.orders = []  # of 1-grams to n-grams: counts, discounts, total of each context, mass taken from each context
        for length in range(1, n + 1):
            counts = count(train, length, n)
            taken, total, mass = discounts(counts), Counter(), Counter()
            for gram, c in counts.items():
                total[gram[:-1]] += c
                mass[gram[:-1]] += taken[min(c, 3)]
            self.orders.append((counts, taken, total, mass))

    def probability(self, context: tuple[int, ...], token: int) -> float:
        p = 1 / self.vocab_size
        orders = self.orders[: len(context) + 1]
        for length, (counts, taken, total, mass) in enumerate(orders):
            seen = context[len(context) - length :]  # the last `length` tokens
            if total[seen]:
                c = counts[(*seen, token)]
                p = (c - taken[min(c, 3)] + mass[seen] * p) / total[seen]
        return p

    def loss(self, ids: list[int]) -> float:
        """Nats per token of ids[1:]."""
        longest = len(self.orders) - 1
        losses = [-math.log(self.probability(tuple(ids[max(0, i - longest) : i]), ids[i])) for i in range(1, len(ids))]
        return sum(losses) / len(losses)


if __name__ == "__main__":
    file = Path(__file__).parents[2] / "src/partwise/data/texts/tinyshakespeare.txt.bz2"
    text = bz2.decompress(file.read_bytes()).decode()
    letters = sorted(set(text))
    ids = [letters.index(letter) for letter in text[:220_000]]
    losses = [KneserNey(ids[:200_000], len(letters), n).loss(ids[200_000:]) for n in (1, 2, 4)]
    print("nats per character of a 1-gram, 2-gram and 4-gram model:", ", ".join(f"{loss:.3f}" for loss in losses))
