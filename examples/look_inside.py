"""Train a small model, then ask two questions of it: what do its layers predict, and what do its heads attend to?"""

import sys

import torch

import partwise
from partwise.inspection.attention import attention_maps, record_calls
from partwise.inspection.logit_lens import logit_lens, residual_streams

TEXT = "ROMEO:\nWhat shall I "
steps = sys.argv[1] if len(sys.argv) > 1 else "300"

config = partwise.run_config(
    "mingpt",
    "d_model=64",
    "n_layers=2",
    "attention.n_heads=4",
    "context_length=64",
    "train.batch_size=16",
    f"train.steps={steps}",
    data="shakespeare",
)
run = partwise.Run(config)
losses = [step.loss for step in run.steps()]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} nats per character")

model, tokenizer = run.model.eval(), run.dataset.tokenizer
ids = torch.from_numpy(tokenizer.encode(TEXT))[None]  # (1, T)

print(f"\nthe most likely next characters after {TEXT!r}, read off the residual stream by the logit lens:")
lens = {}
with torch.no_grad():
    for layer, stream in residual_streams(model, ids).items():
        lens[layer] = logit_lens(model, stream)[0, -1].softmax(-1)  # (V,)
        top = lens[layer].topk(3)
        guesses = [
            f"{tokenizer.decode(index[None].numpy())!r} {probability:.0%}"
            for probability, index in zip(top.values, top.indices, strict=True)
        ]
        print(f"  {layer:12} {'  '.join(guesses)}")

print("\nwhere the last character attends, by head:")
maps = {name: attention_maps(calls)[0] for name, calls in record_calls(model, ids).items()}  # each (H, T, T)
for name, weights in maps.items():
    for head, row in enumerate(weights[:, -1]):  # (T,)
        key, layer = int(row.argmax()), name.removesuffix(".attention.scores")
        print(f"  {layer}, head {head}: {row[key]:.0%} on {TEXT[key]!r}, {len(TEXT) - 1 - key} back")
