"""Tasks by name or folder, and their scores."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from partwise.config import ConfigError, did_you_mean, read_file

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
    items_sha256: str
    """The hash of the task's items, by `hash_items`."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TaskMetric:
    """The first metric of a task, whether higher values are better, and the SHA-256 of the task's items."""

    name: str
    higher_is_better: bool
    items_sha256: str


def score_tasks(
    run: str, tasks: Sequence[str], max_items: int | None = None, precision: str | None = None
) -> list[Score]:
    """The scores of a run on tasks: one of the package, a folder of task files, or a name that lm_eval knows.

    Files that a task names are relative to its folder; `precision` is that of the run by default. Raises ConfigError.
    """
    check_installed("--tasks")
    from partwise.harness.language_model import PartwiseLM

    model, scores = PartwiseLM(run, precision=precision), list[Score]()
    for task in tasks:
        with loaded_tasks(task, f"--tasks {task}", {"run": run, "max_problems": max_items}) as loaded:
            scores += run_tasks(model, loaded, max_items)
    return scores


def first_metric(task: str, settings: dict[str, Any]) -> TaskMetric:
    """The first metric of a single task, for runs with these settings. Raises ConfigError."""
    option = f"metric=task:{task}"
    check_installed(option)
    with loaded_tasks(task, option, {"settings": settings}) as loaded:
        names = list(loaded["tasks"])
        if len(names) != 1:
            raise ConfigError(
                f"{option}: these are {len(names)} tasks ({', '.join(names[:3])}, ...): name a single one"
            )
        task_object = loaded["tasks"][names[0]]
        name, higher_is_better = next(iter(task_object.higher_is_better().items()))
        fix_examples(task_object)
        with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            task_object.build_all_requests()
        items_sha256 = hash_items(task_object)
    if higher_is_better is None:
        raise ConfigError(f"{option}: unknown whether higher {name} is better: set higher_is_better in its metric_list")
    return TaskMetric(name, bool(higher_is_better), items_sha256)


def score_task(run: str, task: str, metric: str) -> Score:
    """The score of a run in one metric of a single task, by its first filter. Raises ConfigError."""
    return next(each for each in score_tasks(run, [task]) if each.metric.partition(" (")[0] == metric)


def check_installed(option: str) -> None:
    """Raise ConfigError if lm_eval is not installed."""
    try:
        import lm_eval.tasks
    except ImportError:
        raise ConfigError(f"{option} needs lm_eval: `pip install 'partwise[eval]'`") from None
    logging.getLogger(lm_eval.__name__).setLevel(logging.ERROR)


@contextmanager
def loaded_tasks(task: str, option: str, metadata: dict[str, Any]) -> Iterator[Any]:
    """The tasks of a name or folder as lm_eval loads them, while its files are within reach. Raises ConfigError."""
    from lm_eval.tasks import TaskManager

    folder = task_folder(task)
    manager = TaskManager(
        include_path=str(TASK_FILES if folder is None else folder.resolve()),
        include_defaults=folder is None,
        metadata=metadata,
    )
    names = [SHIPPED.get(task, task)] if folder in (None, TASK_FILES) else manager.all_subtasks
    known = sorted({*SHIPPED, *manager.all_tasks})
    if folder is None and names[0] not in known:
        raise ConfigError(f"{option}: neither a folder nor a task{did_you_mean(task, SHIPPED)}")
    if not names:
        raise ConfigError(f"{option}: the folder has no task: add a YAML file with `task:`")
    with chdir(folder) if folder not in (None, TASK_FILES) else nullcontext():
        with redirect_stderr(StringIO()), redirect_stdout(StringIO()):  # several progress bars a task
            try:
                loaded = manager.load(names)
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())[:200]
                raise ConfigError(f"{option}: its data cannot be read ({reason}): check the task's files") from None
        yield loaded


def run_tasks(model: Any, loaded: Any, max_items: int | None) -> list[Score]:
    """The scores on loaded tasks. Raises ConfigError."""
    from lm_eval.evaluator import evaluate

    for task in loaded["tasks"].values():
        fix_examples(task)
    # errors by resampling would fork this process, and a fork of a process with threads may wait for a lock forever
    os.environ["DISABLE_MULTIPROC"] = "1"
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        results = evaluate(lm=model, task_dict=loaded, limit=max_items, log_samples=False, bootstrap_iters=1000)
    return read_scores(results, {name: hash_items(task) for name, task in loaded["tasks"].items()})


def fix_examples(task: Any) -> None:
    """Show a task's own number of solved examples in each prompt (default: 0), always the same ones."""
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=0)


def hash_items(task: Any) -> str:
    """SHA-256 of what decides a task's scores besides the model: prompts, documents, answers, filters and metrics.

    The task's requests must have been built.
    """
    settings = {key: task.get_config(key) for key in ("metric_list", "filter_list")}
    items = [[each.request_type, list(each.args), each.doc, task.doc_to_target(each.doc)] for each in task.instances]
    text = json.dumps([settings, items], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def task_folder(task: str) -> Path | None:
    """The folder with the files of a task; None for a task of lm_eval. Raises ConfigError."""
    if task in SHIPPED or task in SHIPPED.values():
        return TASK_FILES
    folder = Path(task)
    if not folder.is_dir():
        return None
    for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml"), *folder.rglob("*.py")]):
        try:
            text = "" if path.suffix == ".py" else read_file(path).decode(errors="replace")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
        if re.search(r"!function|!!python", text):
            raise ConfigError(f"{path} calls Python code, which is not run: write the task with templates alone")
        if re.search(r"^\s*include\s*:.*(\.\.|:\s*[\"']?[/~])", text, re.MULTILINE):
            raise ConfigError(f"{path} includes a file outside the folder: copy it there")
    return folder


def read_scores(results: dict[str, Any], items_sha256: dict[str, str]) -> list[Score]:
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
            item_error = float(error) if isinstance(error, int | float) else None
            scores.append(Score(task, name, float(value), item_error, items, items_sha256[task]))
    return scores
