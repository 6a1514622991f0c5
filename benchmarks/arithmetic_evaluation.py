"""Answering 10,000 arithmetic problems, against the tutorial's loop: one problem at a time, uncached, sampled.

    python benchmarks/arithmetic_evaluation.py [--problems 10000] [--rounds 3] [--threads 2] [--json FILE]

In each round the loop is timed on 40 problems and ours on all of them, in one process; medians over the rounds. Ours is
`mingpt`, the loop uses the tutorial's own model, both untrained; so the loop is limited to 11 new characters, the length
of a trained model's answers. It records gradients, as in the tutorial.
"""

import sys
import time
from pathlib import Path

import torch
from measuring import benchmark_parser, rate_row, write_rows

import partwise
from partwise.compute.backend_plan import apply_backends
from partwise.compute.runtime import choose_runtime
from partwise.data import Arithmetic, generate_problems, split_problems
from partwise.evaluate.arithmetic import answer_problems
from partwise.tokenizers import Characters
from partwise.train.config import TrainConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from from_scratch.gpt import GPT
from references.tutorial_loop import score_arithmetic

LOOP_PROBLEMS = 40
TARGET = 200.0
LOOP = "the tutorial's loop"


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=3, threads=torch.get_num_threads())
    parser.add_argument("--problems", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    corpus = Arithmetic(train=50_000, validation=1, test=options.problems)
    tokenizer = Characters().build(corpus)
    text = generate_problems(corpus.problem_spec(), train=corpus.train, validation=1, test=options.problems)["test"]
    problems = split_problems(text.tobytes().decode())
    model = partwise.Transformer(partwise.preset("mingpt", vocab_size=tokenizer.vocab_size)).eval()
    tutorial_model = GPT(tokenizer.vocab_size)
    runtime = choose_runtime(TrainConfig(device="cpu"))
    apply_backends(model, runtime)

    ours, loop = [], []
    for _ in range(options.rounds):
        began = time.perf_counter()
        answer_problems(model, tokenizer, problems, temperature=1.0, precision=runtime.precision)
        ours.append((time.perf_counter() - began) / len(problems))
        began = time.perf_counter()
        score_arithmetic(tutorial_model, problems[:LOOP_PROBLEMS], limit=11)
        loop.append((time.perf_counter() - began) / LOOP_PROBLEMS)
    seconds = {"ours": ours, LOOP: loop}
    row = rate_row("arithmetic evaluation", f"{len(problems):,} problems", "problems/s", seconds, target=TARGET)
    rates = f"{row['ours']:,.0f} per second, {LOOP} {row['peers'][LOOP]:.1f}"
    speedup = f"{row['ratio']:.1f} times as fast ({row['low']:.1f} to {row['high']:.1f}), target {TARGET:g}"
    print(f"{row['what']}: {rates}: {speedup}")
    write_rows(options.json, [row], rounds=options.rounds, threads=options.threads)


if __name__ == "__main__":
    main()
