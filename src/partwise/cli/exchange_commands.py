"""Commands that exchange models with other programs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.options import FLAG, Import, Name, RunName, app, load_imports


@app.command("export")
def export(
    run: RunName,
    folder: Annotated[Path, typer.Argument(help="A new folder for the model.")],
    to: Annotated[str, typer.Option(help="The format: hf, for Hugging Face's transformers.")] = "hf",
    family: Annotated[
        str | None,
        typer.Option(
            help="Model family, such as llama or gpt2; or partwise, which takes any model but needs partwise to load it. "
            "Default: the first family that supports the model."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, float16 or bfloat16. Default: that of an imported model, else float32."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            metavar=FLAG,
            help="Compare the logits with those of transformers, if it is installed.",
        ),
    ] = True,
    imports: Import = None,
) -> None:
    """Write a model as a folder that transformers loads without partwise."""
    load_imports(imports)
    from partwise.cli.commands.export import export_run

    export_run(run, folder, to, family, dtype, check, shlex.join(["partwise", *sys.argv[1:]]))


@app.command("import")
def import_model(
    folder: Annotated[Path, typer.Argument(help="A folder with config.json, safetensors and tokenizer.json.")],
    name: Name = None,
) -> None:
    """Import a model written by transformers as a run. Nothing in the folder is executed."""
    from partwise.cli.commands.export import import_folder

    import_folder(folder, name)
