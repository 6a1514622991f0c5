"""Memory that a step frees is there for the next one."""

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
    places = [libc.malloc(size) for _ in range(4)]
    for place in places:
        libc.memset(place, 1, size)
    for place in places:
        libc.free(place)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool, size: int = 12_000_000, **environment: str) -> int:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep, size=size)],
        env={**plain, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
@pytest.mark.parametrize("size", [12_000_000, 100_000_000])
def test_a_step_finds_the_memory_of_the_last_one(size: int) -> None:
    given_back, kept = faults(False, size), faults(True, size)
    assert kept < 0.1 * given_back, (kept, given_back)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_what_the_user_set_stands() -> None:
    small = {"MALLOC_TRIM_THRESHOLD_": "100000", "MALLOC_MMAP_THRESHOLD_": "100000"}
    assert faults(True, **small) > 0.5 * faults(False, **small)
