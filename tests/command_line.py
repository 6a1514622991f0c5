"""The program in this process, as a terminal calls it."""

import sys

import pytest

from partwise.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit status of `partwise WORDS`."""
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)
