"""Hashes of what deterministic runs come to, by build of torch, processor and compiler: python tests/golden_hashes.py.

The file keeps them for the machines that were tried; the command adds those of this one, or replaces them after a change of
the numbers that was meant.
"""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import torch

from partwise.kernels.library import kernels_available
from partwise.train.config import run_config
from partwise.train.loop import Run

FILE = Path(__file__).with_suffix(".json")
SIZES = [
    "d_model=32", "n_layers=2", "context_length=32", "train.seq_len=32", "train.batch_size=5", "train.steps=3",
    "train.device=cpu", "train.deterministic=true", "train.threads=2", "train.grad_clip=1.0", "data.train=300",
    "data.validation=20", "data.test=5",
]  # fmt: skip
HEADS, DROPOUT = "attention.n_heads=4", ["embed_dropout=0.1", "attention.dropout=0.1", "residual.dropout=0.1"]
EAGER = [f"train.{kind}_backend=eager" for kind in ("block", "attention", "ffn")]
CASES = {
    "GPT-2's block": ["mingpt", HEADS, *DROPOUT],
    "Llama's block": ["llama", HEADS, "attention.n_kv_heads=2"],
    "torch's layers": ["mingpt", HEADS, *DROPOUT, *EAGER],
    "experts and Muon": ["mingpt", HEADS, "ffn=moe", "optimizer=muon"],
}


def machine_kind() -> str:
    """What the rounding of a run depends on besides its code."""
    values = dict.fromkeys(("vendor_id", "cpu family", "model"), "?")
    features = "?"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            values |= {key.strip(): value.strip()} if key.strip() in values else {}
            if key.strip() == "flags":
                features = " ".join(sorted({"avx512_bf16", "amx_bf16"} & set(value.split())))
    except OSError:
        pass
    compiler = "no compiler"
    if kernels_available() and shutil.which("g++"):
        compiler = subprocess.run(
            ["g++", "-dumpfullversion"], capture_output=True, text=True, check=False
        ).stdout.strip()
    build = hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:8]
    capability = torch.backends.cpu.get_cpu_capability()
    processor = " ".join((*values.values(), capability, features)).strip()
    return f"torch {torch.__version__} {build}, {processor}, g++ {compiler}"


def found() -> dict[str, str]:
    """Case -> the hash of the weights and the optimizer's state after three steps."""
    return {
        f"{case}, {precision}": hash_of([*words, f"train.precision={precision}"])
        for case, words in CASES.items()
        for precision in ("float32", "bfloat16")
    }


def hash_of(words: list[str]) -> str:
    preset, *rest = words
    run = Run(run_config(preset, *SIZES, *rest, data="arithmetic"))
    losses = [step.loss for step in run.steps()]
    tensors = {**run.model.state_dict(), **run.optimizer_tensors()}
    content = [tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for name in sorted(tensors)]
    return hashlib.sha256(b"".join([json.dumps([losses, sorted(tensors)]).encode(), *content])).hexdigest()[:16]


if __name__ == "__main__":
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    kept[machine_kind()] = found()
    FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    print(f"{machine_kind()}: {len(CASES) * 2} hashes in {FILE.name}")
