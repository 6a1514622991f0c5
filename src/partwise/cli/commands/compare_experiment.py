"""`compare` of any code: an experiment's YAML file, or commits of a repository."""

import itertools
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from partwise.any_code.brief_trials import looks_like_training
from partwise.any_code.command_comparison import CommandComparison, make_command_comparison
from partwise.any_code.experiment_file import Experiment, experiment_from_yaml, parse_experiment
from partwise.cli.commands.compare_output import (
    Output,
    add_prediction,
    announce,
    compare_over_grid,
    print_results,
    replicate_winner,
    run_with_progress,
)
from partwise.cli.commands.power_table import planned_looks, power_sentences
from partwise.cli.compare_options import CommandOptions, CommitOptions, ComparisonOptions
from partwise.cli.terminal import console, format_duration, stderr_console
from partwise.comparison.noise_store import known_noise
from partwise.comparison.repeats import machine_failures
from partwise.comparison.trials.places import check_place
from partwise.config import ConfigError
from partwise.config.overrides import parse_grid
from partwise.run_names import default_run_name

SEEDS = 5


def compare_experiment_file(
    words: list[str],
    values: dict[str, Any],
    shared: ComparisonOptions,
    trials: CommandOptions,
    options: dict[str, Any],
) -> None:
    """Compare the arms of an experiment's YAML file, the only word, which has these values. Raises ConfigError."""
    path, experiment = experiment_of_file(words, values)
    run_experiment(experiment, path, [path.stem], shared, trials, options)


def compare_commits(
    commits: list[str],
    experiment: CommitOptions,
    shared: ComparisonOptions,
    trials: CommandOptions,
    options: dict[str, Any],
) -> None:
    """Compare commits by one command. Raises ConfigError."""
    run_experiment(experiment_of_commits(commits, experiment), None, ["refs", *commits], shared, trials, options)


def run_experiment(
    experiment: Experiment,
    file: Path | None,
    name_parts: list[str],
    shared: ComparisonOptions,
    trials: CommandOptions,
    options: dict[str, Any],
) -> None:
    """Run the comparison, or with `dry_run` only the check of every arm. Raises ConfigError."""
    output = Output(shared.as_json, shared.require or [])
    settings = {key: value for key, value in options.items() if value is not None}
    if looks := planned_looks(settings, shared.protocol):
        settings["looks"] = looks
    settings.setdefault("seeds", SEEDS)
    common = settings.pop("common", [])
    name = shared.name or plain_name([*name_parts, *common])
    settings |= {"workers": shared.workers, "on": check_place(shared.on), **asdict(trials)}

    def make(common: list[str], name: str) -> CommandComparison:
        folder = file.parent if file else Path()
        return make_command_comparison(experiment, folder, name, this_command(), common=common, **settings)

    if shared.grid:
        output.refuse_grid(shared.predict)
        cells = [
            (" ".join(cell), make([*common, *cell], plain_name([name[:80], *cell])))
            for cell in itertools.product(*parse_grid(shared.grid))
        ]
        compare_over_grid(cells, shared.grid, name)
        return
    comparison = make(common, name)
    output.check(comparison)
    add_prediction(comparison, shared.predict)
    confirm_metric(comparison)
    announce(comparison)
    if shared.dry_run:
        show_check(comparison)
        show_detectable_effect(comparison, file, shared.sd)
        return
    if experiment.check:
        show_check(comparison)
    results = run_with_progress(comparison)
    print_results(comparison, results)
    if failures := machine_failures(comparison.trials):
        listed = "; ".join(f"{count} x {reason}" for reason, count in failures.items())
        console.print(f"ended by the machine: {listed}; --retry-failed repeats such trials of all arms", markup=False)
    if shared.replicate:
        replicate_winner(comparison)
    output.end(comparison, results)


def experiment_of_file(words: list[str], values: dict[str, Any]) -> tuple[Path, Experiment]:
    """The file, which is the only word, and its experiment. Raises ConfigError."""
    if len(words) > 1:
        raise ConfigError(f"{words[1]}: unexpected argument; the arms are defined in {words[0]}")
    path = Path(words[0])
    return path, experiment_from_yaml(values, path)


def experiment_of_commits(commits: list[str], options: CommitOptions) -> Experiment:
    """The experiment of `--refs A B --command ... --metric ...`. Raises ConfigError."""
    if len(commits) < 2:
        raise ConfigError("--refs needs two commits or more, the baseline first, as in --refs main my-branch")
    if not options.command:
        raise ConfigError("--refs needs --command, as in --command 'python train.py --seed={seed}'")
    if not options.metric:
        raise ConfigError("--refs needs --metric: a pattern of the output, as in 'val loss (\\S+)', or FILE:KEY")
    values = {
        "command": options.command,
        "arms": {commit: {"ref": commit} for commit in commits},
        "metric": {**parse_metric(options.metric), "better": "higher" if options.higher_is_better else "lower"},
        "setup": options.setup,
        "share": options.share or [],
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


def show_detectable_effect(comparison: CommandComparison, file: Path | None, sd: float | None) -> None:
    """Print what the planned seeds can detect, if the noise is known, and otherwise how to measure it."""
    plan = comparison.plan
    noise = known_noise(plan, sd=sd)
    if noise is None:
        console.print(unknown_noise(plan.rules.metric, file), markup=False)
    elif plan.seeds > 1:
        for sentence in power_sentences(plan, noise):
            console.print(sentence, markup=False)


def unknown_noise(metric: str, file: Path | None) -> str:
    measure = f"measure it with `partwise calibrate {file}`, or " if file else ""
    return (
        f"the noise of {metric} is unknown, and so is what these seeds can detect: {measure}give the SD of a difference "
        "between two arms at one seed, as in --sd 0.01"
    )


def plain_name(words: list[str]) -> str:
    """A name without `=`, which some programs do not expect in the path of `{folder}`."""
    return default_run_name(words).replace("=", "-")


def this_command() -> str:
    return shlex.join(["partwise", *sys.argv[1:]])
