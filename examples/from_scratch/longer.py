"""Lesson 11, longer than it learned? Positions beyond those of training: a bias, other frequencies, or a window."""

import math

import torch
from torch import Tensor


def alibi_slopes(n_head: int) -> list[float]:
    """2^(-8/H), 2^(-16/H), ...; for other than powers of two, every second slope of twice as many heads fills up."""
    lower = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
    more = [2 ** (-8 * h / (2 * lower)) for h in range(1, 2 * lower, 2)]
    return slopes + more[: n_head - lower]


def alibi_bias(n_head: int, length: int) -> Tensor:
    """Added to the scores: a key counts less, the farther it is."""
    t = torch.arange(length, dtype=torch.float64)
    distance = (t[:, None] - t).abs()  # (T, T)
    slopes = torch.tensor(alibi_slopes(n_head), dtype=torch.float64)
    return -slopes[:, None, None] * distance  # (H, T, T)


def rope_frequencies(head_dim: int, base: float = 10000.0) -> Tensor:
    """base^(-2i / E), radians per position."""
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)  # (E/2,)


def ntk_frequencies(width: int, factor: float, base: float = 1e4) -> Tensor:
    """A larger base: the slowest pair turns `factor` times slower."""
    return rope_frequencies(width, base * factor ** (width / (width - 2)))


def yarn_frequencies(head_dim: int, factor: float, trained_length: int, base: float = 10000.0) -> Tensor:
    """Pairs that turned 32 times or more in training keep their speed; those below one turn are slowed by `factor`."""

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(trained_length / (2 * math.pi * times)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(32)), 0)
    high = min(math.ceil(pair_that_turns(1)), head_dim - 1)
    i = torch.arange(head_dim // 2, dtype=torch.float64)
    keep = ((high - i) / (high - low)).clamp(0, 1)  # 1 up to `low`, 0 from `high` on
    return rope_frequencies(head_dim, base) * (keep + (1 - keep) / factor)


def yarn_scale(factor: float) -> float:
    """The factor of rotated queries and keys: more keys flatten the softmax, larger scores sharpen it again."""
    return 0.1 * math.log(factor) + 1


def window_mask(length: int, window: int) -> Tensor:
    """True where a query sees a key: itself and the window - 1 tokens before it."""
    t = torch.arange(length)
    distance = t[:, None] - t  # (T, T)
    return (distance >= 0) & (distance < window)


if __name__ == "__main__":
    turns = {
        "rope": rope_frequencies(64)[-1] * 512 / (2 * math.pi),
        "NTK": ntk_frequencies(64, 4)[-1] * 512 / (2 * math.pi),
        "YaRN": yarn_frequencies(64, 4, 128)[-1] * 512 / (2 * math.pi),
    }
    seen = rope_frequencies(64)[-1] * 128 / (2 * math.pi)
    shown = ", ".join(f"{name} {value:.4f}" for name, value in turns.items())
    print(f"turns of the slowest pair in 512 positions: {shown}; in the 128 of training it made {seen:.4f}")
