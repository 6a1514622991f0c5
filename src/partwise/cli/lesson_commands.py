"""The command for the course."""

from typing import Annotated

import typer

from partwise.cli.options import FLAG, Json, app


@app.command()
def lesson(
    number: Annotated[int | None, typer.Argument(metavar="[N]", help="The lesson; without it, all are listed.")] = None,
    predict: Annotated[
        str | None, typer.Option("--predict", metavar="LOW,HIGH", help="Your prediction: a range, such as -0.05,0.02.")
    ] = None,
    no_predict: Annotated[bool, typer.Option("--no-predict", metavar=FLAG, help="Ask for no prediction.")] = False,
    stored: Annotated[
        bool, typer.Option("--stored", metavar=FLAG, help="Read the stored answer instead of training.")
    ] = False,
    check: Annotated[
        str | None, typer.Option("--check", metavar="ANSWER", help="Check an answer to the lesson's exercise.")
    ] = None,
    slides: Annotated[
        str | None,
        typer.Option(
            "--slides", metavar="FILE", help="Write the lesson, or all, as slides: an HTML file with figures."
        ),
    ] = None,
    first_seed: Annotated[int, typer.Option(help="First seed: other seeds train other models.", min=0)] = 0,
    restart: Annotated[bool, typer.Option("--restart", metavar=FLAG, help="Begin at the first section.")] = False,
    as_json: Json = False,
) -> None:
    """Go through a lesson: a problem, an idea, your prediction, a run of minutes, the answer, an exercise."""
    from partwise.torch_extra import require_torch

    if number is not None and not stored and check is None and slides is None:
        require_torch("this command")
    from partwise.cli.commands.lesson import list_lessons, run_lesson, write_slides

    if slides is not None:
        write_slides(number, slides)
    elif number is None:
        list_lessons(as_json)
    else:
        run_lesson(number, predict, not no_predict, stored, check, first_seed, restart, as_json)
