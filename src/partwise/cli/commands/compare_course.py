"""`compare` of an assignment: the comparison of one student."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partwise.classroom.assignment import Assignment
from partwise.cli.commands.compare_preset import compare_variants
from partwise.cli.compare_options import ComparisonOptions, CourseOptions, PresetOptions
from partwise.comparison.design.plan import setting_of
from partwise.config import ConfigError


def compare_assigned(
    file: str,
    values: Mapping[str, Any],
    change: list[str],
    course: CourseOptions,
    imports: tuple[str, ...],
    options: Mapping[str, Any],
) -> None:
    """Run the comparison of a student's number. Raises ConfigError for a change that was not assigned."""
    assignment = Assignment.from_values(values, Path(file))
    check_change(assignment, change)
    if course.student is None:
        raise ConfigError(f"give your number, from 1 to {assignment.students}, by --student")
    request = {**assignment.request(course.student, change), **options}
    shared = ComparisonOptions(name=course.name, workers=course.workers, as_json=course.as_json)
    compare_variants(request, shared, PresetOptions(imports=None), imports)


def check_change(assignment: Assignment, change: list[str]) -> None:
    """Raise ConfigError unless the overrides are of one family of the assignment."""
    families = " or ".join(assignment.families)
    if not change:
        raise ConfigError(f"give the change that you chose, of {families}, such as {assignment.families[0]}=NAME")
    changed = list(dict.fromkeys(setting_of(override) for override in change))
    if len(changed) > 1:
        raise ConfigError(
            f"{' '.join(change)} changes {' and '.join(changed)}: the assignment is to change one of {families}"
        )
    if changed[0] not in assignment.families:
        raise ConfigError(f"{change[0]}: the assignment is to change {families}")
