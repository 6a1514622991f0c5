"""Nothing in the working folder is imported, whatever its name: a folder may hold files of other people."""

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from comparisons import ARITHMETIC

MARKER = "imported.txt"
HOSTILE = f"""\
with open(__file__.rpartition("/")[0] + "/{MARKER}", "a") as file:
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
        (folder / f"{name}.py").write_text(HOSTILE)
    (folder / "e.yaml").write_text(
        "command: /bin/sh -c 'echo loss $((100 + $0 * 7 % 11 + $1))' {seed} {args}\n"
        "arms: {a: {args: '0'}, b: {args: '5'}}\nmetric: {margin: 1, pattern: 'loss (\\S+)'}\n"
    )
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("train", "mingpt", *SMALL, "head_bias=false", "--name", "run"),
        ("eval", "run", "--max-problems", "4"),
        ("compare", "mingpt", "ffn=swiglu", *SMALL, "--seeds", "2"),
        ("compare", "e.yaml", "--seeds", "2", "--name", "commands"),
        ("runs",),
        ("doctor",),
        ("study", "list"),
        ("verdict", "--help"),
        ("generate", "run", "--max-new-tokens", "2"),
        ("inspect", "run", "cost"),
        ("report", "run"),
        ("export", "run", "out", "--to", "hf", "--family", "partwise"),
        ("export", "run", "gpt2", "--to", "hf"),
        ("tokenizer", "train", "--data", "shakespeare", "--vocab-size", "260", "--out", "t.json"),
        ("verify", "runs/commands"),
        ("ledger",),
        ("parts",),
        ("show", "mingpt"),
        ("plan", "--claims", "3", "--sd", "0.01", "--effect", "0.02"),
        ("work", "commands"),
        ("calibrate", "e.yaml", "--seeds", "3"),
        ("import", "gpt2", "--name", "imported"),
        ("inspect", "run", "attention"),
        ("calculate", "run", "1+1"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_no_command_imports_from_the_working_folder(hostile: Path, words: tuple[str, ...]) -> None:
    command = [str(Path(sys.executable).with_name("partwise")), *words]
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, check=False, timeout=300)
    imported = (hostile / MARKER).read_text() if (hostile / MARKER).exists() else ""
    (hostile / MARKER).unlink(missing_ok=True)
    assert not imported, f"imported: {imported}"
    assert done.returncode == 0, done.stderr


def test_the_files_would_be_imported_by_a_command_that_trusts_the_folder(hostile: Path) -> None:
    """Without this, a misspelled marker would let every test above pass."""
    done = subprocess.run([sys.executable, "-c", "import yaml"], cwd=hostile, capture_output=True, check=False)
    assert done.returncode and (hostile / MARKER).exists()
    (hostile / MARKER).unlink()
