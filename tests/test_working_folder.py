"""Nothing in the working folder is imported, whatever its name: a folder may hold files of other people."""

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from comparisons import ARITHMETIC

MARKER = "imported.txt"
HOSTILE = """\
with open({marker!r}, "a") as file:
    file.write(__name__ + "\\n")
raise SystemExit("imported from the working folder")
"""
SMALL = (*ARITHMETIC, "--data", "arithmetic")


def importable_names() -> set[str]:
    """The names of Python's modules, of all installed packages and of the modules that Python tries at its start."""
    names = {*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize", "partwise"}
    return {name for name in names if name.isidentifier()}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("working folder")
    for name in importable_names():
        (folder / f"{name}.py").write_text(HOSTILE.format(marker=str(folder / MARKER)))
    (folder / "e.yaml").write_text(
        "command: /bin/sh -c 'echo loss $((100 + $0 * 7 % 11 + $1))' {seed} {args}\n"
        "arms: {a: {args: '0'}, b: {args: '5'}}\nmetric: {margin: 1, pattern: 'loss (\\S+)'}\n"
    )
    return folder


COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "of a run": [
        ("train", "mingpt", *SMALL, "head_bias=false", "--name", "run"),
        ("eval", "run", "--max-problems", "4"),
        ("generate", "run", "--max-new-tokens", "2"),
        ("calculate", "run", "1+1"),
        ("inspect", "run", "cost"),
        ("inspect", "run", "attention"),
        ("report", "run"),
    ],
    "of a model": [
        ("train", "mingpt", *SMALL, "head_bias=false", "--name", "model"),
        ("export", "model", "out", "--to", "hf", "--family", "partwise"),
        ("export", "model", "gpt2", "--to", "hf"),
        ("import", "gpt2", "--name", "imported"),
    ],
    "of a comparison": [("compare", "mingpt", "ffn=swiglu", *SMALL, "--seeds", "2")],
    "of programs": [
        ("compare", "e.yaml", "--seeds", "2", "--name", "commands"),
        ("verify", "runs/commands"),
        ("work", "commands"),
        ("calibrate", "e.yaml", "--seeds", "3"),
        ("ledger",),
        ("runs",),
    ],
    "of none": [
        ("doctor",),
        ("study", "list"),
        ("verdict", "--help"),
        ("tokenizer", "train", "--data", "shakespeare", "--vocab-size", "260", "--out", "t.json"),
        ("parts",),
        ("show", "mingpt"),
        ("plan", "--claims", "3", "--sd", "0.01", "--effect", "0.02"),
    ],
}


LONG = ("of a run", "of a model", "of none")
"""All commands begin in the same way; those that start processes of their own are tested each time."""


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(commands, id=name, marks=[pytest.mark.long] if name in LONG else [])
        for name, commands in COMMANDS.items()
    ],
)
def test_no_command_imports_from_the_working_folder(hostile: Path, commands: list[tuple[str, ...]]) -> None:
    program = shutil.which("partwise", path=sysconfig.get_path("scripts"))
    assert program
    for words in commands:
        done = subprocess.run([program, *words], cwd=hostile, capture_output=True, text=True, check=False, timeout=300)
        imported = (hostile / MARKER).read_text() if (hostile / MARKER).exists() else ""
        (hostile / MARKER).unlink(missing_ok=True)
        assert not imported, f"{' '.join(words)} imported: {imported}"
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def test_the_files_would_be_imported_by_a_command_that_trusts_the_folder(hostile: Path) -> None:
    """Without this, a misspelled marker would let every test above pass."""
    done = subprocess.run([sys.executable, "-c", "import yaml"], cwd=hostile, capture_output=True, check=False)
    assert done.returncode and (hostile / MARKER).exists()
    (hostile / MARKER).unlink()
