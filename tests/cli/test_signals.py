"""Signals: a closed terminal, a scheduler and impatient fingers lose nothing, and the exit status names the signal."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from comparisons import TINY, last_of_each
from partwise.checkpoint import latest_checkpoint
from partwise.cli.commands.compare_output import say_stopped
from partwise.cli.signals import Terminated
from partwise.comparison.trials.executor import Executor, UnsavedInterrupt
from partwise.train import run_folder
from partwise.train.config import run_config
from partwise.train.run_folder import CheckpointSaved, RunFolder
from processes import gone

SLOW = last_of_each([*TINY, "train.steps=100000", "train.save_every=100000", "train.eval_every=100000"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 30)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_terminal(*words: str) -> tuple[int, int]:
    """A command with a terminal of its own: its process and the other end; closing that end closes the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which would be inherited
        os.execv(sys.executable, [sys.executable, "-m", "partwise", *words])
    return pid, terminal


def wait_for(done: object, terminal: int) -> None:
    """Read the terminal until `done()`, so that its buffer does not fill."""
    os.set_blocking(terminal, False)
    for _ in range(1200):
        try:
            os.read(terminal, 1 << 16)
        except (BlockingIOError, OSError):
            time.sleep(0.05)
        if done():  # type: ignore[operator]
            return
    pytest.fail("the command did not come that far")


def status_of(pid: int) -> int:
    for _ in range(600):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the command did not end")


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.promise
def test_closing_the_terminal_saves_a_run(here: Path) -> None:
    pid, terminal = in_terminal("train", "mingpt", *SLOW, "--data", "text.txt", "--name", "run")
    wait_for(lambda: lines(here / "runs/run/metrics.jsonl") > 30, terminal)
    os.close(terminal)
    assert status_of(pid) == 128 + signal.SIGHUP
    checkpoint, damaged = latest_checkpoint(here / "runs/run/checkpoints")
    assert checkpoint is not None and not damaged
    assert int(checkpoint.name[5:]) == lines(here / "runs/run/metrics.jsonl") > 30  # nothing trained was lost


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_closing_the_terminal_or_sigterm_saves_the_runs_of_a_comparison(
    here: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTWISE_START_METHOD", method)
    words = ["compare", "mingpt", "ffn=swiglu", "--data", "text.txt", "--seeds", "2", "--workers", "2"]
    words += [word for override in SLOW for word in ("--common", override)]

    def started(name: str) -> bool:
        return len([path for path in here.glob(f"runs/{name}/runs/*/*/metrics.jsonl") if lines(path) > 20]) >= 2

    def check(name: str) -> None:
        saved = [path.parents[1] for path in here.glob(f"runs/{name}/runs/*/*/checkpoints/step-*")]
        assert len(saved) == 2
        for folder in saved:
            checkpoint, _ = latest_checkpoint(folder / "checkpoints")
            assert checkpoint is not None and int(checkpoint.name[5:]) == lines(folder / "metrics.jsonl")
            assert gone(int((folder / ".pid").read_text()))

    pid, terminal = in_terminal(*words, "--name", "closed")
    wait_for(lambda: started("closed"), terminal)
    os.close(terminal)
    assert status_of(pid) == 128 + signal.SIGHUP
    check("closed")

    process = subprocess.Popen(
        [sys.executable, "-m", "partwise", *words, "--name", "ended"], stdout=subprocess.PIPE, text=True
    )
    while not started("ended"):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "stopped; all runs are saved. To resume:" in output
    check("ended")


@pytest.mark.parametrize(("command", "method"), [("train", ""), ("compare", "fork"), ("compare", "spawn")])
def test_three_interrupts_say_saved_only_if_it_is_so(
    here: Path, command: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTWISE_START_METHOD", method)
    words = ["train", "mingpt", *SLOW, "--data", "text.txt", "--name", "r"]
    if command == "compare":
        words = [
            "compare",
            "mingpt",
            "ffn=swiglu",
            "--data",
            "text.txt",
            "--seeds",
            "1",
            "--workers",
            "2",
            "--name",
            "r",
        ]
        words += [word for override in SLOW for word in ("--common", override)]
    place = [sys.executable, "-m", "partwise", *words]
    process = subprocess.Popen(place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while len([path for path in here.rglob("metrics.jsonl") if lines(path) > 20]) < (2 if command == "compare" else 1):
        time.sleep(0.05)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # the last ones come while the command ends
    output = process.communicate(timeout=100)[0]
    assert process.returncode == 128 + signal.SIGINT and "Traceback" not in output, output
    folders = [path.parent for path in here.rglob("metrics.jsonl")]
    for folder in folders:
        assert gone(int((folder / ".pid").read_text()))
    saved = [latest_checkpoint(folder / "checkpoints")[0] for folder in folders]
    complete = all(
        each is not None and int(each.name[5:]) == lines(folder / "metrics.jsonl")
        for each, folder in zip(saved, folders, strict=True)
    )
    says_saved = "all runs are saved" in output or "everything is saved" in output
    assert says_saved <= complete and (says_saved or "some runs could not save" in output), output


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_runs_save_and_end_if_the_comparison_is_killed_and_nobody_reaps_it(
    here: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's first process may be no init: the killed one stays in the table of processes, and looks alive."""
    monkeypatch.setenv("PARTWISE_START_METHOD", method)
    words = ["compare", "mingpt", "ffn=swiglu", "--data", "text.txt", "--seeds", "1", "--workers", "2", "--name", "c"]
    words += [word for override in SLOW for word in ("--common", override)]
    process = subprocess.Popen([sys.executable, "-m", "partwise", *words], stdout=subprocess.DEVNULL)
    folders = [here / "runs/c/runs" / arm / "seed-0" for arm in ("0-mingpt", "1-ffn=swiglu")]
    while any(lines(folder / "metrics.jsonl") < 20 for folder in folders):
        time.sleep(0.05)
    process.kill()
    try:
        for folder in folders:
            assert gone(int((folder / ".pid").read_text()))
            checkpoint, _ = latest_checkpoint(folder / "checkpoints")
            assert checkpoint is not None and int(checkpoint.name[5:]) == lines(folder / "metrics.jsonl")
    finally:
        process.wait()


def test_a_command_under_nohup_ignores_a_closed_terminal(here: Path) -> None:
    code = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from partwise.cli.signals import ENDING, handled, terminate\n"
        "with handled(terminate, ENDING): os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('goes on')"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "goes on\n"


class Impatient(Executor):
    """Whose trials are still saving when the second interrupt comes."""

    def submit(self, trials: object) -> None: ...

    def watch(self, seconds: float) -> tuple[()]:
        return ()

    def cancel(self) -> None:
        raise KeyboardInterrupt


@contextmanager
def interrupted() -> Iterator[None]:
    with Impatient():
        yield
        raise Terminated(signal.SIGTERM)


def test_saved_is_said_only_if_it_is_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsavedInterrupt) as caught, interrupted():
        pass
    say_stopped(caught.value, "To resume: ...")
    assert "some runs could not save and will resume from their last checkpoints" in capsys.readouterr().out
    say_stopped(KeyboardInterrupt(), "To resume: ...")
    assert "all runs are saved" in capsys.readouterr().out


def test_a_run_of_long_steps_saves_by_time(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of seconds would otherwise be lost by the hundred: a checkpoint comes every 500 steps."""
    monkeypatch.setattr(run_folder, "SAVE_SECONDS", 0.0)
    config = run_config("mingpt", *TINY, "train.save_every=1000", data="text.txt")
    events = list(RunFolder(here / "run", config).events())
    assert sum(isinstance(event, CheckpointSaved) for event in events) == config.train.steps
