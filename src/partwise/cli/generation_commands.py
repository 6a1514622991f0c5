"""Commands for what a trained model writes: text, and answers to expressions."""

from typing import Annotated

import typer

from partwise.cli.options import FLAG, Import, RunName, app, load_imports


@app.command()
def generate(
    run: RunName,
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue. Repeat it for a batch.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy decoding.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the K most likely tokens only.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: the smallest set of tokens with at least this probability.")
    ] = 1.0,
    stop: Annotated[str | None, typer.Option(help="Stop after this token.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Beam search with this many beams.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the sampling.", min=0)] = 0,
    precision: Annotated[str, typer.Option(help="float32, or bfloat16: faster, less precise.")] = "float32",
    backend: Annotated[
        str, typer.Option(help="eager, cpp (the C++ decoder), or auto: cpp if it supports the model.")
    ] = "auto",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            metavar=FLAG,
            help="Print a JSON line for each token as it is written, with the tokens of each prompt before and the texts "
            "after.",
        ),
    ] = False,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="LAYER,HEAD",
            help="With --json: the attention weights of this head in predicting each token, counted from 0.",
        ),
    ] = None,
    imports: Import = None,
) -> None:
    """Generate text with a trained model."""
    load_imports(imports)
    from partwise.cli.commands.generate import generate_text

    settings = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "stop": stop,
        "seed": seed,
        "num_beams": num_beams,
        "precision": precision,
        "backend": backend,
    }
    generate_text(run, prompt or [], settings, as_json, attention)


@app.command(context_settings={"ignore_unknown_options": True})  # `-1 + 2` is not an option
def calculate(
    run: RunName,
    expressions: Annotated[list[str], typer.Argument(metavar="EXPRESSION...", help='Expressions such as "12.5 * 3".')],
    steps: Annotated[
        bool,
        typer.Option("--steps", metavar=FLAG, help="Print the steps that the model writes before each answer."),
    ] = False,
    imports: Import = None,
) -> None:
    """Evaluate expressions with a model trained on arithmetic and check its answers."""
    load_imports(imports)
    from partwise.cli.commands.calculate import calculate_all

    calculate_all(run, expressions, show_steps=steps)
