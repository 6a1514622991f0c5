"""What the C library does with memory that is given back."""

import ctypes
import os
import platform

KEEP = 2**30  # bytes at the heap's end that are not given back to the system
AHEAD = 2**26  # that are asked for beyond what is needed
APART = 0  # pieces that the system gives one by one, and takes back one by one
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # as malloc.h numbers them


def keep_freed() -> None:
    """Let this process keep the memory that a step frees for the next one, on Linux.

    Otherwise much of it goes back and comes anew in pages that the system has to clear, which took up to a quarter of a
    small model's step. It holds for all that the process does from then on: memory comes from one heap, of which only the
    end is ever given back, and that not below a gigabyte. Who sets glibc's own variables, MALLOC_TRIM_THRESHOLD_ and so
    on, is not overruled.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = ctypes.CDLL(None).mallopt
    for setting, size in ((TRIM_THRESHOLD, KEEP), (TOP_PAD, AHEAD), (MMAP_MAX, APART)):
        mallopt(setting, size)
