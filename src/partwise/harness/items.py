"""The items of the tasks that are part of the package, made from data on this machine."""

import re
from typing import Any

from partwise.config import ConfigError
from partwise.data import Shakespeare, problem_lines
from partwise.evaluate.arithmetic import prompt_text
from partwise.train.run_metadata import open_run

CONTEXT = 200
"""Characters before a missing word, at most."""

EVERY = 40
"""Words from one missing word to the next."""


def arithmetic(run: str | None = None, max_problems: int | None = None, **metadata: Any) -> dict[str, Any]:
    """The test problems of a run on arithmetic: a prompt such as `$(753.78+910)=` and its answer. Raises ConfigError."""
    if run is None:
        raise ConfigError("the task arithmetic takes its problems from a run: give one")
    _, config, _ = open_run(run)
    dataset = config.prepare()
    if dataset.corpus.task != "arithmetic":
        raise ConfigError(f"{run} was trained on {config.data.name}: the task arithmetic needs a run on arithmetic")
    rows = []
    for problem in problem_lines(dataset, "test", max_problems):
        prompt, _, answer = problem.partition("=")
        rows.append({"prompt": prompt_text(dataset.tokenizer, f"{prompt}="), "answer": answer.removesuffix("$")})
    return as_test_split(rows)


def shakespeare_cloze(**metadata: Any) -> dict[str, Any]:
    """Passages of TinyShakespeare's validation split, each without its last word."""
    text = str(Shakespeare().splits()["val"])
    rows = []
    for match in list(re.finditer(r"(?<=\S) [A-Za-z]+\b", text))[EVERY::EVERY]:
        start = max(0, match.start() - CONTEXT)
        rows.append({"context": text[start : match.start()], "word": match[0]})
    return as_test_split(rows)


def as_test_split(rows: list[dict[str, str]]) -> dict[str, Any]:
    from datasets import Dataset

    return {"test": Dataset.from_list(rows)}
