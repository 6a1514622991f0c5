"""How fast 10,000 arithmetic problems are answered, against the post's loop: one problem at a time, uncached, sampled.

    python benchmarks/arithmetic_evaluation.py [--problems 10000] [--rounds 3] [--threads 2] [--json FILE]

The loop is timed on 40 problems in each round, in turn with ours on all of them, in one process; medians of the rounds.
Ours is `mingpt`, the loop's the post's own model, both at their initial values, so the loop is held to 11 new characters,
what a trained one writes. It records gradients, as the post's does.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from measuring import Row, ratios, write_rows

import partwise
from partwise.compute.runtime import choose_runtime
from partwise.data import Arithmetic, generate_problems, split_problems
from partwise.evaluate.arithmetic import answer_problems
from partwise.tokenizers import Characters
from partwise.train.config import TrainConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from references.documents_loop import MinGPT, score_arithmetic

LOOPED = 40
WANTED = 200.0
LOOP = "the post's loop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    corpus = Arithmetic(train=50_000, validation=1, test=options.problems)
    tokenizer = Characters().build(corpus)
    text = generate_problems(corpus.problem_spec(), train=corpus.train, validation=1, test=options.problems)["test"]
    problems = split_problems(text.tobytes().decode())
    model = partwise.Transformer(partwise.preset("mingpt", vocab_size=tokenizer.vocab_size)).eval()
    document = MinGPT(tokenizer.vocab_size)
    runtime = choose_runtime(TrainConfig(device="cpu"))
    model.use_backend(runtime.attention_backend, runtime.ffn_backend, runtime.block_backend)

    ours, loop = [], []
    for _ in range(options.rounds):
        began = time.perf_counter()
        answer_problems(model, tokenizer, problems, temperature=1.0, precision=runtime.precision)
        ours.append((time.perf_counter() - began) / len(problems))
        began = time.perf_counter()
        score_arithmetic(document, problems[:LOOPED], limit=11)
        loop.append((time.perf_counter() - began) / LOOPED)
    row: Row = {
        "goal": "arithmetic evaluation",
        "what": f"{len(problems):,} problems",
        "ours": 1 / statistics.median(ours),
        "unit": "problems/s",
        "peers": {LOOP: 1 / statistics.median(loop)},
        "wanted": WANTED,
        **ratios(loop, ours),
    }
    pace = f"{row['ours']:,.0f} a second, the post's loop {row['peers'][LOOP]:.1f}"
    times = f"{row['ratio']:.1f} times as fast ({row['low']:.1f} to {row['high']:.1f}), wanted {WANTED:g}"
    print(f"{row['what']}: {pace}: {times}")
    write_rows(options.json, [row], rounds=options.rounds, threads=options.threads)


if __name__ == "__main__":
    main()
