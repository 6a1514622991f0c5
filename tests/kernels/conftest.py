"""Fixtures of the kernel tests."""

from pathlib import Path

import pytest

from kernel_inputs import require_kernels


@pytest.fixture
def kernels(shared_cache: Path) -> None:
    """Skip the test on a machine without a C++ compiler."""
    require_kernels()
