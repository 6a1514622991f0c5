"""Processes of trials that are no forks: how they start, stop, and end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partwise.comparison.trials.execution import end_status, group_statuses
from partwise.comparison.trials.forkserver import ForkServer
from partwise.comparison.trials.job import FUNCTIONS
from partwise.comparison.trials.servers import START_METHOD, start_method, start_server
from partwise.comparison.trials.spawner import Spawner
from partwise.config import ConfigError
from processes import gone


def test_linux_forks_and_macos_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_METHOD, raising=False)
    server = start_server(FUNCTIONS)
    server.end()
    assert isinstance(server, ForkServer) and start_method() == "fork"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert start_method() == "spawn"
    monkeypatch.setenv(START_METHOD, "fork")
    assert start_method() == "fork"
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match=r"^PARTWISE_START_METHOD=fork: set it to spawn, or leave it out$"):
        start_method()
    monkeypatch.setenv(START_METHOD, "forkserver")
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(
        ConfigError, match=r"^PARTWISE_START_METHOD=forkserver: set it to fork or spawn, or leave it out$"
    ):
        start_method()


def test_a_request_that_cannot_be_started_fails_alone(tmp_path: Path) -> None:
    server = Spawner(FUNCTIONS)
    server.submit(0, [tmp_path / "missing"])
    assert server.replies.get(timeout=20) == (0, [end_status(1)])
    (tmp_path / "trial" / "error.txt").mkdir(parents=True)
    server.submit(1, [tmp_path / "trial"])
    number, statuses = server.replies.get(timeout=20)
    assert number == 1 and statuses and "Is a directory" in statuses[0] and not server.has_ended
    server.end()


def test_an_idle_process_ends_with_its_server() -> None:
    server = Spawner(FUNCTIONS)
    assert server._first
    process = server._first.process
    server.end()
    assert process.poll() is not None and server.has_ended


def test_the_status_of_a_process_that_was_asked_to_stop_is_no_failure(tmp_path: Path) -> None:
    assert group_statuses([tmp_path] * 2, -signal.SIGKILL, asked=True) == ["interrupted"] * 2
    assert group_statuses([tmp_path], -signal.SIGTERM) == ["interrupted"]
    assert group_statuses([tmp_path], -signal.SIGSEGV) == ["failed its process was killed by signal 11"]


SLEEPING = """\
import time
from pathlib import Path

def train(seed, report, gain=0):
    Path(f"started-{seed}-{gain}").write_text("")
    time.sleep(60)
"""

COMPARE = """\
import os, signal, subprocess, sys
from pathlib import Path
import partwise
sys.path.insert(0, ".")
from sleeping import train
{prologue}
arms = {{"base": {{}}, "gain": {{"gain": 1}}}}
partwise.compare_function(train, arms, seeds=2, margin=0.1, workers=2, name="c", progress=False)
"""

HOLDER = """\
import threading, time
def hold():
    while len(list(Path(".").glob("started-*"))) < 2:
        time.sleep(0.05)
    from partwise.comparison.trials.spawner import _spawned
    streams = [each.process.stdin.fileno() for each in _spawned]
    child = subprocess.Popen(["sleep", "60"], pass_fds=streams, **dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)).pid
    Path("holder").write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=hold, daemon=True).start()
"""


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
@pytest.mark.parametrize("prologue", ["", HOLDER], ids=["killed", "another process has their streams"])
def test_calls_end_if_the_comparison_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prologue: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(START_METHOD, "spawn")
    (tmp_path / "sleeping.py").write_text(SLEEPING)
    process = subprocess.Popen([sys.executable, "-c", COMPARE.format(prologue=prologue)])
    known: set[int] = set()
    deadline = time.monotonic() + 40
    while len(list(tmp_path.glob("started-*"))) < 2 and time.monotonic() < deadline and process.poll() is None:
        known |= set(children(process.pid))
        time.sleep(0.02)
    if not prologue:
        process.kill()
    process.wait(20)
    assert known and process.returncode == -signal.SIGKILL
    try:
        assert all(map(gone, known))
    finally:
        if prologue:
            os.kill(int((tmp_path / "holder").read_text()), signal.SIGKILL)


def test_a_script_that_forks_after_a_comparison_ends(tmp_path: Path) -> None:
    """A pool's processes have copies of the streams."""
    script = (
        "from multiprocessing import get_context\nfrom partwise.comparison.trials.spawner import Spawner\n"
        f"server = Spawner({FUNCTIONS!r})\npool = get_context('fork').Pool(1)\nprint(pool.map(abs, [-1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 and done.stdout == "[1]\n", done.stderr
