"""One table of all goals from what the benchmarks wrote: printed, and in docs/ as Markdown and JSON.

    python benchmarks/table.py [FOLDER] [--out docs]

FOLDER (build/bench) holds one JSON file per command, each with "rows" as `measuring.py` describes them, "machine" and,
where it is not `python benchmarks/NAME.py`, "command". Why a goal was missed stands in `misses.md`, written by hand.
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
SAME = ("cpu", "cores", "torch")  # what files must share to stand in one table
NEEDED = ("goal", "what", "ours", "unit", "peers", "ratio")
GOALS = (
    "training step",
    "time to a loss",
    "comparison",
    "seeds as one program",
    "arithmetic evaluation",
    "sampling",
    "preparation",
    "growth",
)
"""The order of the table; what it does not name comes last."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/bench"))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    try:
        rows = gather(options.folder)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    here = {**machine_info(), "features": features()}
    Console().print(drawn(rows))
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"machine": here, "rows": rows}
    (options.out / "benchmarks.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (options.out / "benchmarks.md").write_text(in_markdown(rows, here), encoding="utf-8")
    return 0


def gather(folder: Path) -> list[dict[str, Any]]:
    """Every row of the folder's files, with its command and verdict. Raises ConfigError."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ConfigError(f"{folder} holds no measurements: run make bench first")
    rows = [row for file in files for row in read(file)]
    order = {goal: place for place, goal in enumerate(GOALS)}
    return sorted(rows, key=lambda row: order.get(row["goal"], len(GOALS)))


def read(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise ConfigError(f"{file} is no JSON: delete it, and measure it again") from None
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise ConfigError(f"{file} has no rows: delete it, and measure it again")
    here = machine_info()
    for key in SAME:
        found = content.get("machine", {}).get(key)
        if found != here[key]:
            raise ConfigError(f"{file} is of another machine ({key} {found}, here {here[key]}): measure it again here")
    command = content.get("command", f"python benchmarks/{file.stem}.py")
    for row in content["rows"]:
        for key in NEEDED:
            if key not in row:
                raise ConfigError(f"{file}: a row lacks {key!r}: measure it again")
    return [{**row, "command": command, "verdict": verdict(row)} for row in content["rows"]]


def verdict(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return "not measured"
    wanted = row.get("wanted")
    return "" if wanted is None else "met" if row["ratio"] >= wanted else "missed"


def features() -> dict[str, bool]:
    """What matters for speed on a CPU, and whether torch finds it here."""
    return {
        "avx2": torch.cpu._is_avx2_supported(),
        "avx512f": torch.cpu._is_avx512_supported(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx": torch.cpu._is_amx_tile_supported(),
    }


def cells(row: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """What a row says: what, ours, its peers, the ratio with its range, what was wanted, the verdict."""
    peers = ", ".join(f"{name}: {'missing' if x is None else figure(x)}" for name, x in row["peers"].items())
    ratio = "" if row["ratio"] is None else figure(row["ratio"])
    if ratio and row.get("low") is not None and row.get("high") is not None:
        ratio += f" ({figure(row['low'])} to {figure(row['high'])})"
    wanted = "" if row.get("wanted") is None else figure(row["wanted"])
    return row["what"], f"{figure(row['ours'])} {row['unit']}", peers, ratio, wanted, row["verdict"]


def figure(x: float) -> str:
    """Three digits, or all before the point."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def best(row: dict[str, Any]) -> str:
    """The peer whose figure the ratio is taken against, as far as the figures tell."""
    known = {name: x for name, x in row["peers"].items() if x is not None}
    if not known:
        return "missing" if row["peers"] else ""
    name = (max if row["unit"].endswith("/s") else min)(known, key=lambda name: known[name])
    return f"{name}: {figure(known[name])}"


def drawn(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Every goal")
    for column in ("goal", "what", "ours", "best peer", "ratio", "wanted", ""):
        table.add_column(column, justify="right" if column in ("ours", "ratio", "wanted") else "left")
    for row in rows:
        what, ours, _, ratio, wanted, verdict = cells(row)
        style = {"met": "green", "missed": "red"}.get(verdict)
        table.add_row(row["goal"], what, ours, best(row), ratio, wanted, verdict, style=style)
    return table


def in_markdown(rows: list[dict[str, Any]], here: dict[str, Any]) -> str:
    present = ", ".join(name for name, found in here["features"].items() if found) or "none of them"
    absent = ", ".join(name for name, found in here["features"].items() if not found)
    lines = [
        "# Benchmarks",
        "",
        "Made by the commands below, which `make bench` and `make bench-long` run one after another; what has no row has "
        f"not been measured. On {here['cpu']}, {here['cores']} cores; CPU features: {present}"
        + (f"; not there: {absent}" if absent else "")
        + f". {here['system']}, Python {here['python']}, torch {here['torch']}, partwise {here['partwise']}.",
        "",
        "A ratio says how many times as good ours is as the best peer: the median over rounds in turn, with the range.",
        "",
        "| goal | what | ours | peers | ratio | wanted | |",
        "|---|---|---:|---|---:|---:|---|",
        *(f"| {row['goal']} | {' | '.join(cells(row))} |" for row in rows),
        "",
        "## The commands",
        "",
    ]
    commands = dict.fromkeys((row["goal"], row["command"]) for row in rows)
    lines += [f"- {goal}: `{command}`" for goal, command in commands]
    misses = HERE / "misses.md"
    return "\n".join(lines) + "\n\n" + misses.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
