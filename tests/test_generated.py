"""Every generated file is what the code gives."""

import pytest

from generated import CLAIMS, FILES, is_current


@pytest.mark.parametrize("name", [name for name in FILES if name not in CLAIMS])
def test_a_generated_file_is_current(name: str) -> None:
    assert is_current(name), f"{name} is stale: run `make generate`"


@pytest.mark.parametrize("name", CLAIMS)
def test_the_table_of_claims_and_its_figures_are_current(name: str) -> None:
    assert is_current(name), f"{name} is stale: run `make generate`"
