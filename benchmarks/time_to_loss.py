"""Time to a validation loss on TinyShakespeare: the whole `partwise train` command, including imports and evaluation.

    python benchmarks/time_to_loss.py [--nanogpt FOLDER] [--seeds 5] [--only sprint|short|alone|mixture] [--json FILE]

`sprint`: nanoGPT's CPU recipe (config/train_shakespeare_char.py with the options of its README) against a shortened
preset `fast`, alternating. `alone`: the loss that nanoGPT publishes for a GPU, 1.4697, by the preset `shakespeare`, a
transformer alone, in half an hour. `short`: 1.48 in ten minutes, by 1,000 of its steps. `mixture`: 1.4697 by the preset
`fast-ngram`, which averages its probabilities with those of an n-gram language model. Steps and sizes were tuned on a part
of the training text; each of our commands has a new seed and runs once. Our loss is over the whole validation split,
theirs is their script's estimate on random batches; their data are prepared beforehand, ours within the first command. If
interrupted, the same command resumes with the next run.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measuring import Row, median_and_range, write_rows
from rich.console import Console

ROOT = Path(__file__).parent.parent
FIRST_SEED = 1001
SPRINT_WORDS = "fast n_layers=2 train.seq_len=64 train.batch_size=12 train.steps=280 train.eval_every=280"
SPRINT: dict[str, Any] = {"words": SPRINT_WORDS.split(), "loss": 1.886, "target": 10.0}
LONG: dict[str, dict[str, Any]] = {
    "short": {
        "words": ["shakespeare", "train.steps=1000"],
        "loss": 1.48,
        "minutes": 10.0,
        "what": "a transformer alone, shortened",
    },
    "alone": {"words": ["shakespeare"], "loss": 1.4697, "minutes": 30.0, "what": "a transformer alone"},
    "mixture": {"words": ["fast-ngram"], "loss": 1.4697, "minutes": 10.0, "what": "mixed with an n-gram LM"},
}
CPU_RECIPE = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)


def main() -> None:
    options = parse_options()
    finished = FinishedRuns(options.folder)
    rows = []
    if options.only in (None, "sprint"):
        rows.append(sprint(options, finished))
    for name in LONG:
        if options.only in (None, name):
            rows.append(long(name, options, finished))
    for row in rows:
        Console().print(f"{row['what']}: {row['ours']:.1f} {row['unit']}; ratio {row['ratio']}", markup=False)
    write_rows(options.json, rows, commands=finished.results)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--nanogpt", type=Path, help="folder of a nanoGPT checkout, with data/shakespeare_char prepared"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=["sprint", *LONG])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "time_to_loss", help="folder of the runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.nanogpt and not (options.nanogpt / "data" / "shakespeare_char" / "val.bin").is_file():
        parser.error(f"--nanogpt {options.nanogpt}: run data/shakespeare_char/prepare.py there first")
    return options


NOT_REACHED: dict[str, Any] = dict.fromkeys(("ratio", "low", "high"))


class FinishedRuns:
    """Seconds and loss of each finished command, stored in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "finished.json"
        self.results: dict[str, dict[str, float]] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def add(self, name: str, seconds: float, loss: float) -> None:
        self.results[name] = {"seconds": seconds, "loss": loss}
        self.file.write_text(json.dumps(self.results, indent=1) + "\n")
        print(f"{name}: {loss:.4f} after {seconds:.1f} s", flush=True)

    def ours(self, name: str, words: list[str]) -> dict[str, float]:
        """Run `partwise train` with this preset and these overrides, once."""
        if name not in self.results:
            shutil.rmtree(self.folder / "runs" / name, ignore_errors=True)
            command = [sys.executable, "-m", "partwise", "train", *words, "--data", "shakespeare"]
            environment = {**os.environ, "PARTWISE_CACHE": str(self.folder / "cache")}
            began = time.perf_counter()
            subprocess.run(
                [*command, "--name", name], cwd=self.folder, env=environment, check=True, capture_output=True
            )
            seconds = time.perf_counter() - began
            result = json.loads((self.folder / "runs" / name / "result.json").read_text(encoding="utf-8"))
            self.add(name, seconds, result["evaluations"][-1]["validation"])
        return self.results[name]

    def theirs(self, name: str, checkout: Path) -> dict[str, float]:
        """Run nanoGPT's own script, once."""
        if name not in self.results:
            command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *CPU_RECIPE.split()]
            command.append(f"--out_dir={self.folder / 'nanogpt'}")
            began = time.perf_counter()
            process = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
            seconds = time.perf_counter() - began
            losses = re.findall(r"step \d+: train loss [\d.]+, val loss ([\d.]+)", process.stdout)
            self.add(name, seconds, float(losses[-1]))
        return self.results[name]


def seeds(options: argparse.Namespace) -> range:
    return range(FIRST_SEED, FIRST_SEED + options.seeds)


def sprint(options: argparse.Namespace, finished: FinishedRuns) -> Row:
    ours, theirs = [], []
    for seed in seeds(options):
        if options.nanogpt:
            theirs.append(finished.theirs(f"nanogpt-{seed}", options.nanogpt))
        ours.append(finished.ours(f"sprint-{seed}", [*SPRINT["words"], f"train.seed={seed}"]))
    loss = statistics.mean(run["loss"] for run in ours)
    each = [a["seconds"] / b["seconds"] for a, b in zip(theirs, ours, strict=False)]
    reached = loss <= SPRINT["loss"] and bool(each)
    their_loss = f"; nanoGPT {statistics.mean(run['loss'] for run in theirs):.4f}" if theirs else ""
    return {
        "goal": "time to a loss",
        "what": f"whole command to {SPRINT['loss']}, mean of {len(ours)} seeds {loss:.4f}{their_loss}",
        "ours": statistics.mean(run["seconds"] for run in ours),
        "unit": "s",
        "peers": {"nanoGPT, CPU recipe": statistics.mean(run["seconds"] for run in theirs) if theirs else None},
        **(median_and_range(each) if reached else NOT_REACHED),
        "target": SPRINT["target"],
    }


def long(name: str, options: argparse.Namespace, finished: FinishedRuns) -> Row:
    """The ratio is the time limit over our time, if the loss is reached."""
    task = LONG[name]
    ours = [finished.ours(f"{name}-{seed}", [*task["words"], f"train.seed={seed}"]) for seed in seeds(options)]
    losses, minutes = [run["loss"] for run in ours], [run["seconds"] / 60 for run in ours]
    loss = statistics.mean(losses)
    return {
        "goal": "time to a loss",
        "what": f"whole command to {task['loss']}, {task['what']}, mean of {len(ours)} seeds {loss:.4f} "
        f"({min(losses):.4f} to {max(losses):.4f})",
        "ours": statistics.mean(minutes),
        "unit": "min",
        "peers": {"limit": task["minutes"]},
        **(median_and_range([task["minutes"] / each for each in minutes]) if loss <= task["loss"] else NOT_REACHED),
        "target": 1.0,
    }


if __name__ == "__main__":
    main()
