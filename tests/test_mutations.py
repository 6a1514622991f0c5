"""Every mutation of the lists still applies: a change of the code that moves its text is told here."""

import ast

import pytest

from mutation_testing import LISTS, ROOT, read_mutations


@pytest.mark.promise
def test_every_mutation_applies_and_its_tests_exist() -> None:
    for mutation in (each for name in LISTS for each in read_mutations(name)):
        ast.parse(mutation.source(), str(mutation.path))
        missing = [path for path in mutation.tests.split() if not (ROOT / path.partition("::")[0]).exists()]
        assert not missing, mutation.name
