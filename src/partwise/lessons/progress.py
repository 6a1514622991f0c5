"""Where a reader is in each lesson, from one session to the next. Imports no torch."""

from pathlib import Path

from partwise.json_files import write_json
from partwise.records import DamagedFileError, read_record

PROGRESS_FILE = Path("runs") / "lessons.json"
"""The section at which each lesson was left."""


def read_progress(folder: Path = Path()) -> dict[str, str]:
    """The section by the number of the lesson, or `done`."""
    path = folder / PROGRESS_FILE
    try:
        return {key: str(value) for key, value in read_record(path).items()} if path.exists() else {}
    except DamagedFileError:  # it only says where to begin
        return {}


def write_progress(number: int, section: str) -> None:
    PROGRESS_FILE.parent.mkdir(exist_ok=True)
    write_json(PROGRESS_FILE, {**read_progress(), str(number): section})
