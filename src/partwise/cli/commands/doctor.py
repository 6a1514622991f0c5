"""`doctor`: this machine's capabilities, what is missing, and the backends that each preset uses."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from partwise.cli.terminal import console, table
from partwise.compute.backends.decoding import unsupported_layer
from partwise.compute.plan import plan_config
from partwise.compute.runtime import choose_runtime, has_fast_bfloat16, machine_info, requested
from partwise.data.corpora import cache_root
from partwise.kernels import build
from partwise.kernels.library import cache_folder, kernels_available
from partwise.model import ModelConfig, Transformer
from partwise.presets import PRESETS, preset
from partwise.train.config import TrainConfig, preset_settings


def show_machine(names: list[str]) -> None:
    """Print the machine's capabilities and the backends of these presets; nothing missing is an error."""
    names = names or [name for name in PRESETS if "-" not in name]  # presets of published sizes are slow to build
    configs = {name: preset(name) for name in names}
    runtime = choose_runtime(TrainConfig())
    console.print(table("this machine", ["", "found"], capabilities(runtime.threads)))
    console.print(
        f"training defaults: train.device={runtime.device} train.precision={runtime.precision} "
        f"train.threads={runtime.threads}",
        markup=False,
    )
    for line in missing():
        console.print(f"missing: {line}", markup=False)
    rows = []
    for name, config in configs.items():
        train = TrainConfig.from_dict(preset_settings(name)["train"])
        plan = plan_config(config, choose_runtime(train), requested(train))
        rows.append((name, *map(format_counts, plan.counts().values()), generation_backend(config)))
    headings = ["preset", "blocks", "attention", "ffn", "generation"]
    console.print(table("backends per preset, with the number of layers", headings, rows))
    console.print(
        "blocks: cpp runs a whole block in one C++ call; attention and ffn count the layers of the other blocks only. "
        "cpp: the C++ kernels; eager: plain torch operations (for blocks: layer by layer, with the backends in the next "
        "columns); sdpa: torch's scaled_dot_product_attention. All backends compute the same up to rounding. The experts "
        "of ffn=moe always use torch. generation: cpp decodes a whole step in one C++ call; eager runs it layer by layer.",
        style="dim",
        markup=False,
    )


def capabilities(threads: int) -> Iterator[tuple[str, str]]:
    for name, value in machine_info().items():
        yield name, f"{value}, {threads} threads for torch" if name == "cores" else value
    yield "accelerator", accelerator()
    yield "bfloat16 matmul in hardware", "yes" if has_fast_bfloat16(choose_runtime(TrainConfig()).device) else "no"
    yield "C++ kernels", f"in {cache_folder()}" if kernels_available() else "none"
    yield "prepared data", str(cache_root())
    yield "download mirror", os.environ.get("PARTWISE_MIRROR") or "none (set PARTWISE_MIRROR to a folder)"


def accelerator() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "Metal" if torch.backends.mps.is_available() else "none"


def missing() -> Iterator[str]:
    """Missing components that slow training or lead to download errors, each with its remedy."""
    try:
        build.find_compiler()
    except build.BuildError as error:
        yield f"{error}: install one for faster training on the CPU (Debian: g++; macOS: xcode-select --install)"
    else:
        if not kernels_available():
            yield "the C++ kernels, which failed to compile (see above): falling back to torch"
    mirror = os.environ.get("PARTWISE_MIRROR")
    if mirror and not Path(mirror).is_dir():
        yield f"PARTWISE_MIRROR={mirror} is not a folder: create it or unset the variable"


def format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{backend} {number}" for backend, number in counts.most_common()) or "none"


def generation_backend(config: ModelConfig) -> str:
    """The backend of generation on this CPU: "cpp", or "eager" followed by the reason."""
    with torch.device("meta"):
        reason = unsupported_layer(Transformer(config))
    if reason is None and kernels_available():
        return "cpp"
    return "eager" if reason is None else f"eager: {reason}"
