"""Arithmetic problems such as `$(0000753.78+0000000910)=87.3661000$`, exact, many at once, the same on every machine.

An operand is a whole number or a number of hundredths in (0, 1000], padded with zeros on the left. The answer is
rounded half up to hundredths and written backwards, so that its last digit, which depends on least, comes first.
All numbers here are integers, in units of the last decimal place.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from partwise.config import ConfigError

VERSION = 1
"""Counts up whenever the same options would produce other problems, so that stored data is never taken for new."""

FORMS = 2
"""The same of the forms that `balance` tells apart."""

CHUNK = 1 << 15
"""Problems that are drawn and written in one go: few enough to stay in the processor's cache."""

POOL = 16
"""Out of how many drawn problems one is taken where forms are balanced: no form comes more often than so many times."""

LARGEST = 10**9
"""Products and keys of operands up to here, in units of the last place, fit 64 bits."""


@dataclass(frozen=True)
class Problems:
    """What problems look like. Raises ConfigError for options that no problem can satisfy."""

    limit: int = 1000  # operands lie in (0, limit]
    decimals: int = 2  # places after the point, of operands and answers
    operations: str = "+-*/"
    reverse: bool = True  # the answer backwards, padded on the right; else its mirror image
    padding: int = 10  # characters per number; 0 writes every number as short as it is

    def __post_init__(self) -> None:
        unknown = "".join(sorted(set(self.operations) - set("+-*/")))
        if not self.operations or unknown or len(set(self.operations)) < len(self.operations):
            raise ConfigError(f"data.operations={self.operations!r}: name some of +-*/, each at most once")
        if self.limit < 1 or self.decimals < 0 or self.largest > LARGEST:
            raise ConfigError(
                f"data.limit={self.limit} data.decimals={self.decimals}: choose a limit of at least 1 and no negative "
                f"decimals, with limit times ten to the power of decimals at most {LARGEST}"
            )
        if self.padding < 0 or 0 < self.padding < self.widest:
            raise ConfigError(
                f"data.padding={self.padding}: the longest number can take {self.widest} characters; give at least "
                f"data.padding={self.widest}, or 0 for no padding"
            )

    @property
    def scale(self) -> int:
        """Units in one."""
        return int(10**self.decimals)

    @property
    def largest(self) -> int:
        """The largest operand in units."""
        return self.limit * self.scale

    @property
    def widest(self) -> int:
        """The most characters that an operand or an answer can take."""
        whole, broken = self.limit, (self.largest - 1) // self.scale  # the largest of either kind, without its decimals
        sizes = [len(str(whole)), self._width(broken)]
        if "+" in self.operations:
            sizes += [len(str(2 * whole)), self._width((2 * self.largest - 1) // self.scale)]
        if "-" in self.operations:
            sizes.append(1 + max(len(str(broken)), self._width(broken)))
        if "*" in self.operations:
            sizes += [len(str(whole**2)), self._width(whole**2 - 1)]
        if "/" in self.operations:
            sizes += [len(str(self.largest)), self._width(self.largest // 2)]
        return max(sizes)

    @property
    def alphabet(self) -> str:
        """Every character that these options can write, sorted."""
        return "".join(sorted({*"$()=0123456789", *self.operations, *("." if self.decimals else "")}))

    @property
    def distinct(self) -> int:
        """How many different problems there are; swapping the operands of + or * makes no different one."""
        pairs = {"+": self.largest * (self.largest + 1) // 2, "-": self.largest**2}
        return sum(pairs["+" if operation in "+*" else "-"] for operation in self.operations)

    def draw(self, count: int, stream: str) -> "Drawn":
        """`count` independent problems, a pure function of these options and the name of the stream."""
        key = hashlib.sha256(f"arithmetic {VERSION} {stream}".encode()).digest()[:16]
        # only the raw words of the generator are promised to stay equal between versions of numpy
        words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw((count, 3))
        low, high = words & np.uint64(0xFF), words >> np.uint64(8)
        whole = (low[:, :2] & np.uint64(1)).astype(bool)
        operands = np.where(
            whole,
            (high[:, :2] % np.uint64(self.limit) + np.uint64(1)) * np.uint64(self.scale),
            high[:, :2] % np.uint64(self.largest) + np.uint64(1),
        ).astype(np.int64)
        operation = (high[:, 2] % np.uint64(len(self.operations))).astype(np.int64)
        return Drawn(operands[:, 0].copy(), operation, operands[:, 1].copy())

    def key(self, drawn: "Drawn") -> np.ndarray:
        """One number per problem, int64 (N,), equal for problems that are the same or differ by swapped operands."""
        swaps = np.array([operation in "+*" for operation in self.operations])[drawn.operation]
        first = np.where(swaps, np.minimum(drawn.first, drawn.second), drawn.first)
        second = np.where(swaps, np.maximum(drawn.first, drawn.second), drawn.second)
        return (drawn.operation * (self.largest + 1) + first) * (self.largest + 1) + second

    def form(self, drawn: "Drawn") -> np.ndarray:
        """What problems look like, int64 (N,): the operation, and the decimals of each operand and of the answer.

        Digits of a number to the base `decimals` + 1, the operation first.
        """
        kinds, form = self.decimals + 1, drawn.operation
        for values in (drawn.first, drawn.second, self.answer(drawn)):
            form = form * kinds + self._shorten(values)[1]
        return form

    def answer(self, drawn: "Drawn") -> np.ndarray:
        """The exact answers, rounded half up to the last decimal place, in units, int64 (N,)."""
        answers = np.empty_like(drawn.first)
        for index, operation in enumerate(self.operations):
            rows = np.flatnonzero(drawn.operation == index)
            first, second = drawn.first[rows], drawn.second[rows]
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

    def write(self, drawn: "Drawn") -> np.ndarray:
        """The problems as ASCII one after another, uint8 (number of characters,)."""
        width, count = self.padding or self.widest, len(drawn.first)
        lines = np.empty(
            (3 * width + 6, count), dtype=np.uint8
        )  # one row per column of text: every write is contiguous
        answers = self.answer(drawn)
        first, operator, second, equals = 2, width + 2, width + 3, 2 * width + 3
        # an operand is the mirror image of a number that is written as answers are
        self._write_numbers(drawn.first, lines[first:operator][::-1])
        self._write_numbers(drawn.second, lines[second:equals][::-1])
        self._write_numbers(answers, lines[equals + 2 : -1][:: 1 if self.reverse else -1])
        for row, character in ((0, "$"), (1, "("), (equals, ")"), (equals + 1, "="), (-1, "$")):
            lines[row] = ord(character)
        lines[operator] = np.frombuffer(self.operations.encode(), dtype=np.uint8)[drawn.operation]
        if self.padding:
            return np.ascontiguousarray(lines.T).reshape(-1)
        kept = np.ones(lines.shape, dtype=bool)
        column = np.arange(width)[:, None]
        kept[first:operator][::-1] = column < self._lengths(drawn.first)
        kept[second:equals][::-1] = column < self._lengths(drawn.second)
        kept[equals + 2 : -1][:: 1 if self.reverse else -1] = column < self._lengths(answers)
        return lines.T[kept.T]

    def _width(self, whole: int) -> int:
        return len(str(whole)) + 1 + self.decimals if self.decimals else 0

    def _shorten(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Magnitudes without the zeros that may end their decimals, and how many decimals are left."""
        digits = np.abs(values)
        if digits.size and digits.max() < 2**32:
            digits = digits.astype(np.uint32)  # divides twice as fast
        places = np.full(len(values), self.decimals, dtype=np.int8)
        for left in range(self.decimals, 0, -1):
            shorter = digits // 10
            drops = (shorter * 10 == digits) & (places == left)
            digits = np.where(drops, shorter, digits)
            places -= drops
        return digits, places

    def _lengths(self, values: np.ndarray) -> np.ndarray:
        """Characters of each number in its shortest form."""
        digits, places = self._shorten(values)
        length = np.ones(len(values), dtype=np.int64)
        power = 10
        while digits.size and power <= digits.max():
            length += digits >= power
            power *= 10
        return np.maximum(length, places + 1) + (places > 0) + (values < 0)

    def _write_numbers(self, values: np.ndarray, columns: np.ndarray) -> None:
        """Write each number backwards into the rows of `columns`, uint8 (width, N), and zeros after it."""
        digits, places = self._shorten(values)
        for index, column in enumerate(columns):
            shorter = digits // 10
            np.add(digits - shorter * 10, ord("0"), out=column, casting="unsafe")
            if 0 < index <= self.decimals:
                point = places == index
                column[point] = ord(".")
                digits = np.where(point, digits, shorter)
            else:
                digits = shorter
        negative = np.flatnonzero(values < 0)
        if len(negative):
            columns[self._lengths(values[negative]) - 1, negative] = ord("-")


@dataclass(frozen=True)
class Drawn:
    """Problems as numbers: operands in units and the index of the operation, each int64 (N,)."""

    first: np.ndarray
    operation: np.ndarray
    second: np.ndarray

    def take(self, rows: np.ndarray) -> "Drawn":
        """Some of the problems."""
        return Drawn(self.first[rows], self.operation[rows], self.second[rows])

    def put(self, rows: np.ndarray, other: "Drawn") -> None:
        """Replace some of the problems."""
        self.first[rows], self.operation[rows], self.second[rows] = other.first, other.operation, other.second


def generate(
    problems: Problems,
    *,
    train: int,
    validation: int,
    test: int,
    seed: int = 0,
    tail: float = 0.0,
    balance: float = 0.0,
) -> dict[str, np.ndarray]:
    """The splits "train", "val" and "test" as ASCII, uint8, problem after problem without newlines.

    Test and validation problems are distinct, and none of them occurs in training, nor with its operands swapped where
    that changes nothing. With `tail` above 0 the last problems of the training text, that fraction of them, become the
    validation split instead of `validation` problems of its own; those may repeat training problems. With `balance`
    above 0 the training text holds more of the rare forms of problems, see `draw_balanced`.
    Raises ConfigError when there are too few distinct problems.
    """
    held_out = {"test": test} | ({} if tail else {"val": validation})
    wanted = sum(held_out.values())
    if wanted > problems.distinct // 2:
        raise ConfigError(
            f"cannot hold out {wanted} test and validation problems where only {problems.distinct} exist: lower "
            f"data.test and data.validation to {problems.distinct // 2} together, or raise data.limit or data.decimals"
        )
    splits: dict[str, np.ndarray] = {}
    taken = np.array([-1])  # no problem's key, and spares every search the question whether there is anything to find
    for name, count in held_out.items():
        drawn = _draw_distinct(problems, count, f"{seed} {name}", taken)
        taken = np.sort(np.concatenate([taken, problems.key(drawn)]))
        splits[name] = problems.write(drawn)
    kept = int((1 - tail) * train)
    if not 0 < kept < train + (tail == 0):
        raise ConfigError(f"data.tail={tail}: leaves training or validation without any of {train} problems")
    text = [problems.write(drawn) for drawn in _draw_training(problems, train, seed, taken, kept, balance)]
    border = -(-kept // CHUNK)  # chunks never straddle the border
    splits["train"] = np.concatenate(text[:border])
    if tail:
        splits["val"] = np.concatenate(text[border:])
    return {name: splits[name] for name in ("train", "val", "test")}


def _draw_distinct(problems: Problems, count: int, stream: str, taken: np.ndarray) -> Drawn:
    drawn = Drawn(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    attempt = 0
    while len(drawn.first) < count:
        more = problems.draw(count, f"{stream} {attempt}")
        drawn = Drawn(*(np.concatenate([getattr(drawn, field), getattr(more, field)]) for field in vars(drawn)))
        keys = problems.key(drawn)
        first = np.sort(np.unique(keys, return_index=True)[1])
        drawn = drawn.take(first[~np.isin(keys[first], taken)])
        attempt += 1
    return drawn.take(np.arange(count))


def draw_balanced(problems: Problems, count: int, stream: str, balance: float) -> Drawn:
    """`count` problems in which a form that is a share f of its operation comes in proportion to f ** (1 - balance).

    At 0 as they come, at 1 each form as often as any other of its operation; taken out of `POOL` times as many, so that
    no form comes more than `POOL` times as often as it would. As languages are balanced in Conneau & Lample 2019,
    arXiv:1901.07291, eq. 1, and sums by digits and carries in Lee et al. 2023, arXiv:2307.03381, section 3.
    """
    if not balance:
        return problems.draw(count, stream)
    pool = problems.draw(POOL * count, stream)
    forms, form, there = np.unique(problems.form(pool), return_inverse=True, return_counts=True)
    operations, wanted = forms // (problems.decimals + 1) ** 3, np.zeros_like(there)
    for operation in np.unique(operations):
        own = operations == operation
        number = count * int(there[own].sum()) // len(form)
        wanted[own] = allot(number, there[own].astype(np.float64) ** (1 - balance), there[own])
    by_form = np.argsort(form, kind="stable")
    rank = np.empty(len(form), dtype=np.int64)  # the how-manieth of its form each problem is
    rank[by_form] = np.arange(len(form)) - np.repeat(np.cumsum(there) - there, there)
    chosen = rank < wanted[form]
    spare = np.flatnonzero(~chosen)  # what rounding leaves open is filled as problems come
    chosen[spare[: count - int(chosen.sum())]] = True
    return pool.take(np.flatnonzero(chosen))


def allot(count: int, shares: np.ndarray, there: np.ndarray) -> np.ndarray:
    """About `count` in proportion to `shares`, of each at most what is `there`, int64; what one lacks the others get."""
    wanted = np.zeros(len(there), dtype=np.int64)
    open_ones = np.ones(len(there), dtype=bool)
    while True:
        quota = (count - wanted.sum()) * np.where(open_ones, shares, 0) / shares[open_ones].sum()
        full = open_ones & (quota > there)
        if not full.any():
            return np.where(open_ones, np.floor(quota).astype(np.int64), wanted)
        wanted[full] = there[full]
        open_ones &= ~full


def _draw_training(
    problems: Problems, count: int, seed: int, taken: np.ndarray, border: int, balance: float
) -> Iterator[Drawn]:
    """Chunks of training problems with every held-out problem drawn again; none straddles `border`."""
    starts = [*range(0, border, CHUNK), *range(border, count, CHUNK), count]
    for chunk, (start, end) in enumerate(pairwise(starts)):
        drawn = draw_balanced(problems, end - start, f"{seed} train {chunk}", balance)
        attempt, rows = 0, np.arange(end - start)
        while len(rows := rows[_held_out(problems.key(drawn.take(rows)), taken)]):
            attempt += 1
            drawn.put(rows, problems.draw(len(rows), f"{seed} train {chunk} {attempt}"))
        yield drawn


def _held_out(keys: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Which keys are among the sorted `taken`, bool (N,)."""
    nearest = np.minimum(np.searchsorted(taken, keys), len(taken) - 1)
    return taken[nearest] == keys
