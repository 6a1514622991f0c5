"""Processes of the command line: those that answer at once with JSON, and comparisons, which outlive the studio."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from partwise.config import ConfigError
from partwise.config.reading import open_to_read
from partwise.drafts import write_output
from partwise.files import open_file, private_folder, refuse_links
from partwise.processes import OWN_SESSION, AsyncGroup, send
from partwise.run_names import explain_write_errors

NOTES = Path("runs") / ".studio"
"""Where the questions and the output of started comparisons are; everything there may be deleted."""

MAX_LOG = 64 * 1024
MAX_LINE = 1 << 20
"""Bytes of a JSON line: a token with the attention to some thousand others has a twentieth."""
QUERY_SECONDS = 300.0


def program() -> list[str]:
    """The words that start `partwise` with this Python."""
    return [sys.executable, "-m", "partwise"]


@dataclass
class Started:
    """A comparison that this studio has started."""

    process: "subprocess.Popen[bytes]"
    log: Path


@dataclass
class Processes:
    """What this studio has started, by the name of the comparison."""

    folder: Path
    started: dict[str, Started] = field(default_factory=dict)

    def start(self, name: str, words: Sequence[str], question: dict[str, Any]) -> None:
        """Start `partwise WORDS` in a session of its own. Raises ConfigError."""
        if self.is_alive(name):
            raise ConfigError(f"{name} runs already")
        notes = self.folder / NOTES
        with explain_write_errors(notes):
            refuse_links(self.folder / "runs")
            notes.parent.mkdir(exist_ok=True)
            private_folder(notes)
            write_output(notes / f"{name}.json", json.dumps(question))
            with open_file(notes / f"{name}.log", "wb") as log:
                process = subprocess.Popen(
                    [*program(), *words],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    **OWN_SESSION,
                )
        self.started[name] = Started(process, notes / f"{name}.log")

    def is_alive(self, name: str) -> bool:
        return name in self.started and self.started[name].process.poll() is None

    def interrupt(self, name: str) -> bool:
        """Ask a comparison of this studio to save and end; returns whether there was one."""
        if not self.is_alive(name):
            return False
        send(self.started[name].process)
        return True

    def failure(self, name: str) -> str:
        """The last line of a comparison that has ended with an error; '' if it has not."""
        if name not in self.started or (self.started[name].process.poll() or 0) in (0, 130, 143):
            return ""
        lines = self.output(name).splitlines()
        return next((line for line in reversed(lines) if line.strip()), "it ended without a word")

    def output(self, name: str) -> str:
        """The end of what a comparison has printed."""
        try:
            with open_to_read(self.folder / NOTES / f"{name}.log") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - MAX_LOG))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    async def query(self, words: Sequence[str], seconds: float = QUERY_SECONDS, answers: Sequence[int] = (0,)) -> Any:
        """The JSON that `partwise WORDS` prints; ends the process if the caller is cancelled.

        Raises ConfigError, also for an exit status that is none of `answers`.
        """
        return json.loads(await self.printed(words, seconds, answers))

    async def printed(self, words: Sequence[str], seconds: float, answers: Sequence[int] = (0,)) -> bytes:
        """What `partwise WORDS` prints, as `query`."""
        process = await asyncio.create_subprocess_exec(
            *program(),
            *words,
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            **OWN_SESSION,
        )
        group = AsyncGroup(process)
        try:
            async with asyncio.timeout(seconds):
                out, err = await process.communicate()
        except TimeoutError:
            raise ConfigError(f"partwise {words[0]} took longer than {seconds:.0f} seconds") from None
        finally:
            group.kill()
        if process.returncode not in answers or not out:
            raise ConfigError(last_error(words, err))
        return out

    async def lines(self, words: Sequence[str], seconds: float) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON lines that `partwise WORDS` prints, as it prints them; closing this ends the process, and so do `seconds`.

        Raises ConfigError with what it says if it fails.
        """
        with TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *program(),
                *words,
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MAX_LINE,
                **OWN_SESSION,
            )
            group = AsyncGroup(process)
            timer = asyncio.get_running_loop().call_later(seconds, group.kill)
            try:
                assert process.stdout
                async for line in process.stdout:
                    yield json.loads(line)
                    await asyncio.sleep(0)  # lets the server see that its reader has gone, however fast lines come
                status = await process.wait()
            finally:
                timer.cancel()
                group.kill()
            if status:
                errors.seek(0)
                raise ConfigError(last_error(words, errors.read(MAX_LOG)))


def last_error(words: Sequence[str], printed: bytes) -> str:
    """What a command has said before it failed."""
    lines = [line for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else f"partwise {words[0]} failed"
