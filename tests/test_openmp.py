"""Threads without work sleep soon, in our processes alone, and as the user says where the user has chosen."""

import os
import subprocess
import sys

import pytest

from partwise.any_code.command_execution import environment
from partwise.any_code.experiment_file import TrialLimits
from partwise.openmp import POLICY, WAITING, limit_spinning

pytestmark = pytest.mark.promise


@pytest.mark.parametrize("chosen", [{POLICY: "active"}, {"GOMP_SPINCOUNT": "infinity"}, {"KMP_BLOCKTIME": "200"}])
def test_the_users_choice_stays(chosen: dict[str, str]) -> None:
    found = dict(chosen)
    limit_spinning(found)
    assert found == chosen


def test_the_limit_is_set_before_torch_is_loaded() -> None:
    """`putenv`, and not only `os.environ`: the runtime is not Python."""
    clean = {name: value for name, value in os.environ.items() if name not in (POLICY, *WAITING)}
    shown = "import os; print(*(f'{name}={value}' for name, value in os.environ.items()), sep=chr(10))"
    code = "import partwise, subprocess, sys; assert 'torch' not in sys.modules; "
    code += f'subprocess.run([sys.executable, "-c", {shown!r}], check=True)'
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert {f"{name}={value}" for name, value in WAITING.items()} <= set(done.stdout.splitlines())


def test_commands_of_users_wait_as_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (POLICY, *WAITING):
        monkeypatch.delenv(name, raising=False)
    limit_spinning()
    assert not {*WAITING} & {*environment({}, TrialLimits())}
    assert environment({"KMP_BLOCKTIME": "0"}, TrialLimits())["KMP_BLOCKTIME"] == "0"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert environment({}, TrialLimits())["GOMP_SPINCOUNT"] == "7"
