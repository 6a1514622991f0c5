"""Seeds of one configuration as one program, against the same seeds one after the other.

    python benchmarks/ensemble.py [--seeds 8] [--rounds 20] [--threads 1] [--json FILE]

Updates in turn in one process. Two shapes: one so small that starting its operations is all that takes time, as with small
runs on an accelerator, and the seed documents'. What is wanted is wanted of an accelerator alone: eight seeds in twice
the time of one. Alone, a run takes the paths that this machine chooses for it; together, torch's operations.
"""

import argparse
import statistics
from pathlib import Path

import torch
from measuring import Row, ratios, take_turns, write_rows

from partwise.data import Arithmetic
from partwise.train.config import run_config
from partwise.train.loop import Run
from partwise.train.multi_seed import MultiSeedTrainer

SHAPES = {
    "4 layers, width 32, batch 1 x 8": ["d_model=32", "n_layers=4", "train.batch_size=1", "context_length=8"],
    "seed shape": [],
}
ALONE = "one after the other"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    accelerated = torch.cuda.is_available()
    rows = [measure(name, words, options, accelerated) for name, words in SHAPES.items()]
    for row in rows:
        print(
            f"{row['what']}: {row['ours']:,.0f} updates a second, {ALONE} {row['peers'][ALONE]:,.0f}: "
            f"{row['ratio']:.2f} times as many ({row['low']:.2f} to {row['high']:.2f}); {options.seeds} seeds in "
            f"{options.seeds / row['ratio']:.2f} times the time of one"
        )
    write_rows(options.json, rows, rounds=options.rounds, threads=options.threads)


def measure(name: str, words: list[str], options: argparse.Namespace, accelerated: bool) -> Row:
    corpus = Arithmetic(train=50_000, validation=500, test=10)
    data = [f"data.{key}={value}" for key, value in (("train", corpus.train), ("validation", 500), ("test", 10))]
    joint = [
        "train.ffn_backend=eager",
        "train.block_backend=eager",
        *([] if accelerated else ["train.attention_backend=eager"]),
    ]

    def runs(*more: str) -> list[Run]:
        settings = [*data, *words, *more, f"train.threads={options.threads}", "train.steps=100000"]
        return [
            Run(run_config("mingpt", "data=arithmetic", *settings, f"train.seed={seed}"))
            for seed in range(options.seeds)
        ]

    alone, together = runs(), runs(*joint)
    MultiSeedTrainer(together)

    def update(some: list[Run]) -> None:
        for run in some:
            run.update()  # reads its loss back, and so waits for the device

    steps = {ALONE: lambda: update(alone), "seeds_per_process": lambda: update(together)}
    take_turns(steps, 3)
    seconds = take_turns(steps, options.rounds)
    device = torch.cuda.get_device_name() if accelerated else f"CPU, {options.threads} threads"
    return {
        "goal": "seeds as one program",
        "what": f"{options.seeds} seeds, {name}, {device}",
        "ours": options.seeds / statistics.median(seconds["seeds_per_process"]),
        "unit": "updates/s",
        "peers": {ALONE: options.seeds / statistics.median(seconds[ALONE])},
        "wanted": options.seeds / 2 if accelerated else None,
        **ratios(seconds[ALONE], seconds["seeds_per_process"]),
    }


if __name__ == "__main__":
    main()
