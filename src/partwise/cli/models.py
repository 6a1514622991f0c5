"""Commands for one model: train, look, use."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.words import (
    OPEN,
    Data,
    Import,
    Name,
    Overrides,
    Preset,
    RunName,
    app,
    load_imports,
    tokenizer_app,
    words_of,
)


@app.command(context_settings=OPEN)
def train(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="A preset (mingpt, toy, llama) or a YAML file.")] = "fast",
    overrides: Overrides = None,
    data: Data = None,
    name: Name = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, deleting what the run's folder holds.")] = False,
    imports: Import = None,
) -> None:
    """Train one model; interrupted, the same command continues."""
    load_imports(imports)
    from partwise.commands.training import train_run

    words = words_of(context, overrides)
    if "=" in preset and not preset.endswith((".yaml", ".yml")):  # a change of the preset that was left out
        preset, words = "fast", [preset, *words]
    raise typer.Exit(train_run(preset, words, data, name, fresh, shlex.join(["partwise", *sys.argv[1:]])))


@app.command("eval")
def evaluate(
    run: RunName,
    problems: Annotated[
        int | None, typer.Option(help="Arithmetic: how many test problems; all where not given.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the scores to this file.")] = None,
    imports: Import = None,
) -> None:
    """Score a run on its whole validation split, beside its floors."""
    load_imports(imports)
    from partwise.commands.scoring import evaluate_run

    evaluate_run(run, problems, json_file)


@app.command()
def generate(
    run: RunName,
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue; repeat it for a batch.")] = None,
    length: Annotated[int, typer.Option(help="Tokens to write at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K most likely tokens only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest likely tokens that reach this probability.")] = 1.0,
    stop: Annotated[str | None, typer.Option(help="End after this token.")] = None,
    beams: Annotated[int | None, typer.Option(help="Search for the likeliest text with so many beams.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds, equal texts.", min=0)] = 0,
    precision: Annotated[
        str, typer.Option(help="Of weights and what they multiply: float32, or bfloat16, faster and rounded.")
    ] = "float32",
    path: Annotated[
        str, typer.Option(help="torch, kernel (ours, compiled), or auto: the kernel where it can.")
    ] = "auto",
    imports: Import = None,
) -> None:
    """Continue a prompt with a trained model."""
    load_imports(imports)
    from partwise.commands.training import generate_text

    generate_text(run, prompt or [], length, temperature, top_k, top_p, stop, seed, beams, precision, path)


@app.command(context_settings={"ignore_unknown_options": True})  # `-1 + 2` is no option
def calculate(
    run: RunName,
    expressions: Annotated[list[str], typer.Argument(metavar="EXPRESSION...", help='Such as "12.5 * 3".')],
    imports: Import = None,
) -> None:
    """Ask a model that was trained on arithmetic, and check what it answers."""
    load_imports(imports)
    from partwise.commands.calculating import calculate_all

    calculate_all(run, expressions)


@app.command()
def doctor(
    presets: Annotated[list[str] | None, typer.Argument(help="Presets to tell about; one of each family else.")] = None,
) -> None:
    """Say what this machine can do, what it lacks, and which path each preset takes."""
    from partwise.commands.doctoring import show_machine

    show_machine(presets or [])


@app.command(context_settings=OPEN)
def inspect(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A preset, or the name or folder of a run.")],
    what: Annotated[
        str,
        typer.Argument(
            help="What to look at: activations, attention, coordinates, cost, gradients, lens, positions or transfer."
        ),
    ],
    overrides: Overrides = None,
    data: Data = None,
    length: Annotated[int | None, typer.Option("--context", help="Tokens to look at.")] = None,
    text: Annotated[str | None, typer.Option(help="A text to show the model; else some of its data.")] = None,
    imports: Import = None,
) -> None:
    """Look inside a preset or a run; the table is printed, the figures go into a page."""
    load_imports(imports)
    from partwise.commands.inspecting import inspect_target

    inspect_target(target, what, words_of(context, overrides), data, length, text)


@app.command()
def parts(
    family: Annotated[str | None, typer.Argument(help="ffn, attention, positions, ...; all where not given.")] = None,
    imports: Import = None,
) -> None:
    """List the parts with their equations, papers and options."""
    load_imports(imports)
    from partwise.commands.describing import list_parts

    list_parts(family)


@app.command(context_settings=OPEN)
def show(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    data: Data = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Symbols, where no data is named; else the preset's, or 65.")
    ] = None,
    imports: Import = None,
) -> None:
    """Print a configuration, its size, and how exactly it differs from its preset."""
    load_imports(imports)
    from partwise.commands.describing import show_configuration

    show_configuration(preset, words_of(context, overrides), data, vocab_size)


@tokenizer_app.command("train", context_settings=OPEN)
def train_tokenizer(
    context: typer.Context,
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the data, as data.field=body.")] = None,
    data: Annotated[str, typer.Option(help="What to learn from, as for `partwise train`.")] = "shakespeare",
    vocab_size: Annotated[int, typer.Option(help="How many ids, of which 256 are the bytes.")] = 1024,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tokenizer.json"),
) -> None:
    """Learn byte-level BPE from a training split and write it as a tokenizer.json."""
    from partwise.commands.tokenizing import train_tokenizer as run

    run(data, words_of(context, overrides), vocab_size, out)
