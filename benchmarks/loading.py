"""Loading a folder of transformers against reading its tensors: `python benchmarks/loading.py [gpt2] [--rounds 7]`.

Ours builds the model and checks every tensor; the reference is `safetensors.torch.load_file` and a conversion to float32.
They alternate, warm; imports are excluded. GPT-2 is the hardest family: its files have every matrix transposed.
Memory is the peak of a process that loads once, minus that of one that imports.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from measuring import alternate, benchmark_parser, ratios, write_result
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
    parser = benchmark_parser(__doc__, rounds=7)
    parser.add_argument("model", nargs="*", default=["gpt2"], help="a preset and overrides")
    options = parser.parse_args()
    config = partwise.preset(*options.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gpt2"
        write_hf_folder(partwise.Transformer(config), None, folder, dtype=torch.bfloat16)
        loads = {"ours": lambda: read_hf_model(folder), "reference": lambda: reference(folder)}
        alternate(loads, 1)
        seconds = alternate(loads, options.rounds)
        ratio = ratios(seconds["ours"], seconds["reference"])
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
        "seconds": statistics.median(seconds["ours"]),
        "times the reference": ratio["ratio"],
        "lowest": ratio["low"],
        "highest": ratio["high"],
        "peak MiB": memory,
        "MiB of weights": config.parameters() * 4 / 2**20,
        "seconds to describe 1.5 billion parameters": meta,
    }
    write_result(options.json, row)


if __name__ == "__main__":
    main()
