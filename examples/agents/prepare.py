"""The data of the toy and its evaluation. A search keeps this file fixed (`--fixed prepare.py`)."""

import math
import random

FEATURES = 8


def samples(seed: int, n: int = 200) -> list[tuple[list[float], int]]:
    """Points in two classes that overlap."""
    draw = random.Random(seed)
    found = []
    for _ in range(n):
        point = [draw.gauss(0, 1) for _ in range(FEATURES)]
        score = sum(point[:4]) - sum(point[4:]) / 2
        found.append((point, int(score + draw.gauss(0, 1) > 0)))
    return found


TRAINING, VALIDATION = samples(1), samples(2)


def probability(weights: list[float], point: list[float]) -> float:
    score = sum(weight * value for weight, value in zip(weights, point, strict=True))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


def validation_loss(weights: list[float]) -> float:
    """In nats."""
    chances = [(probability(weights, point), label) for point, label in VALIDATION]
    return -sum(math.log(max(1e-12, p if label else 1 - p)) for p, label in chances) / len(chances)
