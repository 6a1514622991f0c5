"""`eval --tasks`: scores on tasks of `lm_eval`."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from partwise.cli.commands.evaluate import check_json, write_scores
from partwise.cli.terminal import console, table
from partwise.config import ConfigError
from partwise.harness.tasks import score_tasks
from partwise.train.run_metadata import open_run, read_runtime


def evaluate_tasks(
    run: str,
    tasks: list[str],
    max_items: int | None,
    data: str | None,
    precision: str | None,
    as_json: bool,
    file: Path | None,
    changes: Sequence[str] = (),
) -> None:
    """Print the scores of a run on tasks. Raises ConfigError, also for `changes` of how the model computes."""
    check_json(run, as_json, file)
    if changes:
        raise ConfigError(f"{changes[0]}: --tasks scores the model as it was trained; leave one of the two out")
    if data is not None:
        raise ConfigError(f"--data {data}: a task has its own data; leave --data or --tasks out")
    with console.status("scoring the tasks") if console.is_terminal else nullcontext():
        scores = score_tasks(run, tasks, max_items, precision)
    rows = [
        (
            score.task,
            score.metric,
            number(score.value),
            "" if score.item_error is None else number(score.item_error),
            f"{score.items:,}",
        )
        for score in scores
    ]
    console.print(table("tasks", ["task", "metric", "score", "standard error over items", "items"], rows))
    folder, _, metadata = open_run(run)
    console.print(f"computed in {precision or read_runtime(folder, metadata).precision}")
    if as_json:
        write_scores([score.to_dict() for score in scores], file)


def number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"
