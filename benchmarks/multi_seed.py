"""Multi-seed training of one configuration, against the same seeds one after another.

    python benchmarks/multi_seed.py [--seeds 8] [--rounds 20] [--threads 1] [--json FILE]

Steps alternate in one process. Two shapes: one so small that only launch overhead counts, as for small runs on an
accelerator, and that of the tutorials. The goal applies to accelerators only: eight seeds in twice the time of one.
Separate runs use the backends chosen for this machine; multi-seed training uses torch's operations.
"""

import argparse

import torch
from measuring import Row, alternate, benchmark_parser, rate_row, spread, write_rows

from partwise.data import Arithmetic
from partwise.train.config import run_config
from partwise.train.loop import Run
from partwise.train.multi_seed_trainer import MultiSeedTrainer

SHAPES = {
    "4 layers, width 32, batch 1 x 8": ["d_model=32", "n_layers=4", "train.batch_size=1", "context_length=8"],
    "seed shape": [],
}
SEPARATE = "one after another"


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=20, threads=1)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    accelerated = torch.cuda.is_available()
    rows = [measure(name, words, options, accelerated) for name, words in SHAPES.items()]
    for row in rows:
        print(
            f"{row['what']}: {row['ours']:,.0f} steps/s, {SEPARATE} {row['peers'][SEPARATE]:,.0f}: "
            f"{spread(row, 'times as many')}; {options.seeds} seeds in "
            f"{options.seeds / row['ratio']:.2f} times the time of one"
        )
    write_rows(options.json, rows, rounds=options.rounds, threads=options.threads)


def measure(name: str, words: list[str], options: argparse.Namespace, accelerated: bool) -> Row:
    corpus = Arithmetic(train=50_000, validation=500, test=10)
    data = [f"data.{key}={value}" for key, value in (("train", corpus.train), ("validation", 500), ("test", 10))]
    eager = [
        "train.ffn_backend=eager",
        "train.block_backend=eager",
        *([] if accelerated else ["train.attention_backend=eager"]),
    ]

    def runs(*overrides: str) -> list[Run]:
        settings = [*data, *words, *overrides, f"train.threads={options.threads}", "train.steps=100000"]
        return [
            Run(run_config("mingpt", "data=arithmetic", *settings, f"train.seed={seed}"))
            for seed in range(options.seeds)
        ]

    separate, multi_seed = runs(), runs(*eager)
    MultiSeedTrainer(multi_seed)

    def step_all(runs: list[Run]) -> None:
        for run in runs:
            run.update()  # reads the loss, which synchronizes the device

    steps = {"multi-seed": lambda: step_all(multi_seed), SEPARATE: lambda: step_all(separate)}
    alternate(steps, 3)
    seconds = alternate(steps, options.rounds)
    device = torch.cuda.get_device_name() if accelerated else f"CPU, {options.threads} threads"
    what, target = f"{options.seeds} seeds, {name}, {device}", options.seeds / 2 if accelerated else None
    return rate_row("multi-seed training", what, "steps/s", seconds, options.seeds, target)


if __name__ == "__main__":
    main()
