"""Arithmetic as a task: how many characters of the answers, and how many whole answers, a model gets right."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.evaluate.loss import evaluating
from partwise.generation import Sampling, decode, uniform_numbers
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer, WithSpecials

PROBLEMS_PER_BATCH = 1024


@dataclass(frozen=True)
class Share:
    """`right` of `total`, with the Wilson 95 % interval of the share."""

    right: int
    total: int

    @property
    def share(self) -> float:
        return self.right / self.total if self.total else math.nan

    def interval(self, z: float = 1.959963984540054) -> tuple[float, float]:
        """Wilson 1927."""
        if not self.total:
            return 0.0, 1.0
        p, n = self.share, self.total
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def to_dict(self) -> dict[str, Any]:
        low, high = self.interval()
        return {"share": self.share, "low": low, "high": high, **asdict(self)}


@dataclass(frozen=True)
class Accuracy:
    """Over a set of problems: characters with and without the closing `$`, and whole answers."""

    characters_closed: Share
    characters: Share
    exact: Share

    def to_dict(self) -> dict[str, Any]:
        return {
            "characters_closed": self.characters_closed.to_dict(),
            "characters": self.characters.to_dict(),
            "exact": self.exact.to_dict(),
        }


def answer_problems(
    model: Transformer,
    tokenizer: Tokenizer,
    problems: list[str],
    *,
    temperature: float,
    seed: int = 0,
    precision: str = "float32",
) -> list[str]:
    """What the model writes after each problem's `=`, as many characters as the true answer has, `$` included.

    Whatever follows a first `$` counts as `$`, as in the post's padding. Questions of equal length go in one batch.
    """
    questions = [problem[: problem.index("=") + 1] for problem in problems]
    answers = [""] * len(problems)
    sampling = Sampling(temperature)
    shapes: dict[tuple[int, int], list[int]] = {}
    for row, (problem, question) in enumerate(zip(problems, questions, strict=True)):
        size = len(tokenizer.encode(asked(tokenizer, question)))  # a text may be one token here and two there
        shapes.setdefault((size, len(problem) - len(question)), []).append(row)
    with evaluating(model, precision) as device:
        for (_, width), rows in sorted(shapes.items()):
            for start in range(0, len(rows), PROBLEMS_PER_BATCH):
                part = rows[start : start + PROBLEMS_PER_BATCH]
                uniform = uniform_numbers(part, width, seed).to(device)
                tokens, source = ask(tokenizer, [questions[row] for row in part], device)
                columns = decode(model, tokens, uniform, sampling, source=source)
                ids = torch.stack(list(columns), dim=1).cpu().numpy()
                for row, line in zip(part, ids, strict=True):
                    answers[row] = written(tokenizer, line)[:width].ljust(width, "$")
    return answers


def asked(tokenizer: Tokenizer, question: str) -> str:
    """What is encoded of a question: for an encoder-decoder, what stands within `$(` and `)=`."""
    return question[2:-2] if isinstance(tokenizer, WithSpecials) else question


def ask(tokenizer: Tokenizer, questions: list[str], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """What a model continues, and the source that an encoder-decoder continues it over: questions of equal length."""
    encoded = np.stack([tokenizer.encode(asked(tokenizer, question)) for question in questions])
    ids = torch.from_numpy(encoded).to(device)
    if not isinstance(tokenizer, WithSpecials):
        return ids, None
    return torch.full((len(questions), 1), tokenizer.start, device=device), ids


def written(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    """An answer up to its first `$`, or up to the end of the target."""
    if isinstance(tokenizer, WithSpecials):
        ends = np.flatnonzero(ids == tokenizer.end)
        return tokenizer.decode(ids[: ends[0]] if len(ends) else ids)
    return tokenizer.decode(ids).partition("$")[0]


def accuracy(problems: list[str], answers: list[str]) -> Accuracy:
    """Compare written answers with the true ones, character by character."""
    closed = whole = exact = right = total = 0
    for problem, answer in zip(problems, answers, strict=True):
        truth = problem[problem.index("=") + 1 :]
        hits = [a == b for a, b in zip(truth, answer, strict=True)]
        closed, whole = closed + sum(hits), whole + len(hits)
        right, total = right + sum(hits[:-1]), total + len(hits) - 1
        exact += all(hits)
    return Accuracy(Share(closed, whole), Share(right, total), Share(exact, len(problems)))


def operation(problem: str) -> str:
    """The operation of a line such as `$(0000753.78+0000000910)=87.3661000$`."""
    return next(character for character in problem[3:] if character in "+-*/")


def accuracy_by_operation(problems: list[str], answers: list[str]) -> dict[str, Accuracy]:
    """`all`, then each operation that occurs."""
    results = {"all": accuracy(problems, answers)}
    kinds = [operation(problem) for problem in problems]
    for kind in sorted(set(kinds)):
        rows = [row for row, found in enumerate(kinds) if found == kind]
        results[kind] = accuracy([problems[row] for row in rows], [answers[row] for row in rows])
    return results
