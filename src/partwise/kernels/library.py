"""The compiled kernels of this machine: one shared library per kernel, with a plain C interface."""

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from partwise.config import ConfigError
from partwise.files import file_sha256
from partwise.kernels import build, prebuilt
from partwise.machine import cache_folder
from partwise.messages import print_message

KERNELS = ("attention", "mlp", "block", "bf16", "cross_entropy", "dropout")


def kernels_available() -> bool:
    """Whether the C++ kernels work on this machine. The first call compiles them, or prints to stderr why it cannot."""
    if load_library.cache_info().currsize < len(KERNELS):
        first, *others = KERNELS
        if load_library(first) is None:  # the others would fail for the same reason
            return False
        with ThreadPoolExecutor() as pool:  # run the compilers in parallel
            list(pool.map(load_library, others))
    return all(load_library(name) is not None for name in KERNELS)


@lru_cache
def kernel_build() -> str:
    """A hash of the machine code of all kernels: another compiler rounds otherwise. Empty without kernels."""
    if not kernels_available():
        return ""
    if prebuilt.wheel() is not None:
        return prebuilt.variant().build
    found = [file_sha256(Path(library._name)) for library in map(load_library, KERNELS) if library is not None]
    return hashlib.sha256("".join(found).encode()).hexdigest()[:12]


@lru_cache
def load_library(name: str) -> ctypes.CDLL | None:
    """Load one kernel, the wheel's or one that is compiled on first use; None if that fails, with the reason on stderr."""
    try:
        return build.load(name, cache_folder("kernels")) if prebuilt.wheel() is None else prebuilt.load(name)
    except (build.BuildError, prebuilt.PrebuiltError, ConfigError) as error:
        if str(error) not in _reported:
            print_message(f"C++ kernel {name} is unavailable, falling back to torch: {error}")
        _reported.add(str(error))
        return None


def declare(name: str, functions: Mapping[str, Sequence[Any]], **results: Any) -> Any:
    """A library whose functions have these argument types, and return nothing or their type in `results`; None without it."""
    library = load_library(name)
    for function, types in functions.items() if library is not None else ():
        getattr(library, function).argtypes = types
        getattr(library, function).restype = results.get(function)
    return library


OPERATORS = torch.library.Library("partwise", "FRAGMENT")  # less overhead per call than torch.library.custom_op


def define_operator(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define torch.ops.partwise.NAME; `fake` returns tensors of the output's shapes without content."""
    OPERATORS.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = f"partwise::{schema.partition('(')[0]}"
    OPERATORS.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=OPERATORS)


_reported: set[str] = set()
"""The reasons already printed: without a compiler, all kernels are unavailable for the same one."""


def openmp_runtime() -> ctypes.CDLL:
    """torch's own OpenMP runtime: a second one's threads would compete for the cores. Raises OSError."""
    if sys.platform == "win32":
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libiomp5md.dll"))
    # a lookup through torch's module finds the runtime that torch links, even if others are loaded
    return ctypes.CDLL(torch._C.__file__)


@lru_cache
def openmp_parallel() -> int | None:
    """The address of GOMP_parallel; None, with a word on stderr, if only one thread can run."""
    try:
        runtime = openmp_runtime()
        return kmpc_parallel(runtime) if sys.platform == "win32" else address(runtime.GOMP_parallel)
    except (OSError, AttributeError) as error:
        report_one_thread(error)
        return None


@lru_cache
def openmp_functions() -> tuple[int | None, int | None]:
    """The addresses of omp_get_thread_num and omp_get_num_threads; None if only one thread can run, as `openmp_parallel`."""
    try:
        runtime = openmp_runtime()
        return address(runtime.omp_get_thread_num), address(runtime.omp_get_num_threads)
    except (OSError, AttributeError) as error:
        report_one_thread(error)
        return None, None


def report_one_thread(error: Exception) -> None:
    if torch.get_num_threads() > 1:
        print_message(f"the C++ kernels run on one thread: torch's OpenMP runtime is not found ({error})")


def kmpc_parallel(runtime: ctypes.CDLL) -> int | None:
    """The address of a function like GOMP_parallel, by the interface of a runtime that lacks it. Raises OSError."""
    names = ("__kmpc_fork_call", "__kmpc_push_num_threads", "__kmpc_global_thread_num")
    functions = [ctypes.c_void_p(address(getattr(runtime, name))) for name in names]
    if (library := load_library("openmp")) is None:
        raise OSError("the library openmp is missing")
    library.set_runtime(*functions)
    return address(library.parallel)


def address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
