"""A trial of several processes, `trial: {processes: N}`: started as torchrun starts them, ended together, with a log each."""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from partwise.any_code import command_execution
from partwise.any_code.command_execution import execute
from partwise.any_code.command_plan import plan_commands
from partwise.any_code.command_workload import CommandWorkload
from partwise.any_code.experiment_file import TrialLimits
from partwise.comparison.trials.job import COMMANDS
from partwise.comparison.trials.stored import StoredTrial, prepare_trial
from partwise.config import ConfigError
from processes import gone
from programs import experiment

SUM = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("rank", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])
if dist.get_rank() == 0:
    print("val loss", total.item() + float(sys.argv[1]))
dist.destroy_process_group()
"""
FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("cannot read the data")
open("pid", "w").write(str(os.getpid()))
time.sleep(100)
"""
KILLED = """
import os, signal, sys, time
if os.environ["RANK"] == "2":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
"""
WAIT = """
import os, time
open(f"pid-{os.environ['RANK']}", "w").write(str(os.getpid()))
time.sleep(100)
"""


def trial(folder: Path, text: str, **limits: Any) -> StoredTrial:
    (folder / "program.py").write_text(text)
    made = experiment(command=f"{shlex.quote(sys.executable)} program.py {{seed}} {{args}}", trial=limits)
    plan = plan_commands(made, {}, seeds=2)
    job = CommandWorkload(made, folder, folder / "c").job(plan.arms[0], 1)
    return prepare_trial(folder / "c" / "runs" / "a" / "seed-1", "a", 1, job, COMMANDS, {"cwd": str(folder)})


def run(made: StoredTrial) -> str:
    (status,) = execute([made.folder], lambda: False)
    return status


def test_processes_find_each_other_and_the_first_one_says_the_value(tmp_path: Path) -> None:
    made = trial(tmp_path, SUM, processes=3)
    assert run(made) == "done", [path.read_text() for path in made.folder.glob("*.txt")]
    assert made.outcome("").value == 1 + 2 + 3 + 1
    assert (made.folder / "stdout.txt").read_text().startswith("rank 0 of 3\n")
    assert [(made.folder / f"rank-{rank}.txt").read_text() for rank in (1, 2)] == ["rank 1 of 3\n", "rank 2 of 3\n"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FAIL, "rank 1: exit status 1: cannot read the data"),
        (KILLED, "rank 2: killed by SIGKILL, as by a system that is out of memory"),
    ],
    ids=["fails", "killed"],
)
def test_one_that_fails_ends_all(tmp_path: Path, text: str, reason: str) -> None:
    began = time.monotonic()
    assert run(trial(tmp_path, text, processes=3)) == f"no value: {reason}"
    assert time.monotonic() - began < command_execution.GRACE_SECONDS
    if text == FAIL and (tmp_path / "pid").exists():
        assert gone(int((tmp_path / "pid").read_text()))


def test_an_interrupt_and_a_time_limit_end_all(tmp_path: Path) -> None:
    def pids() -> list[int]:
        return [int(path.read_text() or 0) for path in tmp_path.glob("pid-*")]

    (status,) = execute([trial(tmp_path, WAIT, processes=3).folder], lambda: len(pids()) == 3 and all(pids()))
    assert status == "interrupted" and len(pids()) == 3 and all(map(gone, pids()))
    assert run(trial(tmp_path, WAIT, processes=3, minutes=0.02)) == "no value: it ran longer than 0.02 minutes"
    assert all(map(gone, pids()))


def test_a_command_that_cannot_be_started_says_so_once(tmp_path: Path) -> None:
    made = trial(tmp_path, "", processes=2)
    job = json.loads((made.folder / "job.json").read_text())
    assert job["job"]["trial"]["processes"] == 2
    experiment_ = experiment(command="./missing {seed} {args}", trial={"processes": 2})
    plan = plan_commands(experiment_, {}, seeds=2)
    job = CommandWorkload(experiment_, tmp_path, tmp_path / "c").job(plan.arms[0], 1)
    again = prepare_trial(made.folder, "a", 1, job, COMMANDS, {"cwd": str(tmp_path)})
    assert run(again).startswith("no value: exit status 127: cannot start ./missing: ")


def test_cpus_and_gpus_are_those_of_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.any_code.command_workload.cores", lambda: 8)
    monkeypatch.setattr("partwise.any_code.command_workload.visible_devices", lambda: list("abcdefgh"))

    def workload(**limits: Any) -> CommandWorkload:
        return CommandWorkload(experiment(trial=limits), tmp_path, tmp_path / "c")

    made = workload(processes=2, cpus=2, gpus=3)
    assert (made.resources().cpus, made.resources().gpus) == (4, 6) and made.processes(None) == 2
    assert made.executor().gpus == 6
    with pytest.raises(ConfigError, match=r"trial\.cpus=3 for each of trial\.processes=4: this machine has 8"):
        workload(processes=4, cpus=3).executor()
    with pytest.raises(ConfigError, match=r"trial\.gpus=3 for each of trial\.processes=4: this machine has 8 visible"):
        workload(processes=4, gpus=3).executor()
    with pytest.raises(ConfigError, match="processes"):
        workload(processes=0)


def test_a_trial_of_one_process_is_the_job_that_it_was() -> None:
    assert "processes" not in TrialLimits().to_dict() and TrialLimits(processes=2).to_dict()["processes"] == 2
    assert TrialLimits.from_dict(TrialLimits(processes=2).to_dict()).processes == 2
