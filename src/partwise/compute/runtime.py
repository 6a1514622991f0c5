"""Runtime settings: chosen once per run or comparison, stored with it, and never changed on resume."""

import os
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy
import torch

from partwise.config import ConfigError
from partwise.kernels.library import kernel_build, kernels_available
from partwise.kernels.prebuilt import named_build
from partwise.kernels.threads import kernel_threads, set_threads
from partwise.machine import hardware
from partwise.version import __version__

THREADS_PER_CORE = 16
"""More threads than this are refused. The limit lets a run that began on a larger machine continue here."""


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
    def compile(self) -> bool | None: ...
    @property
    def activation_checkpointing(self) -> bool: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def deterministic(self) -> bool: ...


@dataclass(frozen=True)
class DefaultSettings:
    """The default of every setting."""

    device: str = "auto"
    precision: str = "auto"
    attention_backend: str = "auto"
    ffn_backend: str = "auto"
    block_backend: str = "auto"
    compile: bool | None = False
    activation_checkpointing: bool = False
    threads: int | None = None
    deterministic: bool = False


@dataclass(frozen=True)
class Runtime:
    """Device, precision and CPU threads of a run, and whether it may use the C++ kernels, compiles the model, or computes the
    same with any number of threads; the same for all arms."""

    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    kernels: bool = False
    compile: bool = False
    deterministic: bool = False
    kernel_build: str = ""
    """The kernels' build; empty without them, and in runs that are older than this field."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def check(self) -> None:
        """Raise ConfigError if this machine lacks the C++ kernels: other backends would silently change the numbers.

        So does Metal where it computes otherwise than the CPU, which is checked once per process.
        """
        if self.device == "mps":
            from partwise.compute.device_check import device_faults  # builds models, which import this module

            if faults := device_faults("mps"):
                raise ConfigError(
                    f"train.device=mps: Metal is wrong on this machine: {faults[0]}: use train.device=cpu"
                )
        if self.kernels and not kernels_available():
            raise ConfigError(
                "this run was started with the C++ kernels, which do not compile here (see above): install a C++ "
                "compiler, resume on the original machine, or start over with --fresh"
            )
        if self.kernel_build and self.kernel_build != kernel_build():
            same = named_build(self.kernel_build)
            where = f"with PARTWISE_KERNELS={same}" if same else "where it started"
            raise ConfigError(
                f"this run was started with build {self.kernel_build} of the C++ kernels, and here they are build "
                f"{kernel_build()}, which rounds otherwise: resume {where}, or start over with --fresh"
            )

    def with_threads(self, threads: int) -> "Runtime":
        return replace(self, threads=threads)

    def set_threads(self) -> None:
        """Set the threads of this process to the runtime's."""
        set_threads(self.threads, self.deterministic)


def choose_runtime(train: RuntimeSettings) -> Runtime:
    """Resolve every `auto`. Raises ConfigError for a device or kernels that are not available."""
    device = train.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"  # small models are faster on a Mac's CPU than on Metal
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device=cuda: torch finds no CUDA device here; use train.device=auto")
    elif device == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("train.device=mps: torch finds no Metal device here; use train.device=auto")
    precision = train.precision
    if precision == "auto":
        precision = "bfloat16" if has_fast_bfloat16(device) else "float32"
    names = requested(train)
    compiled = train.compile if train.compile is not None else device == "cuda" and not train.activation_checkpointing
    for kind, name in names.items():
        if train.compile and name == "cpp":
            raise ConfigError(
                f"train.{kind}_backend=cpp: train.compile=true compiles torch's operations; leave out one of them"
            )
    # the kernels are compiled only if a setting names or allows them
    kernels = device == "cpu" and not compiled and bool({"auto", "cpp"} & set(names.values())) and kernels_available()
    for kind, name in names.items():
        if name == "cpp" and not kernels:
            raise ConfigError(
                f"train.{kind}_backend=cpp requires a CPU and a C++ compiler: use train.{kind}_backend=auto"
            )
    check_threads(train.threads)
    if train.deterministic and device != "cpu":
        raise ConfigError(
            f"train.deterministic=true is supported on CPU only, not with train.device={device}: leave it out, or "
            "use train.device=cpu"
        )
    built = kernel_build() if kernels else ""
    return Runtime(device, precision, train.threads or kernel_threads(), kernels, compiled, train.deterministic, built)


def check_threads(threads: int | None) -> None:
    """Raise ConfigError for more threads than the system is sure to start: a failed start would end the process."""
    cores = os.cpu_count() or 1
    if threads and threads > THREADS_PER_CORE * cores:
        raise ConfigError(
            f"train.threads={threads}: this machine has {cores} cores; more threads than cores only slow it down"
        )


def requested(train: RuntimeSettings) -> dict[str, str]:
    """Kind of operation -> the backend that the settings name, or "auto"."""
    return {"block": train.block_backend, "attention": train.attention_backend, "ffn": train.ffn_backend}


def has_fast_bfloat16(device: str) -> bool:
    """Whether this hardware has native bfloat16 matmuls, so that `train.precision=auto` is bfloat16.

    The kernels' tile registers (AMX) need AVX512-BF16 as well, which every CPU with AMX-BF16 has so far. On arm64 BFMMLA
    has run in an emulator only, so the default there is float32 until a machine has shown its speed.
    """
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and torch.cpu._is_avx512_bf16_supported()


def machine_info() -> dict[str, str]:
    """The software versions and hardware that a bitwise equal resume depends on, besides the runtime settings."""
    versions = {"partwise": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    accelerator = {"accelerator": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return versions | hardware() | accelerator
