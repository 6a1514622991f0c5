"""What a worker process does for training runs of a comparison."""

from collections.abc import Callable
from pathlib import Path

from partwise.comparison.runs.task_metric import score_run
from partwise.comparison.runs.trial import stored_status
from partwise.comparison.trials.job import JOB
from partwise.compute.plan import Plan
from partwise.compute.runtime import Runtime
from partwise.config import import_parts
from partwise.evaluate.arithmetic import accuracy_by_operation, answer_problems
from partwise.records import read_record
from partwise.train.config import RunConfig
from partwise.train.multi_seed import train_seeds
from partwise.train.result import verified_result, write_result
from partwise.train.run_folder import RunFolder

__all__ = ["execute", "stored_status"]


def execute(folders: list[Path], should_stop: Callable[[], bool]) -> list[str]:
    """Train the runs of a group, which are seeds of one arm, until they finish or have to stop; returns their statuses."""
    jobs = [read_record(folder / JOB) for folder in folders]
    for source in jobs[0]["imports"]:
        import_parts(source)
    runs = [
        RunFolder(
            folder,
            RunConfig.from_dict(job["config"]),
            runtime=Runtime(**job["runtime"]),
            plan=Plan.from_dict(job["plan"]),
            command=job["command"],
        )
        for folder, job in zip(folders, jobs, strict=True)
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
