"""One command: its output, its number, time-outs, retries, interrupts, and nothing of it left running."""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from events import write_events
from partwise import machine
from partwise.any_code import command_execution
from partwise.any_code.command_execution import execute, last_line
from partwise.any_code.command_plan import plan_commands
from partwise.any_code.command_workload import CommandWorkload
from partwise.any_code.experiment_file import Metric
from partwise.any_code.numbers import source_files
from partwise.comparison.trials.job import COMMANDS
from partwise.comparison.trials.stored import Outcome, StoredTrial, hash_files, prepare_trial
from partwise.config import ConfigError
from partwise.files import file_sha256
from processes import gone
from programs import PYTHON, TRAIN, expected, experiment


def trial(folder: Path, seed: int = 0, arm: int = 1, **changes: Any) -> StoredTrial:
    (folder / "train.py").write_text(TRAIN)
    made = experiment(**changes)
    plan = plan_commands(made, {}, seeds=2)
    workload = CommandWorkload(made, folder, folder / "c")
    job = workload.job(plan.arms[arm], seed)
    return prepare_trial(
        folder / "c" / "runs" / "1-gain" / f"seed-{seed}",
        plan.arms[arm].name,
        seed,
        job,
        COMMANDS,
        {"cwd": str(folder)},
    )


def script(text: str) -> str:
    return f"{PYTHON} -c '{text}' {{seed}} {{args}}"


def run(made: StoredTrial) -> str:
    (status,) = execute([made.folder], lambda: False)
    return status


def test_a_value_a_curve_and_the_logs(tmp_path: Path) -> None:
    made = trial(tmp_path, seed=3, curve={"from": "{folder}/log.jsonl", "step": "step", "value": "val"})
    assert run(made) == "done"
    found = made.outcome("val loss")
    assert found.value == round(expected(3, 0.1), 6) and found.reason is None
    assert [(step, round(value - found.value, 5), train) for step, value, train in found.evaluations] == [
        (0, 1.0, None),
        (10, 0.5, None),
        (20, 0.0, None),
    ]
    assert "step 20: val loss" in (made.folder / "stdout.txt").read_text()
    assert found.log == "1-gain/seed-3/stdout.txt" or found.log == "runs/1-gain/seed-3/stdout.txt"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"command": script('import sys; sys.exit("CUDA out of memory")')}, "exit status 1: CUDA out of memory"),
        ({"command": script("import sys; sys.exit(7)")}, "exit status 7"),
        ({"command": script("import os; os.abort()")}, "killed by SIGABRT"),
        ({"command": script('print("nothing")')}, r"no match for val loss (\S+) in stdout"),
        ({"command": script('print("val loss nan")')}, "val loss is nan"),
        (
            {"command": "no-such-program {seed} {args}"},
            "exit status 127: cannot start no-such-program: No such file or directory",
        ),
        (
            {"command": script("import time; time.sleep(60)"), "trial": {"minutes": 0.005}},
            "it ran longer than 0.005 minutes",
        ),
    ],
)
def test_a_trial_without_a_value_is_finished_and_says_why(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    made = trial(tmp_path, **changes)
    assert run(made) == f"no value: {reason}"
    found = made.outcome("")
    assert found.value is None and found.reason == reason
    again = trial(tmp_path, **changes)
    assert again.finished and again.status == f"no value: {reason}"


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("import os; os.kill(os.getpid(), 9)", True),
        ("import os; os.kill(os.getpid(), 15)", True),
        ("import os; os.abort()", False),
        ("import sys; sys.exit(137)", True),  # of a shell, or of torchrun
        ("import sys; sys.exit(139)", False),
        ("import sys; sys.exit(9)", False),
        ('import sys; sys.exit("OSError: [Errno 28] No space left on device")', True),
        ('print("val loss nan")', False),
    ],
)
def test_failures_of_the_machine(tmp_path: Path, text: str, machine: bool) -> None:
    made = trial(tmp_path, command=script(text))
    made.status = run(made)
    assert made.has_no_value and bool(made.machine_failure) is machine


def test_retries_keep_every_output(tmp_path: Path) -> None:
    tries = f"{tmp_path.as_posix()}/tries"
    text = (
        f'import os; n = len(os.listdir("{tries}")); open(f"{tries}/{{{{n}}}}", "w"); print(n); '
        'n == 2 and print("val loss 1.5"); raise SystemExit(n != 2)'
    )
    (tmp_path / "tries").mkdir()
    made = trial(tmp_path, command=script(text), trial={"retries": 3})
    assert run(made) == "done"
    assert made.outcome("").value == 1.5
    assert [(made.folder / f"stdout-attempt-{n}.txt").read_text() for n in (1, 2)] == ["0\n", "1\n"]
    assert Outcome.of_job(made.folder, made.job).attempts == 3  # type: ignore[union-attr]


def test_an_interrupt_ends_the_command_and_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_execution, "GRACE_SECONDS", 1.0)
    text = 'import os, subprocess, sys; c = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]); '
    text += "print(os.getpid(), c.pid, flush=True); c.wait()"
    made = trial(tmp_path, command=script(text))
    stop = threading.Event()
    threading.Timer(1.5, stop.set).start()
    assert execute([made.folder], stop.is_set) == ["interrupted"]
    for pid in map(int, (made.folder / "stdout.txt").read_text().split()):
        assert gone(pid)
    assert not (made.folder / "result.json").exists() and not trial(tmp_path, command=script(text)).finished


def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_execution, "GRACE_SECONDS", 0.3)
    text = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); "
    text += "time.sleep(60)"
    made = trial(tmp_path, command=script(text), trial={"minutes": 0.01})
    assert run(made) == "no value: it ran longer than 0.01 minutes"
    assert gone(int((made.folder / "stdout.txt").read_text()))


def test_nothing_is_left_running_after_a_command_ends(tmp_path: Path) -> None:
    text = 'import subprocess, sys; c = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]); '
    text += 'print(c.pid); print("val loss 1")'
    made = trial(tmp_path, command=script(text))
    assert run(made) == "done"
    assert gone(int((made.folder / "stdout.txt").read_text().split()[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: only there a command ends with its worker")
def test_no_command_outlives_a_killed_worker(tmp_path: Path) -> None:
    made = trial(tmp_path, command=script("import os, time; print(os.getpid(), flush=True); time.sleep(60)"))
    worker = os.fork()
    if worker == 0:
        try:
            execute([made.folder], lambda: False)
        finally:
            os._exit(0)
    for _ in range(200):
        if (made.folder / "stdout.txt").exists() and (made.folder / "stdout.txt").read_text():
            break
        time.sleep(0.05)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    assert gone(int((made.folder / "stdout.txt").read_text()))


def test_each_execution_starts_in_an_empty_folder_unless_it_can_resume(tmp_path: Path) -> None:
    for resumable, lines in ((False, 3), (True, 4)):
        place = tmp_path / f"resumable={resumable}"
        place.mkdir()
        made = trial(place, trial={"resumable": resumable})
        (made.folder / "output").mkdir(exist_ok=True)
        (made.folder / "output" / "log.jsonl").write_text("left by an interrupted one\n")
        assert run(made) == "done"
        assert len((made.folder / "output" / "log.jsonl").read_text().splitlines()) == lines
        (made.folder / "result.json").unlink()


def test_threads_follow_the_cores_of_a_trial_unless_the_user_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    text = 'import os; print("val loss", os.environ["OMP_NUM_THREADS"] + os.environ["MKL_NUM_THREADS"])'
    made = trial(tmp_path, command=script(text), trial={"cpus": 2})
    assert run(made) == "done" and made.outcome("").value == 27


def test_a_result_belongs_to_its_job(tmp_path: Path) -> None:
    made, other = trial(tmp_path, seed=1), trial(tmp_path, seed=2)
    assert run(made) == run(other) == "done"
    stolen = (other.folder / "result.json").read_text()
    (made.folder / "result.json").write_text(stolen)
    assert not trial(tmp_path, seed=1).finished
    with pytest.raises(ConfigError, match="is not the result of its job: run the same command again"):
        made.outcome("")
    for damaged in ("", "{", '{"format": 1}', "[1]", stolen.replace('"done"', '"good"')):
        (other.folder / "result.json").write_text(damaged)
        assert not trial(tmp_path, seed=2).finished


CHANGES: dict[str, tuple[str, str, str, str]] = {
    "value": ("result.json", r'("value": )\d', r"\g<1>9", "result.json was changed after it was written"),
    "hash": ("result.json", r',\s*"sha256": "\w+"', "", "result.json lacks its hash"),
    "log": ("stdout.txt", r"step 20: val loss \d", "step 20: val loss 9", "stdout.txt was changed or removed"),
    "file": ("output/log.jsonl", r'20, "val": \d', '20, "val": 9', "log.jsonl was changed or removed"),
}
FROM_FILE = {"name": "val loss", "margin": 0.01, "from": "{folder}/log.jsonl", "value": "val"}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_value_or_what_it_was_read_from_is_refused(kind: str, tmp_path: Path) -> None:
    changes = {"metric": FROM_FILE} if kind == "file" else {}
    made = trial(tmp_path, **changes)
    assert run(made) == "done" and trial(tmp_path, **changes).finished
    name, pattern, new, message = CHANGES[kind]
    text = (made.folder / name).read_text()
    (made.folder / name).write_text(re.sub(pattern, new, text))
    assert (made.folder / name).read_text() != text
    with pytest.raises(ConfigError, match=message) as caught:
        trial(tmp_path, **changes)
    assert "\n" not in str(caught.value) and f"delete {made.folder} to run it again" in str(caught.value)
    with pytest.raises(ConfigError, match=message):
        made.outcome("")
    (made.folder / name).unlink()
    if name == "result.json":
        assert not trial(tmp_path, **changes).finished
    else:
        with pytest.raises(ConfigError, match=message):
            trial(tmp_path, **changes)


def test_a_file_outside_the_folder_of_a_trial_may_be_written_again(tmp_path: Path) -> None:
    text = 'print(1.5, file=open("last.txt", "w"))'
    changes = {"command": script(text), "metric": {**FROM_FILE, "from": "last.txt", "value": None, "pattern": r"(\S+)"}}
    made = trial(tmp_path, **changes)
    assert run(made) == "done"
    (tmp_path / "last.txt").write_text("2.5")
    assert trial(tmp_path, **changes).finished and made.outcome("").value == 1.5


def test_event_files_are_verified(tmp_path: Path) -> None:
    metric = Metric.from_dict({"name": "loss", "margin": 0.01, "from": "tensorboard", "value": "loss"})
    path = write_events(tmp_path / "output" / "logs", {"loss": {0: 1.5}})
    sources = hash_files(tmp_path, source_files(metric, tmp_path, tmp_path, {"folder": str(tmp_path / "output")}))
    assert sources == {path.relative_to(tmp_path).as_posix(): file_sha256(path)}


def test_a_changed_job_is_not_run(tmp_path: Path) -> None:
    made = trial(tmp_path)
    path = made.folder / "job.json"
    path.write_text(path.read_text().replace("--gain=0.1", "--gain=0.2"))
    with pytest.raises(ConfigError, match="was changed: run the comparison again"):
        run(made)


def test_the_last_line_of_a_long_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 10_000 + b"\nlast \xff line\n\n")
    assert last_line(tmp_path / "log") == "last \ufffd line"
    (tmp_path / "log").write_bytes(b"y" * 300)
    assert last_line(tmp_path / "log") == "y" * 120 + "..."


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell")
def test_the_peak_memory_of_a_command_is_measured(tmp_path: Path) -> None:
    """Also that of a process which it starts, and which has ended. The least is that of the process that forks: this one."""
    size = machine.peak_memory() + (200 << 20)
    child = f'import subprocess, sys; subprocess.run([sys.executable, "-c", "len(bytearray([1]) * {size})"]); '
    made = trial(tmp_path, command=script(child + 'print("val loss 1")'))
    assert run(made) == "done"
    assert size < (made.outcome("val loss").peak_memory or 0) < size + (150 << 20)
    small = trial(tmp_path, seed=1, command=script('print("val loss 1")'))
    assert run(small) == "done"
    assert (small.outcome("val loss").peak_memory or 0) < size
