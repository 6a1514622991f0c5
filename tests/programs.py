"""Small programs that tests compare: they start in a fraction of a second and need nothing but Python's standard library."""

import shlex
import sys
from pathlib import Path
from typing import Any

from partwise.any_code.command_comparison import CommandComparison, make_command_comparison
from partwise.any_code.experiment_file import Experiment, parse_experiment

TRAIN = """\
import argparse, json, os, random, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--gain", type=float, default=0.0)
parser.add_argument("--out")
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--sleep", type=float, default=0)
parser.add_argument("--steps", type=int, default=0)
options = parser.parse_args()
if options.seed == options.fail_at:
    sys.exit("CUDA out of memory")
time.sleep(options.sleep + options.steps * 0.005)
shared = random.Random(options.seed).gauss(0, 0.05)
own = random.Random(f"{options.seed} {options.gain}").gauss(0, 0.002)
with open(os.path.join(options.out or ".", "log.jsonl"), "a") as log:
    for step in (0, 10, 20):
        value = 2 - step / 20 - options.gain + shared + own
        print(f"step {step}: val loss {value:.6f}", flush=True)
        log.write(json.dumps({"step": step, "val": value}) + "\\n")
"""

PYTHON = shlex.quote(sys.executable)
COMMAND = f"{PYTHON} train.py --seed={{seed}} --out={{folder}} {{args}}"
ARMS: dict[str, Any] = {"base": {}, "gain": {"args": "--gain=0.1"}}
METRIC = {"name": "val loss", "margin": 0.01, "pattern": r"val loss (\S+)"}


def write_program(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)


def expected(seed: int, gain: float) -> float:
    """The value that the program prints last, computed here."""
    import random

    return 1 - gain + random.Random(seed).gauss(0, 0.05) + random.Random(f"{seed} {gain}").gauss(0, 0.002)


def experiment(**changes: Any) -> Experiment:
    return parse_experiment({"command": COMMAND, "arms": ARMS, "metric": METRIC, **changes}, "test")


def comparison(here: Path, name: str = "c", options: dict[str, Any] | None = None, **changes: Any) -> CommandComparison:
    """A comparison of the program in `here`, which must also be the working folder."""
    return make_command_comparison(experiment(**changes), here, name, **{"seeds": 4, **(options or {})})
