"""`compare` for commands: an experiment's YAML file, or commits of a repository."""

import itertools
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partwise.cli.commands.compare_output import (
    Output,
    announce,
    compare_over_grid,
    print_results,
    replicate_winner,
    run_with_progress,
)
from partwise.cli.commands.power_table import parse_looks, power_sentences
from partwise.cli.terminal import console, format_duration, stderr_console
from partwise.comparison.commands.checks import looks_like_training
from partwise.comparison.commands.comparison import CommandComparison, make_command_comparison
from partwise.comparison.commands.experiment_file import Experiment, parse_experiment, read_experiment
from partwise.comparison.design.request import flag_named
from partwise.comparison.noise_store import known_noise
from partwise.comparison.repeats import machine_failures
from partwise.comparison.stats.power import default_looks
from partwise.config import ConfigError
from partwise.config.overrides import parse_grid
from partwise.run_names import default_run_name

PROTOCOL_SEEDS, SEEDS = 16, 5
JUDGING = ("seeds", "first_seed", "looks", "design", "baseline_runs", "margin", "alpha", "failure", "online")
GENERAL = (*JUDGING, "common", "match", "tune", "tune_seeds")
"""The options of a request that any kind of trial has."""

NO_OPTION: dict[str, Any] = {"metric": "loss"}
"""The values of options that were not given."""


def compare_commands(
    words: list[str],
    options: dict[str, Any],
    *,
    refs: Mapping[str, Any] | None,
    protocol: bool,
    name: str | None,
    dry_run: bool,
    workers: int | None,
    allow_changes: bool,
    retry_failed: bool,
    replicate: bool,
    as_json: bool,
    require: list[str],
    on: str,
) -> None:
    """Run the comparison, or with `dry_run` only the check of every arm. Raises ConfigError."""
    output = Output(as_json, require)
    metric = options.pop("metric")
    if refs:
        experiment, folder = experiment_of_refs(words, metric, refs), Path()
    else:
        path = experiment_path(words)
        experiment, folder = read_experiment(path), path.parent
        options["metric"] = metric
    grid, sd = options.pop("grid", None), options.pop("sd", None)
    check_options(options)
    settings = {key: options[key] for key in GENERAL if options.get(key) is not None}
    if "looks" in settings:
        settings["looks"] = parse_looks(settings["looks"])
    elif protocol:
        settings["looks"] = default_looks(settings.get("seeds", PROTOCOL_SEEDS))
    settings.setdefault("seeds", SEEDS)
    common = settings.pop("common", [])
    name = name or plain_name([*(["refs", *words] if refs else [Path(words[0]).stem]), *common])
    settings |= {"workers": workers, "allow_changes": allow_changes, "retry_failed": retry_failed, "on": on}

    def make(common: list[str], name: str) -> CommandComparison:
        return make_command_comparison(experiment, folder, name, this_command(), common=common, **settings)

    if grid:
        output.refuse_grid()
        cells = [
            (" ".join(cell), make([*common, *cell], plain_name([name[:80], *cell])))
            for cell in itertools.product(*parse_grid(grid))
        ]
        compare_over_grid(cells, grid, name)
        return
    comparison = make(common, name)
    output.check(comparison)
    confirm_metric(comparison)
    announce(comparison)
    if dry_run:
        show_check(comparison)
        show_detectable_effect(comparison, words[0], sd)
        return
    if experiment.check:
        show_check(comparison)
    results = run_with_progress(comparison)
    print_results(comparison, results)
    if failures := machine_failures(comparison.trials):
        listed = "; ".join(f"{count} x {reason}" for reason, count in failures.items())
        console.print(f"ended by the machine: {listed}; --retry-failed repeats such trials of all arms", markup=False)
    if replicate:
        replicate_winner(comparison)
    output.end(comparison, results)


def experiment_path(words: list[str]) -> Path:
    """The only word. Raises ConfigError if others follow it."""
    if len(words) > 1:
        raise ConfigError(f"{words[1]}: unexpected argument; the arms are defined in {words[0]}")
    return Path(words[0])


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that only training runs have."""
    for key, value in options.items():
        if key not in GENERAL and value and value != NO_OPTION.get(key):
            raise ConfigError(f"{flag_named(key)} is for presets: omit it when comparing commands")


def experiment_of_refs(words: list[str], metric: str, refs: Mapping[str, Any]) -> Experiment:
    """The experiment of `--refs A B --command ... --metric ...`. Raises ConfigError."""
    if len(words) < 2:
        raise ConfigError("--refs needs two commits or more, the baseline first, as in --refs main my-branch")
    if not refs["command"]:
        raise ConfigError("--refs needs --command, as in --command 'python train.py --seed={seed}'")
    if metric == NO_OPTION["metric"]:
        raise ConfigError("--refs needs --metric: a pattern of the output, as in 'val loss (\\S+)', or FILE:KEY")
    values = {
        "command": refs["command"],
        "arms": {word: {"ref": word} for word in words},
        "metric": {**parse_metric(metric), "better": refs["better"]},
        "setup": refs["setup"],
        "share": refs["share"],
    }
    return parse_experiment(values, "--refs")


def parse_metric(text: str) -> dict[str, str]:
    """A pattern with a group, or FILE:KEY."""
    if "(" in text:
        words = re.sub(r"\\.|[^\w ]", " ", text.partition("(")[0]).split()
        return {"pattern": text, "name": " ".join(words) or "value"}
    file, colon, key = text.rpartition(":")
    if not colon or not file or not key:
        raise ConfigError(f"--metric {text}: expected a pattern with a group, such as 'val loss (\\S+)', or FILE:KEY")
    return {"from": file, "value": key, "name": key}


def confirm_metric(comparison: CommandComparison) -> None:
    """Ask whether a training loss is meant; without a terminal, say so on standard error."""
    metric = comparison.workload.experiment.metric
    if not looks_like_training(comparison.plan, metric.pattern or metric.value or "") or comparison.path.exists():
        return
    question = (
        f"{metric.name} is named like a training loss, which overfitting also lowers; a validation metric is safer."
    )
    if not sys.stdin.isatty():
        stderr_console.print(f"warning: {question}", markup=False)
        return
    import typer

    typer.confirm(f"{question} Compare it?", abort=True)


def show_check(comparison: CommandComparison) -> None:
    """Run the check, and say what it has shown and how long everything will take."""
    plan = comparison.plan
    with console.status("a short trial of every arm"):
        found = comparison.check()
    for sentence in found.sentences:
        console.print(sentence, markup=False)
    if not comparison.workload.experiment.check:
        trials = plan.trials
        workers = min(trials, comparison.workload.executor().workers)
        duration = format_duration(found.seconds * trials / workers)
        console.print(f"about {duration} for {trials} trials, {workers} at a time", markup=False)


def show_detectable_effect(comparison: CommandComparison, file: str, sd: float | None) -> None:
    """Print what the planned seeds can detect, if the noise is known, and otherwise how to measure it."""
    plan = comparison.plan
    noise = known_noise(plan, sd=sd)
    if noise is None:
        console.print(unknown_noise(plan.rules.metric, file), markup=False)
    elif plan.seeds > 1:
        for sentence in power_sentences(plan, noise):
            console.print(sentence, markup=False)


def unknown_noise(metric: str, file: str) -> str:
    measure = f"measure it with `partwise calibrate {file}`, or " if file.endswith((".yaml", ".yml")) else ""
    return (
        f"the noise of {metric} is unknown, and so is what these seeds can detect: {measure}give the SD of a difference "
        "between two arms at one seed, as in --sd 0.01"
    )


def plain_name(words: list[str]) -> str:
    """A name without `=`, which some programs do not expect in the path of `{folder}`."""
    return default_run_name(words).replace("=", "-")


def this_command() -> str:
    return shlex.join(["partwise", *sys.argv[1:]])
