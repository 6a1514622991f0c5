"""examples/agents: the loop, the skill file and every step of the workflow, with the toy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from partwise.comparison.search.rule import Design
from repositories import git

AGENTS = Path(__file__).parents[1] / "examples" / "agents"


def test_the_loop_keeps_what_helps(tmp_path: Path) -> None:
    """The first of its changes does nothing, the second helps."""
    line = [sys.executable, str(AGENTS / "loop.py"), "--changes", "2"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [re.split(r"  +", row) for row in done.stdout.splitlines()]
    assert [row[1:3] for row in rows[1:3]] == [["nothing", "discard"], ["helps", "keep"]]
    assert done.stdout.endswith("29 runs in all, 2 changes, 1 kept\n")
    assert (
        "LR = 0.1\n" in (tmp_path / "train.py").read_text() and "INIT_SD = 0.1\n" in (tmp_path / "train.py").read_text()
    )
    table = (tmp_path / "runs/toy/results.tsv").read_text().splitlines()
    assert table[0].split("\t") == ["commit", "val_loss", "memory_gb", "status", "description", "mean_of_runs"]
    assert [row.split("\t")[3:] for row in table[1:]] == [
        ["keep", "start: start", "16"],
        ["discard", "zeros as initial weights", "1"],
        ["keep", "twice the learning rate", "4"],
    ]


def test_the_skill_file_names_options_and_statuses_that_exist() -> None:
    from typer.main import get_command

    from partwise.cli import app
    from partwise.cli.commands.try_candidate import STATUS

    _, head, text = (AGENTS / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    facts = yaml.safe_load(head)
    design = Design()
    assert f"runs the start {design.pool} times" in text
    assert f"to {design.most_runs}, and {design.promotion} more after a keep" in text
    assert facts.keys() == {"name", "description"} and re.fullmatch(r"[a-z0-9-]{1,64}", facts["name"])
    assert len(facts["description"]) <= 1024
    command: Any = get_command(app)
    options = {option for each in command.commands["try"].params for option in each.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text)) - {"--hard", "--seed"} <= options
    assert dict(re.findall(r"^\| (\d) \| (keep|discard|undecided) \|", text, re.MULTILINE)) == {
        str(status): decision for decision, status in STATUS.items()
    }


def test_every_step_of_the_workflow_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a change that harms: it is tried, told, and fails the check. `pip` is a stand-in that notes its words."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "prepare.py"):
        shutil.copy(AGENTS / name, name)
    Path(".gitignore").write_text("runs\n__pycache__\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=base")
    program = Path("train.py")
    program.write_text(program.read_text().replace("STEPS = 100", "STEPS = 50"))
    git("commit", "--quiet", "--all", "--message=half the steps")
    stand_in = tmp_path / "bin" / "pip"
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!/bin/sh\necho $* > {tmp_path}/installed\n")
    stand_in.chmod(0o755)

    (job,) = yaml.safe_load((AGENTS / "workflow.yml").read_text(encoding="utf-8"))["jobs"].values()
    github = {
        "github.event.pull_request.base.sha": git("rev-parse", "HEAD~1"),
        "github.event.pull_request.head.sha": git("rev-parse", "HEAD"),
    }

    def filled(variables: dict[str, str]) -> dict[str, str]:
        return {
            name: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: github[found[1]], text) for name, text in variables.items()
        }

    environment = {
        **os.environ,
        **filled(job["env"]),
        "MINUTES": "0.05",
        "PATH": os.pathsep.join([str(stand_in.parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    statuses = []
    for step in job["steps"]:
        if "run" in step:
            assert "${{" not in step["run"], "a value that others choose would be run by the shell"
            own = filled(step.get("env", {}))
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]], env={**environment, **own}, capture_output=True, text=True
            )
            statuses.append(done.returncode)
            assert done.returncode == 0 or step is job["steps"][-1], done.stderr
            if "id" in step:
                github |= {
                    f"steps.{step['id']}.outputs.{name}": value
                    for name, value in (line.split("=", 1) for line in Path("output").read_text().splitlines())
                }
    assert statuses == [0, 0, 0, 1] and Path("installed").read_text() == "install partwise\n"
    assert Path("summary").read_text().startswith("**discard**: its first run does not look better")
