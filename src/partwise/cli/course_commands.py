"""Commands for a class of students: the assignment, and the comparisons that are handed in."""

from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.options import FLAG, Data, Json, app


@app.command()
def assign(
    file: Annotated[Path, typer.Argument(help="The file to write, such as course.yaml; the sheet is course.md.")],
    families: Annotated[
        str, typer.Option("--families", metavar="F,F,...", help="A student changes one of these families: norm,ffn.")
    ],
    preset: Annotated[str, typer.Option(help="The baseline: a preset or a YAML file.")] = "mingpt",
    data: Data = None,
    common: Annotated[
        list[str] | None, typer.Option("--common", metavar="OVERRIDE", help="Override of the baseline. Repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Paired seeds of each student.", min=2)] = 5,
    margin: Annotated[
        float, typer.Option(help="Largest difference that does not matter, in the metric's unit.")
    ] = 0.02,
    alpha: Annotated[float, typer.Option(help="Maximum probability of a false claim of one student.")] = 0.05,
    metric: Annotated[str, typer.Option(help="loss; on arithmetic also exact_match or char_accuracy.")] = "loss",
    failure: Annotated[
        float | None, typer.Option(help="Value beyond which a run failed. Default as in compare.")
    ] = None,
    students: Annotated[int, typer.Option(help="Size of the class: students have the numbers 1 to this.", min=1)] = 30,
    first_seed: Annotated[int, typer.Option(help="First seed of the class.", min=0)] = 1000,
) -> None:
    """Write an assignment for a class: one baseline, one family to change, and seeds for each student.

    Example: partwise assign course.yaml --families norm,ffn --seeds 5 --margin 0.02
    """
    from partwise.torch_extra import require_torch

    require_torch("this command")
    from partwise.cli.commands.assign import write_assignment

    request = {
        "preset": preset,
        "data": data,
        "common": common or [],
        "seeds": seeds,
        "margin": margin,
        "alpha": alpha,
        "metric": metric,
        "failure": failure,
    }
    write_assignment(file, request, families, students, first_seed)


@app.command()
def collect(
    hand_ins: Annotated[
        list[Path], typer.Argument(metavar="HAND-IN...", help="Certificates, folders and zip files: handed/*.")
    ],
    course: Annotated[Path, typer.Option(help="The assignment.")] = Path("course.yaml"),
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            "--baseline",
            metavar="COMPARISON",
            help="Your own comparison, for the baseline's expected values. Repeatable.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE.html", help="Also write a page with every part beside its verdict."),
    ] = None,
    run_parts: Annotated[
        bool,
        typer.Option(
            "--run-parts", metavar=FLAG, help="EXECUTES hand-ins: repeat the checks of each student's own parts."
        ),
    ] = False,
    rerun: Annotated[
        int, typer.Option(help="EXECUTES hand-ins: repeat this many trials of each, drawn at random.", min=0)
    ] = 0,
    limit: Annotated[float, typer.Option(help="Seconds that one hand-in may run.", min=1)] = 600,
    as_json: Json = False,
) -> None:
    """Collect the comparisons of a class: what each found, whether it is what was assigned, and who shares results.

    It only reads, unless --run-parts or --rerun is given. Exits with 1 if there is an objection to a hand-in or one cannot
    be read, and with 2 if none can.

    Example: partwise collect handed/* --course course.yaml --baseline runs/teacher
    """
    if run_parts or rerun:
        from partwise.torch_extra import require_torch

        require_torch("--run-parts and --rerun")
    from partwise.cli.commands.collect import collect_class

    collect_class(hand_ins, course, baseline or [], page, run_parts, rerun, limit, as_json)
