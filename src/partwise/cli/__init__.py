"""The `partwise` command line. Command modules import heavy dependencies only when a command runs."""

import atexit
import gc
import os
import sys
from itertools import pairwise

import typer

from partwise.cli import (  # noqa: F401  (importing them registers their commands)
    compare_commands,
    course_commands,
    exchange_commands,
    generation_commands,
    lesson_commands,
    model_commands,
    planning_commands,
    record_commands,
    search_commands,
    studio_commands,
    study_commands,
)
from partwise.cli.options import app
from partwise.cli.signals import ENDING, end_undisturbed, exit_status, handled, outlive_terminal, terminate

INTERRUPTED = 130


def add_option_value(message: str, arguments: list[str]) -> str:
    """A usage error with the offending option's value, which click's message leaves out."""
    for option, value in pairwise(arguments):
        if f"'{option}'" in message and value not in message:
            return f"{option} {value}: {message[0].lower()}{message[1:]}; see --help"
    return f"{message.removesuffix('.')}; see --help"


def open_standard_streams() -> None:
    """Open those that the caller has closed: files would get their numbers, and be written to by errors of C libraries."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", errors="replace"))


def main() -> None:
    """Entry point of `partwise`. Invalid input exits with status 2 and one line on stderr, an interrupt with 130, and a
    signal with 128 plus its number."""
    open_standard_streams()
    from partwise.cli.terminal import print_error, substitute_unencodable

    if sys.platform == "win32":  # no program of the working folder, which may hold files of other people, is run
        os.environ.setdefault("NoDefaultCurrentDirectoryInExePath", "1")
    atexit.register(gc.freeze)  # else Python, at its end, looks for cycles in all of torch
    substitute_unencodable()
    outlive_terminal()
    try:
        with handled(terminate, ENDING):
            status = app(prog_name="partwise", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(exit_status())
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        from partwise.config import ConfigError
        from partwise.machine import OUT_OF_MEMORY, is_out_of_memory
        from partwise.torch_extra import explained

        # a usage error of click; duck-typed, since typer may vendor click
        format_message = getattr(error, "format_message", None)
        if is_out_of_memory(type(error).__name__, str(error)):
            print_error(OUT_OF_MEMORY)
            sys.exit(2)
        error = explained(error, "this command")
        if not isinstance(error, ConfigError) and format_message is None:
            raise
        if format_message and not format_message():  # a group without a command has printed its help
            sys.exit(2)
        print_error(add_option_value(format_message(), sys.argv) if format_message else error)
        sys.exit(2)
    finally:
        end_undisturbed()
    if status == INTERRUPTED:  # typer's word for a KeyboardInterrupt
        status = exit_status()
    sys.exit(status if isinstance(status, int) else 0)
