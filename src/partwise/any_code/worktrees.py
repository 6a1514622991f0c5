"""Worktrees of git: each commit that is compared lies in a folder of its own, and the user's checkout is not touched."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from partwise import windows
from partwise.any_code.provenance import git
from partwise.config import ConfigError, read_file
from partwise.config.yaml import show
from partwise.files import link_to, open_file
from partwise.git import missing_objects, run_git, shell
from partwise.quoting import quote

READY = ".partwise-ready"
"""Written once the setup of a worktree has succeeded."""


@dataclass(frozen=True)
class Repository:
    """The repository around a folder; `inside` is that folder within it."""

    root: Path
    inside: Path

    @classmethod
    def around(cls, folder: Path) -> "Repository":
        """Raises ConfigError if the folder is in no repository."""
        root = git(folder, "rev-parse", "--show-toplevel")
        if root is None:
            raise ConfigError(f"{folder} is not in a git repository: arms with `ref` need one")
        path = Path(root.rstrip("\n"))
        if not folder.resolve().is_relative_to(path.resolve()):  # by core.worktree of its configuration
            raise ConfigError(f"{folder} is not in the work tree of its git repository, {show(str(path))}")
        return cls(path, folder.resolve().relative_to(path.resolve()))

    def commit_of(self, ref: str) -> str:
        """The commit that a branch, tag or hash names. Raises ConfigError."""
        found = None if ref.startswith("-") else git(self.root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if not found:
            raise ConfigError(f"ref {show(ref)} is not a commit of {self.root}: give a branch, a tag or a hash")
        return found.strip()

    def tree_of(self, commit: str) -> str:
        return (git(self.root, "rev-parse", "--verify", f"{commit}^{{tree}}") or "").strip()

    def contains(self, commit: str, earlier: str) -> bool:
        """Whether a commit is based on an earlier one."""
        return git(self.root, "merge-base", "--is-ancestor", earlier, commit) is not None

    def commit_tree(self, tree: str, parent: str) -> str:
        """A commit of this tree: the same for the same tree and parent. Raises ConfigError."""
        date = (git(self.root, "show", "--no-patch", "--format=%ct +0000", parent) or "0 +0000").strip()
        who = {f"GIT_{role}_{key}": "partwise" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        message = "Candidate of partwise try"
        done = run_git(self.root, "commit-tree", tree, "-p", parent, "-m", message, variables={**who, **dates})
        if done.returncode:
            raise ConfigError(f"git cannot write a commit to {self.root}: {show(' '.join(done.stderr.split()))}")
        return done.stdout.strip()

    def keep(self, ref: str, commit: str) -> None:
        """Let a ref name a commit, so that git keeps it. Raises ConfigError."""
        done = run_git(self.root, "update-ref", ref, commit)
        if done.returncode:
            raise ConfigError(f"git cannot write {ref}: {show(' '.join(done.stderr.split()))}")

    def changed_modes(self, before: str, after: str) -> list[tuple[str, str]]:
        """The (mode, path) of what one commit adds or changes of another, and of what it removes."""
        raw = git(self.root, "diff-tree", "-r", "-z", "--no-renames", "--raw", before, after) or ""
        fields = raw.split("\0")
        found = []
        for facts, path in zip(fields[::2], fields[1::2], strict=False):
            old, new = facts.removeprefix(":").split()[:2]
            found += [(mode, path) for mode in (old, new)]
        return found

    def difference(self, before: str, after: str) -> str:
        """What changed from one commit to another, as a unified diff."""
        return git(self.root, "diff", "--no-ext-diff", "--no-textconv", "--no-color", before, after) or ""

    def ignored_link_targets(self, share: Sequence[str]) -> list[tuple[Path, Path]]:
        """(path in this checkout, relative path) of what worktrees share. Raises ConfigError."""
        found = []
        for name in share:
            relative = Path(os.path.normpath(name))
            if relative.is_absolute() or ".." in relative.parts:
                raise ConfigError(f"share: {name!r} must be a path within the repository")
            if not (self.root / relative).exists():
                raise ConfigError(f"share: {self.root / relative} does not exist")
            found.append(((self.root / relative).resolve(), relative))
        return found

    def add_worktree(self, folder: Path, commit: str, share: Sequence[str], setup: str | None) -> Path:
        """Check out a commit into `folder`, link what is shared, run the setup once; returns where commands run."""
        folder = folder.resolve()
        if not (folder / READY).exists():
            if folder.exists():
                self.remove_worktree(folder)
            folder.parent.mkdir(parents=True, exist_ok=True)
            done = run_git(self.root, "worktree", "add", "--detach", "--force", str(folder), commit)
            if done.returncode:
                self.explain(commit, done.stderr)
            for target, relative in self.ignored_link_targets(share):
                link = folder / relative
                if link.exists():
                    raise ConfigError(f"share: {relative} is part of commit {commit[:10]}: share only what git ignores")
                link.parent.mkdir(parents=True, exist_ok=True)
                link_to(target, link)
            if setup:
                run_setup(setup, folder / self.inside)
            (folder / READY).touch()
        return folder / self.inside

    def explain(self, commit: str, stderr: str) -> NoReturn:
        """Raise ConfigError for a commit that cannot be checked out."""
        if missing := missing_objects(self.root, commit):
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ConfigError(
                f"{self.root} is a partial clone that lacks objects of commit {commit[:10]}: "
                f"{show(', '.join(missing[:3]))}{more}; nothing is fetched automatically: if you trust its remote, "
                f"`git -C {quote(str(self.root))} archive --output=/dev/null {commit[:10]}` fetches them"
            )
        raise ConfigError(f"cannot create a worktree of {commit[:10]}: {show(' '.join(stderr.split()))}")

    def remove_worktree(self, folder: Path) -> None:
        """Remove a worktree, also one that was interrupted."""
        if sys.platform == "win32":
            windows.remove_junctions(folder)  # else what they lead to could be removed
        if git(self.root, "worktree", "remove", "--force", str(folder)) is None:
            shutil.rmtree(folder, ignore_errors=True)
            git(self.root, "worktree", "prune")


def run_setup(setup: str, cwd: Path) -> None:
    """Run the setup in a worktree with a shell. Raises ConfigError with its last line."""
    log = cwd / "partwise-setup.txt"
    with open_file(log, "wb") as file:
        done = subprocess.run(
            [shell(), "-c", setup],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        lines = read_file(log).decode(errors="replace").strip().splitlines()
        last = f": {show(lines[-1])}" if lines else ""
        raise ConfigError(f"setup {shlex.quote(setup)} ended with status {done.returncode}{last}; its output: {log}")
