"""Training runs of a comparison in a worker process."""

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from partwise.ablation.rank import DIVERGED, DONE, FAILED, INTERRUPTED
from partwise.ablation.run_trial import read_horizons, shorter_runs, stored_status
from partwise.ablation.task_metric import score_run
from partwise.checkpoint import remove_folder, remove_older_checkpoints
from partwise.comparison.trials.job import JOB
from partwise.compute.backend_plan import BackendPlan
from partwise.compute.runtime import Runtime
from partwise.config import import_parts, read_file
from partwise.data import Dataset
from partwise.evaluate.arithmetic import accuracy_by_operation, answer_problems
from partwise.model import Transformer
from partwise.processes import send
from partwise.records import Record, read_record
from partwise.train.config import RunConfig
from partwise.train.distributed.launcher import started, wait
from partwise.train.multi_seed import train_seeds
from partwise.train.result import verified_result, write_result
from partwise.train.run_folder import RunFolder
from partwise.train.shared_prefix import SharedRun, with_steps
from partwise.train.trained_model import open_trained

__all__ = ["execute", "stored_status"]

RANK_MODULE = "partwise.ablation.rank"
"""The program of each of several processes."""


def execute(folders: list[Path], should_stop: Callable[[], bool]) -> list[str]:
    """Train the runs of a group, which are seeds of one arm, until they finish or have to stop; returns their statuses.

    With several horizons, each run of a seed starts from what it has in common with the one before. The weights of tuning
    runs are removed: nothing needs them after the loss, and they would fill a disk.
    """
    jobs = [read_record(folder / JOB) for folder in folders]
    statuses = train_runs(folders, jobs, should_stop)
    for folder, job, status in zip(folders, jobs, statuses, strict=True):
        checkpoints = folder / "checkpoints"
        if status in ("done", "diverged") and not job.get("keeps_weights", True) and checkpoints.is_dir():
            remove_folder(checkpoints)
    return statuses


def train_runs(folders: list[Path], jobs: list[Record], should_stop: Callable[[], bool]) -> list[str]:
    if jobs[0].get("processes", 1) > 1:
        return [train_in_processes(folder, job, should_stop) for folder, job in zip(folders, jobs, strict=True)]
    for source in jobs[0]["imports"]:
        import_parts(source)
    horizons = read_horizons(jobs[0])
    paths = [shorter_runs(folder, horizons) for folder in folders]
    previous: list[Path | None] = [None] * len(folders)
    for number, steps in enumerate(horizons[:-1]):
        current = [shorter[steps] for shorter in paths]
        extensions = [SharedRun(of=path, to=horizons[number + 1]) for path in previous]
        statuses = train_group(current, jobs, steps, extensions, should_stop)
        if not set(statuses) <= {"done", "diverged"}:
            return statuses
        previous = list(current)
    statuses = train_group(folders, jobs, None, [SharedRun(of=path) for path in previous], should_stop)
    for folder in itertools.chain.from_iterable(shorter.values() for shorter in paths):
        remove_older_checkpoints(folder / "checkpoints")
    return statuses


def train_group(
    folders: Sequence[Path],
    jobs: Sequence[Record],
    steps: int | None,
    extensions: Sequence[SharedRun],
    should_stop: Callable[[], bool],
) -> list[str]:
    """Train and score a run of each job in its folder, of another number of `steps` if that is given."""
    configs = [RunConfig.from_stored(job["config"]) for job in jobs]
    runs = [
        RunFolder(
            folder,
            with_steps(config, steps) if steps else config,
            runtime=Runtime(**job["runtime"]),
            plan=BackendPlan.from_dict(job["plan"]),
            command=job["command"],
            extension=extension,
            check_parts=False,  # the comparison has
        )
        for folder, config, job, extension in zip(folders, configs, jobs, extensions, strict=True)
    ]
    statuses = train_seeds(runs, should_stop)
    for run, status, job in zip(runs, statuses, jobs, strict=True):
        if status == "done":
            score(run.path, run.config, job["metric"], run.run.dataset, run.run.model, run.runtime.precision)
    return statuses


def train_in_processes(folder: Path, job: Record, should_stop: Callable[[], bool]) -> str:
    """Train a run in several processes, and score it in this one; returns its status."""
    n, runtime = job.whole("processes"), Runtime(**job["runtime"])
    logs = [folder / f"rank-{rank}.txt" for rank in range(n)]
    words = [sys.executable, "-P", "-m", RANK_MODULE, str(folder)]
    asked = False

    with started(n, words, {"OMP_NUM_THREADS": str(runtime.threads)}, logs) as children:

        def pass_on() -> None:
            nonlocal asked
            if not asked and should_stop():
                asked = True
                for child in children:
                    send(child)

        status = wait(children, pass_on, f"{folder}/rank-{{rank}}.txt")
    if status == FAILED:
        lines = read_file(logs[0]).decode(errors="replace").strip().splitlines()
        return f"failed {lines[-1] if lines else 'its first process ended without a message'}"
    if status != DONE:
        return {DIVERGED: "diverged", INTERRUPTED: "interrupted"}.get(status, f"failed with exit status {status}")
    for source in job["imports"]:
        import_parts(source)
    config, model = RunConfig.from_stored(job["config"]), open_trained(str(folder)).model
    score(folder, config, job["metric"], config.prepare(), model, runtime.precision)
    return "done"


def score(folder: Path, config: RunConfig, metric: str, dataset: Dataset, model: Transformer, precision: str) -> None:
    """Add to the result of a finished run the score of the metric's task, and the accuracy on arithmetic: the test problems
    are answered with greedy decoding."""
    from partwise.data import problem_lines

    stored = config.to_stored()
    score_run(folder, stored, metric)
    if config.data.task != "arithmetic" or "test" not in dataset.split_names:
        return
    result = verified_result(folder, stored)
    if result is None or "accuracy" in result:
        return
    problems = problem_lines(dataset, "test")
    answers = answer_problems(model, dataset.tokenizer, problems, temperature=0, precision=precision)
    result["accuracy"] = {kind: each.to_dict() for kind, each in accuracy_by_operation(problems, answers).items()}
    write_result(folder, result, stored)
