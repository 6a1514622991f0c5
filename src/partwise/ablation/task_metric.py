"""A task of lm_eval as the metric of a comparison, `--metric task:NAME`: its name, and the score of a run."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from partwise.harness.tasks import first_metric, score_task
from partwise.train.config import RunConfig
from partwise.train.result import verified_result, write_result

PREFIX = "task:"
SEPARATOR = " of task:"


def plan_metric(task: str, configs: Mapping[str, RunConfig]) -> tuple[str, bool, dict[str, str]]:
    """`acc of task:shakespeare_cloze` for the first metric of a task; whether lower values are better; and the SHA-256 of
    the task's items for each of `configs`, which may differ in their data.

    Raises ConfigError.
    """
    metrics = [(config.data, first_metric(task, config.to_dict())) for config in distinct_data(configs.values())]
    metric = metrics[0][1]
    items = {
        name: next(each.items_sha256 for data, each in metrics if data == config.data)
        for name, config in configs.items()
    }
    return f"{metric.name}{SEPARATOR}{task}", not metric.higher_is_better, items


def distinct_data(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """The first configuration with each data configuration."""
    distinct: list[RunConfig] = []
    for config in configs:
        if all(config.data != each.data for each in distinct):
            distinct.append(config)
    return distinct


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
        "items_sha256": score.items_sha256,
    }
    write_result(folder, result, config)
