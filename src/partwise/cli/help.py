"""What `--help` shows for the value of an option: a word such as N or PATH, where typer would show a Python type."""

from typing import Any

from typer.core import TyperGroup

WORDS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH", "bool": "", "list[str]": "TEXT"}
"""By type; a flag has no value."""


def name_values(params: list[Any]) -> list[Any]:
    """Give every option without a metavar the word for its type, if this version of typer tells the type."""
    for param in params:
        if param.metavar is None and param.param_type_name == "option" and hasattr(param, "bare_type"):
            param.metavar = WORDS.get(param.bare_type())
    return params


class Group(TyperGroup):
    """A group of commands whose options have such words."""

    def get_params(self, ctx: Any) -> list[Any]:
        return name_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and not isinstance(command, Group):
            get_params = type(command).get_params
            command.get_params = lambda ctx: name_values(get_params(command, ctx))  # type: ignore[method-assign]
        return command
