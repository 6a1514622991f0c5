"""Modules that cost a second to import, imported by the tests that use them and not by the collection of all tests."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class LazyModule:
    """A module that is imported when one of its names is first read."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks everything in a file of tests for these
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def lazy_module(name: str, needs: str = "") -> Any:
    """The module of this name; without `needs`, or without the module's own package, the tests of the file are skipped."""
    package = needs or name.partition(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is a development dependency", allow_module_level=True)
    return LazyModule(name)
