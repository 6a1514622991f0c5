"""A task of lm_eval as the metric of a comparison, `--metric task:NAME`: its name, and the score of a run."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partwise.harness.tasks import first_metric, score_task
from partwise.train.config import RunConfig
from partwise.train.result import verified_result, write_result

PREFIX = "task:"
SEPARATOR = " of task:"


def name_metric(task: str, config: RunConfig) -> tuple[str, bool]:
    """`acc of task:shakespeare_cloze` for the first metric of a task; and whether lower values are better.

    Raises ConfigError.
    """
    metric = first_metric(task, config.to_dict())
    return f"{metric.name}{SEPARATOR}{task}", not metric.higher_is_better


def is_scored(result: dict[str, object], metric: str) -> bool:
    """Whether a run's result has the score that the metric needs, if it is one of a task."""
    return SEPARATOR not in metric or "task_score" in result


def score_run(folder: Path, config: Mapping[str, Any], metric: str) -> None:
    """Add the score to the result of a finished run, unless the metric is of no task. Raises ConfigError."""
    result = verified_result(folder, config)
    if result is None or is_scored(result, metric):
        return
    name, _, task = metric.partition(SEPARATOR)
    score = score_task(str(folder), task, name)
    result["task_score"] = {
        "task": task,
        "metric": name,
        "value": score.value if math.isfinite(score.value) else None,
        "item_error": score.item_error,
        "items": score.items,
    }
    write_result(folder, result, config)
