"""The options of `compare`, in groups: those of all modes, and those of one or two."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from partwise.cli.options import FLAG, Import, Name, Workers

PIPELINES: Any = {"rich_help_panel": "Pipelines"}
COMMITS: Any = {"rich_help_panel": "Commits"}
TRIALS: Any = {"rich_help_panel": "Trials"}

EXPERIMENT_FIELDS = (
    "common",
    "match",
    "seeds",
    "first_seed",
    "looks",
    "design",
    "baseline_runs",
    "margin",
    "alpha",
    "failure",
    "online",
    "tune",
    "tune_seeds",
)
"""The fields of a `Request` that are options of every mode; the others are about training a preset."""


@dataclass(frozen=True)
class ComparisonOptions:
    """The options of every mode, beside `EXPERIMENT_FIELDS`."""

    protocol: Annotated[
        bool,
        typer.Option(
            "--protocol",
            metavar=FLAG,
            help="Look at a quarter, half and all seeds; stop early.",
        ),
    ] = False
    grid: Annotated[
        list[str] | None,
        typer.Option(help="One comparison per value: n_layers=2,4. Repeatable."),
    ] = None
    replicate: Annotated[bool, typer.Option("--replicate", metavar=FLAG, help="Rerun the winner on fresh seeds.")] = (
        False
    )
    predict: Annotated[
        str | None,
        typer.Option(
            "--predict",
            metavar="LOW,HIGH",
            help="Your prediction: the range of the first arm's difference, recorded before the first run.",
        ),
    ] = None
    name: Name = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar=FLAG, help="Only estimate the time and the detectable effect."),
    ] = False
    sd: Annotated[float | None, typer.Option(help="SD of a paired difference, for --dry-run.")] = None
    workers: Workers = None
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="Where trials run: local, workers (`partwise work`), ray or ray://HOST:PORT.",
            **PIPELINES,
        ),
    ] = "local"
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar=FLAG, help="Print JSON, and everything else on stderr.", **PIPELINES),
    ] = False
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="REQUIREMENT",
            help="'ARM better' or 'ARM not-worse': exit with 0 if met, 1 if not, 3 if undecided. Repeatable.",
            **PIPELINES,
        ),
    ] = None


@dataclass(frozen=True)
class PresetOptions:
    """The options of a preset's training processes."""

    seeds_per_process: Annotated[
        int | None,
        typer.Option(
            help="Seeds of an arm to train per process with torch.vmap. Default: 8 for small models on CUDA, else 1.",
            min=1,
        ),
    ] = None
    processes_per_run: Annotated[
        int,
        typer.Option(
            "--processes-per-run",
            help="Processes that train each run together, as `train --processes`.",
            metavar="N",
            min=1,
        ),
    ] = 1
    imports: Import = None


@dataclass(frozen=True)
class CourseOptions:
    """The options of a student's comparison, whose plan is that of the assignment."""

    student: Annotated[
        int | None, typer.Option("--student", metavar="K", help="Required: your number, which sets your seeds.", min=0)
    ] = None
    name: Name = None
    workers: Workers = None
    imports: Import = None
    as_json: Annotated[
        bool, typer.Option("--json", metavar=FLAG, help="Print JSON, and everything else on stderr.", **PIPELINES)
    ] = False


@dataclass(frozen=True)
class CommandOptions:
    """The options of an experiment's commands, whether a file or `--refs` defines it."""

    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            metavar=FLAG,
            help="Continue although code or packages changed since the first trial.",
            **TRIALS,
        ),
    ] = False
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            metavar=FLAG,
            help="Repeat trials of all arms that the machine ended: by a signal, or on a full disk.",
            **TRIALS,
        ),
    ] = False


@dataclass(frozen=True)
class CommitOptions:
    """The options of `--refs`, in place of an experiment's file."""

    refs: Annotated[
        bool, typer.Option("--refs", metavar=FLAG, help="Compare these commits: branches, tags or hashes.", **COMMITS)
    ] = False
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="COMMAND",
            help="Required: what to run, such as 'python train.py --seed={seed}'.",
            **COMMITS,
        ),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help="Required: a pattern of its output, such as 'val loss (\\S+)', or FILE:KEY.",
            **COMMITS,
        ),
    ] = None
    higher_is_better: Annotated[
        bool,
        typer.Option("--higher-is-better", metavar=FLAG, help="Higher values of the metric are better.", **COMMITS),
    ] = False
    setup: Annotated[
        str | None, typer.Option("--setup", metavar="COMMAND", help="What prepares each worktree.", **COMMITS)
    ] = None
    share: Annotated[
        list[str] | None,
        typer.Option("--share", metavar="PATH", help="Ignored data to link into each worktree. Repeatable.", **COMMITS),
    ] = None
