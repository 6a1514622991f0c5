"""Settings of the C library's allocator."""

import ctypes
import os
import platform

TRIM_THRESHOLD_BYTES = 2**30  # free memory at the top of the heap that is not returned to the system
TOP_PAD_BYTES = 2**26  # extra memory requested each time the heap grows
MMAP_BLOCKS = 0  # allocations served by mmap, which the system maps and unmaps one by one
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # from malloc.h


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next training step instead of returning it to the system (Linux only).

    Returned memory comes back as pages that the operating system must zero, which took up to a quarter of a small model's
    step. The setting lasts for the whole process: all memory comes from one heap, and only free memory above a gigabyte at
    its top is returned. glibc's own environment variables (MALLOC_TRIM_THRESHOLD_ etc., GLIBC_TUNABLES) take precedence.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = ctypes.CDLL(None).mallopt
    for setting, value in (
        (M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
        (M_TOP_PAD, TOP_PAD_BYTES),
        (M_MMAP_MAX, MMAP_BLOCKS),
    ):
        mallopt(setting, value)
