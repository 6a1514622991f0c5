"""Fixtures of the kernel tests."""

from pathlib import Path

import pytest

from kernel_inputs import require_kernels
from partwise.kernels import build


@pytest.fixture
def kernels(shared_cache: Path) -> None:
    """Skip the test on a machine without kernels."""
    require_kernels()


@pytest.fixture
def compiler(shared_cache: Path) -> None:
    """Skip the test on a machine without a C++ compiler, where a wheel may have brought kernels."""
    try:
        build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
