"""The worker of a comparison: it imports torch once and forks a child per program, so that each one's memory is its own.

A line of JSON on standard input asks for a program: its number, and the paths of folders with a `job.json` each, whose
runs are trained together. A line with the number and their statuses answers when it has ended.
The parent talks to it in no other way; progress is read from the run's own `metrics.jsonl`.
"""

import json
import os
import selectors
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import TextIO

from partwise.checkpoint import write_json
from partwise.config import ConfigError, import_parts
from partwise.evaluate.arithmetic import accuracy_by_operation, answer_problems
from partwise.train.choices import Choices
from partwise.train.ensemble import train_together
from partwise.train.folder import RunFolder
from partwise.train.settings import RunConfig

stopping = False


def stop(signum: int, frame: FrameType | None) -> None:
    global stopping
    stopping = True


def work(folders: list[Path]) -> list[str]:
    """Train the runs of some jobs to their ends, or until told to stop; their statuses, a word each.

    Several are one arm's, of different seeds.
    """
    jobs = [json.loads((folder / "job.json").read_text()) for folder in folders]
    for source in jobs[0]["imports"]:
        import_parts(source)
    runs = [
        RunFolder(folder, RunConfig.from_dict(job["config"]), choices=Choices(**job["choices"]), command=job["command"])
        for folder, job in zip(folders, jobs, strict=True)
    ]
    server = os.getppid()
    statuses = train_together(runs, lambda: stopping or os.getppid() != server or orphaned(jobs[0]["parent"]))
    for run, status in zip(runs, statuses, strict=True):
        if status == "done" and run.config.data.task == "arithmetic" and "test" in run.run.dataset.names:
            score_problems(run)
    return statuses


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


def train(folders: list[Path]) -> None:
    """What a child does: train, and write the statuses of its runs beside the first of them."""
    statuses = ["failed"] * len(folders)
    try:
        statuses = work(folders)
    except ConfigError as error:
        statuses = [f"failed {error}"] * len(folders)
    except BaseException:
        (folders[0] / "error.txt").write_text(traceback.format_exc())
    (folders[0] / "status.json").write_text(json.dumps(statuses))


class Children:
    """The forks that train, and the end of a pipe for each, which closes when its fork ends, however it ends."""

    def __init__(self, selector: selectors.BaseSelector, answers: TextIO) -> None:
        self.selector, self.answers = selector, answers
        self.running: dict[int, tuple[int, int, list[Path]]] = {}

    def fork(self, number: int, folders: list[Path]) -> None:
        (folders[0] / "error.txt").unlink(missing_ok=True)  # of an earlier try
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                train(folders)
                code = 0
            finally:
                os._exit(code)  # whatever happens, never back into the server's loop
        os.close(writer)
        self.running[reader] = child, number, folders
        self.selector.register(reader, selectors.EVENT_READ)

    def answer(self, reader: int) -> None:
        self.selector.unregister(reader)
        os.close(reader)
        child, number, folders = self.running.pop(reader)
        _, code = os.waitpid(child, 0)
        answer = folders[0] / "status.json"
        statuses = json.loads(answer.read_text()) if code == 0 else [f"failed killed ({code})"] * len(folders)
        print(json.dumps([number, statuses]), file=self.answers, flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent turns Ctrl-C into an orderly end
    stdin, asked, unread = sys.stdin.fileno(), True, b""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a part of a user's own prints is no answer
    with answers, selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_READ)
        children = Children(selector, answers)
        while asked or children.running:
            for key, _ in selector.select():
                if key.fd != stdin:
                    children.answer(key.fd)
                    continue
                more = os.read(stdin, 2**16)
                *lines, unread = (unread + more).split(b"\n")
                for line in lines:
                    number, folders = json.loads(line)
                    children.fork(number, [Path(folder) for folder in folders])
                if not more:  # the parent wants nothing more, or is gone
                    selector.unregister(stdin)
                    asked = False


if __name__ == "__main__":
    main()
