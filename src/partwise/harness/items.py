"""The items of the tasks that are part of the package, made from data on this machine."""

import re
from typing import Any

from partwise.config import ConfigError
from partwise.data import Shakespeare, problem_lines
from partwise.data.problems import answer_of, prompt_of
from partwise.evaluate.arithmetic import prompt_text
from partwise.train.config import RunConfig
from partwise.train.run_metadata import open_run

CONTEXT = 200
"""Characters before a missing word, at most."""

EVERY = 40
"""Words from one missing word to the next."""


def arithmetic(
    run: str | None = None,
    settings: dict[str, Any] | None = None,
    max_problems: int | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """The test problems of a run on arithmetic: a prompt such as `$(753.78+910)=` and its answer.

    `settings` are those of a run that is not trained yet. Raises ConfigError.
    """
    if run is None and settings is None:
        raise ConfigError("the task arithmetic takes its problems from a run: give one")
    config = RunConfig.from_dict(settings) if run is None else open_run(run)[1]
    if config.data.task != "arithmetic":
        data = f"data={config.data.name}" if run is None else f"{run} was trained on {config.data.name}"
        raise ConfigError(f"{data}: the task arithmetic needs a run on arithmetic")
    dataset = config.prepare()
    rows = []
    for problem in problem_lines(dataset, "test", max_problems):
        prompt, answer = prompt_text(dataset.tokenizer, prompt_of(problem)), answer_of(problem).removesuffix("$")
        rows.append({"prompt": prompt, "answer": answer})
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
