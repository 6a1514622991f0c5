"""Progress on any terminal: what runs now, how much is done, and the time left, whatever the number of runs."""

import inspect
import io
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from partwise.cli import main, terminal
from partwise.cli.commands import verdict as verdict_command
from partwise.comparison import progress
from partwise.comparison.report.rendering import MARKS
from partwise.comparison.results import TrialResult
from partwise.comparison.stats.value_verdicts import tables
from partwise.comparison.stats.verdicts import verdict
from partwise.comparison.trials.trial import Trial
from partwise.console import RemoveControls
from partwise.messages import print_message, quantity
from partwise.train.run_folder import RunFolder


@dataclass
class FakeTrial(Trial):
    done: int = 0

    def progress(self) -> int:
        return self.done

    def stored_status(self) -> str | None:
        raise NotImplementedError

    def outcome(self, metric: str) -> TrialResult:
        raise NotImplementedError


def comparison(n_arms: int, seeds: int, finished: int) -> Any:
    """`finished` runs are done, and the next two are running."""
    names = [f"ffn=swiglu norm=rmsnorm train.lr={index + 1}e-3" for index in range(n_arms)]
    trials = [FakeTrial(name, seed, Path(name, str(seed)), 600) for seed in range(seeds) for name in names]
    for number, trial in enumerate(trials):
        if number < finished + 2:
            trial.status, trial.done = ("done", 600) if number < finished else ("running", 240)
    return SimpleNamespace(trials=trials, started=time.monotonic() - 60)


def screen(monkeypatch: pytest.MonkeyPatch, shown: Any, width: int, height: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=file, force_terminal=True, width=width, height=height, color_system=None)
    monkeypatch.setattr(progress, "console", console)
    display = progress.ComparisonProgress()
    done = [trial.progress() for trial in shown.trials]
    display.initial_steps = {trial.folder: 0 for trial in shown.trials}
    console.print(display._table(shown, done, display._time_left(shown, done)))
    file.seek(0)
    return file.read().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (80, 10)])
@pytest.mark.parametrize("n_arms", [2, 3, 16, 60])
def test_progress_fits_and_shows_what_runs_now(
    monkeypatch: pytest.MonkeyPatch, width: int, height: int, n_arms: int
) -> None:
    lines = screen(monkeypatch, comparison(n_arms, 16, finished=5), width, height)
    assert len(lines) < height and max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert lines[0].startswith(f"5 of {16 * n_arms} runs finished")
    assert "left" in " ".join(lines[:2])
    assert text.count("40%") == 2, "both runs in progress are shown"
    hidden = n_arms - sum("/16" in line for line in lines)
    assert (f"and {quantity(hidden, 'more arm')}" in text) == (hidden > 0)


def test_progress_says_what_follows_the_last_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = screen(monkeypatch, comparison(2, 4, finished=8), 80, 24)
    assert lines[0].rstrip() == "8 of 8 runs finished; writing the report"


def test_a_log_has_a_line_for_every_run_of_every_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning and the test have lists of runs of their own, in which equal numbers are different runs."""
    file = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=file, width=200, color_system=None))
    display = progress.ComparisonProgress()
    tuning, test = comparison(2, 4, finished=8), comparison(2, 8, finished=16)
    for trial in tuning.trials:
        trial.folder = Path("tuning") / trial.folder
    for shown in (tuning, tuning, test, test):
        display(shown)
    lines = file.getvalue().splitlines()
    assert len(lines) == 8 + 16 and sum(line.startswith("16 of 16 runs: ") for line in lines) == 16


def test_bars_are_ascii_if_the_encoding_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(screen(monkeypatch, comparison(2, 4, finished=3), 80, 24, "ascii"))
    assert text.isascii() and "#" in text


def test_an_encoding_without_the_marks_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(file, encoding="ascii", write_through=True))
    terminal.substitute_unencodable()
    print("✓ a ≈ b: ±0.02 – naïve", *MARKS.values())
    assert file.getvalue().decode("ascii").splitlines() == ["+ a = b: +/-0.02 - na?ve + x = ? -"]


def test_an_error_wraps_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "train.lr=fast: expected a number; see /a/very/long/folder/name/that/no/terminal/can/show/whole"
    shown = []
    for is_terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=is_terminal, width=40, color_system=None, soft_wrap=True)
        monkeypatch.setattr(terminal, "stderr_console", console)
        terminal.print_error(message)
        shown.append(file.getvalue())
    assert shown == [
        "error: train.lr=fast: expected a number;\nsee\n/a/very/long/folder/name/that/no/terminal/can/show/whole\n",
        f"error: {message}\n",
    ]


@pytest.mark.parametrize(("variables", "said"), [({}, b"+ +/-0.02"), ({"PYTHONUTF8": "1"}, "✓ ±0.02".encode())])
def test_a_terminal_in_the_c_locale_gets_ascii(variables: dict[str, str], said: bytes) -> None:
    code = "from partwise.cli.terminal import substitute_unencodable as go; go(); print('✓ ±0.02')"
    program = f"import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', {code!r}]))"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C", **variables}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.stdout.strip() == said, done.stderr


EVIL = "a\x1b[2J\x1b]0;title\x07b\x9b31mc\x7fd\u202ee\rf\u2066g\u2028h"
"""Clears a terminal, renames it, colors it by a C1 character, and reverses the direction of a text."""


@pytest.mark.parametrize("name", ["console", "stderr_console"])
def test_a_console_prints_no_control_characters_of_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    printer = getattr(terminal, name)
    monkeypatch.setattr(printer, "_file", written)
    printer.print(EVIL, markup=False)
    printer.print(terminal.table(EVIL, [EVIL, "n"], [[EVIL, EVIL]]))
    terminal.print_error(EVIL) if name == "stderr_console" else printer.print(Text(f"x\t{EVIL}\ny"))
    text = written.getvalue()
    assert text.count("a[2J]0;titleb31mcdefgh") >= 4
    assert {c for c in text if not c.isprintable()} <= {"\n", "\t"}


def test_a_message_on_stderr_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as the processor that a run.json names, which the default log of a run prints."""
    print_message(EVIL)
    assert capsys.readouterr().err == "a[2J]0;titleb31mcdefgh\n"
    log = inspect.signature(RunFolder).parameters["log"].default
    log(EVIL)
    assert capsys.readouterr().err == "a[2J]0;titleb31mcdefgh\n"


def test_colors_of_ours_are_kept() -> None:
    """Control characters are removed from what is printed, not from what a console writes for styles."""
    written = io.StringIO()
    printer = Console(file=written, force_terminal=True, color_system="standard")
    printer.push_render_hook(RemoveControls())
    printer.print(Text(EVIL, "bold red"))
    assert written.getvalue() == "\x1b[1;31ma[2J]0;titleb31mcdefgh\x1b[0m\n"


def test_generated_text_has_no_control_characters_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((Screen(), "\ta[2J]0;titleb31mcdefgh\n"), (io.StringIO(), f"\t{EVIL}\n")):
        monkeypatch.setattr(sys, "stdout", stream)
        terminal.flush_text(f"\t{EVIL}\n")
        assert stream.getvalue() == expected


@pytest.mark.parametrize("width", [80, 40])
def test_a_verdict_breaks_no_word_and_no_interval(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    values = {
        "base": {seed: 1.5 + 0.01 * (seed % 3) for seed in range(5)},
        "a long name of an arm": {seed: 1.45 + 0.01 * (seed % 2) for seed in range(5)},
        "none": {seed: 1.5 + 0.011 * (seed % 3) for seed in range(5)},
    }
    verdicts = verdict(values, margin=0.005)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(verdict_command, "console", console)
    verdict_command.print_wrapped(verdicts)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert set(str(verdicts).split()) <= {*" ".join(lines).split(), "-"}
    head, *rows = tables(verdicts.effects, verdicts.values)[0]
    for row in rows:
        assert any(row[head.index("interval")] in line for line in lines)


def test_a_long_command_is_broken_between_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal would break it in the middle of a word. A file gets one line."""
    command = (
        "partwise compare mingpt positions=none --data shakespeare --common d_model=64 --common n_layers=2 --seeds 7"
    )
    for is_terminal in (True, False):
        screen = io.StringIO()
        monkeypatch.setattr(terminal, "console", Console(file=screen, force_terminal=is_terminal, width=60))
        terminal.print_command(command)
        lines = Text.from_ansi(screen.getvalue()).plain.splitlines()
        broken = is_terminal and os.name != "nt"
        assert shlex.split("\n".join(lines).replace("\\\n", "")) == command.split()
        assert len(lines) == (2 if broken else 1) and (max(map(len, lines)) <= 60) == broken


PRINTING_PART = """
import os
from partwise import part
from torch import nn

print("imported")
os.system("echo a process")

@part("printing", family="ffn")
class Printing(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.up = nn.Linear(d_model, d_model)

    def forward(self, x):
        print("called")
        return self.up(x)
"""


def test_json_is_alone_on_standard_output_whatever_code_of_the_user_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a file prints when it is imported, in each call and by a process of its own; then all is as before."""
    (tmp_path / "my_part.py").write_text(PRINTING_PART)
    monkeypatch.setattr(sys, "stdout", os.fdopen(1, "w", closefd=False))
    monkeypatch.setattr(sys, "argv", ["partwise", "lesson", "12", "--check", str(tmp_path / "my_part.py"), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {"lesson": 12, "right": True, "said": "right"}
    assert {"imported", "a process", "called", "right"} <= set(printed.err.splitlines())
    print("after", flush=True)
    assert capfd.readouterr().out.splitlines() == ["after"]


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors that a shell closes")
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-", "0<&- 1>&- 2>&-"])
def test_streams_that_the_caller_has_closed_are_opened(tmp_path: Path, closed: str) -> None:
    """Else an attribute of None ends the command, and the first files that it opens get the numbers of the streams."""
    command = f'exec "$0" -m partwise verdict --help {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0 and ("1>&-" in closed or b"Usage: partwise verdict" in done.stdout)
