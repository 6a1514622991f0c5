"""`verify`: check a certificate, without importing torch unless trials are repeated."""

from collections.abc import Sequence
from pathlib import Path

import typer

from partwise.cli.terminal import console
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import Check, verify

LIMITS = (
    "this shows that the verdicts follow from the values by the stated protocol; not that the values come from training, "
    "nor that no other comparison was run: --rerun repeats trials, and `partwise ledger` lists comparisons"
)


def verify_certificate(file: Path) -> None:
    """Print for every statement of a certificate whether it holds. Exits with 1 if one does not. Raises ConfigError."""
    certificate = Certificate.read(file)
    console.print(f"{certificate.name}: {certificate.question}", style="bold", markup=False)
    report(verify(certificate))
    console.print(LIMITS)


def report(checks: Sequence[Check]) -> None:
    for check in checks:
        mark = "✓" if check.fault is None else "✕"
        console.print(f"{mark} {check.statement}" + (f": {check.fault}" if check.fault else ""), markup=False)
    if any(check.fault for check in checks):
        raise typer.Exit(1)
