"""The typer applications, and the arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="partwise",
    help="Change one part of a transformer; know what it bought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
study_app = typer.Typer(help="Check published claims.", no_args_is_help=True)
app.add_typer(study_app, name="study")
tokenizer_app = typer.Typer(help="Train tokenizers.", no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")
ledger_app = typer.Typer(help="List, export and verify the ledger: every comparison of this project.")
app.add_typer(ledger_app, name="ledger")

# overrides may be written as `--key=value`: unknown options are collected as overrides
ALLOW_OVERRIDES: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

Preset = Annotated[str, typer.Argument(help="A preset (mingpt, toy, llama) or a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Configuration overrides, such as ffn=swiglu train.lr=1e-3.")
]
Data = Annotated[
    str | None,
    typer.Option(help="Training data: arithmetic, shakespeare, python, or a text file, .jsonl file or folder."),
]
Name = Annotated[str | None, typer.Option(help="Folder name below runs/. Default: derived from the command.")]
Import = Annotated[
    list[str] | None, typer.Option("--import", help="Module or .py file that registers custom parts. Repeatable.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run below runs/, or its folder.")]
Workers = Annotated[int | None, typer.Option(help="Concurrent runs. Default: one per CPU core.", min=1)]


def collect_overrides(context: typer.Context, overrides: list[str] | None) -> list[str]:
    return [*(overrides or []), *context.args]


def load_imports(sources: list[str] | None) -> tuple[str, ...]:
    from partwise.config import import_parts

    for source in sources or []:
        import_parts(source)
    return tuple(str(Path(source).resolve()) if source.endswith(".py") else source for source in sources or [])
