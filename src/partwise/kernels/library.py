"""The compiled kernels of this machine, each a library that is called through plain C."""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch

from partwise.kernels import build

KERNELS = ("attention", "mlp", "block", "halves", "cross_entropy")


def ready() -> bool:
    """Whether the C++ kernels serve this machine. The first call compiles them, or says on stderr why it cannot."""
    if compiled.cache_info().currsize < len(KERNELS):
        first, *others = KERNELS
        if compiled(first) is None:  # and the others would say the same again
            return False
        with ThreadPoolExecutor() as pool:  # compilers side by side
            list(pool.map(compiled, others))
    return all(compiled(name) is not None for name in KERNELS)


def cache() -> Path:
    """Where compiled kernels are kept."""
    return Path(os.environ.get("PARTWISE_CACHE") or Path.home() / ".cache" / "partwise") / "kernels"


@lru_cache
def compiled(name: str) -> ctypes.CDLL | None:
    """One kernel's library, made on first use; None, and a line on stderr, where that cannot be."""
    try:
        return build.load(name, cache())
    except build.BuildError as error:
        print(f"{name} runs without its compiled kernel: {error}", file=sys.stderr)
        return None


@lru_cache
def team() -> int | None:
    """The address of torch's own GOMP_parallel: threads of a second OpenMP would fight the first for the cores."""
    try:
        # looked up from torch's module, this finds what torch itself is linked with, whatever else is loaded
        return ctypes.cast(ctypes.CDLL(torch._C.__file__).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
