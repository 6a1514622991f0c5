"""The typer applications, and the arguments and options that several commands share."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from partwise.cli.completion import complete_override, complete_preset
from partwise.cli.help import Group, lines_of_entries
from partwise.version import __version__
from partwise.wrapping import wrap

ABOUT = "Change one part of a transformer; know what it bought."


class Commands(Group):
    """The commands of partwise, in the groups of `--help`."""

    groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Learn": ["lesson", "parts", "show", "inspect"],
        "Train": ["train", "check", "eval", "generate", "calculate", "tokenizer"],
        "Compare": ["demo", "compare", "plan", "try", "calibrate", "work", "study"],
        "Judge": ["verdict", "verify", "report", "look", "runs", "ledger"],
        "Teach": ["assign", "collect"],
        "Exchange": ["studio", "export", "import", "doctor"],
    }


app = typer.Typer(
    cls=Commands,
    name="partwise",
    help=ABOUT,
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def greet(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"partwise {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        width = shutil.get_terminal_size().columns
        longest = max(len(command) for command, _ in FIRST_COMMANDS)
        lines = [*wrap(f"partwise: {ABOUT.lower()}", width), "", *lines_of_entries(FIRST_COMMANDS, longest, width), ""]
        typer.echo("\n".join([*lines, *wrap(MORE, width)]))


FIRST_COMMANDS = [
    ("partwise demo", "three changes, three answers, in minutes"),
    ("partwise train", "train a small GPT on Shakespeare"),
    ("partwise compare mingpt ffn=swiglu", "what does SwiGLU buy?"),
]
MORE = "`partwise parts` lists the parts; `partwise --help` lists every command."

study_app = typer.Typer(cls=Group, help="Check published claims.", no_args_is_help=True)
app.add_typer(study_app, name="study")
tokenizer_app = typer.Typer(cls=Group, help="Train tokenizers.", no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")
ledger_app = typer.Typer(cls=Group, help="List, export and verify the ledger: every comparison of this project.")
app.add_typer(ledger_app, name="ledger")

FLAG = ""
"""The metavar of a flag, which takes no value; typer's own is <bool>."""

# overrides may be written as `--key=value`: unknown options are collected as overrides
ALLOW_OVERRIDES: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

Preset = Annotated[
    str,
    typer.Argument(
        help="A preset (mingpt, toy, llama) or a YAML file.", show_default=False, autocompletion=complete_preset
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Configuration overrides, such as ffn=swiglu train.lr=1e-3.", autocompletion=complete_override),
]
SecondArm = Annotated[
    list[str] | None,
    typer.Argument(
        help="Overrides of the second arm, such as ffn=swiglu; the first arm is the preset.",
        autocompletion=complete_override,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="Training data: arithmetic, shakespeare, python, or a text file, .jsonl file or folder.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Folder name below runs/. Default: derived from the command."),
]
Figures = Annotated[
    Path | None,
    typer.Option("--figures", metavar="FOLDER", help="Also write each figure as SVG, PNG and CSV into this folder."),
]
Import = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Module or .py file that registers custom parts. Repeatable."),
]
Json = Annotated[
    bool, typer.Option("--json", metavar=FLAG, help="Print one JSON document, and everything else on standard error.")
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of a run below runs/, its folder, or a Hugging Face folder.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", help="Concurrent runs. Default: one per CPU core; one on an accelerator.", min=1
    ),
]


def collect_overrides(context: typer.Context, overrides: list[str] | None) -> list[str]:
    return [*(overrides or []), *context.args]


def load_imports(sources: list[str] | None) -> tuple[str, ...]:
    from partwise.config import import_parts

    for source in sources or []:
        import_parts(source)
    return tuple(str(Path(source).resolve()) if source.endswith(".py") else source for source in sources or [])
