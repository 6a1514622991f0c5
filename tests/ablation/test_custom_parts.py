"""Parts that a script or a notebook defines: what the workers import, and what they cannot."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from comparisons import ARITHMETIC
from partwise.ablation.custom_parts import FILE, store_parts
from partwise.ablation.run_comparison import plan_comparison
from partwise.comparison.experiment import Comparison
from partwise.config import REGISTRY, ConfigError

PART = """\
from __future__ import annotations
import math
from partwise.config import part as register_part, part
from partwise.parts.feed_forward.dense import Activation, F, Ungated
import torch as _torch

SLOPE = 0.1
scale: float = SLOPE * math.e / math.e
unused = undefined_elsewhere = 1

def slope(x):
    return leaky(x) * 1.0

def leaky(x):
    return F.leaky_relu(x, scale)

class Base(Ungated):
    def activation(self) -> "Activation":
        return Activation("slope", slope)

@part("leaky_of_a_script")
class Leaky(Base):
    '''leaky_relu.'''
"""
RUN = """
print("the script runs")
import partwise

settings = {"data": "arithmetic", "seeds": 2, "name": "c", "failure": 100.0}
comparison = partwise.compare("mingpt", "ffn=leaky_of_a_script", **settings, common=COMMON)
print(comparison.results.arms[1].values)
"""


def test_a_part_of_a_script_is_compared(here: Path) -> None:
    """Its workers do not run the script, and opening the comparison later imports nothing."""
    script = here / "script.py"
    script.write_text(PART + RUN.replace("COMMON", repr(ARITHMETIC)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the script runs") == 1 and "4 of 4 runs: " in done.stdout
    assert ", done" in done.stdout and "failed" not in done.stdout
    written = (here / "runs/c" / FILE).read_text()
    assert "unused" not in written and "compare" not in written
    runs = sorted(here.glob("runs/c/runs/1-*/seed-0"))
    assert json.loads((runs[0] / "job.json").read_text())["imports"] == [str(here / "runs/c" / FILE)]

    code = f"import partwise\ntry: partwise.load({str(runs[0])!r})\nexcept partwise.ConfigError as e: print(e)"
    command = [sys.executable, "-c", code]
    opened = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "unknown part ffn=leaky_of_a_script" in opened.stdout and "--import FILE" in opened.stdout, opened


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A `__main__` module for the code of a test; its parts are forgotten after the test."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(REGISTRY, "ffn", dict(REGISTRY["ffn"]))
    return module


def run_cells(module: ModuleType, *cells: str) -> None:
    module.__dict__["In"] = ["", *cells]
    for cell in cells:
        exec(cell, module.__dict__)


def planned(name: str) -> Comparison:
    return plan_comparison("mingpt", f"ffn={name}", data="arithmetic", common=ARITHMETIC, name="c")


def names_bound(path: Path) -> list[str]:
    statements = ast.parse(path.read_text()).body
    return [each.name for each in statements if isinstance(each, ast.ClassDef | ast.FunctionDef)]


def test_a_part_of_cells(main: ModuleType, here: Path) -> None:
    """The last definition of a rerun cell counts, and only what the part needs is written."""
    function = PART[PART.index("def slope") : PART.index("def leaky")]
    run_cells(main, PART, "1 + 1", function.replace("1.0", "2.0"), "def unneeded():\n    return Leaky")
    main.__dict__["In"] += ["this cell ! is no Python"]
    (path,) = store_parts(planned("leaky_of_a_script").plan, here, ())
    assert Path(path) == here / FILE
    text = Path(path).read_text()
    assert "leaky(x) * 2.0" in text and "leaky(x) * 1.0" not in text
    assert sorted(names_bound(Path(path))) == ["Base", "Leaky", "leaky", "slope"]
    assert store_parts(planned("leaky_of_a_script").plan, here, ("my.py",)) == ("my.py", path)
    # another version of the part must not continue its trials
    run_cells(main, PART.replace("0.1", "0.2"))
    with pytest.raises(ConfigError, match="another version of your parts: choose another name"):
        store_parts(planned("leaky_of_a_script").plan, here, ())


IN_FUNCTION = """\
from partwise.config import part
from partwise.parts.feed_forward.dense import Activation, F, Ungated

def make():
    @part("leaky_of_a_script")
    class Leaky(Ungated):
        def activation(self):
            return Activation("relu", F.relu)

make()
"""


@pytest.mark.parametrize(
    ("cells", "hidden", "message"),
    [
        ([IN_FUNCTION], "", "defined inside a function: define it at the top level"),
        ([PART], "def leaky", "needs 'leaky', which no top-level statement"),
        ([PART], "class Leaky", "no class statement at the top level"),
        ([PART.replace('@part("leaky_of_a_script")\n', "") + '\npart("leaky_of_a_script")(Leaky)'], "", "write @part"),
    ],
    ids=["function", "missing", "exec", "decorator"],
)
def test_parts_without_source_are_refused(
    main: ModuleType, here: Path, cells: list[str], hidden: str, message: str
) -> None:
    """`hidden` is the definition that the record of the cells lacks, as after `exec`."""
    run_cells(main, *cells)
    if hidden:
        start = PART.index(hidden)
        main.__dict__["In"] = [
            PART[:start].removesuffix('@part("leaky_of_a_script")\n'),
            PART[PART.index("\n\n", start) :] if "leaky" in hidden else "",
        ]
    with pytest.raises(ConfigError, match=message) as caught:
        store_parts(planned("leaky_of_a_script").plan, here, ())
    assert "imports=" in str(caught.value) or "@part" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_typed_without_a_file_is_refused(main: ModuleType, here: Path) -> None:
    exec(PART, main.__dict__)
    with pytest.raises(ConfigError, match=r"has no source.*imports=\('my_parts.py',\)"):
        store_parts(planned("leaky_of_a_script").plan, here, ())


def test_a_part_of_an_imported_file_is_imported_by_the_workers(
    main: ModuleType, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / "parts_of_mine.py"
    path.write_text(PART)
    module = ModuleType("parts_of_mine")
    module.__dict__["__file__"] = str(path)
    monkeypatch.setitem(sys.modules, "parts_of_mine", module)
    exec(PART, module.__dict__)
    plan = planned("leaky_of_a_script").plan
    assert store_parts(plan, here, ()) == (str(path),)
    assert store_parts(plan, here, ("parts_of_mine.py",)) == ("parts_of_mine.py",)
    assert store_parts(plan, here, ("parts_of_mine",)) == ("parts_of_mine",)
    assert not (here / FILE).exists()
