"""The text of `--help`, readable in terminals of any width: no boxes, no cut names, options in their groups."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from typer.core import TyperGroup

from partwise.wrapping import wrap

WORDS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH", "bool": "", "list[str]": "TEXT"}
"""The word for an option's value by type, where typer would show the Python type; a flag has no value."""

Entries = list[tuple[str, str]]


def name_values(params: list[Any]) -> list[Any]:
    """Give every option without a metavar the word for its type, if this version of typer tells the type."""
    for param in params:
        if param.metavar is None and param.param_type_name == "option" and hasattr(param, "bare_type"):
            param.metavar = WORDS.get(param.bare_type())
    return params


def once_each(parser: Any) -> Any:
    """A parser that refuses an option given twice; click would silently keep the last value."""
    parse_args = parser.parse_args

    def parse(args: list[str]) -> Any:
        found = parse_args(args)
        given = [param for param in found[2] if param.param_type_name == "option" and not param.multiple]
        for param in given:
            if given.count(param) > 1 and not param.is_flag:
                from partwise.config import ConfigError

                raise ConfigError(f"{param.opts[0]} is given twice: keep one")
        return found

    parser.parse_args = parse
    return parser


def styled(command: Any) -> Any:
    """The command, with named values, options that are given once, and the help text of this module."""
    get_params, make_parser = type(command).get_params, type(command).make_parser
    command.get_params = lambda ctx: name_values(get_params(command, ctx))
    command.make_parser = lambda ctx: once_each(make_parser(command, ctx))
    command.format_help = lambda ctx, formatter: print_help(command, ctx)
    return command


class Group(TyperGroup):
    """A group of styled commands."""

    groups: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Its commands by the headings of its help; a command without one is under `Commands`."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **settings: Any) -> Any:
        if "--json" not in (sys.argv if args is None else args):
            return super().main(args, *others, **settings)
        from partwise.cli.json_output import only_json

        with only_json():  # before anything runs that a user wrote, such as a part of --import
            return super().main(args, *others, **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return name_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        return command if command is None or isinstance(command, Group) else styled(command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_help(self, ctx)


def print_help(command: Any, ctx: Any, flag: str = "") -> None:
    """Print usage, description, arguments, commands and the options by group; `flag` chooses a mode of a command."""
    width = help_width()
    lines = wrap(f"Usage: {usage(command, ctx, flag)}", width, subsequent=" " * 4)
    for paragraph in (command.help or "").split("\n\n"):
        lines += ["", *text_lines(paragraph, width)]
    groups = groups_of_entries(command, ctx)
    longest = min(max((len(name) for entries in groups.values() for name, _ in entries), default=0), MAX_NAME)
    print_text("\n".join(lines))
    for title, entries in groups.items():
        print_text(f"\n{title}", style="bold")
        for line in lines_of_entries(entries, longest, width):
            print_text(line)


def print_modes(about: str, modes: Sequence[tuple[str, Any, str]], ctx: Any) -> None:
    """Print the usage of every mode, given by its name, command and flag, then their descriptions."""
    width = help_width()
    starts = ["Usage: ", *[" " * 7] * (len(modes) - 1)]
    lines = [
        line
        for start, (_, command, flag) in zip(starts, modes, strict=True)
        for line in wrap(usage(command, ctx, flag), width, start, " " * 11)
    ]
    entries = [(name, command.help) for name, command, _ in modes]
    lines += ["", *wrap(about, width), "", *lines_of_entries(entries, max(len(name) for name, _ in entries), width)]
    first, *others = [name for name, _ in entries]
    more = f"The options of one mode: {ctx.command_path} --help {first} (or {', '.join(others)})"
    print_text("\n".join([*lines, "", *wrap(more, width)]))


def print_text(text: str, style: str = "") -> None:
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text(text, style))  # soft_wrap: the lines fit already


def help_width() -> int:
    from rich.console import Console

    return min(Console().width, MAX_WIDTH)


NARROW, MAX_WIDTH, MAX_NAME = 64, 110, 24
"""In a narrower terminal, or below a longer name, a description has a line of its own; longer lines are hard to read."""


def lines_of_entries(entries: Entries, longest: int, width: int) -> Iterator[str]:
    """Names, the longest of this length, with their descriptions beside or below them."""
    indent = 2 + longest + 2 if width >= NARROW else 6
    for name, text in entries:
        yield from entry_lines(name, text, indent, width)


def entry_lines(name: str, text: str, indent: int, width: int) -> Iterator[str]:
    """An option with its description, all but the first line indented."""
    head = f"  {name}"
    if len(head) + 2 > indent:
        yield from text_lines(name, width, "  ", " " * 4)
        head = ""
    yield from text_lines(text, width, head.ljust(indent), " " * indent) if text else [head]


def text_lines(text: str, width: int, initial: str = "", subsequent: str = "") -> Iterator[str]:
    """Wrapped paragraphs; a command to copy stays one line."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(("Example: ", "partwise ")):
            yield initial + " ".join(paragraph.split())
        else:
            yield from wrap(paragraph, width, initial, subsequent)
        initial = subsequent


def usage(command: Any, ctx: Any, flag: str) -> str:
    return " ".join([ctx.command_path, *([flag] if flag else []), "[OPTIONS]", *usage_pieces(command, ctx)])


def usage_pieces(command: Any, ctx: Any) -> Iterator[str]:
    for param in command.get_params(ctx):
        if param.param_type_name == "argument":
            name = argument_name(param)
            yield name if param.required else f"[{name}]"
    if hasattr(command, "list_commands"):
        yield "COMMAND ..."


def argument_name(param: Any) -> str:
    name = (param.metavar or param.name.upper()).removesuffix("...")
    return f"{name}..." if param.nargs != 1 else name


def groups_of_entries(command: Any, ctx: Any) -> dict[str, Entries]:
    """Arguments, commands, then the options by group, those without a group first."""
    headings = getattr(command, "groups", {})
    groups: dict[str, Entries] = {"Arguments": [], **{each: [] for each in headings}, "Commands": [], "Options": []}
    if hasattr(command, "list_commands"):
        heading_of = {name: heading for heading, names in headings.items() for name in names}
        # those with a heading in its order, then the others as they were added
        for name in dict.fromkeys([*heading_of, *command.list_commands(ctx)]):
            child = command.get_command(ctx, name)
            entry = (name, (child.short_help or child.help or "").split("\n\n")[0])
            groups[heading_of.get(name, "Commands")].append(entry)
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)  # None if hidden
        if record is not None:
            argument = param.param_type_name == "argument"
            group = "Arguments" if argument else getattr(param, "rich_help_panel", None) or "Options"
            name = argument_name(param) if argument else record[0]
            text = record[1].removesuffix("[required]").replace("x>=", "at least ").strip()
            groups.setdefault(group, []).append((name, text))
    return {title: entries for title, entries in groups.items() if entries}
