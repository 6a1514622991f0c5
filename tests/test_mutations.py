"""Every mutation of the lists still applies: a change of the code that moves its text is told here."""

import pytest

from mutation_testing import LISTS, ROOT, Mutation, read_mutations


@pytest.mark.parametrize(
    "mutation", [each for name in LISTS for each in read_mutations(name)], ids=lambda each: each.name
)
def test_a_mutation_applies_and_its_tests_exist(mutation: Mutation) -> None:
    compile(mutation.source(), str(mutation.path), "exec")
    assert all((ROOT / path.partition("::")[0]).exists() for path in mutation.tests.split())
