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


def work(folders: list[Path], server: int) -> list[str]:
    """Train the runs of some jobs to their ends, or until told to stop; their statuses, a word each.

    Several are one arm's, of different seeds. `server` is the process whose child this is, while it lives.
    """
    jobs = [json.loads((folder / "job.json").read_text()) for folder in folders]
    for source in jobs[0]["imports"]:
        import_parts(source)
    runs = [
        RunFolder(folder, RunConfig.from_dict(job["config"]), choices=Choices(**job["choices"]), command=job["command"])
        for folder, job in zip(folders, jobs, strict=True)
    ]
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


def train(folders: list[Path], server: int) -> None:
    """What a child does: train, and write the statuses of its runs beside the first of them."""
    statuses = ["failed"] * len(folders)
    try:
        statuses = work(folders, server)
    except ConfigError as error:
        statuses = [f"failed {error}"] * len(folders)
    except BaseException:
        (folders[0] / "error.txt").write_text(traceback.format_exc())
    (folders[0] / "status.json").write_text(json.dumps(statuses))


class Children:
    """The forks that train."""

    def __init__(self, answers: TextIO) -> None:
        self.answers = answers
        self.running: dict[int, tuple[int, list[Path]]] = {}

    def fork(self, number: int, folders: list[Path]) -> None:
        (folders[0] / "error.txt").unlink(missing_ok=True)  # of an earlier try
        server = os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                train(folders, server)
                code = 0
            finally:
                os._exit(code)  # whatever happens, never back into the server's loop
        self.running[child] = number, folders

    def answer(self) -> None:
        """Say which have ended since."""
        for child, (number, folders) in list(self.running.items()):
            ended, code = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            del self.running[child]
            answer = folders[0] / "status.json"
            statuses = json.loads(answer.read_text()) if code == 0 else [f"failed killed ({code})"] * len(folders)
            print(json.dumps([number, statuses]), file=self.answers, flush=True)

    def stop(self) -> None:
        """Tell each once more: a signal that came while one was being forked did not reach it."""
        for child in self.running:
            os.kill(child, signal.SIGTERM)


def channels() -> tuple[int, TextIO]:
    """Where requests come from and answers go to; nothing that a user's part reads or prints can get between them."""
    requests, answers = os.dup(0), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing if sys.stderr is None else sys.stderr.fileno(), 1)
    return requests, answers


def main() -> None:
    requests, answers = channels()
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)  # by every signal: a child's end, or the order to stop
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent turns Ctrl-C into an orderly end
    children, asked, unread = Children(answers), True, b""
    with answers, selectors.DefaultSelector() as selector:
        for source in (requests, woken):
            selector.register(source, selectors.EVENT_READ)
        while asked or children.running:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 2**16)
            if requests in ready:
                more = os.read(requests, 2**16)
                *lines, unread = (unread + more).split(b"\n")
                for line in lines:
                    number, folders = json.loads(line)
                    children.fork(number, [Path(folder) for folder in folders])
                if not more:  # the parent wants nothing more, or is gone
                    selector.unregister(requests)
                    asked = False
            if stopping:
                children.stop()
            children.answer()


if __name__ == "__main__":
    main()
