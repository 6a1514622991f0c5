"""An option of `compare` is declared once: a new field of the request is an option, a key and part of the command."""

import dataclasses
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import Field
from typer.models import OptionInfo
from typer.testing import CliRunner

from partwise import cli
from partwise.ablation.request import Option, Request
from partwise.cli.options import app
from partwise.cli.request_options import with_request_options
from partwise.config import ConfigError
from partwise.config.yaml import read_yaml


class Wider(Request):
    """A request with further options."""

    shade: Annotated[str | None, Option(short="-s", panel="Looks")] = Field(None, description="The shade of it.")
    repeats: int = Field(3, gt=1, description="How often.")


def run(*words: str) -> tuple[str, dict[str, Any]]:
    tool, given = typer.Typer(), {}

    def command(
        preset: str, change: list[str], *, options: dict[str, Any], own: Annotated[bool, typer.Option("--own")] = False
    ) -> None:
        given.update(options, preset=preset, change=change)

    tool.command()(with_request_options(command, (), Wider))
    done = CliRunner().invoke(tool, list(words), env={"COLUMNS": "120", "TERM": "dumb"})
    assert done.exit_code in (0, 2), done.output
    return done.output, given


def test_a_new_field_is_an_option_a_key_and_part_of_the_command(tmp_path: Path) -> None:
    text, _ = run("--help")
    for words in ("--shade", "-s", "The shade of it.", "Looks", "--repeats", "x>=2", "[default: 3]"):
        assert words in text, words
    assert text.index("--repeats") < text.index("--arm ") < text.index("--match")

    _, given = run("mingpt", "ffn=swiglu", "-s", "deep blue", "--repeats", "4")
    request = Wider.from_dict({key: value for key, value in given.items() if value is not None})
    assert request.shade == "deep blue" and request.repeats == 4
    assert "--shade 'deep blue' --repeats 4" in request.command(None)
    assert "--shade" not in Wider(preset="mingpt").command(None)

    path = tmp_path / "entry.yaml"
    path.write_text("preset: mingpt\nchange: [ffn=swiglu]\nshade: deep blue\nrepeats: 4\n")
    assert Wider.from_dict(read_yaml(path)) == request
    with pytest.raises(ConfigError, match="shade"):
        Request.from_dict(read_yaml(path))


def test_a_bound_of_a_field_is_a_bound_of_its_option() -> None:
    text, given = run("mingpt", "ffn=swiglu", "--repeats", "1")
    assert "--repeats" in text and not given


def test_shell_completion_knows_the_options() -> None:
    command = typer.main.get_command(app)
    context = command.make_context("partwise", ["compare", "mingpt"], resilient_parsing=True)
    compare = command.get_command(context, "compare")  # type: ignore[attr-defined]
    context = compare.make_context("compare", ["mingpt"], parent=context, resilient_parsing=True)
    assert [item.value for item in compare.shell_complete(context, "--fi")] == ["--first-seed"]


def test_an_option_with_a_metavar_names_itself() -> None:
    """Typer 0.27 takes the metavar for the name of an option that has none: `--DATA`."""
    modules = [importlib.import_module(f"partwise.cli.{each.name}") for each in pkgutil.iter_modules(cli.__path__)]
    functions = [each for module in modules for _, each in inspect.getmembers(module, inspect.isfunction)]
    functions += [each for module in modules for _, each in inspect.getmembers(module, dataclasses.is_dataclass)]
    options = [
        (function.__name__, name, extra)
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        for extra in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(extra, OptionInfo)
    ]
    assert len(options) > 50
    named = [each for each in options if each[2].param_decls or isinstance(each[2].default, str)]
    assert not [each for each in options if each[2].metavar is not None and each not in named]


def test_every_option_has_a_help_text() -> None:
    assert all(field.description for key, field in Request.model_fields.items() if key != "preset")
