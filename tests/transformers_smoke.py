"""Use exported models in an environment with `transformers` and without partwise. Run by `make test-interop`.

The argument is the interpreter of that environment. Each model is trained and exported here, by the commands of the docs.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from partwise.formats.loading import load

FAMILIES = {"gpt2": ["mingpt", "head_bias=false"], "llama": ["llama3"], "gpt_neox": ["gptneox"]}
"""The family of each exported model, and the preset that it computes."""

SIZE = "d_model=32 n_layers=2 attention.n_heads=2 context_length=64 train.seq_len=32 train.batch_size=4"
TRAINING = (
    "train.steps=30 train.eval_every=30 train.lr=5e-3 train.device=cpu train.precision=float32 --data shakespeare"
)
TOLERANCE = 1e-4
PROGRAM = """
import importlib.util, json, sys
assert importlib.util.find_spec("partwise") is None, "this environment has partwise"
import torch, transformers
folder, prompt = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
ids = tokenizer(prompt, return_tensors="pt").input_ids
out = model.generate(ids, max_new_tokens=40, do_sample=False)
with torch.no_grad():
    logits = model(out).logits
print(json.dumps({"kind": model.config.model_type, "ids": out[0].tolist(), "logits": logits[0].tolist()}))
"""


def run(*command: str) -> str:
    """The last line that a command prints; packages of this environment are out of reach of the other."""
    variables = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" or command[0] == sys.executable
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    if done.returncode:
        sys.exit(f"{' '.join(command[:5])} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


def check(family: str, words: list[str], interpreter: str) -> None:
    """Exit with a message unless the exported model's logits and greedy text are ours."""
    here, prompt = [sys.executable, "-m", "partwise"], "ROMEO:"
    run(*here, "train", *words, *SIZE.split(), *TRAINING.split(), "--name", family)
    run(*here, "export", family, f"out-{family}", "--to", "hf")
    theirs = json.loads(run(interpreter, "-c", PROGRAM, f"out-{family}", prompt))
    model, tokenizer = load(Path("runs") / family)
    ids = theirs["ids"]
    assert theirs["kind"] == family and ids[: len(prompt)] == tokenizer.encode(prompt).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0]
    difference = (logits - torch.tensor(theirs["logits"])).abs().max().item()
    best = logits.max(dim=-1).values[len(prompt) - 1 : -1]
    chosen = logits[range(len(prompt) - 1, len(ids) - 1), ids[len(prompt) :]]
    if difference > TOLERANCE or len(ids) != len(prompt) + 40 or (best - chosen).max() > 2 * difference:
        sys.exit(f"{family}: logits differ by {difference:.1e}, or the greedy text is another")
    print(f"{family}: 40 tokens, logits equal to {difference:.1e}")


if __name__ == "__main__":
    other = str(Path(sys.argv[1]).absolute())  # not resolved: a link to the interpreter would leave its environment
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, preset in FAMILIES.items():
            check(name, preset, other)
