"""The command line: each command reads its words and hands them on; heavy imports wait until they are needed."""

import sys
from itertools import pairwise

import typer

from partwise.cli import instrument, models  # noqa: F401  (their commands enter the application)
from partwise.cli.words import app


def name_value(message: str, words: list[str]) -> str:
    """A usage error with the value that the option was given, which the library leaves out."""
    for option, value in pairwise(words):
        if f"'{option}'" in message and value not in message:
            return f"{option} {value}: {message[0].lower()}{message[1:]}; see --help"
    return f"{message.removesuffix('.')}; see --help"


def main() -> None:
    """The `partwise` command. Bad input ends in one line on stderr and status 2, an interrupt in status 130."""
    from partwise.terminal import fail

    try:
        status = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        from partwise.config import ConfigError

        # a misused option; its class depends on whether typer brings click along or imports it
        usage = getattr(error, "format_message", None)
        if not isinstance(error, ConfigError) and usage is None:
            raise
        fail(name_value(usage(), sys.argv) if usage else error)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
