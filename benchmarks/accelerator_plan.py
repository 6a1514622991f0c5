"""What `accelerator.py` measures: pieces, the rows of each, goals, and the table of what was found. Imports no torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMANDS = ("typer", "rich", "scipy", "matplotlib", "jinja2", "safetensors", "tokenizers")
"""Packages that whole commands need, beyond the training itself."""


@dataclass(frozen=True)
class Row:
    """A figure: its key in a piece's results, what it is, its unit and its goal, at least or at most."""

    key: str
    what: str
    unit: str = ""
    goal: float | None = None
    at_most: bool = False
    digits: int = 3  # significant ones that are shown

    def verdict(self, value: float | None) -> str:
        if value is None or self.goal is None:
            return ""
        return "met" if (value <= self.goal if self.at_most else value >= self.goal) else "missed"

    def goal_text(self) -> str:
        return "" if self.goal is None else f"at {'most' if self.at_most else 'least'} {figure(self.goal, self.digits)}"


@dataclass(frozen=True)
class Piece:
    """What one child process measures, by the function of its name in `module`."""

    name: str
    module: str
    rows: tuple[Row, ...]
    typical: int = 60  # seconds on an H200 with nothing compiled before; those of whole commands are estimated
    seconds: int = 240  # after which it is ended; never more than eight minutes
    packages: tuple[str, ...] = ()  # that it needs beyond those of training


def errors(key: str, what: str) -> tuple[Row, Row]:
    return (
        Row(f"{key} output", f"{what}: relative error of the output", "", 0.01, at_most=True),
        Row(f"{key} gradients", f"{what}: largest relative error of the gradients", "", 0.02, at_most=True),
    )


PIECES = (
    Piece(
        "losses",
        "accelerator_checks",
        (
            Row("float32", "20 losses in float32, largest relative difference to the CPU", "", 1e-3, at_most=True),
            Row("compiled", "the same, compiled", "", 1e-3, at_most=True),
            Row("bfloat16", "the same, compiled, in bfloat16", "", 0.02, at_most=True),
            Row("warm-up", "compilation before the first step", "s"),
        ),
    ),
    Piece(
        "attention",
        "accelerator_checks",
        (
            *errors("flash", "SDPA, flash"),
            *errors("cudnn", "SDPA, cuDNN"),
            *errors("efficient", "SDPA, memory-efficient"),
        ),
    ),
    Piece(
        "flex",
        "accelerator_checks",
        (*errors("flex", "FlexAttention: a window, a soft-cap, position biases, packed documents"),),
        typical=90,
    ),
    Piece(
        "step",
        "accelerator_training",
        (
            Row("tokens", "GPT-2 124M, 16 x 1024, compiled, bfloat16", "tokens/s"),
            Row("peer", "nanoGPT's model, compiled, in turn", "tokens/s"),
            Row("ratio", "ours relative to nanoGPT's model, median of the rounds", "times", 1.1),
            Row("matmul", "matrix product of 8192 x 8192 in bfloat16", "TFLOP/s"),
            Row("fraction", "FLOP/s of our step, as a share of the matrix product's", "", 0.45),
            Row("peak", "peak memory of our step", "GiB"),
        ),
        typical=90,
        seconds=480,
    ),
    Piece(
        "small-step",
        "accelerator_training",
        (
            Row("graphs", "`mingpt` in float32, 16 x 128, compiled, CUDA graphs", "steps/s"),
            Row("compiled", "the same without CUDA graphs", "steps/s"),
            Row("eager", "the same, not compiled", "steps/s"),
            Row("ratio", "with CUDA graphs relative to without", "times", 1.0),
        ),
        typical=90,
    ),
    Piece(
        "seeds",
        "accelerator_training",
        (
            Row("one", "`mingpt`, one seed, compiled", "steps/s"),
            Row("eight", "eight seeds in one process, each", "steps/s"),
            Row("times", "eight seeds, in times the time of one", "times", 2.0, at_most=True),
        ),
        typical=90,
        seconds=360,
    ),
    Piece(
        "generation-1",
        "accelerator_generation",
        (
            Row("ours", "generation, GPT-2 124M in float32, batch 1, 256 tokens, CUDA graph", "tokens/s"),
            Row("eager", "the same with growing caches", "tokens/s"),
            Row("peer", "transformers, in turn", "tokens/s"),
            Row("ratio", "ours relative to transformers", "times"),
        ),
    ),
    Piece(
        "generation-64",
        "accelerator_generation",
        (
            Row("ours", "generation, GPT-2 124M in float32, batch 64, 256 tokens, CUDA graph", "tokens/s"),
            Row("eager", "the same with growing caches", "tokens/s"),
            Row("peer", "transformers, in turn", "tokens/s"),
            Row("ratio", "ours relative to transformers", "times"),
        ),
    ),
    Piece(
        "memory",
        "accelerator_memory",
        (
            Row("plain", "peak memory foretold, relative to that measured: GPT-2 124M, 4 x 1024, bfloat16", "times"),
            Row("checkpointed", "the same with activation checkpointing", "times"),
            Row("float32", "the same in float32", "times"),
            Row("error", "largest error of the forecasts", "", 0.1, at_most=True),
        ),
    ),
    Piece(
        "checkpointing",
        "accelerator_memory",
        (
            Row("seconds", "activation checkpointing, GPT-2 124M, 4 x 1024: time of a step", "times"),
            Row("memory", "the same: peak memory beyond weights, gradients and optimizer", "times", 1.0, at_most=True),
        ),
    ),
    Piece(
        "cross-entropy",
        "accelerator_memory",
        (
            Row(
                "memory",
                "compiled cross-entropy of 16384 x 50304: memory beyond logits and gradient",
                "MiB",
                512,
                at_most=True,
            ),
            Row("seconds", "its time, forward and backward", "ms"),
            Row("plain", "torch's on float32 logits", "ms"),
            Row("error", "largest relative error of the gradient, against float32", "", 0.01, at_most=True),
        ),
    ),
    Piece(
        "muon",
        "accelerator_memory",
        (
            Row("batched", "Muon's update of GPT-2 124M, equal shapes in one batch", "ms"),
            Row("loop", "the same, one matrix at a time", "ms"),
            Row("ratio", "the loop's time relative to the batch's", "times", 1.0),
        ),
    ),
    Piece(
        "time-to-loss",
        "accelerator_commands",
        (
            Row(
                "ours",
                "TinyShakespeare to 1.4697: `partwise train shakespeare train.compile=false`, whole command",
                "s",
            ),
            Row("loss", "its validation loss", "nats", 1.4697, at_most=True, digits=5),
            Row("peer", "nanoGPT's GPU recipe, 5000 steps, from the time of 200", "s"),
            Row("fraction", "our time as a share of its", "", 0.2, at_most=True),
        ),
        typical=120,
        seconds=480,
        packages=COMMANDS,
    ),
    Piece(
        "experiment",
        "accelerator_commands",
        (
            Row(
                "seconds",
                "`mingpt` against `ffn=swiglu` on arithmetic, 2 arms x 8 seeds, whole command",
                "s",
                120,
                at_most=True,
            ),
            Row("steps", "steps of each run", ""),
        ),
        typical=120,
        seconds=480,
        packages=COMMANDS,
    ),
    Piece(
        "eager",
        "accelerator_training",
        (
            Row("tokens", "GPT-2 124M, 16 x 1024, not compiled, bfloat16", "tokens/s"),
            Row("peer", "nanoGPT's model, not compiled, in turn", "tokens/s"),
            Row("ratio", "ours relative to nanoGPT's model", "times"),
        ),
    ),
)
"""The least certain first."""

assert len(PIECES) <= 18 and all(piece.seconds <= 480 for piece in PIECES)

RESULTS, PAGE, LOG = "accelerator.json", "accelerator.md", "accelerator.log"


def read(folder: Path) -> dict[str, Any]:
    """The results in a folder, or none."""
    file = folder / RESULTS
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"machine": {}, "pieces": {}}


def finished(results: dict[str, Any], piece: Piece) -> bool:
    return bool(results["pieces"].get(piece.name, {}).get("values"))


def figure(x: float, digits: int = 3) -> str:
    """Some significant digits, or an integer."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.{digits}g}"


HOW = """## How to measure

`make accelerator` needs Python 3.11 or newer, torch with CUDA, NumPy, pydantic and PyYAML, no installation of partwise and
no network:

```sh
PYTHONPATH=src python3 benchmarks/accelerator.py --out build/accelerator [--nanogpt FOLDER] [--minutes 25]
```

Each piece runs in a process of its own for at most eight minutes; the same command resumes after an interruption and repeats
what failed. nanoGPT's model is that of a checkout (`--nanogpt FOLDER`), or else a plain reference written from its
documentation (`benchmarks/plain_gpt.py`), as the notes say. With `--page build/accelerator` the script writes this page.
"""


def page(results: dict[str, Any]) -> str:
    """The table as Markdown: every row, "unmeasured" where there is no figure."""
    machine, pieces = results["machine"], results["pieces"]
    title = ", ".join(f"{value}" for value in machine.values())
    rehearsal = results.get("rehearsal")
    status = "Nothing has been measured yet." if not pieces else f"Measured on: {title}."
    if rehearsal:
        status = f"A rehearsal at small shapes, which measures nothing, on: {title}."
    lines = ["# One accelerator", "", status, "", "| piece | what | measured | goal | |", "|---|---|---:|---:|---|"]
    notes: list[str] = []
    for piece in PIECES:
        found = pieces.get(piece.name, {})
        for row in piece.rows:
            value = found.get("values", {}).get(row.key)
            text = "unmeasured" if value is None else " ".join(filter(None, (figure(value, row.digits), row.unit)))
            verdict = "" if rehearsal else row.verdict(value)
            lines.append(f"| {piece.name} | {row.what} | {text} | {row.goal_text()} | {verdict} |")
        notes += [f"- {piece.name}: {note}" for note in (*found.get("notes", ()), *filter(None, [found.get("error")]))]
    return "\n".join([*lines, *(["", "## Notes", "", *notes] if notes else []), "", HOW])
