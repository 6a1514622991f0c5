"""`verify`: check certificates, without importing torch unless trials or checks of parts are repeated."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import typer

from partwise.cli.terminal import console, print_error, print_json
from partwise.comparison.certificate.agreement import check_folder
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import MOST_SDS, VerifiedPart, largest_difference, verify
from partwise.config import ConfigError
from partwise.messages import times

LIMITS = (
    "this shows that the verdicts follow from the values under the stated protocol. It does not show that the values come "
    "from training, or that no other comparison was run: --rerun repeats trials, and `partwise ledger` lists comparisons"
)


@dataclass
class Verified:
    """What was found about one certificate."""

    file: Path
    certificate: Certificate
    checks: list[VerifiedPart]
    repeated: list[VerifiedPart] = field(default_factory=list)
    """The trials that were repeated, and the checks of the user's own parts."""

    @property
    def holds(self) -> bool:
        return not any(check.fault for check in [*self.checks, *self.repeated])

    def to_dict(self) -> dict[str, Any]:
        lists = {"checks": self.checks, "repeated": self.repeated}
        return {
            "file": str(self.file),
            "name": self.certificate.name,
            "question": self.certificate.question,
            "holds": self.holds,
            "changes": self.certificate.changes,
            **{key: [asdict(check) for check in checks] for key, checks in lists.items()},
        }


def verify_certificates(
    files: Sequence[Path], trials: int, imports: Sequence[str], check_parts: bool, as_json: bool
) -> None:
    """Print for every statement of each certificate whether it holds, and repeat some of its trials.

    Exits with 2 if one of several cannot be checked, else with 1 if a statement does not hold. Raises ConfigError if the
    only one cannot be checked.
    """
    found, refused = list[Verified](), dict[str, str]()
    for number, file in enumerate(files):
        try:
            if number:
                console.print()
            found.append(verify_file(file, trials, imports, check_parts))
        except ConfigError as error:
            if len(files) == 1:
                raise
            refused[str(file)] = str(error)
            print_error(error if str(file) in str(error) else f"{file}: {error}")
    if as_json:
        print_json({"certificates": [each.to_dict() for each in found], "refused": refused, "limits": LIMITS})
    else:
        console.print(LIMITS)
    if refused:
        raise typer.Exit(2)
    if not all(each.holds for each in found):
        raise typer.Exit(1)


def verify_file(file: Path, trials: int, imports: Sequence[str], check_parts: bool) -> Verified:
    """Check one certificate and print what was found. Raises ConfigError."""
    certificate = Certificate.read(file)
    console.print(f"{certificate.name}: {certificate.question}", style="bold", markup=False)
    found = Verified(
        file, certificate, [*verify(certificate), *(check_folder(certificate, file) if file.is_dir() else ())]
    )
    report(found.checks)
    if certificate.changes:
        console.print(
            f"trials were repeated with other values after this verdict ({times(certificate.changes)}): those are exploratory"
        )
    if check_parts:
        found.repeated += repeat_part_checks(certificate)
    if trials:
        found.repeated += repeat_trials(certificate, trials, imports)
    return found


def report(checks: Sequence[VerifiedPart]) -> None:
    for check in checks:
        mark = "✓" if check.fault is None else "✕"
        console.print(f"{mark} {check.statement}" + (f": {check.fault}" if check.fault else ""), markup=False)


def repeat_part_checks(certificate: Certificate) -> list[VerifiedPart]:
    """Repeat the checks of parts of the user's own, which must be imported, and print what they find."""
    from partwise.ablation.rerun import check_own_arms

    checks = [
        VerifiedPart(f"{arm}: no position sees the tokens that it predicts, before training", leak or None)
        for arm, leak in check_own_arms(certificate).items()
    ]
    report(checks)
    return checks


def repeat_trials(certificate: Certificate, trials: int, imports: Sequence[str]) -> list[VerifiedPart]:
    """Repeat trials, and print whether their values are equal bit for bit, or how far off they are.

    On another machine, or with other sources, a value that is off by more than `largest_difference` does not hold.
    """
    from partwise.ablation.rerun import check_repeatable, differences_here, rerun

    check_repeatable(certificate)
    others = differences_here(certificate, imports)
    most = largest_difference(certificate) if others else 0.0
    if others:
        limit = (
            "by how much is not known from one seed"
            if most is None
            else f"by up to {most:.2g}, {MOST_SDS} SDs over seeds"
        )
        console.print(
            f"this machine or setup differs: {'; '.join(others)}; roundings grow over training, so values may differ {limit}",
            markup=False,
        )
    checks = []
    for repeat in rerun(certificate, trials, imports, lambda jobs: None):
        statement, fault, off_by = f"{repeat.arm}, seed {repeat.seed}: {repeat.stated}", None, None
        if repeat.equal:
            statement += ", bit for bit"
        elif repeat.stated is None or repeat.found is None:
            fault = f"the rerun gave {repeat.found}"
        else:
            off_by = repeat.found - repeat.stated
            off = f"the rerun gave {repeat.found}, off by {off_by:+.3g}"
            if most is None or abs(off_by) <= most:
                statement += f"; {off}"
            else:
                fault = off + (", more than another machine or version explains" if others else "")
        checks.append(VerifiedPart(statement, fault, off_by))
        if repeat.leak:
            seen = f"the model of {repeat.arm}, seed {repeat.seed}, sees no token that it predicts"
            checks.append(VerifiedPart(seen, repeat.leak))
    report(checks)
    return checks
