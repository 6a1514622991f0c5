"""What every command's words have in common: the applications, the options that recur, and their reading."""

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
study_app = typer.Typer(help="Published claims, checked.", no_args_is_help=True)
app.add_typer(study_app, name="study")
tokenizer_app = typer.Typer(help="Vocabularies of your own.", no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")

# overrides may be written as `--key=value`: what a command does not know as an option is left to them
OPEN: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

Preset = Annotated[str, typer.Argument(help="A preset (mingpt, toy, llama) or a YAML file.", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes such as ffn=swiglu train.lr=1e-3.")]
Data = Annotated[str | None, typer.Option(help="arithmetic, shakespeare, python, a text file, .jsonl or folder.")]
Name = Annotated[str | None, typer.Option(help="The folder below runs/; made from the command where not given.")]
Import = Annotated[list[str] | None, typer.Option("--import", help="A module or .py file with parts of your own.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name below runs/, or its folder.")]


def words_of(context: typer.Context, overrides: list[str] | None) -> list[str]:
    return [*(overrides or []), *context.args]


def load_imports(sources: list[str] | None) -> tuple[str, ...]:
    from partwise.config import import_parts

    for source in sources or []:
        import_parts(source)
    return tuple(str(Path(source).resolve()) if source.endswith(".py") else source for source in sources or [])
