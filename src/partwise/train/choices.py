"""What a machine offers, chosen once per run or comparison, stored with it, and never changed on resume."""

import os
import platform
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy
import torch

import partwise
from partwise.config import ConfigError
from partwise.kernels.library import ready
from partwise.train.settings import TrainConfig


@dataclass(frozen=True)
class Choices:
    """Device, precision, paths and CPU threads of a run: never a difference between two arms."""

    device: str
    precision: str
    attention_path: str
    threads: int
    ffn_path: str = "torch"  # of runs that were begun before there was a choice
    block_path: str = "layers"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def compiled(self) -> bool:
        """Whether compiled kernels are among the paths; they then serve what there is no path to choose for as well."""
        return "kernel" in (self.attention_path, self.ffn_path, self.block_path)

    def check(self) -> None:
        """Raises ConfigError where this machine lacks what was chosen: other paths would give other numbers unseen."""
        if self.compiled and not ready():
            raise ConfigError(
                "this run was begun with compiled kernels, and they cannot be compiled here (see above): install a C++ "
                "compiler, continue where it began, or start over with --fresh"
            )

    def for_ensembles(self, train: TrainConfig) -> "Choices":
        """The same for several seeds at once, of which attention alone has a kernel that knows. Raises ConfigError."""
        for key, path in (("ffn_path", train.ffn_path), ("block_path", train.block_path)):
            if path == "kernel":
                raise ConfigError(f"train.{key}=kernel knows one seed at a time: use train.{key}=auto, or --together 1")
        return replace(self, ffn_path="torch", block_path="layers")

    def with_threads(self, threads: int) -> "Choices":
        return replace(self, threads=threads)


def choose(train: TrainConfig) -> Choices:
    """Settle every `auto`. Raises ConfigError for a device that this machine lacks."""
    device = train.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device=cuda: torch finds no CUDA device here; use train.device=auto")
    elif device == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("train.device=mps: torch finds no Metal device here; use train.device=auto")
    precision = train.precision
    if precision == "auto":
        precision = "bfloat16" if fast_bfloat16(device) else "float32"
    compiled = device == "cpu" and "kernel" in wished(train) and ready()
    paths: dict[str, str] = {
        "attention_path": train.attention_path,
        "ffn_path": train.ffn_path,
        "block_path": train.block_path,
    }
    for key, path in paths.items():
        if path == "kernel" and not compiled:
            raise ConfigError(f"train.{key}=kernel works on a CPU, with a C++ compiler at hand: use train.{key}=auto")
    others = {"attention_path": "fused", "ffn_path": "torch", "block_path": "layers"}
    if device == "cpu" and precision == "bfloat16":
        others["attention_path"] = "products"  # which beat torch's kernel by far on narrow heads
    for key, path in paths.items():
        if path == "auto":
            paths[key] = "kernel" if compiled else others[key]
    return Choices(device, precision, threads=train.threads or torch.get_num_threads(), **paths)


def wished(train: TrainConfig) -> set[str]:
    """Every path that the settings leave open or ask for: a machine compiles nothing that is not wished."""
    paths: set[str] = {train.attention_path, train.ffn_path, train.block_path}
    return paths | {"kernel"} if "auto" in paths else paths


def fast_bfloat16(device: str) -> bool:
    """Whether bfloat16 matrix products have hardware of their own here."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and torch.cpu._is_avx512_bf16_supported()


def machine() -> dict[str, str]:
    """What bitwise equality of a resumed run rests on, besides the choices."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    except OSError:
        pass
    return {
        "partwise": partwise.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": str(os.cpu_count()),
    }
