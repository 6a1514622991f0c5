"""How fast 10,000 arithmetic problems are answered, against the post's loop: one problem at a time, uncached, sampled.

    python benchmarks/arithmetic_evaluation.py [--problems 10000] [--rounds 3] [--threads 2] [--json FILE]

The loop is timed on 40 problems in each round, in turn with ours on all of them, in one process; medians of the rounds.
The model is `mingpt` at its initial values, so the loop is held to 11 new characters, what a trained one writes.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import partwise
from partwise.data import Arithmetic, generate, split_problems
from partwise.evaluate.arithmetic import answer_problems
from partwise.tokenizers import Characters
from partwise.train.choices import choose
from partwise.train.settings import TrainConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from references.documents_loop import score_arithmetic

LOOPED = 40


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
    text = generate(corpus.problems(), train=corpus.train, validation=1, test=options.problems)["test"]
    problems = split_problems(text.tobytes().decode())
    model = partwise.Transformer(partwise.preset("mingpt", vocab_size=tokenizer.vocab_size)).eval()
    choices = choose(TrainConfig(device="cpu", precision="float32"))

    ours, loop = [], []
    for _ in range(options.rounds):
        model.use_path(choices.attention_path, choices.ffn_path)
        began = time.perf_counter()
        answer_problems(model, tokenizer, problems, temperature=1.0)
        ours.append(len(problems) / (time.perf_counter() - began))
        model.use_path("fused")  # as the document's own layer would have it at best
        began = time.perf_counter()
        score_arithmetic(model, problems[:LOOPED], limit=11)  # with gradients recorded, as the document has it
        loop.append(LOOPED / (time.perf_counter() - began))
    result = {
        "threads": options.threads,
        "problems": len(problems),
        "ours_per_second": statistics.median(ours),
        "loop_per_second": statistics.median(loop),
        "ratio": statistics.median(a / b for a, b in zip(ours, loop, strict=True)),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
