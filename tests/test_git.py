"""Git runs no program that the configuration of a received repository names."""

import subprocess
from pathlib import Path

import pytest

from partwise.comparison.commands.environment import describe_code
from partwise.comparison.commands.worktrees import Repository
from partwise.comparison.ledger import project


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", str(folder), *settings, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A repository with a changed file, whose configuration names a program wherever it can."""
    folder, script = tmp_path / "repository", tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\ncat\n")
    script.chmod(0o755)
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "__init__.py").write_text("1\n")
    (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "__init__.py").write_text("2\n")
    (folder / "hooks").mkdir()
    (folder / "hooks" / "post-checkout").symlink_to(script)
    for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "core.sshCommand"):
        git(folder, "config", key, str(script))
    for key in ("diff.external", "diff.evil.textconv", "diff.evil.command", "core.pager", "gpg.program"):
        git(folder, "config", key, str(script))
    git(folder, "config", "core.hooksPath", str(folder / "hooks"))
    git(folder, "config", "filter.evil.required", "true")
    return folder


def test_no_git_command_runs_a_program_of_the_repository(hostile: Path, tmp_path: Path) -> None:
    code = describe_code(hostile, [])
    repository = Repository.around(hostile)
    commit = repository.commit_of("HEAD")
    assert code["commit"] == commit == project.commit_of(hostile) and code["uncommitted"]
    assert repository.difference(commit, commit) == ""
    worktree = repository.add_worktree(tmp_path / "worktree", commit, [], None)
    assert (worktree / "__init__.py").read_text() == "1\n"
    repository.remove_worktree(tmp_path / "worktree")
    assert not (tmp_path / "ran").exists()


def test_the_programs_would_run(hostile: Path, tmp_path: Path) -> None:
    """Without this, a misspelled setting would let the test above pass."""
    subprocess.run(["git", "-C", str(hostile), "diff", "HEAD"], capture_output=True, check=False, timeout=20)
    assert (tmp_path / "ran").exists()
