"""The outcome of a run, read from its folder."""

from pathlib import Path

import pytest

from partwise.comparison.runs.outcome import read_outcome
from partwise.config import ConfigError


def test_a_result_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"result\.json is gone: .* run the same command again$"):
        read_outcome(tmp_path, 0, 6)
