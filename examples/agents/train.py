"""A toy that trains within milliseconds: logistic regression by SGD. `python train.py --seed 3` prints a validation loss."""

import argparse
import random

from prepare import FEATURES, TRAINING, probability, validation_loss

LR = 0.05
STEPS = 100
BATCH = 4
MOMENTUM = 0.0
INIT_SD = 0.1


def train(seed: int) -> list[float]:
    draw = random.Random(seed)
    weights = [draw.gauss(0, INIT_SD) for _ in range(FEATURES)]
    velocity = [0.0] * FEATURES
    for _ in range(STEPS):
        batch = draw.sample(TRAINING, BATCH)
        errors = [(probability(weights, point) - label, point) for point, label in batch]
        gradient = [sum(error * point[i] for error, point in errors) / BATCH for i in range(FEATURES)]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        weights = [weight - LR * v for weight, v in zip(weights, velocity, strict=True)]
    return weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    print(f"val_loss {validation_loss(train(parser.parse_args().seed)):.6f}")
