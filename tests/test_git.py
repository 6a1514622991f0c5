"""Git runs no program that the configuration of a received repository names."""

import subprocess
from pathlib import Path

import pytest

from partwise.any_code.provenance import describe_code
from partwise.any_code.worktrees import Repository
from partwise.comparison.ledger import project
from partwise.config import ConfigError
from partwise.git import OFFLINE
from repositories import git


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A repository with a changed file and a program in every setting that can name one."""
    folder, script = tmp_path / "repository", tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\ncat\n")
    script.chmod(0o755)
    folder.mkdir()
    git("init", "-q", folder=folder)
    (folder / "__init__.py").write_text("1\n")
    (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
    git("add", ".", folder=folder)
    git("commit", "-qm", "first", folder=folder)
    (folder / "__init__.py").write_text("2\n")
    (folder / "hooks").mkdir()
    (folder / "hooks" / "post-checkout").symlink_to(script)
    for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "core.sshCommand"):
        git("config", key, str(script), folder=folder)
    for key in ("diff.external", "diff.evil.textconv", "diff.evil.command", "core.pager", "gpg.program"):
        git("config", key, str(script), folder=folder)
    git("config", "core.hooksPath", str(folder / "hooks"), folder=folder)
    git("config", "filter.evil.required", "true", folder=folder)
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


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    """A partial clone that lacks a file of its first commit, and whose remote is a program."""
    folder = tmp_path / "partial clone"
    folder.mkdir()
    git("init", "-q", folder=folder)
    for content in ("1\n", "2\n"):
        (folder / "train.py").write_text(content)
        git("add", ".", folder=folder)
        git("commit", "-qm", content, folder=folder)
    missing = git("rev-parse", "HEAD~1:train.py", folder=folder)
    (folder / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    settings = {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "protocol.ext.allow": "always",
    }
    settings |= {"remote.origin.promisor": "true", "remote.origin.url": f"ext::sh -c touch% {tmp_path / 'ran'}"}
    for key, value in settings.items():
        git("config", key, value, folder=folder)
    return folder


@pytest.mark.parametrize("version", ["this", "older"])
def test_nothing_is_fetched_and_what_is_missing_is_named(
    partial: Path, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == "older":  # than the variable
        monkeypatch.delitem(OFFLINE, "GIT_NO_LAZY_FETCH")
    repository = Repository.around(partial)
    first, last = repository.commit_of("HEAD~1"), repository.commit_of("HEAD")
    with pytest.raises(
        ConfigError, match=rf"lacks objects of commit {first[:10]}: train.py \([0-9a-f]{{10}}\); nothing is"
    ):
        repository.add_worktree(tmp_path / "worktree", first, [], None)
    assert repository.difference(first, last) == "" and describe_code(partial, [])["uncommitted"] is None
    git("update-ref", "--no-deref", "HEAD", first, folder=partial)  # now the index differs from it
    assert describe_code(partial, [])["uncommitted"] == "unknown"
    assert project.commit_of(partial) is None  # no package
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "-C", str(partial), "show", "HEAD:train.py"], capture_output=True, check=False, timeout=20)
    assert (tmp_path / "ran").exists()  # else a misspelled setting would let this test pass


def test_a_work_tree_elsewhere_is_refused(partial: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    git("config", "core.worktree", str(tmp_path / "elsewhere"), folder=partial)
    with pytest.raises(ConfigError, match="is not in the work tree of its git repository"):
        Repository.around(partial)


def test_the_programs_would_run(hostile: Path, tmp_path: Path) -> None:
    """Without this, a misspelled setting would let the test above pass."""
    subprocess.run(["git", "-C", str(hostile), "diff", "HEAD"], capture_output=True, check=False, timeout=20)
    assert (tmp_path / "ran").exists()
