"""Loading a folder of transformers against reading its tensors: `python benchmarks/loading.py [gpt2] [--rounds 7]`.

Ours builds the model and checks every tensor; the reference is `safetensors.torch.load_file` and a conversion to float32.
They alternate, warm; imports are excluded. GPT-2 is the hardest family: its files have every matrix transposed.
Memory is the peak of a process that loads once, minus that of one that imports.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

import partwise
from partwise.formats.huggingface.reading import read_hf_config, read_hf_model
from partwise.formats.huggingface.writing import write_hf_folder

PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
IMPORTS = "from pathlib import Path; from partwise.formats.huggingface.reading import read_hf_model"


def reference(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


def peak(*lines: str) -> float:
    """MiB; of Linux, since other counts include the parent's peak."""
    done = subprocess.run([sys.executable, "-c", "\n".join([IMPORTS, *lines, PEAK])], capture_output=True, check=True)
    return int(done.stdout.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("model", nargs="*", default=["gpt2"], help="a preset and overrides")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = partwise.preset(*options.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gpt2"
        write_hf_folder(partwise.Transformer(config), None, folder, dtype=torch.bfloat16)
        seconds: dict[str, list[float]] = {"ours": [], "reference": []}
        for _ in range(options.rounds + 1):
            for name, load in (("ours", read_hf_model), ("reference", reference)):
                start = time.perf_counter()
                load(folder)
                seconds[name].append(time.perf_counter() - start)
        ratios = [ours / theirs for ours, theirs in zip(seconds["ours"][1:], seconds["reference"][1:], strict=True)]
        memory = peak(f"read_hf_model(Path({str(folder)!r}))") - peak()
        large = Path(temporary) / "large"
        large.mkdir()
        sizes = {"n_embd": 1600, "n_layer": 48, "n_head": 25, "n_inner": None}
        (large / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
        start = time.perf_counter()
        read_hf_config(large)
        meta = time.perf_counter() - start
    row = {
        "parameters": config.parameters(),
        "seconds": statistics.median(seconds["ours"][1:]),
        "times the reference": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "peak MiB": memory,
        "MiB of weights": config.parameters() * 4 / 2**20,
        "seconds to describe 1.5 billion parameters": meta,
    }
    json.dump(row, options.json.open("w") if options.json else sys.stdout, indent=1)


if __name__ == "__main__":
    main()
