"""Commands whose options follow from the fields of a `Request`, derived on demand: other commands need no pydantic."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from partwise.cli.options import ALLOW_OVERRIDES

if TYPE_CHECKING:
    from partwise.ablation.request import Request


def request_command(
    app: typer.Typer, *keys: str, before: Mapping[str, str] | None = None, model: "type[Request] | None" = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with one option per field of a `Request`, or of `keys` alone, in place of `options`.

    `before` maps a parameter of the command to the field before which `--help` lists it.
    """

    def register(command: Callable[..., None]) -> Callable[..., None]:
        class RequestCommand(TyperCommand):
            complete = False

            def get_params(self, ctx: Any) -> list[Any]:
                if not self.complete:  # parsing, --help and shell completion start here
                    from partwise.cli.request_options import derive_command

                    command_with_options = derive_command(command, keys, before, model)
                    self.params = [*command_with_options.params, *self.params]
                    self.callback, self.complete = command_with_options.callback, True
                return super().get_params(ctx)

        help_text = inspect.getdoc(command)
        app.command(command.__name__, cls=RequestCommand, help=help_text, context_settings=ALLOW_OVERRIDES)(
            lambda: None
        )
        return command

    return register
