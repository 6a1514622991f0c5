"""A command of several modes: each has its own arguments and options, and refuses the options of the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import typer
from typer.core import TyperCommand

from partwise.cli.help import print_help, print_modes, styled
from partwise.cli.options import ALLOW_OVERRIDES


@dataclass(frozen=True)
class Mode:
    """One form of a command."""

    name: str
    """The word after `--help`."""
    form: str
    """What follows the name of the command: a flag, or the first argument."""
    run: Callable[..., None]
    fields: tuple[str, ...] = ()
    """The fields of a `Request` that are its options; all of them if empty."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of click's context: how it treats further words."""

    @property
    def flag(self) -> str:
        return self.form if self.form.startswith("-") else ""


Choose = Callable[[Any, set[str], list[str]], str | None]
"""From the names of the given options and the other words to the name of a mode, or None if no word tells. May raise
ConfigError, and set `obj` of the context, its first argument, for the mode."""


def command_with_modes(app: typer.Typer, name: str, about: str, modes: Sequence[Mode], choose: Choose) -> None:
    """Register a command whose mode follows from its words.

    Without arguments, or with `--help` alone, it lists its modes; `--help NAME` describes one.
    """
    command: Any = partial(ModesCommand, {mode.name: mode for mode in modes}, choose)
    app.command(name, cls=command, help=about, context_settings=ALLOW_OVERRIDES)(lambda: None)


class ModesCommand(TyperCommand):
    """It only finds the mode: parsing, help and completion are those of the mode's own command."""

    def __init__(self, modes: dict[str, Mode], choose: Choose, **settings: Any) -> None:
        super().__init__(**settings)
        self.modes, self.choose = modes, choose

    @cached_property
    def commands(self) -> dict[str, Any]:
        from partwise.cli.request_options import derive_command

        return {
            name: styled(derive_command(mode.run, mode.fields, settings=mode.settings))
            for name, mode in self.modes.items()
        }

    @cached_property
    def option_finder(self) -> TyperCommand:
        """It has every option of every mode, and so tells words from values of options before the mode is known."""
        options = {
            each.name: each
            for command in self.commands.values()
            for each in command.params
            if each.param_type_name == "option"
        }
        finder: TyperCommand = styled(
            TyperCommand(self.name, params=[*options.values()], context_settings=ALLOW_OVERRIDES)
        )
        return finder

    def get_params(self, ctx: Any) -> list[Any]:
        """What the shell completes before the mode is known: arguments of the first one, and all options."""
        first, *_ = self.commands.values()
        arguments = [each for each in first.params if each.param_type_name == "argument"]
        return [*arguments, *self.option_finder.get_params(ctx)]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the mode that the words choose. Raises ConfigError for an option of another mode."""
        context = self.context_class(
            self.option_finder, info_name=info_name, parent=parent, **{**ALLOW_OVERRIDES, **extra}
        )
        _, words, params = self.option_finder.make_parser(context).parse_args(list(args))
        given: dict[str, str] = {param.name: param.opts[0] for param in params}
        if context.resilient_parsing:
            name = self.completed_mode(context, given, words)
            if name is None:
                return super().make_context(info_name, args, parent, **extra)
        else:
            if not args or "help" in given:
                self.show_help(context, given, words)
                context.exit(0 if args else 2)
            name = self.given_mode(context, given, words)
        return self.commands[name].make_context(info_name, args, parent=parent, obj=context.obj, **extra)

    def completed_mode(self, context: Any, given: dict[str, str], words: list[str]) -> str | None:
        """The mode of an unfinished line, which no error may interrupt."""
        from partwise.config import ConfigError

        try:
            return self.choose(context, set(given), words)
        except ConfigError:
            return None

    def given_mode(self, context: Any, given: dict[str, str], words: list[str]) -> str:
        """The mode of a whole line. Raises ConfigError."""
        from partwise.config import ConfigError

        name = self.choose(context, set(given), words)
        if name is None:
            *forms, last = (mode.form for mode in self.modes.values())
            raise ConfigError(f"{self.name} needs {', '.join(forms)} or {last}; see `partwise {self.name} --help`")
        options = {mode: {each.name for each in command.params} for mode, command in self.commands.items()}
        for option, flag in given.items():
            if option not in options[name]:
                owners = " or ".join(
                    f"`{self.name} {self.modes[each].form}`" for each in options if option in options[each]
                )
                raise ConfigError(
                    f"{flag} is an option of {owners}, not of `{self.name} {self.modes[name].form}`; "
                    f"see `partwise {self.name} --help {name}`"
                )
        return name

    def show_help(self, context: Any, given: dict[str, str], words: list[str]) -> None:
        """The mode that `--help` names or that the line has; otherwise all of them."""
        name = words[0] if words and words[0] in self.modes else self.completed_mode(context, given, words)
        if name is not None:
            print_help(self.commands[name], context, self.modes[name].flag)
            return
        print_modes(
            self.help or "", [(name, self.commands[name], mode.flag) for name, mode in self.modes.items()], context
        )
