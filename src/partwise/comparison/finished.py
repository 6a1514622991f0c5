"""Show a finished comparison in a folder that cannot be written, such as one on a read-only file system."""

import os
from pathlib import Path

from partwise.comparison.certificate.agreement import RESULTS, check_results
from partwise.comparison.certificate.certificate import CERTIFICATE_FILE, Certificate
from partwise.comparison.certificate.verification import verify
from partwise.comparison.plan_file import PLAN_FILE, FixedPlan, read_plan_file
from partwise.comparison.results import Results
from partwise.config import ConfigError


def is_read_only(folder: Path) -> bool:
    """Whether it holds a comparison and nothing can be written to it."""
    return (folder / PLAN_FILE).exists() and not os.access(folder, os.W_OK)


def read_finished(folder: Path, fixed: FixedPlan, data_hash: str) -> Results:
    """The results of the same plan at as many seeds. Raises ConfigError if there are none, or verdicts do not follow."""
    file = read_plan_file(folder, fixed, data_hash)
    looks = file.looks if file else []
    if fixed.seeds not in looks:
        judged = f"it was judged at {looks[-1]} seeds, not {fixed.seeds}" if looks else "it is not finished"
        raise ConfigError(f"{folder} cannot be written, and {judged}: check permissions, or copy it to another place")
    results, certificate = Results.from_json(folder / RESULTS), Certificate.read(folder)
    for check in verify(certificate):
        if check.fault:
            raise ConfigError(f"{folder / CERTIFICATE_FILE} was changed: {check.statement}: {check.fault}")
    if fault := check_results(certificate, results):
        raise ConfigError(f"{folder / RESULTS} and {CERTIFICATE_FILE} differ: {fault}")
    return results
