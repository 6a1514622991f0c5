"""Collect the results of all benchmarks in one table: printed, and written to docs/ as Markdown and JSON.

    python benchmarks/table.py [FOLDER] [--out docs] [--name benchmarks-avx2]

FOLDER (build/bench) holds one JSON file per command, with "rows" (see `measuring.py`), "machine" and "command" (default:
`python benchmarks/NAME.py`). The reasons for missed goals are written by hand: `misses.md` for the page `benchmarks`, and
`misses-NAME.md`, if there is one, for a page of another machine, `benchmarks-NAME`. `make generate` writes the pages again
from their JSON, with the chart of each.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from partwise.compute.runtime import machine_info
from partwise.config import ConfigError

HERE = Path(__file__).parent
SAME_KEYS = ("cpu", "cores", "torch")  # must be equal in all files of a table
ROW_KEYS = ("goal", "what", "ours", "unit", "peers", "ratio")
MAIN = "benchmarks"
REFERENCE = "Why goals are missed: [the benchmarks with native bfloat16](benchmarks.md).\n"
TITLES = {
    MAIN: "Benchmarks",
    "benchmarks-avx2": "Benchmarks with AVX2 alone",
    "benchmarks-float32": "Benchmarks without native bfloat16",
}
GOALS = (
    "training step",
    "time to a loss",
    "comparison",
    "multi-seed training",
    "arithmetic evaluation",
    "sampling",
    "preparation",
    "growth",
    "starting",
    "busy machine",
)
"""The order of the table; other goals come last."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/bench"))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--name", default=MAIN, help="name of the page")
    options = parser.parse_args()
    try:
        rows = gather(options.folder)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    here = {**machine_info(), "features": features()}
    Console().print(console_table(rows))
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"machine": here, "rows": rows}
    (options.out / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (options.out / f"{options.name}.md").write_text(page(options.name, result), encoding="utf-8")
    return 0


def gather(folder: Path) -> list[dict[str, Any]]:
    """All rows of the folder's files, with their commands and verdicts. Raises ConfigError."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ConfigError(f"{folder} contains no measurements: run make bench first")
    rows = [row for file in files for row in read(file)]
    order = {goal: index for index, goal in enumerate(GOALS)}
    return sorted(rows, key=lambda row: order.get(row["goal"], len(GOALS)))


def read(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise ConfigError(f"{file} is not JSON: delete it and measure again") from None
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise ConfigError(f"{file} has no rows: delete it and measure again")
    here = machine_info()
    for key in SAME_KEYS:
        value = content.get("machine", {}).get(key)
        if value != here[key]:
            raise ConfigError(f"{file} is from another machine ({key} {value}, here {here[key]}): measure again here")
    command = content.get("command", f"python benchmarks/{file.stem}.py")
    for row in content["rows"]:
        for key in ROW_KEYS:
            if key not in row:
                raise ConfigError(f"{file}: a row lacks {key!r}: measure again")
    return [{**row, "command": command, "verdict": verdict(row)} for row in content["rows"]]


def verdict(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return "not measured"
    target = row.get("target")
    return "" if target is None else "met" if row["ratio"] >= target else "missed"


def features() -> dict[str, bool]:
    """CPU features that matter for speed, and whether torch detects them."""
    return {
        "avx2": torch.cpu._is_avx2_supported(),
        "avx512f": torch.cpu._is_avx512_supported(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx": torch.cpu._is_amx_tile_supported(),
    }


def cells(row: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """The cells of a row: case, ours, the best peer, the ratio with its range, the target ratio, the verdict."""
    ratio = "" if row["ratio"] is None else figure(row["ratio"])
    if ratio and row.get("low") is not None and row.get("high") is not None:
        ratio += f" ({figure(row['low'])} to {figure(row['high'])})"
    target = "" if row.get("target") is None else figure(row["target"])
    ours = figure(row["ours"]) + ("" if row["unit"].startswith("%") else " ") + row["unit"]
    return row["what"], ours, best_peer(row), ratio, target, row["verdict"]


def figure(x: float) -> str:
    """Format with three significant digits, or as an integer if larger."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def best_peer(row: dict[str, Any]) -> str:
    """The peer with the best figure."""
    figures = {name: x for name, x in row["peers"].items() if x is not None}
    if not figures:
        return "missing" if row["peers"] else ""
    name = (max if row["unit"].endswith("/s") else min)(figures, key=lambda name: figures[name])
    return f"{name}: {figure(figures[name])}"


def console_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="All benchmarks")
    for column in ("benchmark", "case", "ours", "best peer", "ratio", "target", ""):
        table.add_column(column, justify="right" if column in ("ours", "ratio", "target") else "left")
    for row in rows:
        *shown, verdict = cells(row)
        style = {"met": "green", "missed": "red"}.get(verdict)
        table.add_row(row["goal"], *shown, verdict, style=style)
    return table


def page(name: str, result: dict[str, Any]) -> str:
    """The page of a JSON file of docs/: its chart, the table, the commands, and why goals are missed."""
    rows, here = result["rows"], result["machine"]
    present = ", ".join(each for each, detected in here["features"].items() if detected) or "none of them"
    absent = ", ".join(each for each, detected in here["features"].items() if not detected)
    grown = [row for row in rows if row["goal"] == "growth" and row.get("target") is None]
    lines = [
        f"# {TITLES.get(name, name)}",
        "",
        f"![Speed against the best peer: one bar per benchmark](images/{chart_name(name)})",
        "",
        f"{here['cpu']}, {here['cores']} cores; CPU features: {present}"
        + (f"; missing: {absent}" if absent else "")
        + f". {here['system']}, Python {here['python']}, torch {here['torch']}. A ratio is the median over alternating "
        "rounds, with its range; above 1 is better than the best peer.",
        "",
        "| benchmark | case | ours | best peer | ratio | target | |",
        "|---|---|---:|---|---:|---:|---|",
        *(f"| {row['goal']} | {' | '.join(cells(row))} |" for row in rows if row not in grown),
    ]
    if grown and name == MAIN:
        lines += ["", "![Time and memory of a step against width, depth, batch and context](growth.svg)"]
    lines += ["", f"Every peer: [{name}.json]({name}.json). `make bench` and `make bench-long` ran:", ""]
    commands = dict.fromkeys((row["goal"], row["command"]) for row in rows)
    lines += [f"- {goal}: `{command}`" for goal, command in commands]
    misses = HERE / f"misses{name.removeprefix(MAIN)}.md"
    return "\n".join([*lines, "", misses.read_text(encoding="utf-8") if misses.exists() else REFERENCE])


def chart_name(name: str) -> str:
    return f"speed{name.removeprefix(MAIN)}.svg"


if __name__ == "__main__":
    sys.exit(main())
