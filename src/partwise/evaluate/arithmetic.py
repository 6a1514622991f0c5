"""Character accuracy and exact match of a model's answers to arithmetic problems."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.data.problems import answer_of, prompt_of
from partwise.evaluate.loss import evaluation_mode
from partwise.generation.generate import decode
from partwise.generation.sampling import Sampling, uniform_numbers
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer, WithSpecialTokens

PROBLEMS_PER_BATCH = 1024


@dataclass(frozen=True)
class CorrectCount:
    """`correct` out of `total`, with the Wilson 95% interval."""

    correct: int
    total: int

    @property
    def value(self) -> float:
        return self.correct / self.total if self.total else math.nan

    def interval(self, z: float = 1.959963984540054) -> tuple[float, float]:
        """The score interval. Wilson 1927."""
        if not self.total:
            return 0.0, 1.0
        p, n = self.value, self.total
        center = (p + z * z / (2 * n)) / (1 + z * z / n)
        half_width = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, center - half_width), min(1.0, center + half_width)

    def to_dict(self) -> dict[str, Any]:
        low, high = self.interval()
        return {"proportion": self.value, "low": low, "high": high, **asdict(self)}


@dataclass(frozen=True)
class AnswerAccuracy:
    """Character accuracy with and without the closing `$`, and exact match, over a set of problems."""

    char_accuracy_closed: CorrectCount
    char_accuracy: CorrectCount
    exact_match: CorrectCount

    def to_dict(self) -> dict[str, Any]:
        return {
            "char_accuracy_closed": self.char_accuracy_closed.to_dict(),
            "char_accuracy": self.char_accuracy.to_dict(),
            "exact_match": self.exact_match.to_dict(),
        }


def answer_problems(
    model: Transformer,
    tokenizer: Tokenizer,
    problems: list[str],
    *,
    temperature: float,
    seed: int = 0,
    precision: str = "float32",
    on_progress: Callable[[float], None] = lambda problems: None,
) -> list[str]:
    """The model's answers: as many characters as the true answer has, including `$`.

    Everything after the first `$` is replaced by `$`, like the padding in the tutorial. An answer with steps begins
    after its last `=`. For `on_progress`, see `continue_problems`.
    """
    texts = continue_problems(
        model, tokenizer, problems, temperature=temperature, seed=seed, precision=precision, on_progress=on_progress
    )
    answers = []
    for problem, text in zip(problems, texts, strict=True):
        answer, length = text if problem.count("=") == 1 else text.rpartition("=")[2], len(answer_of(problem))
        answers.append(answer[:length].ljust(length, "$"))
    return answers


def continue_problems(
    model: Transformer,
    tokenizer: Tokenizer,
    problems: list[str],
    *,
    temperature: float,
    seed: int = 0,
    precision: str = "float32",
    on_progress: Callable[[float], None] = lambda problems: None,
) -> list[str]:
    """What the model writes after each problem's first `=`, up to `$`: at most as many characters as the problem has there.

    Prompts of equal length are batched. `on_progress` is called after each token of a batch with the number of problems
    answered since its last call, a fraction counting as part of one.
    """
    prompts = [prompt_of(problem) for problem in problems]
    texts = [""] * len(problems)
    sampling = Sampling(temperature)
    by_shape: dict[tuple[int, int], list[int]] = {}
    for index, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
        n_tokens = len(tokenizer.encode(prompt_text(tokenizer, prompt)))  # prompts of equal length may differ in tokens
        by_shape.setdefault((n_tokens, len(problem) - len(prompt)), []).append(index)
    with evaluation_mode(model, precision) as device:
        for (_, length), indices in sorted(by_shape.items()):
            for start in range(0, len(indices), PROBLEMS_PER_BATCH):
                batch = indices[start : start + PROBLEMS_PER_BATCH]
                uniform = uniform_numbers(batch, length, seed, device)
                tokens, source = encode_prompts(tokenizer, [prompts[index] for index in batch], device)
                columns = list[Tensor]()
                for column in decode(model, tokens, uniform, sampling, source=source, tokenizer=tokenizer):
                    columns.append(column)
                    on_progress(len(batch) / length)
                ids = torch.stack(columns, dim=1).cpu().numpy()
                for index, before, text_ids in zip(batch, tokens.cpu().numpy(), ids, strict=True):
                    texts[index] = decode_answer(tokenizer, before, text_ids)[:length]
    return texts


def prompt_text(tokenizer: Tokenizer, prompt: str) -> str:
    """The text to encode for a prompt `$(...)=`; for an encoder-decoder, the expression within the parentheses."""
    return prompt[2:-2] if isinstance(tokenizer, WithSpecialTokens) else prompt


def encode_prompts(tokenizer: Tokenizer, prompts: list[str], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts of equal length -> the ids to continue, and an encoder-decoder's source."""
    encoded = np.stack([tokenizer.encode(prompt_text(tokenizer, prompt)) for prompt in prompts])
    ids = torch.from_numpy(encoded).to(device)
    if not isinstance(tokenizer, WithSpecialTokens):
        return ids, None
    return torch.full((len(prompts), 1), tokenizer.bos_id, device=device), ids


def decode_answer(tokenizer: Tokenizer, before: np.ndarray, ids: np.ndarray) -> str:
    """The answer that follows the ids `before`, up to its first `$`, or up to a pair's end token."""
    if isinstance(tokenizer, WithSpecialTokens):
        ends = np.flatnonzero(ids == tokenizer.eos_id)
        return tokenizer.decode(ids[: ends[0]] if len(ends) else ids)
    return tokenizer.continuation(before, ids).partition("$")[0]


def score_answers(problems: list[str], answers: list[str]) -> AnswerAccuracy:
    """Compare answers with the true ones, character by character."""
    correct_closed = total_closed = exact = correct = total = 0
    for problem, answer in zip(problems, answers, strict=True):
        truth = answer_of(problem)
        matches = [a == b for a, b in zip(truth, answer, strict=True)]
        correct_closed, total_closed = correct_closed + sum(matches), total_closed + len(matches)
        correct, total = correct + sum(matches[:-1]), total + len(matches) - 1
        exact += all(matches)
    return AnswerAccuracy(
        CorrectCount(correct_closed, total_closed), CorrectCount(correct, total), CorrectCount(exact, len(problems))
    )


def operation(problem: str) -> str:
    """The operator of a problem such as `$(0000753.78+0000000910)=87.3661000$`."""
    return next(character for character in problem[3:] if character in "+-*/")


def accuracy_by_operation(problems: list[str], answers: list[str]) -> dict[str, AnswerAccuracy]:
    """The accuracy over all problems, `all`, and over those of each operation."""
    results = {"all": score_answers(problems, answers)}
    operations = [operation(problem) for problem in problems]
    for name in sorted(set(operations)):
        indices = [index for index, other in enumerate(operations) if other == name]
        results[name] = score_answers([problems[index] for index in indices], [answers[index] for index in indices])
    return results
