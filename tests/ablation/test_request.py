"""A request equals the command that it prints."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from partwise.ablation.request import Request
from partwise.cli import app
from partwise.cli.commands import compare_preset
from partwise.cli.compare_options import ComparisonOptions


@settings(max_examples=30)
@given(st.data())
def test_the_command_round_trips(data: st.DataObject) -> None:
    """Parsing the command that a comparison prints gives the same request."""
    draw = data.draw
    text = st.sampled_from
    values = {
        "preset": "mingpt",
        "change": draw(text([["ffn=swiglu"], ["ffn=geglu", "norm=rmsnorm"]])),
        "arms": draw(text([[], ["ffn=gelu norm=rmsnorm", "attention={cycle: [multihead]}"]])),
        "interaction": draw(text([[], ["ffn=gelu", "norm=rmsnorm"]])),
        "cumulative": draw(st.booleans()),
        "common": draw(text([[], ["train.steps=7", "train.lr=1e-3"]])),
        "data": draw(text([None, "shakespeare"])),
        "failure": draw(text([None, 4.2])),
        "margin": draw(text([0.005, 1e-5])),
        "alpha": draw(text([0.05, 0.01])),
        "negative_control": draw(text([None, "ffn"])),
        "positive_control": draw(text([None, "ffn.expansion=8 norm=rmsnorm"])),
        "tune": draw(text([None, "train.lr=1e-3,3e-3"])),
        "tune_seeds": draw(text([4, 5])),
        "tune_steps": draw(text([None, 300])),
        "tuned_only": draw(st.booleans()),
        "horizons": draw(text([[], [500, 2000]])),
        "match": draw(text([None, "flops"])),
        "metric": draw(text(["loss", "exact_match", "char_accuracy"])),
        "first_seed": draw(text([0, 7])),
        **draw(text([{"looks": [4, 8]}, {"seeds": 9}])),
    }
    request = Request.from_dict(values)
    read: list[Request] = []

    def take(given: dict[str, Any], shared: ComparisonOptions, *_: Any) -> None:
        read.append(compare_preset.make_request(given, shared.protocol))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_preset, "compare_variants", take)
        import shlex

        done = CliRunner().invoke(app, shlex.split(request.command("n"))[1:])
    assert done.exit_code == 0, done.output
    assert read == [request]
