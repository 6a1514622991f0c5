"""Runtime settings: chosen once per run or comparison, stored with it, and never changed on resume."""

import os
import platform
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy
import torch

import partwise
from partwise.config import ConfigError
from partwise.kernels.library import kernels_available


class RuntimeSettings(Protocol):
    """The `train.*` settings that determine the runtime; each may be "auto"."""

    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def attention_backend(self) -> str: ...
    @property
    def ffn_backend(self) -> str: ...
    @property
    def block_backend(self) -> str: ...
    @property
    def threads(self) -> int | None: ...


@dataclass(frozen=True)
class Runtime:
    """Device, precision, backends and CPU threads of a run; never differs between two arms."""

    device: str
    precision: str
    attention_backend: str
    threads: int
    ffn_backend: str = "eager"  # the defaults of runs stored without these settings
    block_backend: str = "eager"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def compiled(self) -> bool:
        """Whether any backend is `cpp`; operations without a setting of their own then use the C++ kernels as well."""
        return "cpp" in (self.attention_backend, self.ffn_backend, self.block_backend)

    def check(self) -> None:
        """Raise ConfigError if this machine lacks the C++ kernels: another backend would silently change the numbers."""
        if self.compiled and not kernels_available():
            raise ConfigError(
                "this run was started with the C++ kernels, which do not compile here (see above): install a C++ "
                "compiler, resume on the original machine, or start over with --fresh"
            )

    def for_multi_seed(self, train: RuntimeSettings) -> "Runtime":
        """The runtime of multi-seed training, which only the attention kernel supports. Raises ConfigError."""
        for key, backend in (("ffn_backend", train.ffn_backend), ("block_backend", train.block_backend)):
            if backend == "cpp":
                raise ConfigError(
                    f"train.{key}=cpp does not support multi-seed training: use train.{key}=auto or "
                    "--seeds-per-process 1"
                )
        return replace(self, ffn_backend="eager", block_backend="eager")

    def with_threads(self, threads: int) -> "Runtime":
        return replace(self, threads=threads)


def choose_runtime(train: RuntimeSettings) -> Runtime:
    """Resolve every `auto`. Raises ConfigError for a device or backend that is not available."""
    device = train.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device=cuda: torch finds no CUDA device here; use train.device=auto")
    elif device == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("train.device=mps: torch finds no Metal device here; use train.device=auto")
    precision = train.precision
    if precision == "auto":
        precision = "bfloat16" if has_fast_bfloat16(device) else "float32"
    use_kernels = device == "cpu" and "cpp" in requested_backends(train) and kernels_available()
    backends: dict[str, str] = {
        "attention_backend": train.attention_backend,
        "ffn_backend": train.ffn_backend,
        "block_backend": train.block_backend,
    }
    for key, backend in backends.items():
        if backend == "cpp" and not use_kernels:
            raise ConfigError(f"train.{key}=cpp requires a CPU and a C++ compiler: use train.{key}=auto")
    fallbacks = {"attention_backend": "sdpa", "ffn_backend": "eager", "block_backend": "eager"}
    if device == "cpu" and precision == "bfloat16":
        fallbacks["attention_backend"] = "eager"  # much faster than torch's kernel for small heads
    for key, backend in backends.items():
        if backend == "auto":
            backends[key] = "cpp" if use_kernels else fallbacks[key]
    return Runtime(device, precision, threads=train.threads or torch.get_num_threads(), **backends)


def requested_backends(train: RuntimeSettings) -> set[str]:
    """The backends that the settings name or allow; the kernels are compiled only if `cpp` is among them."""
    backends: set[str] = {train.attention_backend, train.ffn_backend, train.block_backend}
    return backends | {"cpp"} if "auto" in backends else backends


def has_fast_bfloat16(device: str) -> bool:
    """Whether this hardware has native bfloat16 matmuls."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and torch.cpu._is_avx512_bf16_supported()


def machine_info() -> dict[str, str]:
    """The software versions and hardware that a bitwise equal resume depends on, besides the runtime settings."""
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
