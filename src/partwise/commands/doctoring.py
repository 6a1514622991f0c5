"""`doctor`: what this machine can do, what it lacks, and how each preset computes here."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from partwise.data.corpora import cache_root
from partwise.inspection.paths import decoding_path, paths
from partwise.kernels import build
from partwise.kernels.library import cache, ready
from partwise.presets import PRESETS, preset
from partwise.terminal import console, table
from partwise.train.choices import choose, fast_bfloat16, machine
from partwise.train.settings import TrainConfig, preset_settings


def show_machine(names: list[str]) -> None:
    """Print what was found, and how these presets compute; nothing that is missing is an error."""
    names = names or [name for name in PRESETS if "-" not in name]  # published sizes take their time
    configs = {name: preset(name) for name in names}
    choices = choose(TrainConfig())
    console.print(table("this machine", ["", "found"], found(choices.threads)))
    console.print(
        f"training here: {choices.device}, {choices.precision}, blocks by {choices.block_path}, attention by "
        f"{choices.attention_path}, perceptrons by {choices.ffn_path}, {choices.threads} threads; train.device, "
        "train.precision, train.block_path, train.attention_path, train.ffn_path and train.threads say otherwise",
        markup=False,
    )
    for line in missing():
        console.print(f"missing: {line}", markup=False)
    rows = []
    for name, config in configs.items():
        taken = paths(config, choose(TrainConfig.from_dict(preset_settings(name)["train"])))
        rows.append((name, *map(in_words, taken), decoding_path(config)))
    headings = ["preset", "blocks", "attention", "perceptrons", "generation"]
    console.print(table("how each preset computes here", headings, rows))
    console.print(
        "Numbers count layers. kernel: ours, compiled, a whole block at once where all its parts are known to it, otherwise "
        "its layers, of which attention and perceptrons have a path each; fused: torch's attention; products: plain matrix "
        "products; torch: its linear maps. All compute the same but for rounding. An expert's products are torch's. "
        "generation: whole steps by one compiled call, or by the layers themselves.",
        style="dim",
        markup=False,
    )


def found(threads: int) -> Iterator[tuple[str, str]]:
    for name, value in machine().items():
        yield name, f"{value}, {threads} threads for torch" if name == "cores" else value
    yield "accelerator", accelerator()
    yield "bfloat16 products in hardware", "yes" if fast_bfloat16(choose(TrainConfig()).device) else "no"
    yield "compiled kernels", f"in {cache()}" if ready() else "none"
    yield "prepared data", str(cache_root())
    yield "mirror of downloads", os.environ.get("PARTWISE_MIRROR") or "none (PARTWISE_MIRROR names a folder)"


def accelerator() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "Metal" if torch.backends.mps.is_available() else "none"


def missing() -> Iterator[str]:
    """What would make training faster, each with its remedy."""
    try:
        build.find_compiler()
    except build.BuildError as error:
        yield f"{error}: install one (Debian: g++; macOS: xcode-select --install), and training on the CPU gets faster"
    else:
        if not ready():
            yield "the kernels, which the compiler failed to make (see above): torch's own operations serve"
    mirror = os.environ.get("PARTWISE_MIRROR")
    if mirror and not Path(mirror).is_dir():
        yield f"PARTWISE_MIRROR={mirror} is no folder: make it, or unset the variable"


def in_words(counted: Counter[str]) -> str:
    return ", ".join(f"{path} {number}" for path, number in counted.most_common()) or "none"
