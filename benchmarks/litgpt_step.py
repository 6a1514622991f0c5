"""litgpt's side of `training_step.py`: it runs where litgpt is installed, and partwise need not be.

The first line on standard input is the task as JSON, answered by "ready"; every further line asks for one training step,
answered by its loss.
"""

import json
import os
import sys

import torch
from litgpt import GPT, Config


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever litgpt prints must not pass for an answer
    task = json.loads(sys.stdin.readline())
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    config = Config(
        n_layer=task["layers"],
        n_embd=task["width"],
        n_head=task["heads"],
        block_size=task["context"],
        vocab_size=task["vocab"],
        padded_vocab_size=task["vocab"],
    )
    model = GPT(config)
    inputs, targets = torch.tensor(task["inputs"]), torch.tensor(task["targets"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["lr"], fused=task["tuned"] or None)
    print("ready", file=answers, flush=True)
    called = torch.compile(model) if task["compiled"] else model
    for _ in sys.stdin:
        with torch.autocast("cpu", torch.bfloat16, enabled=task["bfloat16"]):
            logits = called(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(loss.item(), file=answers, flush=True)


if __name__ == "__main__":
    main()
