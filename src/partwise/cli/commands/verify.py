"""`verify`: check a certificate, without importing torch unless trials are repeated."""

from collections.abc import Sequence
from pathlib import Path

import typer

from partwise.cli.terminal import console
from partwise.comparison.certificate.agreement import check_folder
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import VerifiedPart, verify
from partwise.messages import times

LIMITS = (
    "this shows that the verdicts follow from the values under the stated protocol. It does not show that the values come "
    "from training, or that no other comparison was run: --rerun repeats trials, and `partwise ledger` lists comparisons"
)


def verify_certificate(file: Path, trials: int, imports: Sequence[str]) -> None:
    """Print for every statement of a certificate whether it holds, and repeat some of its trials.

    Exits with 1 if one does not hold. Raises ConfigError.
    """
    certificate = Certificate.read(file)
    console.print(f"{certificate.name}: {certificate.question}", style="bold", markup=False)
    checks = [*verify(certificate), *(check_folder(certificate, file) if file.is_dir() else ())]
    report(checks)
    if certificate.changes:
        console.print(
            f"trials were repeated with other values after this verdict ({times(certificate.changes)}): those are exploratory"
        )
    if trials:
        checks += repeat_trials(certificate, trials, imports)
    console.print(LIMITS)
    if any(check.fault for check in checks):
        raise typer.Exit(1)


def report(checks: Sequence[VerifiedPart]) -> None:
    for check in checks:
        mark = "✓" if check.fault is None else "✕"
        console.print(f"{mark} {check.statement}" + (f": {check.fault}" if check.fault else ""), markup=False)


def repeat_trials(certificate: Certificate, trials: int, imports: Sequence[str]) -> list[VerifiedPart]:
    """Repeat trials, and print whether their values are equal bit for bit, or how far off they are."""
    from partwise.ablation.rerun import check_repeatable, differences_here, rerun

    check_repeatable(certificate)
    others = differences_here(certificate, imports)
    if others:
        console.print(
            f"this machine or setup differs: {'; '.join(others)}; values may differ in their last digits", markup=False
        )
    checks = []
    for repeat in rerun(certificate, trials, imports, lambda jobs: None):
        statement, fault = f"{repeat.arm}, seed {repeat.seed}: {repeat.stated}", None
        if repeat.equal:
            statement += ", bit for bit"
        elif repeat.stated is None or repeat.found is None:
            fault = f"the rerun gave {repeat.found}"
        else:
            off = f"the rerun gave {repeat.found}, off by {repeat.found - repeat.stated:+.3g}"
            # elsewhere, other roundings grow over training
            fault, statement = (None, f"{statement}; {off}") if others else (off, statement)
        checks.append(VerifiedPart(statement, fault))
        if repeat.leak:
            seen = f"the model of {repeat.arm}, seed {repeat.seed}, sees no token that it predicts"
            checks.append(VerifiedPart(seen, repeat.leak))
    report(checks)
    return checks
