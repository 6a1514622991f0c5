"""Tasks by name or folder, and their scores."""

import logging
import re
from collections.abc import Sequence
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from partwise.config import ConfigError, did_you_mean

TASK_FILES = Path(__file__).with_name("task_files")
SHIPPED = {path.stem: f"partwise_{path.stem}" for path in sorted(TASK_FILES.glob("*.yaml"))}


@dataclass(frozen=True)
class Score:
    """One metric of one task, with its standard error over the items."""

    task: str
    metric: str
    value: float
    item_error: float | None
    items: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_tasks(run: str, tasks: Sequence[str], max_items: int | None = None) -> list[Score]:
    """The scores of a run on tasks: one of the package, a folder of task files, or a name that lm_eval knows.

    Files that a task names are relative to its folder. Raises ConfigError.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise ConfigError("--tasks needs lm_eval: pip install 'partwise[eval]'") from None
    from partwise.harness.language_model import PartwiseLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    model, scores = PartwiseLM(run), list[Score]()
    for task in tasks:
        folder = task_folder(task)
        manager = TaskManager(
            include_path=str(TASK_FILES if folder is None else folder.resolve()),
            include_defaults=folder is None,
            metadata={"run": run, "max_problems": max_items},
        )
        names = [SHIPPED.get(task, task)] if folder in (None, TASK_FILES) else manager.all_subtasks
        known = sorted({*SHIPPED, *manager.all_tasks})
        if folder is None and names[0] not in known:
            raise ConfigError(f"--tasks {task}: neither a folder nor a task{did_you_mean(task, SHIPPED)}")
        if not names:
            raise ConfigError(f"--tasks {task}: the folder has no task: add a YAML file with `task:`")
        with chdir(folder) if folder not in (None, TASK_FILES) else nullcontext():
            scores += run_tasks(model, manager, names, max_items)
    return scores


def run_tasks(model: Any, manager: Any, names: list[str], max_items: int | None) -> list[Score]:
    """The scores of tasks that a TaskManager knows. Raises ConfigError."""
    from lm_eval.evaluator import evaluate

    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):  # several progress bars a task
        try:
            loaded = manager.load(names)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"--tasks {names[0]}: its data cannot be read ({reason}): check the task's files"
            ) from None
        for task in loaded["tasks"].values():
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=0)
        return read_scores(
            evaluate(lm=model, task_dict=loaded, limit=max_items, log_samples=False, bootstrap_iters=1000)
        )


def task_folder(task: str) -> Path | None:
    """The folder with the files of a task; None for a task of lm_eval. Raises ConfigError."""
    if task in SHIPPED or task in SHIPPED.values():
        return TASK_FILES
    folder = Path(task)
    if not folder.is_dir():
        return None
    for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml"), *folder.rglob("*.py")]):
        text = "" if path.suffix == ".py" else path.read_text(encoding="utf-8", errors="replace")
        if re.search(r"!function|!!python", text):
            raise ConfigError(f"{path} calls Python code, which is not run: write the task with templates alone")
        if re.search(r"^\s*include\s*:.*(\.\.|:\s*[\"']?[/~])", text, re.MULTILINE):
            raise ConfigError(f"{path} includes a file outside the folder: copy it there")
    return folder


def read_scores(results: dict[str, Any]) -> list[Score]:
    """The metrics in the results of lm_eval, with the name of a filter unless it is the only one."""
    scores = []
    for task, values in results["results"].items():
        items = results["n-samples"].get(task, {}).get("effective", 0)
        for key, value in values.items():
            metric, _, filter_name = key.partition(",")
            if not filter_name or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{filter_name}")
            name = metric if filter_name == "none" else f"{metric} ({filter_name})"
            scores.append(
                Score(task, name, float(value), float(error) if isinstance(error, int | float) else None, items)
            )
    return scores
