"""Arithmetic problems such as `$(0000753.78+0000000910)=87.3661000$`: exact, vectorized, equal on every machine.

An operand is an integer or a number of hundredths in (0, 1000], padded with zeros on the left. The answer is rounded
half up to hundredths and reversed: its last digit, which depends on the fewest other digits, comes first.
All numbers here are integers, in units of the last decimal place.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from partwise.config import ConfigError
from partwise.data.worked_answers import SEPARATORS, WorkedAnswers

VERSION = 1
"""Increases whenever the same options produce other problems, so that cached data are never reused by mistake."""

MAX_SAFE_OPERAND = 10**9
"""Products and keys of operands up to here, in units of the last decimal place, fit 64 bits."""


@dataclass(frozen=True)
class ProblemSpec:
    """The format and range of problems. Raises ConfigError for options that no problem can satisfy."""

    limit: int = 1000  # operands lie in (0, limit]
    decimals: int = 2  # decimal places of operands and answers
    operations: str = "+-*/"
    reverse: bool = True  # write answers reversed and padded on the right; if False, unreversed and padded on the left
    padding: int = 10  # characters per number; 0 writes numbers without padding
    steps: bool = False  # write the steps of a calculation before its answer

    def __post_init__(self) -> None:
        unknown = "".join(sorted(set(self.operations) - set("+-*/")))
        if not self.operations or unknown or len(set(self.operations)) < len(self.operations):
            raise ConfigError(f"data.operations={self.operations!r}: name some of +-*/, each at most once")
        if self.limit < 1 or self.decimals < 0 or self.max_operand > MAX_SAFE_OPERAND:
            raise ConfigError(
                f"data.limit={self.limit} data.decimals={self.decimals}: the limit must be at least 1, decimals at least 0, "
                f"and limit * 10**decimals at most {MAX_SAFE_OPERAND}"
            )
        if self.padding < 0 or 0 < self.padding < self.max_width:
            raise ConfigError(
                f"data.padding={self.padding}: must be at least {self.max_width}, the characters of the longest number, or 0 "
                "for no padding"
            )
        if self.steps and not self.padding:
            raise ConfigError(
                f"data.steps=true data.padding=0: steps have fixed places, so set data.padding to {self.max_width} or more"
            )

    @property
    def scale(self) -> int:
        """Units per whole number: 10 ** decimals."""
        return int(10**self.decimals)

    @property
    def max_operand(self) -> int:
        """The largest operand in units."""
        return self.limit * self.scale

    @property
    def max_width(self) -> int:
        """The most characters of an operand or answer."""
        integer, fractional = (
            self.limit,
            (self.max_operand - 1) // self.scale,
        )  # integer parts of the largest operands
        sizes = [len(str(integer)), self._decimal_width(fractional)]
        if "+" in self.operations:
            sizes += [len(str(2 * integer)), self._decimal_width((2 * self.max_operand - 1) // self.scale)]
        if "-" in self.operations:
            sizes.append(1 + max(len(str(fractional)), self._decimal_width(fractional)))
        if "*" in self.operations:
            sizes += [len(str(integer**2)), self._decimal_width(integer**2 - 1)]
        if "/" in self.operations:
            sizes += [len(str(self.max_operand)), self._decimal_width(self.max_operand // 2)]
        return max(sizes)

    @property
    def alphabet(self) -> str:
        """Every character that these options can write, sorted."""
        steps = {*SEPARATORS, *("+-" if "/" in self.operations else "")} if self.steps else set()
        return "".join(sorted({*"$()=0123456789", *self.operations, *("." if self.decimals else ""), *steps}))

    @property
    def max_length(self) -> int:
        """Characters of the longest problem, including its two `$`."""
        steps = max(map(self.worked_answers().width, self.operations)) if self.steps else 0
        return 3 * (self.padding or self.max_width) + 6 + steps

    def worked_answers(self) -> WorkedAnswers:
        """The writer of these problems' steps."""
        return WorkedAnswers(self.max_operand, self.scale)

    @property
    def n_distinct(self) -> int:
        """The number of distinct problems; swapping the operands of + or * does not make another one."""
        pairs = {"+": self.max_operand * (self.max_operand + 1) // 2, "-": self.max_operand**2}
        return sum(pairs["+" if operation in "+*" else "-"] for operation in self.operations)

    def sample(self, count: int, stream: str) -> "ProblemBatch":
        """`count` independent problems, a pure function of these options and the name of the random stream."""
        key = hashlib.sha256(f"arithmetic {VERSION} {stream}".encode()).digest()[:16]
        # numpy guarantees only the generator's raw words across versions
        words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw((count, 3))
        low, high = words & np.uint64(0xFF), words >> np.uint64(8)
        is_integer = (low[:, :2] & np.uint64(1)).astype(bool)
        operands = np.where(
            is_integer,
            (high[:, :2] % np.uint64(self.limit) + np.uint64(1)) * np.uint64(self.scale),
            high[:, :2] % np.uint64(self.max_operand) + np.uint64(1),
        ).astype(np.int64)
        operation = (high[:, 2] % np.uint64(len(self.operations))).astype(np.int64)
        return ProblemBatch(operands[:, 0].copy(), operation, operands[:, 1].copy())

    def keys(self, problems: "ProblemBatch") -> np.ndarray:
        """One number per problem, int64 (N,), equal for problems that are equal up to swapped operands."""
        commutes = np.array([operation in "+*" for operation in self.operations])[problems.operation]
        first = np.where(commutes, np.minimum(problems.first, problems.second), problems.first)
        second = np.where(commutes, np.maximum(problems.first, problems.second), problems.second)
        return (problems.operation * (self.max_operand + 1) + first) * (self.max_operand + 1) + second

    def forms(self, problems: "ProblemBatch") -> np.ndarray:
        """One number per form, int64 (N,): the operation, and the decimals of each operand and of the answer.

        These are its digits in base `decimals` + 1, the operation first.
        """
        base, forms = self.decimals + 1, problems.operation
        for values in (problems.first, problems.second, self.answers(problems)):
            forms = forms * base + self._strip_zeros(values)[1]
        return forms

    def answers(self, problems: "ProblemBatch") -> np.ndarray:
        """The exact answers, rounded half up to the last decimal place, in units, int64 (N,)."""
        answers = np.empty_like(problems.first)
        for index, operation in enumerate(self.operations):
            rows = np.flatnonzero(problems.operation == index)
            first, second = problems.first[rows], problems.second[rows]
            if operation == "+":
                result = first + second
            elif operation == "-":
                result = first - second
            elif operation == "*":
                result = (first * second + self.scale // 2) // self.scale
            else:
                result = (2 * self.scale * first + second) // (2 * second)
            answers[rows] = result
        return answers

    def to_ascii(self, problems: "ProblemBatch") -> np.ndarray:
        """The problems as ASCII, concatenated, uint8 (number of characters,)."""
        lines = self._without_steps(problems)
        return self._with_steps(problems, lines.reshape(-1, 3 * self.padding + 6)) if self.steps else lines

    def _with_steps(self, problems: "ProblemBatch", lines: np.ndarray) -> np.ndarray:
        """Problems of equal length, uint8 (N, length) -> the same with their steps after the first `=`, concatenated."""
        worked, prompt = self.worked_answers(), 2 * self.padding + 5
        widths = np.array([worked.width(operation) for operation in self.operations], dtype=np.int64)
        ends = np.cumsum(lines.shape[1] + widths[problems.operation])
        out = np.empty(ends[-1] if len(ends) else 0, dtype=np.uint8)
        for index, operation in enumerate(self.operations):
            rows = np.flatnonzero(problems.operation == index)
            steps = worked.write(operation, problems.first[rows], problems.second[rows])
            whole = np.concatenate([lines[rows, :prompt], steps, lines[rows, prompt:]], axis=1)
            out[(ends[rows] - whole.shape[1])[:, None] + np.arange(whole.shape[1])] = whole
        return out

    def _without_steps(self, problems: "ProblemBatch") -> np.ndarray:
        width, count = self.padding or self.max_width, len(problems.first)
        lines = np.empty((3 * width + 6, count), dtype=np.uint8)  # transposed, so that every write is contiguous
        answers = self.answers(problems)
        first, operator, second, equals = 2, width + 2, width + 3, 2 * width + 3
        # operands are written like answers, then reversed
        self._write_numbers(problems.first, lines[first:operator][::-1])
        self._write_numbers(problems.second, lines[second:equals][::-1])
        self._write_numbers(answers, lines[equals + 2 : -1][:: 1 if self.reverse else -1])
        for row, character in ((0, "$"), (1, "("), (equals, ")"), (equals + 1, "="), (-1, "$")):
            lines[row] = ord(character)
        lines[operator] = np.frombuffer(self.operations.encode(), dtype=np.uint8)[problems.operation]
        if self.padding:
            return np.ascontiguousarray(lines.T).reshape(-1)
        mask = np.ones(lines.shape, dtype=bool)
        column = np.arange(width)[:, None]
        mask[first:operator][::-1] = column < self._lengths(problems.first)
        mask[second:equals][::-1] = column < self._lengths(problems.second)
        mask[equals + 2 : -1][:: 1 if self.reverse else -1] = column < self._lengths(answers)
        return lines.T[mask.T]

    def _decimal_width(self, integer: int) -> int:
        return len(str(integer)) + 1 + self.decimals if self.decimals else 0

    def _strip_zeros(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Magnitudes without trailing zeros in their decimals, and the number of remaining decimals."""
        digits = np.abs(values)
        if digits.size and digits.max() < 2**32:
            digits = digits.astype(np.uint32)  # divides twice as fast
        decimals = np.full(len(values), self.decimals, dtype=np.int8)
        for remaining in range(self.decimals, 0, -1):
            shorter = digits // 10
            strips = (shorter * 10 == digits) & (decimals == remaining)
            digits = np.where(strips, shorter, digits)
            decimals -= strips
        return digits, decimals

    def _lengths(self, values: np.ndarray) -> np.ndarray:
        """Characters of each number without padding."""
        digits, decimals = self._strip_zeros(values)
        length = np.ones(len(values), dtype=np.int64)
        power = 10
        while digits.size and power <= digits.max():
            length += digits >= power
            power *= 10
        return np.maximum(length, decimals + 1) + (decimals > 0) + (values < 0)

    def _write_numbers(self, values: np.ndarray, columns: np.ndarray) -> None:
        """Write each number reversed into the rows of `columns`, uint8 (width, N), followed by zeros."""
        digits, decimals = self._strip_zeros(values)
        for index, column in enumerate(columns):
            shorter = digits // 10
            np.add(digits - shorter * 10, ord("0"), out=column, casting="unsafe")
            if 0 < index <= self.decimals:
                point = decimals == index
                column[point] = ord(".")
                digits = np.where(point, digits, shorter)
            else:
                digits = shorter
        negative = np.flatnonzero(values < 0)
        if len(negative):
            columns[self._lengths(values[negative]) - 1, negative] = ord("-")


@dataclass(frozen=True)
class ProblemBatch:
    """Problems as numbers: operands in units and the index of the operation, each int64 (N,)."""

    first: np.ndarray
    operation: np.ndarray
    second: np.ndarray

    def take(self, rows: np.ndarray) -> "ProblemBatch":
        """The problems with these indices."""
        return ProblemBatch(self.first[rows], self.operation[rows], self.second[rows])

    def put(self, rows: np.ndarray, other: "ProblemBatch") -> None:
        """Replace the problems with these indices."""
        self.first[rows], self.operation[rows], self.second[rows] = other.first, other.operation, other.second
