"""The number of threads of this process, for torch and for the C++ kernels, and whether results may depend on it.

torch divides matmuls and sums among its threads, and adds their parts in an order that depends on how many there are; so do
the kernels for the gradient of a weight, where each thread sums some rows. They compute all else in one order.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

GRADIENT_PARTS = 8
"""Parts in which the kernels sum a weight's gradient if its value must not depend on the threads that share them."""

_kernel_threads: int | None = None  # None: as many as torch has


def set_threads(threads: int, deterministic: bool = False) -> None:
    """Set the number of threads of torch and the kernels.

    If `deterministic`, results are bitwise equal for any number: torch has one thread, and only the kernels have `threads`.
    """
    global _kernel_threads
    torch.set_num_threads(1 if deterministic else threads)
    _kernel_threads = threads if deterministic else None


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for torch: two are no faster on a few numbers, and wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def kernel_threads() -> int:
    """The number of threads of the kernels."""
    return torch.get_num_threads() if _kernel_threads is None else _kernel_threads


def is_deterministic() -> bool:
    """Whether results must not depend on the number of threads."""
    return _kernel_threads is not None


def gradient_parts(rows: int) -> int:
    """The number of parts in which the kernels sum a weight's gradient over `rows` rows."""
    return max(1, min(GRADIENT_PARTS, rows)) if is_deterministic() else kernel_threads()
