"""Result files outside `{folder}`: trials that share one run one at a time, and each keeps a copy of what it wrote."""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from partwise.any_code.experiment_file import Experiment, NumberSource
from partwise.any_code.numbers import read_result_file, source_files
from partwise.any_code.template import fill, placeholders
from partwise.config import ConfigError, did_you_mean, digest
from partwise.config.yaml import show
from partwise.files import file_sha256, refuse_links, write_file
from partwise.records import DamagedFileError, read_record
from partwise.run_names import lock_file

COPIES = "result-files"
"""The folder of a trial with copies of the files that it wrote outside `{folder}`."""

STARTED = "started.json"
"""In the folder of a trial: the job that was started there, and which of its files did not exist before."""

POLL_SECONDS = 0.05

S = TypeVar("S", bound=NumberSource)


def check_result_files(experiment: Experiment) -> None:
    """Raise ConfigError unless every path of a result file has known placeholders."""
    settings = {*experiment.settings, *(key for arm in experiment.arms.values() for key in arm.settings)}
    for key, source in experiment.file_sources().items():
        known = {"folder", "seed", "arm", *settings}
        for unknown in sorted(placeholders(source.source) - known):
            raise ConfigError(
                f"{key}.from={show(source.source)}: {{{unknown}}} is unknown{did_you_mean(unknown, known)}; write "
                "{{ for a brace"
            )


def shared_result_file(experiment: Experiment) -> str | None:
    """Why one trial could read the result file of another, and the remedy; None if none can."""
    for key, source in experiment.file_sources().items():
        given = f"{key}.from={show(source.source)}"
        inside = f"let the command write it to {{folder}}, as in {key}.from='{{folder}}/{Path(source.source).name}'"
        if lies_in_folder(source.source):
            continue
        if experiment.trial.resumable:
            return f"{given}: a resumable trial continues from what it left in {{folder}}: {inside}"
        if {"seed", "arm"} <= placeholders(source.source) or in_worktree(source.source, experiment):
            continue
        return f"{given}: trials would read each other's file: {inside}, or put {{seed}} and {{arm}} into its path"
    return None


def lies_in_folder(path: str) -> bool:
    """Whether a path with placeholders is below `{folder}`."""
    values = {name: "/folder" if name == "folder" else "x" for name in placeholders(path)}
    return Path("/folder") in Path(os.path.normpath(fill(path, values))).parents


def in_worktree(path: str, experiment: Experiment) -> bool:
    """Whether every arm has a commit, and the path lies in its worktree, apart from what worktrees share."""
    relative = Path(os.path.normpath(path))
    if relative.is_absolute() or ".." in relative.parts or "folder" in placeholders(path):
        return False
    # `share` is relative to the repository and the path to a folder in it: a name in both is taken for the same
    shared = any(Path(os.path.normpath(each)).parts[-1] in relative.parts for each in experiment.share)
    return not shared and all(arm.ref for arm in experiment.arms.values())


class Stamp(NamedTuple):
    """The state of a file, to see whether it was written since."""

    inode: int
    size: int
    time_ns: int
    sha256: str


def stamp(path: Path) -> Stamp | None:
    """None if there is no such file."""
    if not path.is_file():
        return None
    found = path.stat()
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns, file_sha256(path))


@dataclass
class ResultFiles:
    """The files that the numbers of one trial are read from; `folder` is the trial's, `output` what `{folder}` stands for."""

    folder: Path
    output: Path
    cwd: Path
    values: dict[str, str]
    sources: Sequence[NumberSource]
    before: dict[Path, Stamp | None] = field(default_factory=dict)

    @property
    def outside(self) -> list[Path]:
        """The files outside `{folder}`."""
        found = {path for source in self.sources for path in self._paths(source)}
        return sorted(path for path in found if not self._is_own(path))

    def _paths(self, source: NumberSource) -> list[Path]:
        if source.is_stream:
            return []
        files = source_files(source, self.folder, self.cwd, self.values)
        return [Path(os.path.normpath(path.absolute())) for path in files]

    def _is_own(self, path: Path) -> bool:
        return path.is_relative_to(self.output.resolve())

    @contextlib.contextmanager
    def reserved(self, locks: Path, should_stop: Callable[[], bool]) -> Iterator[bool]:
        """While no other trial writes the files outside `{folder}`; False if asked to stop before that."""
        with contextlib.ExitStack() as held:
            for path in self.outside:
                # every comparison started from one working folder has the same `locks`
                name = f".{digest(str(path.resolve()))[:16]}.lock"
                if not held.enter_context(exclusive(locks / name, should_stop)):
                    yield False
                    return
            yield True

    def start(self, job: str) -> None:
        """Note how the files outside `{folder}` are before the command, without those that an earlier attempt has made."""
        try:
            started = read_record(self.folder / STARTED)
            made = set(started.texts("absent")) if started["job"] == job else set()
        except DamagedFileError:
            made = set()
        for path in self.outside:  # only these: the folder may be from elsewhere and name any file
            if str(path) in made:
                path.unlink(missing_ok=True)
        self.before = {path: stamp(path) for path in self.outside}
        absent = [str(path) for path, found in self.before.items() if found is None]
        write_file(self.folder / STARTED, json.dumps({"job": job, "absent": absent}).encode())

    def remove_made(self) -> None:
        """Remove what a short trial has made outside `{folder}`: the whole trial may write the same beginning."""
        for path, found in self.before.items():
            if found is None:
                path.unlink(missing_ok=True)

    def written(self, source: S) -> S:
        """The source, if the trial wrote it, or the source with the path of its copy in the trial's folder.

        Raises ConfigError if this trial did not write it.
        """
        for path in self._paths(source):
            if self._is_own(path) and not self._is_own(path.resolve()):
                raise ConfigError(
                    f"{path.name} is a link to {path.resolve()}, outside {{folder}}: write the file itself"
                )
            if path in self.before:
                copy = str(self._copy(path)).replace("{", "{{").replace("}", "}}")
                return source.model_copy(update={"source": copy})
        return source

    def _copy(self, path: Path) -> Path:
        """Copy what this trial has written to its folder. Raises ConfigError if it has written nothing."""
        inside = path.relative_to(self.cwd) if path.is_relative_to(self.cwd) else None
        shown, before, now = show(str(inside or path)), self.before[path], stamp(path)
        if now is None:
            raise ConfigError(f"it did not write {shown}")
        if now == before:
            raise ConfigError(f"it did not write {shown}, which has not changed since before the trial")
        content = read_result_file(path, path.name)
        if (
            before
            and 0 < before.size < now.size
            and hashlib.sha256(content[: before.size]).hexdigest() == before.sha256
        ):
            raise ConfigError(
                f"it only added to {shown}, which has values of other trials: let it write to {{folder}}, or "
                "overwrite the file"
            )
        folder = self.folder.resolve() / COPIES
        refuse_links(folder, {".": len(path.parts)})
        copy = folder / (inside or Path(*path.parts[1:]))
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_file(copy, content)
        return copy


def empty_output(folder: Path, output: Path, job: str, resumes: bool) -> None:
    """Empty `{folder}`, unless the same job continues from what it left there. Raises ConfigError."""
    refuse_links(output)
    try:
        same = read_record(folder / STARTED)["job"] == job
    except DamagedFileError:
        same = True
    if not resumes or not same:
        shutil.rmtree(output, ignore_errors=True)
        if output.exists():
            raise ConfigError(f"cannot remove {output}, which has files of an earlier attempt: remove it")
    output.mkdir(exist_ok=True)


@contextlib.contextmanager
def exclusive(path: Path, should_stop: Callable[[], bool]) -> Iterator[bool]:
    """Hold the lock file `path`, which exists only while it is held or awaited; False if asked to stop before that."""
    while (lock := lock_file(path)) is None:
        if should_stop():
            yield False
            return
        time.sleep(POLL_SECONDS)
    try:
        yield True
    finally:
        if sys.platform != "win32":  # where the release removes it
            path.unlink(missing_ok=True)  # those that await it look for a file of this name again
        lock.release()
