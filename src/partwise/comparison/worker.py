"""A worker of a comparison: it imports torch once and forks one child per run, so that each run's memory is its own.

Jobs come as lines on standard input, each the path of a folder with a `job.json`; a line `PATH STATUS` answers each.
The parent talks to it in no other way; progress is read from the run's own `metrics.jsonl`.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from partwise.checkpoint import write_json
from partwise.config import ConfigError, import_parts
from partwise.evaluate.arithmetic import accuracy_by_operation, answer_problems
from partwise.train.choices import Choices
from partwise.train.folder import Interrupted, RunFolder
from partwise.train.loop import Diverged
from partwise.train.settings import RunConfig

stopping = False


def stop(signum: int, frame: FrameType | None) -> None:
    global stopping
    stopping = True


def work(folder: Path) -> str:
    """Train the run of one job to its end, or until told to stop; its status in a word."""
    job = json.loads((folder / "job.json").read_text())
    for source in job["imports"]:
        import_parts(source)
    config = RunConfig.from_dict(job["config"])
    run = RunFolder(folder, config, choices=Choices(**job["choices"]), command=job["command"])
    try:
        for _ in run.events():
            run.stopping = stopping or orphaned(job["parent"])
    except Interrupted:
        return "interrupted"
    except Diverged:
        return "diverged"
    if config.data.task == "arithmetic" and "test" in run.run.dataset.names:
        score_problems(run)
    return "done"


def score_problems(run: RunFolder) -> None:
    """Answer the test problems greedily and add the accuracy to the run's result."""
    from partwise.data import problem_lines

    dataset, path = run.run.dataset, run.path / "result.json"
    result = json.loads(path.read_text())
    if "accuracy" in result:
        return
    problems = problem_lines(dataset, "test")
    answers = answer_problems(
        run.run.model, dataset.tokenizer, problems, temperature=0, precision=run.choices.precision
    )
    result["accuracy"] = {kind: score.to_dict() for kind, score in accuracy_by_operation(problems, answers).items()}
    write_json(path, result)


def orphaned(parent: int) -> bool:
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return True
    return False


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent turns Ctrl-C into an orderly end
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        child = os.fork()
        if child == 0:
            status = "failed"
            try:
                status = work(folder)
            except ConfigError as error:
                status = f"failed {error}"
            except BaseException:
                (folder / "error.txt").write_text(traceback.format_exc())
            (folder / "status.txt").write_text(status)
            os._exit(0)
        _, code = os.waitpid(child, 0)
        status = (folder / "status.txt").read_text() if code == 0 else f"failed killed ({code})"
        print(f"{folder}\t{status}", flush=True)
        if stopping:
            break


if __name__ == "__main__":
    main()
