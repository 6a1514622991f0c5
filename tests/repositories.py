"""Git, as tests call it: without a name or a signature of this user's, and skipped where there is no git."""

import shutil
import subprocess
from pathlib import Path

import pytest

SETTINGS = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]


def git(*words: str, folder: Path | None = None) -> str:
    """What git prints in a folder, that of the test unless one is given. Raises CalledProcessError."""
    if shutil.which("git") is None:
        pytest.skip("git is missing")
    done = subprocess.run(["git", *SETTINGS, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
