"""Comparisons, configurations and models as a script or a notebook shows them."""

import html.parser
import importlib.util
import re
from pathlib import Path

import pytest

import partwise
from comparisons import ARITHMETIC
from partwise.ablation.run_comparison import plan_comparison
from partwise.comparison import display
from partwise.comparison.experiment import Comparison
from partwise.comparison.results import Results
from partwise.comparison.stats.verdict_text import headline
from partwise.config import ConfigError

OPTIONS = {"data": "arithmetic", "common": ARITHMETIC, "seeds": 2, "failure": 100.0, "name": "c"}


@pytest.fixture
def comparison(here: Path, capsys: pytest.CaptureFixture[str]) -> Comparison:
    return partwise.compare("mingpt", "ffn=swiglu", arms=["norm=rmsnorm"], **OPTIONS)


def test_a_comparison_shows_itself(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    results = comparison.results
    assert "6 of 6 runs" in capsys.readouterr().out
    shown = [line for effect in results.effects for line in headline(effect)]
    lines = repr(comparison).splitlines()
    assert lines[0] == f"Comparison in {Path('runs/c')}: 3 arms, 2 paired seeds"
    assert [line.strip() for line in lines[1:]] == [results.question, *shown]

    frame = comparison.to_frame()
    assert list(frame["arm"]) == ["ffn=swiglu", "norm=rmsnorm"] == [effect.arm for effect in results.effects]
    for column in ("mean", "low", "high", "p", "verdict"):
        assert list(frame[column]) == [getattr(effect, column) for effect in results.effects]

    figure = comparison.plot()
    (axes,) = figure.axes
    assert [label.get_text().split("\n")[0] for label in axes.get_yticklabels()] == [
        "ffn=swiglu minus mingpt",
        "norm=rmsnorm minus mingpt",
    ]
    drawn = [tuple(line.get_xdata()) for line in axes.lines[1:]]
    assert drawn == [ends for each in results.effects for ends in ((each.low, each.high), (each.mean,))]
    low, high = axes.get_xlim()
    assert all(low < end < high for ends in drawn for end in ends)

    page = comparison._repr_html_()
    parser = html.parser.HTMLParser()
    parser.feed(page)
    assert page.count("<svg") == 1 and page.count("<li>") == 2

    # the same call resumes, in silence if asked to
    partwise.compare("mingpt", "ffn=swiglu", arms=["norm=rmsnorm"], **OPTIONS, progress=False)
    assert capsys.readouterr().out == ""


def test_names_are_escaped(comparison: Comparison) -> None:
    values = comparison.results.to_dict()
    values["question"] = "<script>alert(1)</script>"
    values["claims"][0]["effect"]["mean"] = values["claims"][0]["effect"]["low"] = None
    page = display.to_html(Results.from_dict(values))
    assert "<script" not in page and "&lt;script&gt;" in page


def test_a_frame_of_polars(comparison: Comparison) -> None:
    polars = pytest.importorskip("polars")
    frame = comparison.to_frame("polars")
    assert isinstance(frame, polars.DataFrame) and frame.columns == list(display.COLUMNS)
    assert frame["verdict"].to_list() == [claim.effect.verdict for claim in comparison.results.claims]
    assert frame["mean"].to_list() == [claim.effect.mean for claim in comparison.results.claims]


def test_a_comparison_that_has_not_run(here: Path) -> None:
    comparison = plan_comparison("mingpt", "ffn=swiglu", **OPTIONS)
    assert repr(comparison).endswith("(not run: call run())")
    assert f"Comparison in {Path('runs/c')}" in comparison._repr_html_()
    for method in (comparison.to_frame, comparison.plot):
        with pytest.raises(ConfigError, match="call run"):
            method()


@pytest.mark.parametrize("missing", ["narwhals", "pandas"])
def test_frames_need_a_package(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def find(name: str) -> object:
        return None if name in (missing, "polars") else importlib.util.find_spec(name)

    monkeypatch.setattr(display, "find_spec", find)
    for package in (None, "polars"):
        with pytest.raises(ConfigError, match=r"pip install 'partwise\[frames\]'"):
            display.to_frame(Results.model_construct(claims=()), package)
    with pytest.raises(ConfigError, match=r"'excel'.*choose 'pandas' or 'polars'"):
        display.to_frame(Results.model_construct(claims=()), "excel")


def test_configurations_and_models_show_their_sizes() -> None:
    config = partwise.run_config(
        "mingpt", "ffn=swiglu", "data=arithmetic", "train.threads=1", "d_model=16", "n_layers=1"
    )
    rows = dict(line.split(maxsplit=1) for line in str(config).splitlines())
    assert {re.search(r"\S+ +", line).end() for line in str(config).splitlines()} == {32}, "values are one column"  # type: ignore[union-attr]
    size = f"{config.model.parameters():,}"
    assert rows["parameters"] == size
    assert rows["train.lr"] == "0.0003" and rows["d_model"] == "16" and rows["data"].startswith("arithmetic")
    assert rows["ffn"].startswith("swiglu hidden=none expansion=2.66667 bias=false")
    train = {f"train.{key}" for key in config.to_dict()["train"]}
    assert rows["averaging"] == "none" and "averaging" not in config.to_stored()
    assert rows.keys() == {*config.to_dict(), *train, "parameters"} - {"train"}
    shown = repr(partwise.Transformer(config.model))
    assert f"  {size} parameters" in shown
    assert "FusedLinear(in_features=16, q=16, k=16, v=16, bias=False)" in shown
    run = partwise.Run(config)
    assert repr(run) == f"Run(step 0 of 5,000, {size} parameters, arithmetic, cpu {run.runtime.precision})"
