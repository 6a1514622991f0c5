"""`demo`: three changes of a small GPT, and three different answers."""

import shutil
import sys
from pathlib import Path
from typing import Any

from partwise import quoting
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import make_comparison
from partwise.ablation.small_model import SMALL_MODEL
from partwise.cli.commands.compare_output import run_comparison
from partwise.cli.terminal import console
from partwise.comparison.experiment import Comparison

DEMO: dict[str, Any] = {
    "preset": "mingpt",
    "change": ["positions=rope"],
    "arms": ["norm=rmsnorm", "positions=none"],
    "data": "shakespeare",
    "common": list(SMALL_MODEL),
    "seeds": 4,
    "margin": 0.02,
}
"""Differences below the margin would not change anybody's choice here: 0.02 nats are a
fortieth of the distance between a 2-gram and a 4-gram model of the same text (0.76)."""


def run_demo(name: str, first_seed: int, steps: int | None) -> None:
    """Run the demo's comparison, or resume it, and print what to try next."""
    common = [word for word in DEMO["common"] if steps is None or not word.startswith("train.steps=")]
    request = DEMO | {"common": common if steps is None else [*common, f"train.steps={steps}"]}
    comparison = make_comparison(Request.from_dict(request | {"first_seed": first_seed}), name)
    run_comparison(comparison)
    print_samples(comparison)
    trained = next(trial.folder for trial in comparison.trials if trial.arm == DEMO["change"][0])
    partwise = program()
    console.print(
        "\nTry next:\n"
        f'  {partwise} generate {quoting.quote(str(trained))} --prompt "ROMEO:"\n'
        f"  {partwise} compare mingpt ffn=swiglu --data shakespeare --dry-run\n"
        f"  {partwise} parts",
        markup=False,
        soft_wrap=True,
    )


def program() -> str:
    """The command as this shell finds it: `make demo` calls .venv/bin/partwise, which is not on the path."""
    called = Path(sys.argv[0])
    if called.name != "partwise" or shutil.which("partwise"):
        return "partwise"
    return quoting.program(str(called))


def print_samples(comparison: Comparison) -> None:
    """Two lines of text by each arm's first trial."""
    console.print('\nWhat each arm writes after "\\n":', markup=False)
    for arm in comparison.results.arms:
        console.print(f"  {arm.name}", style="bold", markup=False)
        for line in arm.samples:
            console.print(f"    {line}", markup=False)
