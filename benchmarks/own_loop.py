"""A training loop of one's own around `Transformer`: as it is built, after `select_backends`, and `partwise.Run`.

    python benchmarks/own_loop.py [--rounds 11] [--threads 2] [--json FILE]

Steps of `mingpt` on random ids (batch 16 x 128, AdamW) alternate in one process; CPU seconds count all threads. The process
keeps freed memory, as training does, in all three, so the ratio leaves that gain out.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import write_rows
from torch.nn import functional as F

import partwise
from partwise.train.config import run_config

BATCH_SIZE, WARMUP = 16, 3


def own_step(select: bool) -> Callable[[], None]:
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

    return step


def run_step(threads: int) -> Callable[[], None]:
    words = ["train.precision=float32", "train.device=cpu", f"train.threads={threads}", "train.steps=100000"]
    words += ["data.train=5000", "data.validation=100", "data.test=10", f"train.batch_size={BATCH_SIZE}"]
    run = partwise.Run(run_config("mingpt", *words, data="arithmetic"))

    def step() -> None:
        run.update()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    steps = {
        "Run": run_step(options.threads),
        "select_backends": own_step(select=True),
        "as built": own_step(select=False),
    }
    torch.set_num_threads(options.threads)
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(WARMUP + options.rounds):
        for name, step in steps.items():
            step()  # the first step of a block finds the caches filled by the others
            began = time.process_time()
            step()
            if round_ >= WARMUP:
                cpu[name].append(time.process_time() - began)
    medians = {name: statistics.median(each) for name, each in cpu.items()}
    for name, seconds in medians.items():
        print(f"{name}: {seconds:.3f} CPU seconds a step")
    gain = medians["as built"] / medians["select_backends"]
    ratios = [slow / fast for slow, fast in zip(cpu["as built"], cpu["select_backends"], strict=True)]
    print(f"select_backends: {gain:.2f} times as fast as built ({min(ratios):.2f} to {max(ratios):.2f})")
    row = {
        "goal": "own loop",
        "what": "mingpt, batch 16 x 128, CPU seconds a step after select_backends",
        "ours": medians["select_backends"],
        "unit": "s",
        "peers": {"Run": medians["Run"], "as built": medians["as built"]},
        "ratio": gain,
        "low": min(ratios),
        "high": max(ratios),
        "target": None,
    }
    write_rows(options.json, [row])


if __name__ == "__main__":
    main()
