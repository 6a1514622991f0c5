"""The commands of README and docs run unchanged, except for the words of `docs_commands.SMALL` that make them small."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs_commands import NOT_RUN, ROOT, SMALL, commands, pages
from events import write_events
from programs import write_program
from repositories import git

NUMBERS = "seed,arm,value\n" + "".join(
    f"{seed},baseline,{1.52 + 0.01 * seed}\n{seed},ffn=swiglu,{1.48 + 0.011 * seed}\n" for seed in range(4)
)


def write_logs(folder: Path) -> None:
    """The runs that docs/any-code.md assumes: event files of TensorBoard, and a chart of Weights & Biases."""
    runs = {f"{arm}-{seed}": 1.5 + 0.01 * seed + shift for arm, shift in (("a", 0.0), ("b", 0.25)) for seed in range(3)}
    for name, value in runs.items():
        write_events(folder / "logs" / name, {"loss/val": {100: value + 1, 200: value}, "lr": {100: 1.0, 200: 0.5}})
    header = ",".join(f'"{name} - val_loss","{name} - val_loss__MIN","{name} - val_loss__MAX"' for name in runs)
    cells = ",".join(f"{value},{value},{value}" for value in runs.values())
    (folder / "chart.csv").write_text(f'"Step",{header}\n200,{cells}\n', encoding="utf-8")


def make_repository(folder: Path) -> None:
    """The repository that docs/any-code.md assumes: a program, its experiment, and a branch that improves it."""
    page = (ROOT / "docs/any-code.md").read_text(encoding="utf-8")
    experiments = re.findall(r"^```yaml\n(command.*?)^```", page, re.DOTALL | re.MULTILINE)
    for name, text in zip(("experiment.yaml", "matched.yaml"), experiments, strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    write_program(folder)
    program = folder / "train.py"
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "train.py", "experiment.yaml"],
        ["commit", "--quiet", "--message=baseline"],
        ["checkout", "--quiet", "-b", "my-branch"],
        ["commit", "--quiet", "--all", "--message=gain"],
        ["checkout", "--quiet", "main"],
    ):
        git(*words, folder=folder)
        if "-b" in words:
            program.write_text(program.read_text().replace("default=0.0)", "default=0.05)", 1))


def write_parts(folder: Path) -> None:
    """The part of docs/extending.md, in the file that commands import."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/extending.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    (block,) = [block for block in blocks if '@part("mine"' in block]
    (folder / "my_parts.py").write_text(block, encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[] if page.name == "README.md" else [pytest.mark.long])
        for page in pages()
        if commands(page)
    ],
)
@pytest.mark.timeout(1800)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """One page in one folder, in order: later commands use the runs of earlier ones."""
    (tmp_path / "numbers.csv").write_text(NUMBERS, encoding="utf-8")
    make_repository(tmp_path)
    write_logs(tmp_path)
    write_parts(tmp_path)
    for file in (ROOT / "examples/targets").glob("*.csv"):
        shutil.copy(file, tmp_path)
    for command in commands(page):
        done = subprocess.run(
            [sys.executable, "-m", "partwise", *command.words],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{page.name}: {command.text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("start", [*SMALL, *NOT_RUN])
def test_every_exception_is_for_a_command_that_a_page_has(start: str) -> None:
    assert any(start in page.read_text(encoding="utf-8") for page in pages())


def test_commands_are_found() -> None:
    """Each line of README's block of commands is one: an extraction that misses them would pass everything."""
    readme = pages()[0].read_text(encoding="utf-8")
    assert len(commands(pages()[0])) == sum(line.startswith("partwise ") for line in readme.splitlines()) > 5
