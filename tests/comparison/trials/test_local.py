"""The worker processes of a comparison: forks of one server or new ones, and what happens if a process is killed."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partwise.ablation.run_trial import RunTrial, prepare_run
from partwise.comparison.trials import forkserver, servers
from partwise.comparison.trials import server as contract
from partwise.comparison.trials.execution import end_status
from partwise.comparison.trials.executor import ELSEWHERE, run_trials
from partwise.comparison.trials.job import FUNCTIONS, RUNS
from partwise.comparison.trials.local import LocalExecutor, failure_reason
from partwise.comparison.trials.worker import ChildProcesses
from partwise.compute.backend_plan import plan_config
from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError
from partwise.run_names import FolderLock
from partwise.train.config import run_config
from processes import gone

LONG = 100_000
TINY = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.batch_size=4", "train.threads=1"]


@pytest.fixture
def new_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunTrial]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)

    def new(seed: int, steps: int, part: str = "relu", imports: tuple[str, ...] = ()) -> RunTrial:
        words = [*TINY, f"train.steps={steps}", f"train.eval_every={steps}", f"train.seed={seed}", f"ffn={part}"]
        config = run_config("mingpt", *words, data="text.txt")
        runtime = choose_runtime(config.train)
        plan = plan_config(config.model, runtime, n_tokens=config.seq_len).to_dict()
        return prepare_run(Path("runs") / part / str(seed), part, seed, config, runtime, plan, imports, "train")

    return new


@pytest.fixture(params=["fork", "spawn"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes start: as on Linux, and as on macOS and Windows."""
    monkeypatch.setenv(servers.START_METHOD, request.param)
    return str(request.param)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what only forks have, a server among them."""
    monkeypatch.setenv(servers.START_METHOD, "fork")


@pytest.fixture(autouse=True)
def no_idle_server() -> Iterator[None]:
    yield
    while servers._idle:
        servers._idle.pop().end()


def pids(trials: list[RunTrial]) -> list[int]:
    return [int(lock.read_text()) for trial in trials if (lock := trial.folder / ".pid").exists()]


def test_comparisons_share_one_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_trial: Callable[..., RunTrial], method: str
) -> None:
    trials = [new_trial(seed, 4, part) for seed in range(2) for part in ("relu", "swiglu")]
    with LocalExecutor(2, executed_by=RUNS) as executor:
        run_trials(executor, trials[:2], lambda: None)
        server = executor._server
        run_trials(executor, trials, lambda: None)
        assert executor._server is server
    assert [trial.status for trial in trials] == ["done"] * 4
    another = tmp_path / "another"
    another.mkdir()
    monkeypatch.chdir(another)
    shutil.copy(tmp_path / "text.txt", another)
    third = [new_trial(2, 4)]
    with LocalExecutor(2, executed_by=RUNS) as executor:  # of the next comparison, in another folder
        run_trials(executor, third, lambda: None)
        assert executor._server is server
    assert third[0].status == "done" and (another / third[0].folder / "result.json").exists()


def test_a_trial_that_another_process_trains_is_waited_for(
    new_trial: Callable[..., RunTrial], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Comparisons of one protocol share trials: the second one takes the others first, and does not end with an error."""
    monkeypatch.setattr("partwise.comparison.trials.executor.RETRY_SECONDS", 0.2)
    trials = [new_trial(seed, 4) for seed in range(2)]
    other, seen = FolderLock(trials[0].folder), list[tuple[str, ...]]()

    def watch() -> None:
        seen.append(tuple(trial.status for trial in trials))
        if seen[-1] == (ELSEWHERE, "done"):
            other.release()

    with LocalExecutor(1, executed_by=RUNS) as executor:
        run_trials(executor, trials, watch)
    assert (ELSEWHERE, "done") in seen and [trial.status for trial in trials] == ["done"] * 2


def test_output_of_a_part_is_not_a_reply(tmp_path: Path, new_trial: Callable[..., RunTrial], method: str) -> None:
    source = tmp_path / "talking.py"
    source.write_text(
        "import os, time\nprint('hello', flush=True)\nos.write(1, b'[0, 1]\\n')\n"
        "assert not os.read(0, 1)\n"  # nor does it read the server's requests
        "if not os.fork():\n    time.sleep(60)\n    os._exit(0)\n"  # a grandchild that nobody waits for
    )
    began = time.monotonic()
    trials = [new_trial(0, 2, imports=(str(source),))]
    with LocalExecutor(1, executed_by=RUNS) as executor:
        run_trials(executor, trials, lambda: None)
    assert trials[0].status == "done" and time.monotonic() - began < 50


def test_a_killed_run_is_reported_and_the_others_are_saved(new_trial: Callable[..., RunTrial], method: str) -> None:
    trials = [new_trial(seed, LONG) for seed in range(2)]

    def kill() -> None:
        if len(pids(trials)) == 2 and trials[1].progress() >= 3:
            os.kill(int((trials[0].folder / ".pid").read_text()), signal.SIGKILL)

    with (
        pytest.raises(
            ConfigError, match=r"relu, seed 0: its process was killed by signal 9; run the same command again"
        ),
        LocalExecutor(2, executed_by=RUNS) as executor,
    ):
        run_trials(executor, trials, kill)
    assert list((trials[1].folder / "checkpoints").glob("step-*"))
    assert all(map(gone, pids(trials[1:])))


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_runs_end_if_their_server_is_killed(new_trial: Callable[..., RunTrial], forks: None) -> None:
    trials = [new_trial(seed, LONG) for seed in range(2)]
    seen: set[int] = set()

    with pytest.raises(ConfigError, match="its process ended"), LocalExecutor(2, executed_by=RUNS) as executor:

        def kill() -> None:
            assert executor._server is not None
            if len(pids(trials)) == 2 and all(trial.progress() >= 3 for trial in trials):
                seen.update(pids(trials))
                executor._server.process.kill()

        run_trials(executor, trials, kill)
    assert len(seen) == 2 and all(map(gone, seen)) and not servers._idle
    assert all(list((trial.folder / "checkpoints").glob("step-*")) for trial in trials)  # saved as on a stop request


def test_a_prestarted_server_is_used_in_its_own_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_trial: Callable[..., RunTrial], shared_cache: Path, forks: None
) -> None:
    servers.prestart(RUNS)
    (server,) = servers._idle
    assert servers.take_server(RUNS) is server
    server.end()
    servers.prestart(RUNS)
    (server,) = servers._idle
    another = tmp_path / "another"
    another.mkdir()
    (another / "kernels").symlink_to(shared_cache / "kernels")  # compiling them would take most of a minute
    monkeypatch.setenv("PARTWISE_CACHE", str(another))
    trials = [new_trial(0, 2)]
    with LocalExecutor(1, executed_by=RUNS) as executor:
        run_trials(executor, trials, lambda: None)
    assert server.process.poll() is not None  # it would have used the old cache folder
    assert any(path.name != "kernels" for path in another.iterdir())


KEPT = """\
import multiprocessing.util, os, signal, subprocess, sys, time  # its pools end after the server
from multiprocessing import get_context
from pathlib import Path
from partwise.comparison.trials.forkserver import ForkServer
from partwise.comparison.trials.servers import give_back

server = ForkServer("partwise.comparison.functions.execution")
server.submit(0, [Path("missing")])
server.replies.get()  # it has started
give_back(server)
print(server.process.pid)
"""


def run_script(text: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", KEPT + text], capture_output=True, text=True, timeout=20, check=False)


def test_a_script_that_forks_after_a_comparison_ends() -> None:
    """A pool's processes have a copy of the stream to the kept server, which must not wait for its end."""
    done = run_script("pool = get_context('fork').Pool(1)\nprint(pool.map(abs, [-1]))")
    assert done.returncode == 0 and done.stdout.endswith("[1]\n"), done.stderr
    assert gone(int(done.stdout.split()[0]))


@pytest.mark.parametrize(
    "holder",
    [
        "child = os.fork()\nif not child:\n    os.closerange(1, 3)\n    time.sleep(60)",
        "child = subprocess.Popen(['sleep', '60'], **quiet, pass_fds=[server.process.stdin.fileno()]).pid",
    ],
    ids=["a fork", "a program"],
)
def test_a_kept_server_ends_if_its_parent_is_killed_and_another_process_has_its_stream(holder: str) -> None:
    quiet = "quiet = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL)\nsys.stdout.flush()\n"
    done = run_script(f"{quiet}{holder}\nprint(child, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
    server, child = map(int, done.stdout.split())
    try:
        assert gone(server)
    finally:
        os.kill(child, signal.SIGKILL)


def started_server(folder: Path) -> forkserver.ForkServer:
    server = forkserver.ForkServer(FUNCTIONS)
    server.submit(0, [folder])
    assert server.replies.get(timeout=20)[0] == 0
    return server


def test_an_idle_server_ends_if_it_is_asked_to(tmp_path: Path) -> None:
    server = started_server(tmp_path)
    server.process.terminate()
    assert server.process.wait(10) == 0
    server.end()


def test_a_server_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "END_SECONDS", 0.2)
    server = started_server(tmp_path)
    os.kill(server.process.pid, signal.SIGSTOP)
    server.end()
    assert server.process.returncode == -signal.SIGKILL


def test_a_kept_server_has_the_code_on_disk_and_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger records the hash of the code on disk, so the trials must run it."""
    (tmp_path / "part.py").write_text("x = 1\n")
    (tmp_path / "__pycache__").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(contract, "PACKAGE", tmp_path)
        before = contract.context(FUNCTIONS)
        (tmp_path / "__pycache__" / "part.pyc").write_text("")
        assert contract.context(FUNCTIONS) == before
        (tmp_path / "part.py").write_text("x = 10\n")
        assert contract.context(FUNCTIONS) != before
    mask = os.umask(0o027)
    try:
        before = contract.context(FUNCTIONS)
        assert os.umask(0o077) == 0o027 and contract.context(FUNCTIONS) != before
    finally:
        os.umask(mask)


def test_a_request_that_cannot_be_started_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = forkserver.ForkServer(FUNCTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "cwd", lambda: tmp_path / "deleted")
        server.submit(0, [Path("trial")])
        assert server.replies.get(timeout=20)[1] == [end_status(1)]
    (tmp_path / "trial" / "error.txt").mkdir(parents=True)
    server.submit(1, [tmp_path / "trial"])
    number, statuses = server.replies.get(timeout=20)
    assert number == 1 and statuses and "Is a directory" in statuses[0] and server.process.poll() is None
    server.end()


def test_too_many_processes_fail_the_request_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    read, write = os.pipe()
    ChildProcesses(write, os.getpid()).fork(3, [tmp_path], str(tmp_path), {})
    assert json.loads(os.read(read, 1000)) == [3, ["failed [Errno 11] Resource temporarily unavailable"]]
    os.close(read)
    os.close(write)


def test_a_server_that_ends_between_trials_is_replaced() -> None:
    with LocalExecutor(1, executed_by=FUNCTIONS) as executor:
        executor._server = dead = forkserver.ForkServer(FUNCTIONS)
        dead.process.kill()
        assert executor.watch(10) == () and executor._server is None


def test_a_server_is_kept_only_after_a_comparison_that_ended_well() -> None:
    with pytest.raises(ConfigError), LocalExecutor(1, executed_by=FUNCTIONS) as executor:
        executor._server = server = forkserver.ForkServer(FUNCTIONS)
        raise ConfigError("failed")
    assert not servers._idle and server.process.poll() is not None


@pytest.mark.parametrize(
    ("last_line", "reason"),
    [
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
            "out of memory: ",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory: "),
        ("MemoryError", "out of memory: "),
        ("ValueError: can't allocate memory", "ValueError: can't allocate memory"),
    ],
)
def test_too_little_memory_of_a_worker_has_its_remedy(
    last_line: str, reason: str, new_trial: Callable[..., RunTrial]
) -> None:
    trial = new_trial(0, 2)
    (trial.folder / "error.txt").write_text(f"Traceback (most recent call last):\n{last_line}\n")
    found = failure_reason(trial, "failed")
    assert found.startswith(reason) and ("train.batch_size" in found) == (reason == "out of memory: ")
