"""A kernel that does not support a width says which."""

import pytest

import partwise
from partwise.compute.backend_plan import plan_config
from partwise.compute.runtime import Runtime
from partwise.kernels.library import kernels_available

pytestmark = pytest.mark.skipif(not kernels_available(), reason="the kernels are not compiled here")

BASE = ("vocab_size=19", "n_layers=1", "d_model=64", "attention.n_heads=4")


@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [
        ("ffn.hidden=168", "block", "the hidden width 168 is not a multiple of 16"),
        ("ffn.hidden=171", "ffn", "the hidden width 171 is not a multiple of "),
        ("d_model=72", "block", "d_model=72 is not a multiple of 16"),
        ("d_model=68", "ffn", "d_model=68 is not a multiple of "),
        ("attention.head_dim=10", "block", "the width of all queries, 40 is not a multiple of 16"),
        (
            "attention.n_kv_heads=1 attention.head_dim=4",
            "block",
            "queries, keys and values, 24 is not a multiple of 16",
        ),
        ("attention.n_heads=16 attention.head_dim=1", "block", "head_dim=1 is odd"),
        ("ffn.hidden=65536", "block", "its matrices have 8,404,992 elements, more than 2,097,152"),
        ("ffn.hidden=65536", "ffn", "its matrices have 8,388,608 elements, more than "),
    ],
)
def test_the_reason_names_the_width_at_fault(words: str, kind: str, reason: str) -> None:
    config = partwise.preset("mingpt", *BASE, *words.split())
    for precision in ("float32", "bfloat16"):
        plan = plan_config(config, Runtime(precision=precision, kernels=True))
        (found,) = (each.reason for each in plan.choices.values() if each.kind == kind)
        assert reason in found
