"""Worked answers, `data.steps=true`: what is written between a problem and its answer, one digit at a time.

Each digit depends on few others, at fixed places, as in written arithmetic; direct answers to products and quotients need
all of it at once. Like the scratchpads of Nye et al. 2021, arXiv:2112.00114. Operands are written in units of the last
decimal place, all numbers with their last digit first, and in ten's complement if they can be negative. Shapes: N problems,
n digits per operand.
"""

from collections.abc import Iterator

import numpy as np

SEPARATORS = ",;"
"""Characters of worked answers besides those of problems."""

MULTIPLES = range(2, 8)
"""The multiples of a divisor that are written before the first digit of a quotient."""


class WorkedAnswers:
    """The steps of problems with operands up to `max_operand` units, `scale` units per whole number."""

    def __init__(self, max_operand: int, scale: int) -> None:
        self.scale = scale
        self.n = len(str(max_operand))
        self.divisor_width = len(str(2 * max_operand))  # of twice a divisor
        self.dividend_width = len(str(2 * scale * max_operand + max_operand))

    def width(self, operation: str) -> int:
        """Characters of the steps of an operation, the same for all its problems."""
        one = np.ones(1, dtype=np.int64)
        return sum(columns.shape[1] for columns in self._parts(operation, one, one))

    def write(self, operation: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The steps of problems of one operation, ASCII, uint8 (N, width): from after the first `=` through the last."""
        return np.concatenate(list(self._parts(operation, first, second)), axis=1)

    def _parts(self, operation: str, first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
        count = len(first)
        yield from (
            digits(first, self.n),
            text(operation, count),
            digits(second, self.n),
            text("=", count),
        )
        yield from {"+": self._add, "-": self._subtract, "*": self._multiply, "/": self._divide}[operation](
            first, second
        )

    def _add(self, first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
        yield digits(first + second, self.n + 1)
        yield text("=", len(first))

    def _subtract(self, first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
        """The difference, then its magnitude."""
        yield digits(first - second, self.n + 1)
        yield text("=", len(first))
        yield digits(np.abs(first - second), self.n)
        yield text("=", len(first))

    def _multiply(self, first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
        """A row per digit of the second operand: its product, each digit with its carry, then the sum so far.

        The sum begins at half of the last decimal place, which rounds the answer; its digits that no later row changes are
        not written again.
        """
        total = np.full_like(first, self.scale // 2)
        for place in range(self.n):
            factor, carry = second // 10**place % 10, np.zeros_like(first)
            pairs = np.empty((len(first), 2 * self.n), dtype=np.int64)
            for column in range(self.n):
                product = first // 10**column % 10 * factor + carry
                pairs[:, 2 * column], carry = product % 10, product // 10
                pairs[:, 2 * column + 1] = carry
            yield ascii_digits(pairs)
            yield text(",", len(first))
            total = total + first * factor * 10**place
            yield digits(total // 10**place, self.n + 1)
            yield text(";" if place + 1 < self.n else "=", len(first))

    def _divide(self, first: np.ndarray, second: np.ndarray) -> Iterator[np.ndarray]:
        """Long division of 2 scale a + b by 2 b, which rounds a scale / b half up.

        A digit of the quotient is the nearest one, from -9 to 9, so that the remainder may be negative and the next digits
        correct one that is off by one: the leading digits suffice to choose it. Robertson 1958, "A new class of
        digital division methods". At the end, the quotient is written without negative digits, less one if a negative
        remainder is left.
        """
        count, width = len(first), self.divisor_width + 1
        dividend, divisor = 2 * self.scale * first + second, 2 * second
        yield from (digits(dividend, self.dividend_width), text("/", count), digits(divisor, self.divisor_width))
        for multiple in MULTIPLES:
            yield text("=" if multiple == MULTIPLES[0] else ",", count)
            yield digits(multiple * divisor, width)
        remainder = quotient = np.zeros_like(first)
        for place in reversed(range(self.dividend_width)):
            remainder = 10 * remainder + dividend // 10**place % 10
            digit = np.clip((2 * remainder + divisor) // (2 * divisor), -9, 9)
            remainder, quotient = remainder - digit * divisor, 10 * quotient + digit
            yield text(";", count)
            yield np.where(digit < 0, ord("-"), ord("+")).astype(np.uint8)[:, None]
            yield ascii_digits(np.abs(digit)[:, None])
            yield text(",", count)
            yield digits(remainder, width)
        yield text("=", count)
        yield digits(quotient - (remainder < 0), self.dividend_width)
        yield text("=", count)


def digits(values: np.ndarray, width: int) -> np.ndarray:
    """Integers (N,) -> their last `width` digits, the last one first, ASCII (N, width); of ten's complements if negative."""
    return ascii_digits(values[:, None] // 10 ** np.arange(width, dtype=np.int64) % 10)


def ascii_digits(values: np.ndarray) -> np.ndarray:
    return (values + ord("0")).astype(np.uint8)


def text(characters: str, count: int) -> np.ndarray:
    """The same characters for each problem, ASCII (count, len(characters))."""
    return np.tile(np.frombuffer(characters.encode(), dtype=np.uint8), (count, 1))
