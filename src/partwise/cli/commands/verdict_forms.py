"""`verdict` in its forms: arms, a target, a file that grows, a search. Each refuses the options of the others."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from partwise.config import ConfigError

OF_TARGET = ("alpha", "looks", "time", "sd_source", "record")
OF_ARMS = ("margin", "baseline", "judged", "failure", "unpaired", "run_names", "take", "metric")
OF_ALL = ("known_sd", "higher_is_better", "columns", "as_json")

Options = Mapping[str, Any]
"""All options of the command by name."""


def judge(file: Path, options: Options) -> None:
    """Judge a file in the form that the options choose. Raises ConfigError for an option of another form."""
    if options["search"]:
        judge_search(file, options)
    elif options["any_time"]:
        judge_growing(file, options)
    elif options["target"] is not None or options["rule"] is not None:
        judge_target(file, options)
    else:
        judge_arms(file, options)


def judge_search(file: Path, options: Options) -> None:
    of_others = ("target", "rule", *without(OF_TARGET, "sd_source"), "any_time")
    refuse(options, (*OF_ARMS, *of_others), "is not for a results.tsv: leave it out, or --search")
    from partwise.cli.commands.search_audit import audit_search

    audit_search(file, **chosen(options, ("sd_source", *OF_ALL)))


def judge_growing(file: Path, options: Options) -> None:
    of_others = ("rule", *without(OF_TARGET, "alpha"), "judged", "unpaired", "metric", "known_sd")
    refuse(options, of_others, "is not for --any-time, a t test of all pairs or runs so far")
    if options["target"] is not None:
        refuse(options, OF_ARMS, "is for comparing arms: leave it out, or --target")
    from partwise.cli.commands.any_time import judge_any_time

    judge_any_time(
        file,
        **chosen(options, ("target", "alpha", *without(OF_ARMS, *of_others), *without(OF_ALL, *of_others))),
    )


def judge_target(file: Path, options: Options) -> None:
    refuse(options, OF_ARMS, "is for comparing arms: leave it out, or --target")
    from partwise.cli.commands import target

    target.judge_target(file, **chosen(options, ("target", "rule", *OF_TARGET, *OF_ALL)))


def judge_arms(file: Path, options: Options) -> None:
    refuse(options, OF_TARGET, "is about a target: give --target, such as --target 3.28")
    from partwise.cli.commands.verdict import judge_file

    judge_file(file, paired=not options["unpaired"], **chosen(options, (*without(OF_ARMS, "unpaired"), *OF_ALL)))


def without(names: Iterable[str], *others: str) -> list[str]:
    return [name for name in names if name not in others]


def chosen(options: Options, names: Iterable[str]) -> dict[str, Any]:
    return {name: options[name] for name in names}


def refuse(options: Options, names: Iterable[str], reason: str) -> None:
    """Raise ConfigError for an option that was given."""
    for name in names:
        value = options[name]
        if value is not None and value is not False and (name, value) != ("metric", "value"):
            shown = "" if value is True else f" {value}"
            raise ConfigError(f"--{name.replace('_', '-')}{shown} {reason}")
