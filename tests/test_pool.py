"""The programs of a comparison: forks of one process, and what becomes of them where something ends before its time."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partwise.comparison import forkserver
from partwise.comparison.pool import Crew, Job, prepare_job
from partwise.config import ConfigError
from partwise.train.choices import choose
from partwise.train.settings import run_config

LONG = 100_000
TINY = ["d_model=16", "n_layers=1", "attention.n_heads=2", "max_len=16", "train.batch_size=4", "train.threads=1"]


@pytest.fixture
def new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)

    def new(seed: int, steps: int, part: str = "relu", imports: tuple[str, ...] = ()) -> Job:
        words = [*TINY, f"train.steps={steps}", f"train.eval_every={steps}", f"train.seed={seed}", f"ffn={part}"]
        config = run_config("mingpt", *words, data="text.txt")
        return prepare_job(Path("runs") / part / str(seed), part, seed, config, choose(config.train), imports, "train")

    return new


@pytest.fixture(autouse=True)
def nothing_early() -> Iterator[None]:
    yield
    while forkserver._early:
        forkserver._early.pop().end()


def pids(jobs: list[Job]) -> list[int]:
    return [int(lock.read_text()) for job in jobs if (lock := job.folder / ".lock").exists()]


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds; a zombie, whose new parent is slow to look, has ended."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_runs_are_forks_of_one_process(new_job: Callable[..., Job]) -> None:
    jobs = [new_job(seed, 4, part) for seed in range(2) for part in ("relu", "swiglu")]
    with Crew(2) as crew:
        crew.run(jobs[:2], lambda: None)
        server = crew._server
        crew.run(jobs, lambda: None)
        assert crew._server is server
    assert [job.status for job in jobs] == ["done"] * 4
    assert server is not None and server.process.poll() is not None


def test_what_a_part_prints_is_no_answer(tmp_path: Path, new_job: Callable[..., Job]) -> None:
    source = tmp_path / "talking.py"
    source.write_text(
        "import os, time\nprint('hello', flush=True)\nos.write(1, b'[0, 1]\\n')\n"
        "assert not os.read(0, 1)\n"  # nor does it read what the server is asked
        "if not os.fork():\n    time.sleep(60)\n    os._exit(0)\n"  # whose end nobody waits for
    )
    began = time.monotonic()
    jobs = [new_job(0, 2, imports=(str(source),))]
    with Crew(1) as crew:
        crew.run(jobs, lambda: None)
    assert jobs[0].status == "done" and time.monotonic() - began < 50


def test_a_run_that_is_killed_is_named_and_the_others_are_saved(new_job: Callable[..., Job]) -> None:
    jobs = [new_job(seed, LONG) for seed in range(2)]

    def kill() -> None:
        if len(pids(jobs)) == 2 and jobs[1].progress() >= 3:
            os.kill(int((jobs[0].folder / ".lock").read_text()), signal.SIGKILL)

    with pytest.raises(ConfigError, match=r"relu, seed 0: killed \(9\); give the same command again"), Crew(2) as crew:
        crew.run(jobs, kill)
    assert list((jobs[1].folder / "checkpoints").glob("step-*"))
    assert all(map(gone, pids(jobs[1:])))


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_runs_end_where_their_server_is_killed(new_job: Callable[..., Job]) -> None:
    jobs = [new_job(seed, LONG) for seed in range(2)]
    seen: set[int] = set()

    with pytest.raises(ConfigError, match="its process ended"), Crew(2) as crew:

        def kill() -> None:
            assert crew._server is not None
            if len(pids(jobs)) == 2 and all(job.progress() >= 3 for job in jobs):
                seen.update(pids(jobs))
                crew._server.process.kill()

        crew.run(jobs, kill)
    assert len(seen) == 2 and all(map(gone, seen))
    assert all(list((job.folder / "checkpoints").glob("step-*")) for job in jobs)  # saved, as if asked to stop


def test_a_server_started_early_serves_where_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_job: Callable[..., Job]
) -> None:
    forkserver.start_early()
    (early,) = forkserver._early
    assert forkserver.take() is early
    early.end()
    forkserver.start_early()
    (early,) = forkserver._early
    monkeypatch.setenv("PARTWISE_CACHE", str(tmp_path / "another"))
    jobs = [new_job(0, 2)]
    with Crew(1) as crew:
        crew.run(jobs, lambda: None)
    assert early.process.poll() is not None  # it would have written to the cache of before
    assert (tmp_path / "another").exists()
