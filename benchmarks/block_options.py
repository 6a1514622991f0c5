"""Training steps of `mingpt` with options that the compiled block supports: as compiled blocks, and layer by layer.

    python benchmarks/block_options.py [train.precision=float32 ...] [--rounds 9] [--threads 2] [--json FILE]

Updates of both alternate in one process, in turns of about a quarter of a second.
"""

import argparse

import torch
from measuring import Row, Step, benchmark_parser, rate_row, spread, time_alternating, write_rows

from partwise.train.config import run_config
from partwise.train.loop import Run

DROPOUT = ["residual.dropout=0.1", "attention.dropout=0.1", "ffn.output_dropout=0.1"]
OPTIONS = {
    "none": [],
    "residual dropout": DROPOUT[:1],
    "attention dropout": DROPOUT[1:2],
    "dropout": DROPOUT,
    "token shift": ["short_conv=token_shift"],
    "qk_norm": ["attention.qk_norm=head"],
    "dropout, token shift, qk_norm": [*DROPOUT, "short_conv=token_shift", "attention.qk_norm=head"],
}
DATA = ["data=arithmetic", "data.train=50000", "data.validation=500", "data.test=10", "train.steps=1000000"]
LAYERS = "layer by layer"


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=9, threads=torch.get_num_threads())
    parser.add_argument("overrides", nargs="*", help="overrides of both runs, such as train.precision=float32")
    options = parser.parse_args()
    rows = [measure(name, [*words, *options.overrides], options) for name, words in OPTIONS.items()]
    write_rows(options.json, rows, rounds=options.rounds, threads=options.threads)


def measure(name: str, words: list[str], options: argparse.Namespace) -> Row:
    steps = {
        which: updates("mingpt", [*words, f"train.threads={options.threads}", f"train.block_backend={backend}"])
        for which, backend in (("blocks", "cpp"), (LAYERS, "eager"))
    }
    seconds = time_alternating(steps, options.rounds)
    row = rate_row("block options", name, "steps/s", seconds)
    own, theirs = 1000 / row["ours"], 1000 / row["peers"][LAYERS]
    print(f"{name}: {own:.1f} ms per step, {LAYERS} {theirs:.1f} ms: {spread(row)}", flush=True)
    return row


def updates(preset: str, words: list[str]) -> Step:
    """Training steps of a preset on arithmetic, for which nothing is downloaded."""
    run = Run(run_config(preset, *words, *DATA, "train.device=cpu"))

    def step(count: int = 1) -> float:
        return [run.update().loss for _ in range(count)][-1]

    return step


if __name__ == "__main__":
    main()
