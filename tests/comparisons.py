"""Settings of tiny comparisons, shared by the tests of comparisons and studies."""

from typing import Any

TINY = [
    "d_model=16",
    "n_layers=2",
    "attention.n_heads=2",
    "context_length=16",
    "train.batch_size=4",
    "train.steps=12",
    "train.eval_every=4",
    "train.threads=1",
    "train.precision=float32",
]

ARITHMETIC = [*TINY, "data.train=300", "data.validation=20", "data.test=20"]

# after 12 steps, most losses are above that of uniform guessing, the default limit
SETTINGS: dict[str, Any] = {"data": "text.txt", "common": TINY, "margin": 0.05, "failure": 100.0}


def last_of_each(words: list[str]) -> list[str]:
    """Overrides in which the last of each setting remains, since a command refuses two."""
    last = {word.partition("=")[0]: index for index, word in enumerate(words) if "=" in word}
    return [word for index, word in enumerate(words) if last.get(word.partition("=")[0], index) == index]
