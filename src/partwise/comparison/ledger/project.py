"""The project that a ledger belongs to, and the code that runs in it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partwise.comparison.ledger.chain import Ledger
from partwise.files import PACKAGE, file_hash, sources_hash, working_folder
from partwise.git import run_git
from partwise.version import __version__

LEDGER_FILE = Path("runs") / "ledger.sqlite"


def project_folder(folder: Path | None = None) -> Path:
    """The nearest folder that holds `.git`, from `folder` (by default the current one) upward; else `folder` itself."""
    start = (folder or working_folder()).resolve()
    return next((each for each in (start, *start.parents) if (each / ".git").exists()), start)


def project_ledger(folder: Path | None = None) -> Ledger:
    """The ledger of the project of `folder`: `runs/ledger.sqlite` in the project's folder."""
    return Ledger(project_folder(folder) / LEDGER_FILE)


def code_version(imports: Sequence[str] = ()) -> dict[str, Any]:
    """The package's version, the hash of its sources, its git commit if it is a checkout, and hashes of imported files."""
    root = PACKAGE
    files = {name: file_hash(Path(name)) for name in imports if name.endswith(".py")}
    return {
        "version": __version__,
        "commit": commit_of(root),
        "sources": sources_hash(root),
        "imports": {Path(name).name: found for name, found in files.items()},
    }


def commit_of(root: Path) -> str | None:
    """The commit of the checkout that tracks `root`; None for an installed package or without git."""

    def git(*words: str) -> str | None:
        try:
            done = run_git(root, *words, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # a virtual environment may lie in another project's checkout, which does not track it
    return git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", "__init__.py") is not None else None
