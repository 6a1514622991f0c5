"""Arms share their backends, so one arm without a kernel slows the others; a comparison says so before it starts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernel_inputs import require_kernels
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import make_comparison
from partwise.cli import app

SMALL = ["d_model=32", "n_layers=2", "attention.n_heads=2", "context_length=16", "train.steps=4", "train.device=cpu"]


def notes(*arms: str, precision: str = "bfloat16", preset: str = "mingpt", common: tuple[str, ...] = ()) -> list[str]:
    words = [*SMALL, *common, f"train.precision={precision}"]
    request = Request(preset=preset, arms=list(arms), data="text.txt", common=words)
    comparison = make_comparison(request)
    return comparison.workload.notes(comparison.plan)


@pytest.fixture(autouse=True)
def kernels(shared_cache: Path, here: Path) -> None:
    require_kernels()


def test_an_arm_that_keeps_others_from_their_kernels_is_named() -> None:
    (note,) = notes("ffn=swiglu ffn.hidden=64", "positions=alibi")
    assert note.startswith("note: no kernel supports positions=alibi (") and "positions=alibi is not supported" in note
    assert note.endswith(
        "); all arms share their backends, so removing this arm would let the others use faster kernels"
    )


def test_arms_that_only_together_keep_others_from_a_kernel_are_one_note() -> None:
    (note,) = notes("ffn=swiglu ffn.hidden=64", "norm=dyt", "residual=parallel residual.dropout=0")
    assert "norm=dyt (block: " in note and " and residual=parallel residual.dropout=0 (block: " in note
    assert note.endswith("removing these arms would let the others use faster kernels")


def test_in_float32_only_what_limits_attention_is_named() -> None:
    (note,) = notes("ffn=swiglu ffn.hidden=64", "attention.softcap=30", "norm=dyt", precision="float32")
    assert note.startswith("note: no kernel supports attention.softcap=30 (")


@pytest.mark.parametrize(
    ("arms", "precision", "common"),
    [
        (("ffn=swiglu ffn.hidden=64", "norm=rmsnorm"), "bfloat16", ()),  # every arm has its kernels
        (("positions=alibi",), "bfloat16", ()),  # nothing would remain to compare
        (("norm=rmsnorm", "ffn=swiglu ffn.hidden=64"), "bfloat16", ("positions=alibi",)),  # the baseline lacks it
        (("ffn=swiglu ffn.hidden=64", "norm=dyt"), "float32", ()),  # backends of blocks are not shared
    ],
)
def test_nothing_is_said_where_leaving_out_an_arm_would_not_help(
    arms: tuple[str, ...], precision: str, common: tuple[str, ...]
) -> None:
    assert notes(*arms, precision=precision, common=common) == []


def test_the_note_comes_before_the_first_run() -> None:
    words = [
        "ffn=swiglu",
        "ffn.hidden=64",
        "--arm",
        "positions=alibi",
        "--data",
        "text.txt",
        "--seeds",
        "2",
        "--dry-run",
    ]
    common = [word for each in (*SMALL, "train.precision=bfloat16") for word in ("--common", each)]
    done = CliRunner().invoke(app, ["compare", "mingpt", *words, *common])
    assert done.exit_code == 0, done.output
    assert "positions=alibi (block: cpp: positions=alibi is not supported); all arms" in " ".join(done.output.split())
