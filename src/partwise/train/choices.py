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
from partwise.kernels.attention import ready
from partwise.train.settings import TrainConfig


@dataclass(frozen=True)
class Choices:
    """Device, precision, attention path and CPU threads of a run: never a difference between two arms."""

    device: str
    precision: str
    attention_path: str
    threads: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

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
    path: str = train.attention_path
    if path == "auto":
        # measured: on a CPU our kernel wins in float32, and in bfloat16 products beat torch's by far on narrow heads
        own = "products" if precision == "bfloat16" else "kernel" if ready() else "fused"
        path = own if device == "cpu" else "fused"
    elif path == "kernel" and not (device == "cpu" and precision == "float32" and ready()):
        raise ConfigError(
            "train.attention_path=kernel works on a CPU in float32, with a C++ compiler at hand: use "
            "train.attention_path=auto"
        )
    return Choices(device, precision, path, train.threads or torch.get_num_threads())


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
