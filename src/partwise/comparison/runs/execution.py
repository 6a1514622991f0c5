"""What a worker process does for training runs of a comparison."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from partwise.checkpoint import remove_older_checkpoints
from partwise.comparison.runs.task_metric import score_run
from partwise.comparison.runs.trial import read_horizons, shorter_runs, stored_status
from partwise.comparison.trials.job import JOB
from partwise.compute.plan import Plan
from partwise.compute.runtime import Runtime
from partwise.config import import_parts
from partwise.evaluate.arithmetic import accuracy_by_operation, answer_problems
from partwise.records import Record, read_record
from partwise.train.config import RunConfig
from partwise.train.multi_seed import train_seeds
from partwise.train.result import verified_result, write_result
from partwise.train.run_folder import RunFolder
from partwise.train.shared_prefix import Extension, with_steps

__all__ = ["execute", "stored_status"]


def execute(folders: list[Path], should_stop: Callable[[], bool]) -> list[str]:
    """Train the runs of a group, which are seeds of one arm, until they finish or have to stop; returns their statuses.

    With several horizons, each run of a seed starts from what it has in common with the one before.
    """
    jobs = [read_record(folder / JOB) for folder in folders]
    for source in jobs[0]["imports"]:
        import_parts(source)
    horizons = read_horizons(jobs[0])
    paths = [shorter_runs(folder, horizons) for folder in folders]
    previous: list[Path | None] = [None] * len(folders)
    for number, steps in enumerate(horizons[:-1]):
        current = [shorter[steps] for shorter in paths]
        extensions = [Extension(of=path, to=horizons[number + 1]) for path in previous]
        statuses = train_group(current, jobs, steps, extensions, should_stop)
        if not set(statuses) <= {"done", "diverged"}:
            return statuses
        previous = list(current)
    statuses = train_group(folders, jobs, None, [Extension(of=path) for path in previous], should_stop)
    for folder in itertools.chain.from_iterable(shorter.values() for shorter in paths):
        remove_older_checkpoints(folder / "checkpoints")
    return statuses


def train_group(
    folders: Sequence[Path],
    jobs: Sequence[Record],
    steps: int | None,
    extensions: Sequence[Extension],
    should_stop: Callable[[], bool],
) -> list[str]:
    """Train and score a run of each job in its folder, of another number of `steps` if that is given."""
    configs = [RunConfig.from_dict(job["config"]) for job in jobs]
    runs = [
        RunFolder(
            folder,
            with_steps(config, steps) if steps else config,
            runtime=Runtime(**job["runtime"]),
            plan=Plan.from_dict(job["plan"]),
            command=job["command"],
            extension=extension,
        )
        for folder, config, job, extension in zip(folders, configs, jobs, extensions, strict=True)
    ]
    statuses = train_seeds(runs, should_stop)
    for run, status, job in zip(runs, statuses, jobs, strict=True):
        if status == "done":
            score_run(run.path, run.config.to_dict(), job["metric"])
        if status == "done" and run.config.data.task == "arithmetic" and "test" in run.run.dataset.split_names:
            score_problems(run)
    return statuses


def score_problems(run: RunFolder) -> None:
    """Answer the test problems with greedy decoding and add the accuracy to the run's result."""
    from partwise.data import problem_lines

    dataset, config = run.run.dataset, run.config.to_dict()
    result = verified_result(run.path, config)
    if result is None or "accuracy" in result:
        return
    problems = problem_lines(dataset, "test")
    answers = answer_problems(
        run.run.model, dataset.tokenizer, problems, temperature=0, precision=run.runtime.precision
    )
    result["accuracy"] = {kind: score.to_dict() for kind, score in accuracy_by_operation(problems, answers).items()}
    write_result(run.path, result, config)
