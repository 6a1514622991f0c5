"""Candidates of a search: a commit, a patch or a command, as a commit with the fixed files of the best.

A candidate is never checked out to be made: a patch is applied, and fixed files are restored, in an index of its own.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal

from partwise.any_code.template import placeholders, split_words
from partwise.any_code.worktrees import Repository
from partwise.config import ConfigError, did_you_mean, digest, read_file
from partwise.config.yaml import show
from partwise.git import run_git

Kind = Literal["commit", "patch", "command"]

LINK, SUBMODULE = "120000", "160000"
"""Modes of git for what a worktree would have outside itself."""

MAX_PATCH = 16 * 2**20
"""Bytes."""

LITERAL = {"GIT_LITERAL_PATHSPECS": "1"}


@dataclass(frozen=True)
class Given:
    """What the user asks to try, before it meets the best."""

    kind: Kind
    text: str
    content: str
    """The hash of a commit or of a patch's content, or the command."""

    @property
    def key(self) -> str:
        """The same for the same candidate, whatever its file or branch is called."""
        return digest([self.kind, self.content])


@dataclass(frozen=True)
class Candidate:
    """A commit and a command to run."""

    commit: str
    """With the best's fixed files; the given commit if it has those."""
    command: str
    notes: tuple[str, ...] = ()


def parse_candidate(text: str, repository: Repository) -> Given:
    """A command has `{seed}`, a patch is a file, and all else names a commit. Raises ConfigError."""
    file = Path(text)
    if is_file(file):
        content = read_patch(file)
        check_patch(content, text)
        return Given("patch", text, hashlib.sha256(content).hexdigest())
    if "{seed}" in text:
        check_command(text)
        return Given("command", text, text)
    try:
        return Given("commit", text, repository.commit_of(text))
    except ConfigError:
        raise ConfigError(
            f"{show(text)} is no commit, no patch file and no command: give a branch, a tag or a hash, the path of a file "
            "that `git diff` wrote, or a command with {seed}"
        ) from None


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a command that is too long for a name
        return False


def check_command(command: str) -> None:
    """Raise ConfigError unless a command can be run with a seed."""
    check_known(command)
    if "seed" not in placeholders(command):
        raise ConfigError(
            f"{show(command)} has no {{seed}}, so all its runs would be the same: add it, as in --seed={{seed}}"
        )


def check_known(command: str) -> None:
    """Raise ConfigError for words that cannot be split, and for another placeholder than `{seed}` and `{folder}`."""
    if unknown := sorted(placeholders(command) - {"seed", "folder"}):
        raise ConfigError(
            f"{show(command)}: {{{unknown[0]}}} is unknown{did_you_mean(unknown[0], ('seed', 'folder'))}; write "
            f"{{{{{unknown[0]}}}}} for text in braces"
        )
    split_words(command)


def read_patch(file: Path) -> bytes:
    try:
        return read_file(file, MAX_PATCH)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None


def check_patch(content: bytes, name: str) -> None:
    """Raise ConfigError for a patch that leaves the repository, or makes a link or a submodule."""
    if not content.strip():
        raise ConfigError(f"{name} is empty: write the change with `git diff > {name}`")
    lines = list(headers(content.decode("utf-8", errors="replace")))
    if not any(map(paths_of, lines)):
        raise ConfigError(f"{name} is no patch: write the change with `git diff > {name}`")
    for line in lines:
        found = re.match(r"(?:new|deleted|old)(?: file)? mode (\d+)|index \S+ (\d+)$", line)
        mode = (found[1] or found[2]) if found else None
        if mode in (LINK, SUBMODULE):
            raise ConfigError(f"{name} changes a {kind_of(mode)}, which is refused: a candidate changes files alone")
        for path in paths_of(line):
            if is_outside(path):
                raise ConfigError(
                    f"{name} writes {show(path)}, outside the repository: give paths within it, as `git diff` does"
                )


def headers(text: str) -> Iterator[str]:
    """The lines of a patch that are no content of a file."""
    left = [0, 0]
    for line in text.splitlines():
        if max(left) > 0:  # within a hunk
            left[0] -= line[:1] in (" ", "-", "")
            left[1] -= line[:1] in (" ", "+", "")
            continue
        if hunk := re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line):
            left = [int(1 if count is None else count) for count in hunk.groups()]
            continue
        yield line


def paths_of(line: str) -> list[str]:
    """The paths that a header names, without `a/` and `b/`."""
    if line.startswith("diff --git "):
        words = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line.removeprefix("diff --git "))
        return [re.sub(r'^"?[ab]/', "", word).strip('"') for word in words]
    found = re.match(r"(?:---|\+\+\+) ([^\t]+)", line)
    if found:
        path = found[1].strip('"')
        return [] if path == "/dev/null" else [re.sub(r"^[ab]/", "", path)]
    found = re.match(r"(?:rename|copy) (?:from|to) (.+)", line)
    return [found[1].strip('"')] if found else []


def is_outside(path: str) -> bool:
    windows = PureWindowsPath(path)
    return bool(
        PurePosixPath(path).is_absolute() or windows.drive or windows.root or {"..", ".git"} & set(windows.parts)
    )


def make_candidate(given: Given, repository: Repository, best: Candidate, fixed: Sequence[str]) -> Candidate:
    """The commit and command to try against the best. Raises ConfigError."""
    if given.kind == "command":
        if given.content == best.command:
            raise ConfigError(f"{show(given.text)} equals the command of the best, so there is nothing to try")
        return Candidate(best.commit, given.content)
    base = given.content if given.kind == "commit" else best.commit
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        index = Index(repository, Path(folder) / "index")
        index.read(base)
        if given.kind == "patch":
            index.apply(Path(given.text))
        tree = index.tree()
        if fixed:
            index.restore(best.commit, fixed)
            changed, tree = tree, index.tree()
            if tree != changed:
                notes.append(f"its changes to fixed files ({', '.join(fixed)}) are left out")
    commit = base if tree == repository.tree_of(base) else repository.commit_tree(tree, base)
    if tree == repository.tree_of(best.commit):
        raise ConfigError(
            f"{show(given.text)} equals the best, {best.commit[:10]}, so there is nothing to try"
            f"{': ' + notes[0] if notes else ''}; changes that are not committed are not tried: commit them, or give "
            "`git diff` as a patch"
        )
    check_modes(repository, best.commit, commit, given.text)
    if given.kind == "commit" and not builds_on(repository, given.content, best.commit, fixed):
        notes.append("it does not build on the best, so keeping it would drop what was kept before")
    return Candidate(commit, best.command, tuple(notes))


def builds_on(repository: Repository, commit: str, best: str, fixed: Sequence[str]) -> bool:
    """Whether a commit is based on the best, or on the commit that became it without its changes to fixed files."""
    if repository.contains(commit, best):
        return True
    before = f"{best}^"
    changed = [PurePosixPath(path) for _, path in repository.changed_modes(before, best)]
    kept = {PurePosixPath(path) for path in fixed}
    return repository.contains(commit, before) and all(kept & {path, *path.parents} for path in changed)


def check_modes(repository: Repository, best: str, commit: str, name: str) -> None:
    """Raise ConfigError if the candidate adds or changes a link or a submodule."""
    for mode, path in repository.changed_modes(best, commit):
        if mode in (LINK, SUBMODULE):
            raise ConfigError(
                f"{show(name)} changes the {kind_of(mode)} {show(path)}, which is refused: a candidate changes files alone"
            )


def kind_of(mode: str) -> str:
    return "symbolic link" if mode == LINK else "submodule"


def check_fixed(repository: Repository, commit: str, fixed: Sequence[str]) -> tuple[str, ...]:
    """The paths of fixed files, relative to the repository. Raises ConfigError for one that the commit lacks."""
    found = []
    for name in fixed:
        if is_outside(name):
            raise ConfigError(f"--fixed {name}: give a path within the repository")
        path = (repository.inside / name).as_posix()
        listed = run_git(repository.root, "ls-tree", "--name-only", commit, "--", path, variables=LITERAL)
        if listed.returncode or not listed.stdout.strip():
            raise ConfigError(
                f"--fixed {name}: {commit[:10]} has no such file or folder: commit it; --share links what git ignores"
            )
        found.append(path)
    return tuple(found)


@dataclass(frozen=True)
class Index:
    """An index of git apart from the user's own."""

    repository: Repository
    path: Path

    def git(self, *words: str) -> str:
        """Raises ConfigError with the last line of git's complaint."""
        done = run_git(self.repository.root, *words, variables={**LITERAL, "GIT_INDEX_FILE": str(self.path)})
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise ConfigError(show(lines[0].removeprefix("error: ") if lines else f"git {words[0]} failed"))
        return done.stdout.strip()

    def read(self, commit: str) -> None:
        self.git("read-tree", commit)

    def apply(self, patch: Path) -> None:
        try:
            self.git("apply", "--cached", "--whitespace=nowarn", str(patch.resolve()))
        except ConfigError as error:
            raise ConfigError(f"{patch} does not apply to the best: {error}") from None

    def restore(self, commit: str, paths: Sequence[str]) -> None:
        self.git("reset", "--quiet", commit, "--", *paths)

    def tree(self) -> str:
        return self.git("write-tree")
