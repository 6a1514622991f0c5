"""The quantities that can be matched between arms, and how closely they must agree."""

from typing import Literal

from partwise.config import ConfigError

Measure = Literal["tokens", "parameters", "flops", "seconds"]

TOLERANCE = 0.01
"""Arms are matched if they agree within this fraction of the baseline."""


def check_residual(measure: Measure, arm: str, setting: str, residual: float, remedy: str) -> None:
    """Raise ConfigError if an arm still differs by too much at the nearest value of the setting that matches it."""
    if abs(residual) > TOLERANCE:
        raise ConfigError(
            f"--match {measure}: {arm} still differs by {residual:+.1%} at the nearest {setting}, more than {TOLERANCE:.0%}: "
            f"use {remedy}"
        )
