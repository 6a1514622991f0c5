"""The tutorial code that benchmarks compare against is correct, and their table reports missed goals."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from from_scratch.gpt import GPT
from partwise.compute.runtime import machine_info
from references.tutorial_loop import Training, evaluated_steps

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_names_that_a_script_imports_from_another_exist() -> None:
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in BENCHMARKS.glob("*.py")}
    defined = {
        stem: {name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias)}
        for stem, tree in trees.items()
    }
    imports = [
        (stem, node.module, alias.name)
        for stem, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in trees
        for alias in node.names
    ]
    assert len(imports) > 50
    assert not [f"{stem}.py: {module}.{name}" for stem, module, name in imports if name not in defined[module]]


def test_the_tutorial_loop_trains_and_evaluates_at_its_steps() -> None:
    torch.manual_seed(0)
    symbols = torch.arange(400) % 7
    training = Training(GPT(7, n_layer=1, n_embd=16, n_head=2, block_size=8), symbols, batch_size=4, context=8)
    training.optimizer.param_groups[0]["lr"] = 1e-2
    losses = training.run(steps=31, every=10, batches=2)
    assert list(losses) == [0, 10, 20, 30]
    assert losses[30]["val"] < losses[0]["val"] and losses[30]["train"] < losses[0]["train"]
    assert len(evaluated_steps()) == 11 and evaluated_steps()[-1] == 4999


def row(**changes: Any) -> dict[str, Any]:
    values = {"goal": "sampling", "what": "one", "ours": 30.0, "unit": "tokens/s", "peers": {"a": 10.0, "b": None}}
    return {**values, "ratio": 3.0, "low": 2.5, "high": 3.5, "target": 2.0, **changes}


def make_table(folder: Path, files: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "in").mkdir()
    for name, content in files.items():
        (folder / "in" / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    command = [sys.executable, str(BENCHMARKS / "table.py"), str(folder / "in"), "--out", str(folder / "out")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_table_reports_met_and_missed_goals(tmp_path: Path) -> None:
    rows = [row(), row(what="two", ratio=1.9), row(what="three", target=None), row(what="four", ratio=None, peers={})]
    done = make_table(tmp_path, {"sampling": {"rows": rows, "machine": machine_info()}})
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "benchmarks.md").read_text()
    lines = {line.split(" | ")[1]: line for line in text.splitlines() if line.startswith("| sampling | ")}
    assert lines["one"].endswith("| met |") and lines["two"].endswith("| missed |")
    assert "| a: 10 |" in lines["one"], "the best peer alone: the others are in the JSON"
    assert lines["three"].endswith("|  |") and lines["four"].endswith("| not measured |")
    result = json.loads((tmp_path / "out" / "benchmarks.json").read_text())
    assert [each["verdict"] for each in result["rows"]] == ["met", "missed", "", "not measured"]
    assert result["machine"]["cores"] == machine_info()["cores"] and "avx2" in result["machine"]["features"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ({"machine": machine_info()}, "has no rows"),
        ({"rows": [{"goal": "sampling"}], "machine": machine_info()}, "lacks 'what'"),
        ({"rows": [row()], "machine": {**machine_info(), "cpu": "Another"}}, "another machine"),
    ],
)
def test_an_invalid_file_is_named(tmp_path: Path, content: Any, message: str) -> None:
    done = make_table(tmp_path, {"bad": content})
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "bad.json" in done.stderr and message in done.stderr
