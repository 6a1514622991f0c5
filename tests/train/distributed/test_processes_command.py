"""`train --processes N` and torchrun as a user meets them: resuming, signals, processes that die or hang, bad input."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from comparisons import last_of_each
from partwise.checkpoint import is_sharded, latest_checkpoint, list_checkpoints, step_of
from partwise.config import ConfigError
from partwise.formats.loading import load
from partwise.train.distributed.launcher import GRACE_SECONDS, LOST, TOGETHER, check_cores, wait
from partwise.train.metrics import read_metrics
from partwise.train.run_metadata import read_metadata

SETTINGS = [
    "mingpt",
    "d_model=16",
    "n_layers=1",
    "attention.n_heads=2",
    "context_length=16",
    "train.batch_size=8",
    "train.precision=float32",
    "data=arithmetic",
    "data.train=200",
    "data.validation=20",
    "data.test=20",
    "train.eval_every=4",
    "train.save_every=2",
]
COMMAND = [sys.executable, "-P", "-m", "partwise", "train", *SETTINGS]
NEVER_ENDING = ["train.steps=100000", "train.eval_every=100000", "--name", "run"]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **changes}


def run(folder: Path, *words: str, command: list[str] = COMMAND, **changes: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        last_of_each([*command, *words]),
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=120,
    )


def start(folder: Path, *words: str, **changes: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """A command that has begun to train, and its processes in the order of their ranks."""
    checkpoints, deadline = folder / "runs" / "run" / "checkpoints", time.monotonic() + 90
    earlier = list_checkpoints(checkpoints)
    process = subprocess.Popen(
        last_of_each([*COMMAND, *words]),
        cwd=folder,
        env=environment(**changes),
        stdout=-1,
        stderr=-1,
        text=True,
        process_group=0,
    )
    while list_checkpoints(checkpoints)[-1:] == earlier[-1:]:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {
        pid: re.search(r"\bRANK=(\d+)", Path(f"/proc/{pid}/environ").read_text().replace("\0", " ")) for pid in children
    }
    return process, [int(pid) for pid, rank in sorted(ranks.items(), key=lambda item: int(item[1][1])) if rank]  # type: ignore[index]


def losses(folder: Path, name: str) -> list[float]:
    return [line.get("loss", line.get("validation")) for line in read_metrics(folder / "runs" / name)]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_two_processes_train_the_same_run_and_any_number_resumes_it(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary files"  # a space in the path of the file by which processes find each other
    temporary.mkdir()
    for name, steps in (("one", ["8"]), ("two", ["8"])):
        number = ["--processes", "2", "train.parallel=fsdp"] if name == "two" else []
        done = run(tmp_path, f"train.steps={steps[0]}", "--name", name, *number, TMPDIR=str(temporary))
        assert done.returncode == 0, done.stderr
    assert "2 processes (fsdp) x 1 thread," in done.stdout and done.stdout.count("step 8: validation loss") == 1
    assert "step 8: validation loss" in (tmp_path / "runs/two/ranks/1.log").read_text()
    assert losses(tmp_path, "two") == pytest.approx(losses(tmp_path, "one"), rel=1e-5)
    assert read_metadata(tmp_path / "runs/two")["processes"] == 2
    # each process has saved its shard; the end of the run is whole
    older, newest = list_checkpoints(tmp_path / "runs/two/checkpoints")
    assert is_sharded(older) and not is_sharded(newest) and (older / "model-shard-00002-of-00002.safetensors").exists()
    load(older)
    # both folders are ordinary runs: another number of processes continues from an earlier checkpoint to the same end
    for name, number, old in (("one", ["--processes", "2"], 1), ("two", [], 2)):
        folder = tmp_path / "runs" / name
        newest = list_checkpoints(folder / "checkpoints")[-1]
        for file in newest.iterdir():
            file.unlink()
        newest.rmdir()
        done = run(tmp_path, "train.steps=8", "--name", name, *number)
        assert done.returncode == 0 and "resuming after step 6" in done.stdout, done.stderr
        assert done.stderr.count(f"resuming with processes {3 - old} instead of {old}") == 1
    assert losses(tmp_path, "two") == pytest.approx(losses(tmp_path, "one"), rel=1e-5)
    model, _ = load(tmp_path / "runs/two")
    assert (
        sum(parameter.numel() for parameter in model.parameters()) == read_metadata(tmp_path / "runs/two")["parameters"]
    )


@pytest.mark.long
def test_bad_input_is_one_line_of_the_first_process(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "used").write_text("in the way")
    for words, message in (
        (["train.batch_size=1"], "2 processes need at least 2 rows per micro-batch, but train.batch_size=1 "),
        (["train.parallel=tensor"], "train.parallel"),
        (["train.compile=true"], "train.compile=true does not support 2 processes: leave it out, or start one process"),
        (["--name", "used"], "used"),
    ):
        done = run(tmp_path, "train.steps=2", "--processes", "2", *words)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    # the run of one process is unchanged when two cannot continue it
    assert run(tmp_path, "train.steps=2", "train.batch_size=1", "--name", "one").returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "runs/one").rglob("*") if path.is_file()}
    done = run(tmp_path, "train.steps=2", "train.batch_size=1", "--name", "one", "--processes", "2")
    assert done.returncode == 2 and "2 processes need at least 2 rows" in done.stderr and done.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in (tmp_path / "runs/one").rglob("*") if path.is_file()} == before
    done = run(tmp_path, "--processes", "2", PARTWISE_PROCESS_TIMEOUT="soon")
    assert done.returncode == 2 and done.stderr.startswith("error: PARTWISE_PROCESS_TIMEOUT=soon: set it to")


def test_far_more_processes_than_cores_are_not_started(tmp_path: Path) -> None:
    cores = os.cpu_count() or 1
    done = run(tmp_path, "--processes", str(1000 * cores))
    most = f"this machine has {cores} cores; start at most {4 * cores} processes"
    assert (done.returncode, done.stderr) == (2, f"error: --processes {1000 * cores}: {most}\n")
    check_cores(4 * cores)


class Ended:
    """A child process that has ended."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode

    def poll(self) -> int:
        return self.returncode


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([0, 0], 0),
        ([143, 143], 143),
        ([2, TOGETHER], 2),
        ([2, LOST], 2),  # the first has said why, and a message to the other was lost
        ([1, LOST], 1),
        ([LOST, 2], "rank 1 ended with status 2: ranks/1.log in the run's folder says why"),
        ([LOST, -9], r"rank 1 was ended by SIGKILL \(out of memory\?\)"),
        ([LOST, LOST], "a process did not answer in time"),
    ],
)
def test_the_launcher_says_who_failed(statuses: list[int], expected: int | str) -> None:
    children: Any = [Ended(status) for status in statuses]
    if isinstance(expected, int):
        assert wait(children) == expected
        return
    with pytest.raises(ConfigError, match=expected):
        wait(children)


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("rank", [0, 1, None])
def test_a_signal_to_any_process_saves_and_ends_all(tmp_path: Path, rank: int | None, parallel: str) -> None:
    words = [*NEVER_ENDING, f"train.parallel={parallel}", "--processes", "2"]
    process, ranks = start(tmp_path, *words)
    os.kill(process.pid if rank is None else ranks[rank], signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "everything is saved. To resume:" in output, errors
    assert errors == "" and all(map(gone, ranks))
    step = int(re.search(r"stopped after step (\d+)", output)[1])  # type: ignore[index]
    assert (
        json.loads((list_checkpoints(tmp_path / "runs/run/checkpoints")[-1] / "state.json").read_text())["step"] == step
    )
    process, ranks = start(tmp_path, *words)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and f"resuming after step {step}" in output


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_all(tmp_path: Path, rank: int) -> None:
    process, ranks = start(tmp_path, *NEVER_ENDING, "--processes", "2")
    os.kill(ranks[rank], signal.SIGKILL)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and errors.count("\n") == 1
    assert time.monotonic() - began < GRACE_SECONDS + 5  # docs/processes.md
    assert f"rank {rank} was ended by SIGKILL (out of memory?): run the same command again to resume" in errors
    assert all(map(gone, ranks))


@pytest.mark.long
def test_shards_survive_a_process_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    """Most of the time is spent in saves; after each kill, the newest checkpoint is whole and training continues from it."""
    words = ["train.steps=100", "train.eval_every=100", "train.save_every=1", "train.parallel=fsdp", "--name", "run"]
    moments, steps, cut_off = random.Random(0), [0], 0
    checkpoints = tmp_path / "runs/run/checkpoints"
    for _ in range(6):
        process, ranks = start(tmp_path, *words, "--processes", "2")
        time.sleep(moments.uniform(0, 0.5))
        os.kill(moments.choice(ranks), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2 and "was ended by SIGKILL" in errors and errors.count("\n") == 1, errors
        newest, problems = latest_checkpoint(checkpoints)
        assert newest is not None and not problems and is_sharded(newest)
        assert step_of(newest) > steps[-1]
        steps.append(step_of(newest))
        cut_off += bool(list(checkpoints.glob(".step-*")))
    assert cut_off  # some save was unfinished
    done = run(tmp_path, *words)
    assert done.returncode == 0 and f"resuming after step {steps[-1]}" in done.stdout, done.stderr
    assert not list(checkpoints.glob(".step-*"))
    assert run(tmp_path, "train.steps=100", "train.eval_every=100", "--name", "one").returncode == 0
    assert losses(tmp_path, "run") == pytest.approx(losses(tmp_path, "one"), rel=1e-3)


@pytest.mark.long
def test_a_process_that_hangs_ends_all(tmp_path: Path) -> None:
    process, ranks = start(tmp_path, *NEVER_ENDING, "--processes", "2", PARTWISE_PROCESS_TIMEOUT="5")
    os.kill(ranks[1], signal.SIGSTOP)
    began = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and "rank 1 did not answer in time: run the same command again" in errors, errors
    assert time.monotonic() - began < 90 and all(map(gone, ranks))


@pytest.mark.long
def test_processes_end_with_the_launcher(tmp_path: Path) -> None:
    process, ranks = start(tmp_path, *NEVER_ENDING, "--processes", "2")
    process.kill()
    process.communicate(timeout=60)
    assert all(map(gone, ranks))
    assert "everything is saved" in (tmp_path / "runs/run/ranks/1.log").read_text()


def torchrun(*words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        *words,
        "-m",
        "partwise",
        "train",
        *SETTINGS,
    ]


@pytest.mark.long
def test_torchrun_starts_processes_again(tmp_path: Path) -> None:
    """A process is killed; torchrun restarts all, which resume from the last checkpoint and end as an undisturbed run."""
    words = ["train.steps=1000", "train.eval_every=1000", "--name", "run"]
    process = subprocess.Popen(
        [*torchrun("--standalone", "--max-restarts", "1"), *words],
        cwd=tmp_path,
        env=environment(),
        stdout=-1,
        stderr=-1,
        text=True,
    )
    while not list_checkpoints(tmp_path / "runs/run/checkpoints"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0 and "resuming after step" in output, errors
    assert run(tmp_path, "train.steps=1000", "train.eval_every=1000", "--name", "one").returncode == 0
    assert losses(tmp_path, "run")[-1] == pytest.approx(losses(tmp_path, "one")[-1], rel=1e-3)


@pytest.mark.long
def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(
            tmp_path,
            "--name",
            "run",
            RANK="0",
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            LOCAL_RANK="0",
        )
    assert done.returncode == 2 and done.stderr.startswith(f"error: port {port} is in use"), done.stderr
