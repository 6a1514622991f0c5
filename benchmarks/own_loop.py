"""A training loop of one's own around `Transformer`: as it is built, after `select_backends`, and `partwise.Run`.

    python benchmarks/own_loop.py [--rounds 11] [--threads 2] [--json FILE]

Steps of `mingpt` on random ids (batch 16 x 128, AdamW) alternate in one process; CPU seconds count all threads. The process
keeps freed memory, as training does, in all three, so the ratio leaves that gain out.
"""

import statistics
import time
from collections.abc import Callable

import torch
from measuring import alternate, benchmark_parser, ratios, repeated, spread, write_rows
from torch.nn import functional as F

import partwise
from partwise.train.config import run_config

BATCH_SIZE, WARMUP = 16, 3


def own_step(select: bool) -> Callable[..., None]:
    model = partwise.Transformer(partwise.preset("mingpt"))
    if select:
        partwise.select_backends(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(model.config.vocab_size, (BATCH_SIZE, model.config.context_length + 1))

    def step() -> None:
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return repeated(step)


def run_step(threads: int) -> Callable[..., None]:
    words = ["train.precision=float32", "train.device=cpu", f"train.threads={threads}", "train.steps=100000"]
    words += ["data.train=5000", "data.validation=100", "data.test=10", f"train.batch_size={BATCH_SIZE}"]
    return repeated(partwise.Run(run_config("mingpt", *words, data="arithmetic")).update)


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=11, threads=2)
    options = parser.parse_args()
    steps = {
        "Run": run_step(options.threads),
        "select_backends": own_step(select=True),
        "as built": own_step(select=False),
    }
    torch.set_num_threads(options.threads)
    alternate(steps, WARMUP)
    cpu = alternate(steps, options.rounds, dict.fromkeys(steps, 1), time.process_time)
    medians = {name: statistics.median(each) for name, each in cpu.items()}
    for name, seconds in medians.items():
        print(f"{name}: {seconds:.3f} CPU seconds a step")
    gain = ratios(cpu["as built"], cpu["select_backends"])
    print(f"select_backends: {spread(gain, 'times as fast as built')}")
    row = {
        "goal": "own loop",
        "what": "mingpt, batch 16 x 128, CPU seconds a step after select_backends",
        "ours": medians["select_backends"],
        "unit": "s",
        "peers": {"Run": medians["Run"], "as built": medians["as built"]},
        **gain,
        "target": None,
    }
    write_rows(options.json, [row])


if __name__ == "__main__":
    main()
