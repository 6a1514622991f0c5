"""Commands for comparisons: compare with its four modes, work and demo."""

from typing import Annotated, Any

import typer

from partwise.cli.compare_options import (
    EXPERIMENT_FIELDS,
    CommandOptions,
    CommitOptions,
    ComparisonOptions,
    CourseOptions,
    PresetOptions,
)
from partwise.cli.experiment_files import is_assignment, is_experiment_file
from partwise.cli.modes import Mode, command_with_modes
from partwise.cli.options import (
    ALLOW_OVERRIDES,
    Import,
    Name,
    Preset,
    SecondArm,
    app,
    collect_overrides,
    load_imports,
)


def compare_preset(
    context: typer.Context,
    preset: Preset,
    overrides: SecondArm = None,
    *,
    shared: ComparisonOptions,
    training: PresetOptions,
    options: dict[str, Any],
) -> None:
    """Compare variants of a preset: each trains over paired seeds.

    Example: partwise compare mingpt ffn=swiglu --data shakespeare --seeds 5
    """
    from partwise.torch_extra import require_torch

    require_torch("this command")
    if not shared.dry_run and shared.on == "local":
        from partwise.comparison.trials.job import RUNS
        from partwise.comparison.trials.servers import prestart

        prestart(RUNS)  # the server imports torch in parallel with this process
    from partwise.cli.commands.compare_preset import compare_variants

    change = collect_overrides(context, overrides)
    loaded = load_imports(training.imports)
    compare_variants({"preset": preset, "change": change, **options}, shared, training, loaded)


def compare_file(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE.yaml", help="The experiment: a command, its arms and its metric.")
    ],
    *,
    shared: ComparisonOptions,
    trials: CommandOptions,
    options: dict[str, Any],
) -> None:
    """Compare commands of any program, which a YAML file describes.

    Example: partwise compare experiment.yaml --seeds 5
    """
    from partwise.cli.commands.compare_experiment import compare_experiment_file

    compare_experiment_file([file, *context.args], context.obj, shared, trials, options)


def compare_course(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="COURSE.yaml", help="The assignment, written by `partwise assign`.")],
    overrides: SecondArm = None,
    *,
    course: CourseOptions,
    options: dict[str, Any],
) -> None:
    """Run the comparison of an assignment: your change on the seeds of your number.

    Example: partwise compare course.yaml ffn=swiglu --student 7
    """
    from partwise.torch_extra import require_torch

    require_torch("this command")
    from partwise.cli.commands.compare_course import compare_assigned

    loaded = load_imports(course.imports)
    compare_assigned(file, context.obj, collect_overrides(context, overrides), course, loaded, options)


def compare_refs(
    commits: Annotated[
        list[str], typer.Argument(metavar="COMMITS...", help="Branches, tags or hashes, the baseline first.")
    ],
    *,
    shared: ComparisonOptions,
    experiment: CommitOptions,
    trials: CommandOptions,
    options: dict[str, Any],
) -> None:
    """Compare commits of a repository: one command runs in a worktree of each.

    Example: partwise compare --refs main my-branch --command 'python train.py --seed={seed}' --metric 'val loss (\\S+)'
    """
    from partwise.cli.commands.compare_experiment import compare_commits

    compare_commits(commits, experiment, shared, trials, options)


def choose_mode(context: Any, given: set[str], words: list[str]) -> str | None:
    """The mode of `compare`, from the names of its options and its other words."""
    if "refs" in given:
        return "refs"
    if not words:
        return None
    if is_experiment_file(context, words[0]):
        return "file"
    return "course" if is_assignment(context) else "preset"


command_with_modes(
    app,
    "compare",
    "Compare variants of a model, or of any code, over paired seeds, with confidence intervals and verdicts.",
    [
        Mode("preset", "PRESET", compare_preset, settings=ALLOW_OVERRIDES),
        Mode("file", "FILE.yaml", compare_file, EXPERIMENT_FIELDS, {"allow_extra_args": True}),
        Mode("refs", "--refs", compare_refs, EXPERIMENT_FIELDS),
        Mode("course", "COURSE.yaml", compare_course, ("allow_leak",), ALLOW_OVERRIDES),
    ],
    choose_mode,
)


@app.command()
def work(
    comparison: Annotated[str, typer.Argument(metavar="COMPARISON", help="Name below runs/, or folder.")],
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Concurrent trials.", min=1)] = 1,
    imports: Import = None,
) -> None:
    """Run trials of a comparison that was started with --on workers, here or on any machine that sees its folder."""
    sources = load_imports(imports)
    from partwise.cli.commands.work import work_on

    work_on(comparison, workers, sources)


@app.command()
def demo(
    name: Name = "demo",
    first_seed: Annotated[int, typer.Option(help="First seed: other seeds train other models.", min=0)] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps. Default: 600.", min=1)] = None,
) -> None:
    """Compare three variants of a small GPT in a few minutes: one is better, one equivalent, one worse."""
    from partwise.comparison.trials.job import RUNS
    from partwise.comparison.trials.servers import prestart
    from partwise.torch_extra import require_torch

    require_torch("this command")
    prestart(RUNS)
    from partwise.cli.commands.demo import run_demo

    run_demo(name or "demo", first_seed, steps)
