"""Workers beside each other: every trial runs once, a killed worker's trials are taken over, pairs keep to one machine."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

import partwise
from partwise.comparison.results import Results
from partwise.comparison.trials.claims import TrialLock, claim, is_claimed, now
from partwise.comparison.trials.shared import is_open
from partwise.comparison.trials.work import Job, Work, describe_workers, find_jobs
from partwise.config import ConfigError
from programs import ARMS, COMMAND, METRIC, write_program


def test_of_many_that_claim_one_gets_it(tmp_path: Path) -> None:
    for round_ in range(20):
        folder = tmp_path / str(round_)
        folder.mkdir()
        barrier = threading.Barrier(8)

        def attempt(_: int, folder: Path = folder, barrier: threading.Barrier = barrier) -> TrialLock | None:
            barrier.wait()
            return claim(folder)

        with ThreadPoolExecutor(8) as pool:
            got = [each for each in pool.map(attempt, range(8)) if each]
        assert len(got) == 1 and got[0].touch() and is_claimed(folder)
        got[0].release()
        assert not is_claimed(folder) and claim(folder)


def test_a_look_at_the_clock_leaves_no_file_whenever_it_is_killed(tmp_path: Path) -> None:
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.update(os.listdir(tmp_path))

    watcher = threading.Thread(target=watch)
    watcher.start()
    times = [now(tmp_path) for _ in range(1000)]
    ended.set()
    watcher.join()
    assert seen == set() and times == sorted(times) and abs(times[-1] - time.time()) < 5


def test_of_many_that_take_over_a_dead_claim_one_gets_it(tmp_path: Path) -> None:
    for round_ in range(20):
        folder = tmp_path / str(round_)
        folder.mkdir()
        dead = claim(folder)
        assert dead and claim(folder) is None
        os.utime(dead.path, (time.time() - 100, time.time() - 100))
        assert not is_claimed(folder)
        barrier = threading.Barrier(8)

        def attempt(_: int, folder: Path = folder, barrier: threading.Barrier = barrier) -> TrialLock | None:
            barrier.wait()
            return claim(folder)

        with ThreadPoolExecutor(8) as pool:
            got = [each for each in pool.map(attempt, range(8)) if each]
        assert len(got) == 1
        assert not dead.touch()  # its owner, if it lives after all, learns that it lost the trial
        dead.release()
        assert got[0].touch() and is_claimed(folder)
        assert sorted(path.name for path in folder.iterdir()) == ["claim-0.json", "claim-1.json"]


def test_a_claim_that_is_touched_is_not_taken_over(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    assert mine
    os.utime(mine.path, (time.time() - 50, time.time() - 50))
    assert mine.touch() and claim(tmp_path, expires=40) is None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shared folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_program(folder)
    return folder


def start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "partwise", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def write_experiment(folder: Path, sleep: float = 0.0) -> None:
    arms = {name: {"args": f"{spec.get('args', '')} --sleep={sleep}"} for name, spec in ARMS.items()}
    (folder / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": arms, "metric": METRIC}))


WORK = """\
import sys
from pathlib import Path
from partwise.comparison.trials import work
from partwise.comparison.trials.work import Work
print(Work(Path(sys.argv[1]), expires=4.0).run())
"""


def worker(folder: Path) -> "subprocess.Popen[str]":
    """A worker that takes over a dead one's trial after some seconds."""
    return subprocess.Popen([sys.executable, "-c", WORK, str(folder)], stdout=subprocess.PIPE, text=True)


def test_four_workers_of_which_one_is_killed(here: Path) -> None:
    write_experiment(here, sleep=0.2)
    shared = start("compare", "e.yaml", "--seeds", "10", "--on", "workers", "--name", "shared")
    wait_for(here, "runs/shared/open-for-workers")
    workers = [worker(here / "runs/shared") for _ in range(4)]
    wait_for(here, "runs/shared/runs/*/seed-*/claim-*.json")
    time.sleep(0.5)
    killed = workers[0]
    killed.send_signal(signal.SIGKILL)
    output, _ = shared.communicate(timeout=120)
    assert shared.returncode == 0, output
    counts = [int(each.communicate(timeout=30)[0].split()[-1]) for each in workers[1:]]
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert sum(counts) <= 20 and all(counts)
    logs = [path.read_text().count("step 20") for path in here.glob("runs/shared/runs/*/seed-*/stdout.txt")]
    assert logs == [1] * 20

    local = start("compare", "e.yaml", "--seeds", "10", "--name", "local")
    output, _ = local.communicate(timeout=120)
    assert local.returncode == 0, output
    found, expected = (Results.from_json(here / f"runs/{name}/results.json") for name in ("shared", "local"))
    assert found.claims == expected.claims


def wait_for(folder: Path, pattern: str) -> None:
    for _ in range(400):
        if list(folder.glob(pattern)):
            return
        time.sleep(0.05)
    pytest.fail(f"{pattern} did not appear")


def test_looks_are_left_to_workers_one_after_the_other(here: Path) -> None:
    write_experiment(here)
    shared = start("compare", "e.yaml", "--looks", "2,4,8", "--on", "workers", "--name", "c")
    wait_for(here, "runs/c/open-for-workers")
    done = start("work", "c").communicate(timeout=60)[0]
    output, _ = shared.communicate(timeout=60)
    assert shared.returncode == 0 and "✓ gain" in output, output
    assert "none are left" in done
    assert len(list(here.glob("runs/c/runs/*/seed-*/result.json"))) in (4, 8)


def prepared(folder: Path) -> Path:
    """A comparison with four open trials, which nobody waits for."""
    write_experiment(folder)
    shared = start("compare", "e.yaml", "--seeds", "2", "--on", "workers", "--name", "c")
    wait_for(folder, "runs/c/runs/1-*/seed-1/job.json")
    shared.send_signal(signal.SIGINT)
    shared.communicate(timeout=30)
    return folder / "runs/c"


def test_a_worker_gives_up_a_trial_that_another_took_over_while_it_was_suspended(here: Path) -> None:
    folder = prepared(here)
    program = here / "train.py"
    program.write_text(f"import os, time\nwhile os.path.exists('wait'): time.sleep(0.05)\n{program.read_text()}")
    (here / "wait").touch()
    events: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(Work(folder, on_event=events.append).run)
        wait_for(folder, "runs/0-base/seed-0/stdout.txt")
        other = folder / "runs/0-base/seed-0/claim-1.json"
        other.touch()
        wait_for_event(events)
        assert events == ["0-base, seed-0: another worker has taken it over while this one was suspended"]
        assert not (other.parent / "result.json").exists()
        (here / "wait").unlink()
        os.utime(other, (0, 0))  # the other one dies, and this one continues
        assert done.result(timeout=60) == 4
    assert len(list(folder.glob("runs/*/seed-*/result.json"))) == 4


def wait_for_event(events: list[str]) -> None:
    for _ in range(400):
        if events:
            return
        time.sleep(0.05)
    pytest.fail("no event")


def test_a_worker_that_cannot_write_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only mount, where the time of its file system cannot be asked either."""
    job = tmp_path / "runs" / "0-base" / "seed-0" / "job.json"
    job.parent.mkdir(parents=True)
    values = {"executed_by": "partwise.comparison.commands.execution", "version": partwise.__version__, "hash": "0"}
    job.write_text(json.dumps(values))

    def read_only(*words: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, read_only)
    monkeypatch.setattr("partwise.comparison.trials.work.write_json", read_only)
    (tmp_path / "open-for-workers").write_text("")
    assert is_open(tmp_path) and not is_open(tmp_path / "runs")
    with pytest.raises(ConfigError, match=f"^cannot write {tmp_path}: Read-only file system: check disk space"):
        Work(tmp_path, imports=()).run()


def test_pairs_keep_to_one_kind_of_machine(here: Path) -> None:
    folder = prepared(here)
    (folder / "runs/0-base/seed-1/worker.json").write_text(json.dumps({"cpu": "another", "host": "b"}))
    events: list[str] = []
    assert Work(folder, on_event=events.append).run() == 2
    assert events[-1] == "2 trials are left for the kind of machine that their pairs began on"
    assert {path.parent.name for path in folder.glob("runs/*/seed-*/result.json")} == {"seed-0"}


def test_of_two_kinds_of_machines_one_gets_the_pair(tmp_path: Path) -> None:
    for round_ in range(20):
        jobs = [Job(tmp_path / str(round_) / "runs" / arm / "seed-3", "") for arm in ("0-base", "1-gain")]
        for job in jobs:
            job.folder.mkdir(parents=True)
        barrier = threading.Barrier(8)

        def attempt(number: int, jobs: list[Job] = jobs, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return jobs[number % 2].settle(f"kind {number}")

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(attempt, range(8)))) == 1
        assert {path.name for path in (tmp_path / str(round_) / "runs").iterdir()} == {
            "0-base",
            "1-gain",
            "seed-3.machine.json",
        }


def test_jobs_of_another_version_or_module_are_not_run(here: Path) -> None:
    folder = prepared(here)
    path = folder / "runs/1-gain/seed-1/job.json"
    original = json.loads(path.read_text())
    assert [job.folder.name for job in find_jobs(folder)] == ["seed-0", "seed-0", "seed-1", "seed-1"]
    for change, message in (
        ({"version": "0.0.1"}, "is of partwise 0.0.1, and this is .*: install the same version everywhere"),
        ({"executed_by": "os"}, "names a module that executes no trials: os"),
    ):
        path.write_text(json.dumps({**original, **change}))
        with pytest.raises(ConfigError, match=message):
            list(find_jobs(folder))
    path.write_text("{")
    assert len(list(find_jobs(folder))) == 3


def test_a_worker_of_other_sources_says_so(here: Path) -> None:
    """A checkout that was changed has the same version."""
    folder = prepared(here)
    for path in folder.glob("runs/1-*/seed-*/job.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "sources": "0" * 64}))
    events: list[str] = []
    assert Work(folder, on_event=events.append).run() == 4
    (told,) = [event for event in events if event.startswith("warning")]
    assert f"the source files of partwise {partwise.__version__} here are not those that started c" in told
    one, other = describe_workers(sorted(folder.glob("runs/*/seed-*")))
    assert one.endswith("): 2 trials") and other.endswith(", other source files of partwise): 2 trials")


@pytest.mark.parametrize("words", [("work", "nothing"), ("compare", "e.yaml", "--on", "moon")])
def test_one_line_for_bad_words(here: Path, words: tuple[str, ...]) -> None:
    write_experiment(here)
    process = start(*words)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 2 and len(output.splitlines()) == 1, output


def test_training_runs_are_left_to_workers(here: Path) -> None:
    from comparisons import TINY

    (here / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    words: list[Any] = ["compare", "mingpt", "ffn=swiglu", "--data", "text.txt", "--seeds", "2", "--failure", "100"]
    words += [word for override in TINY for word in ("--common", override)]
    shared = start(*words, "--on", "workers", "--name", "shared")
    wait_for(here, "runs/shared/open-for-workers")
    done = start("work", "shared").communicate(timeout=120)[0]
    output, _ = shared.communicate(timeout=60)
    assert shared.returncode == 0 and "ran 4 trials here; none are left" in done, output + done
    local = start(*words, "--name", "local")
    output, _ = local.communicate(timeout=120)
    assert local.returncode == 0, output
    found, expected = (Results.from_json(here / f"runs/{name}/results.json") for name in ("shared", "local"))
    assert found.claims == expected.claims


@pytest.mark.parametrize("imports", [(), ("other.py",)])
def test_a_worker_imports_only_what_its_own_command_names(tmp_path: Path, imports: tuple[str, ...]) -> None:
    """The job of a received comparison may name any file."""
    job = tmp_path / "runs" / "0-base" / "seed-0" / "job.json"
    job.parent.mkdir(parents=True)
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    values = {"executed_by": "partwise.comparison.runs.execution", "version": partwise.__version__, "config": {}}
    values |= {"imports": [str(evil)], "metric": "validation_loss"}
    job.write_text(json.dumps(values))
    with pytest.raises(ConfigError) as caught:
        Work(tmp_path, imports=imports).run()
    assert str(caught.value) == f"{job} imports {evil}: if you trust it, add --import {evil}"
    assert not (tmp_path / "ran").exists() and not list(job.parent.glob("claim-*"))
    Work(tmp_path, imports=(str(evil),))._check_imports(Job(job.parent, values["executed_by"]))
