"""With `keep_freed_memory`, a training step reuses the memory that the previous step freed."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from partwise.kernels.malloc import keep_freed_memory
if {keep}:
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.memset.argtypes, libc.free.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), (ctypes.c_void_p,)
def step(size={size}):
    pointers = [libc.malloc(size) for _ in range(4)]
    for pointer in pointers:
        libc.memset(pointer, 1, size)
    for pointer in pointers:
        libc.free(pointer)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries lack these settings")


def page_faults(keep: bool, size: int = 12_000_000, **environment: str) -> int:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep, size=size)],
        env={**inherited, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.parametrize("size", [12_000_000, 100_000_000])
def test_freed_memory_is_reused(size: int) -> None:
    default, kept = page_faults(False, size), page_faults(True, size)
    assert kept < 0.1 * default, (kept, default)


def test_environment_variables_take_precedence() -> None:
    small = {"MALLOC_TRIM_THRESHOLD_": "100000", "MALLOC_MMAP_THRESHOLD_": "100000"}
    assert page_faults(True, **small) > 0.5 * page_faults(False, **small)
