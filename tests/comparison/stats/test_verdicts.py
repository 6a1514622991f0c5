"""`partwise.verdict` and `partwise verdict`: TensorBoard folders, exports of Weights & Biases, data frames, mappings."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import partwise
from events import write_events
from partwise.cli import app
from partwise.comparison.schemas import verdict_schema
from partwise.comparison.stats.verdicts import load_values
from partwise.config import ConfigError

VALUES = {"base": {0: 1.5, 1: 1.625, 2: 1.5625}, "swiglu": {0: 1.375, 1: 1.4375, 2: 1.40625}}
"""Exact in the float32 of event files."""


def write_runs(folder: Path, name: str = "{arm}-{seed}", tag: str = "loss/val", last: int = 200) -> Path:
    """A folder per run: its metric is 2, 1 and its value at half time; another tag has other values."""
    for arm, runs in VALUES.items():
        for seed, value in runs.items():
            curve = {0: 2.0, last // 4: 1.0, last // 2: value + 0.5, last: value}
            write_events(folder / name.format(arm=arm, seed=seed), {tag: curve, "lr": {0: 1.0, last: 0.0}})
    return folder


def write_export(folder: Path, **changes: Any) -> Path:
    """The CSV export of a chart: three columns per run and metric, cells of other runs empty."""
    runs = {f"{arm}-{seed}": value for arm, values in VALUES.items() for seed, value in values.items()}
    header, last = ["Step"], {}
    for run, value in {**runs, **changes}.items():
        for column, cell in (("_step", 200), ("val_loss", value), ("val_loss__MIN", -7), ("val_loss__MAX", 7)):
            header.append(f"{run} - {column}")
            last[header[-1]] = "" if column == "_step" else cell
    rows = [",".join(f'"{name}"' for name in header)]
    for step in (0, 50, 100):
        rows.append(",".join([str(step), *("2.5" if name.endswith(" - val_loss") else "" for name in header[1:])]))
    rows.append(",".join(["200", *(str(last[name]) for name in header[1:])]))
    path = folder / "wandb_export.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def load(source: Any, value: str | None = None, names: str | None = None, take: str | None = None) -> Any:
    return load_values(source, {"value": value} if value else {}, names, take)[:2]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("{arm}-{seed}", None),
        ("{arm}_seed{seed}", None),
        ("{arm}/seed-{seed}", None),
        ("{arm}-s{seed}", None),
        ("{arm}-{seed}/runs/Nov23_12-00-00_host", None),  # as the Trainer of transformers writes them
        ("{seed}.{arm}", "{seed}.{arm}"),
        ("run{seed}/{arm}/logs", "run{seed}/{arm}"),
    ],
)
def test_folders_of_tensorboard(tmp_path: Path, name: str, pattern: str | None) -> None:
    assert load(write_runs(tmp_path, name), "loss/val", pattern) == (VALUES, [])


def test_one_of_several_writers_is_chosen(tmp_path: Path) -> None:
    """Keras logs to run/train and run/validation, `add_scalars` to run/TAG/NAME, a resumed Trainer to one more folder."""
    keras, trainer = tmp_path / "keras", tmp_path / "trainer"
    write_runs(keras, "{arm}-{seed}/loss/validation", tag="loss")
    for arm, seed in (("base", 0), ("swiglu", 1), ("swiglu", 2)):
        write_events(keras / f"{arm}-{seed}" / "loss" / "train", {"loss": {0: 2.0, 200: 7.0}})
    write_events(keras / "base-1", {})
    with pytest.raises(
        ConfigError, match=re.escape("choose one, as in --run-names '{arm}-{seed}/loss/validation'; if")
    ):
        load(keras, "loss")
    pattern = "{arm}-{seed}/loss/validation"
    loaded = load_values(keras, {"value": "loss"}, pattern, None)
    example = "base-0/loss/validation is seed 0 of arm base"
    left_out = "left out 3 folders that do not fit, such as base-0/loss/train"
    assert loaded == (VALUES, [], f"Read {keras}: 6 runs, last loss; {example}; {left_out}.")
    with pytest.raises(ConfigError, match=re.escape("no run has such a name (found: base-0/loss/train, ")):
        load(keras, "loss", "{arm}-{seed}/loss_validation")
    write_runs(trainer, "{arm}-{seed}/runs/Nov2{seed}_12-00-00_host")
    write_events(trainer / "base-0" / "runs" / "Nov24_12-00-00_host", {"loss/val": {150: 1.75, 200: 1.5}})
    with pytest.raises(ConfigError, match="Nov24_12-00-00_host: move the event files of one run into one folder if"):
        load(trainer, "loss/val")


@pytest.mark.parametrize(("take", "expected"), [("last", 1.5), ("min", 1.0), ("max", 2.0), ("0", 2.0), ("100", 2.0)])
def test_which_value_counts(tmp_path: Path, take: str, expected: float) -> None:
    values, notes = load(write_runs(tmp_path), "loss/val", take=take)
    assert values["base"][0] == expected and not notes


def test_runs_that_end_at_different_steps(tmp_path: Path) -> None:
    """Refused for the last value, said for the smallest; a run that ended with nan has diverged and may end early."""
    write_runs(tmp_path)
    write_events(tmp_path / "base-0", {"loss/val": {100: 1.5}}, name="events.out.tfevents.2")
    path = write_events(tmp_path / "base-0", {"loss/val": {0: 2.0, 100: 1.25}})
    (path.parent / "events.out.tfevents.2").unlink()
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "loss/val")
    ends = "runs end at different steps: base-0 at 100, base-1 at 200"
    assert str(caught.value) == f"{tmp_path}: {ends}: finish them, or give --take 100, the last step of all"
    values, notes = load(tmp_path, "loss/val", take="min")
    assert values["base"] == {0: 1.25, 1: 1.0, 2: 1.0} and notes == [f"{tmp_path}: {ends}"]
    assert load(tmp_path, "loss/val", take="100")[0]["base"][0] == 1.25
    made = CliRunner().invoke(
        app, ["verdict", str(tmp_path), "--columns", "value=loss/val", "--take", "min", "--margin", "0.1"]
    )
    assert made.exit_code == 0 and f"Note: {tmp_path}: {ends}\n" in made.output
    write_events(tmp_path / "base-0", {"loss/val": {0: 2.0, 50: math.nan}})
    values, notes = load(tmp_path, "loss/val")
    assert math.isnan(values["base"][0]) and values["base"][1] == 1.625 and not notes
    assert math.isnan(load(tmp_path, "loss/val", take="min")[0]["base"][0])
    (effect, *_) = partwise.verdict(tmp_path, margin=0.1, columns={"value": "loss/val"}).effects
    assert (effect.failed_against, effect.mean) == (1, None)


def test_the_values_of_a_restarted_run(tmp_path: Path) -> None:
    """The smallest value of an interrupted session counts only if the next one continues after it."""
    write_runs(tmp_path)
    write_events(tmp_path / "base-0", {"loss/val": {50: 0.5, 60: 0.25}}, name="events.out.tfevents.0")
    assert load(tmp_path, "loss/val", take="min")[0]["base"][0] == 1.0
    write_events(tmp_path / "base-0", {"loss/val": {100: 1.25, 200: 1.5}}, name="events.out.tfevents.2", start=40)
    assert load(tmp_path, "loss/val", take="min")[0]["base"][0] == 1.25


def test_exports_of_weights_and_biases(tmp_path: Path) -> None:
    assert load(write_export(tmp_path)) == (VALUES, [])
    assert load(write_export(tmp_path), "val_loss", take="max")[0]["base"][0] == 2.5
    values, _ = load(write_export(tmp_path, **{"swiglu-3": "NaN", "base-3": "Infinity"}))
    assert math.isnan(values["swiglu"][3]) and values["base"][3] == math.inf
    with pytest.raises(ConfigError, match="runs end at different steps: base-0 at 100, base-1 at 200: finish them, or"):
        load(write_export(tmp_path, **{"base-0": ""}))


def test_an_export_of_weights_and_biases_with_an_endless_cell(tmp_path: Path) -> None:
    """The header is well, so that the file is taken for an export, and a later row is not."""
    path = write_export(tmp_path)
    with path.open("a", encoding="utf-8") as file:
        file.write(f'300,"{"9" * 200_000}"\n')
    with pytest.raises(
        ConfigError, match=r"wandb_export\.csv line \d+: not valid CSV .*: export the chart again"
    ) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames(package: str) -> None:
    pytest.importorskip("narwhals")
    frames = pytest.importorskip(package)
    rows = [(arm, seed, value) for arm, runs in VALUES.items() for seed, value in runs.items()]
    columns = dict(zip(("group", "seed", "loss"), map(list, zip(*rows, strict=True)), strict=True))
    frame = frames.DataFrame({**columns, "note": ["x"] * len(rows)})
    names = {"arm": "group", "value": "loss"}
    made = partwise.verdict(frame, columns=names, margin=0.01)
    assert made.values == VALUES and made.effects == partwise.verdict(VALUES, margin=0.01).effects
    assert str(made) == str(partwise.verdict(VALUES, margin=0.01))
    with pytest.raises(ConfigError, match=re.escape("the data frame row 1: no 'arm' (known: group, loss, note, seed)")):
        partwise.verdict(frame, margin=0.01)
    missing = {**columns, "loss": [None, *columns["loss"][1:]]}
    assert math.isnan(partwise.verdict(frames.DataFrame(missing), margin=0.01, columns=names).values["base"][0])
    unknown = {**columns, "group": [None, *columns["group"][1:]]}
    with pytest.raises(ConfigError, match="row 1: no 'group'"):
        partwise.verdict(frames.DataFrame(unknown), margin=0.01, columns=names)
    if package == "pandas":
        extension = frames.DataFrame(missing).convert_dtypes()
        assert math.isnan(partwise.verdict(extension, margin=0.01, columns=names).values["base"][0])
    else:
        with pytest.raises(ConfigError, match="expected a path, a data frame, or values as arm -> seed -> value"):
            partwise.verdict(frame.lazy(), margin=0.01)


def test_python_has_the_options_of_the_command(tmp_path: Path) -> None:
    """The same numbers by both; `higher_is_better` and the margin reach the rules."""
    path = write_runs(tmp_path)
    made = partwise.verdict(
        path, columns={"value": "loss/val"}, margin=0.01, higher_is_better=True, metric="accuracy", baseline="swiglu"
    )
    options = ["--columns", "value=loss/val", "--margin", "0.01", "--higher-is-better", "--metric", "accuracy"]
    done = CliRunner().invoke(app, ["verdict", str(path), *options, "--baseline", "swiglu", "--json"])
    assert json.loads(done.output) == made.to_dict() and made.effects[0].verdict == "better"
    with pytest.raises(ConfigError, match="the values: arm 'b' has only one seed"):
        partwise.verdict({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0}}, margin=0.01)
    with pytest.raises(ConfigError, match="list: expected a path, a data frame, or values"):
        partwise.verdict([1, 2], margin=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "which tag? Give --columns value=NAME (known: loss/val, lr)"),
        ({"value": "loss/vall"}, "no tag 'loss/vall'; did you mean 'loss/val'? (known: loss/val, lr)"),
        ({"value": "lr", "names": "{arm}"}, "--run-names '{arm}': expected {arm} and {seed} once each"),
        ({"value": "lr", "names": "{arm}.{seed}"}, "--run-names '{arm}.{seed}': "),
        ({"value": "lr", "take": "best"}, "--take best: expected last, min, max or a step"),
        ({"value": "lr", "take": "190"}, "run 'base-0' has no value at step 190; its nearest step is 200"),
    ],
)
def test_options_that_do_not_fit_the_runs(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(write_runs(tmp_path), **options)
    assert "\n" not in str(caught.value)


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no TensorBoard event files here or below"):
        load(tmp_path)
    write_runs(tmp_path)
    damaged = tmp_path / "base-0" / "events.out.tfevents.1"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:100] + b"?" + content[101:])
    done = CliRunner().invoke(app, ["verdict", str(tmp_path), "--columns", "value=lr", "--margin", "0.01"])
    assert isinstance(done.exception, ConfigError) and "is damaged at byte" in str(done.exception)
    write_events(tmp_path / "base-0", {"lr": {0: 1.0}})
    with pytest.raises(ConfigError, match=re.escape("run base-0: no tag 'loss/val' (known: lr)")):
        load(tmp_path, "loss/val")
    write_runs(tmp_path)
    write_events(tmp_path / "base-0" / "again", {"loss/val": {200: 1.0}})
    with pytest.raises(
        ConfigError, match="run base-0: tag 'loss/val' is in base-0 and base-0/again: move the event files of one run"
    ):
        load(tmp_path, "loss/val")
    (tmp_path / "base-0" / "again" / "events.out.tfevents.1").unlink()
    write_events(tmp_path / "base_0", {"loss/val": {200: 1.0}})
    with pytest.raises(ConfigError, match="arm 'base' has seed 0 twice: keep one run per arm and seed"):
        load(tmp_path, "loss/val")


@pytest.mark.parametrize(
    ("header", "cells", "message"),
    [
        ("Step,Group: a - loss", "1,2", "column 'Group: a - loss' is a mean over runs: export the chart without"),
        ("Step,a-0 - loss,a-0 - loss", "1,2,3", "column 'a-0 - loss' occurs twice"),
        ("Relative Time (Process),a-0 - loss", "1,2", "export the chart over steps"),
        ("Step,a-0 - loss,a-0 - lr", "1,2,3", "which metric? Give --columns value=NAME (known: loss, lr)"),
        ("Step,a-0 - loss", "1,x", "line 2: a-0 is 'x': expected a number, or NaN"),
        ("Step,a-0 - loss", "one,1", "line 2: Step is 'one': expected a number"),
        ("Step,a-seed0 - loss", "1,", "run 'a-seed0' has no value: finish it, or leave it out"),
        ("Step,sunny-sky - loss", "1,2", "run 'sunny-sky': its name does not end in a seed"),
        ("Step,a-seed0 - loss,a-seed1 - loss", "1,2,3", "only arm 'a': must have at least 2 arms"),
        (
            "Step,a-0 - loss,a-1 - loss",
            "1,2,3",
            "run 'a-0': no two arms share two seeds if 0 is a seed: give the names'",
        ),
    ],
)
def test_invalid_exports(tmp_path: Path, header: str, cells: str, message: str) -> None:
    path = tmp_path / "export.csv"
    path.write_text(f"{header}\n{cells}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_options_of_runs_are_refused_for_rows(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("seed,arm,value\n0,a,1\n1,a,2\n0,b,1\n1,b,2\n", encoding="utf-8")
    for options in ({"take": "min"}, {"names": "{arm}-{seed}"}):
        with pytest.raises(ConfigError, match="other sources have a row per run"):
            load(path, **options)
    with pytest.raises(ConfigError, match=re.escape("--columns arm=group: ")):
        load_values(write_runs(tmp_path), {"arm": "group"}, None, None)


def test_the_margin_is_required(tmp_path: Path) -> None:
    """No command judges equivalence by a margin that nobody gave."""
    done = CliRunner().invoke(app, ["verdict", str(write_runs(tmp_path)), "--columns", "value=loss/val"])
    assert isinstance(done.exception, ConfigError) and done.output == ""
    assert re.match(
        "--margin is missing: give the largest difference that does not matter, .* as in --margin 0.01",
        str(done.exception),
    )
    with pytest.raises(TypeError, match="margin"):
        partwise.verdict(VALUES)  # type: ignore[call-arg]


def test_the_first_line_says_how_the_source_was_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"{seed};{arm};{value}" for arm, runs in VALUES.items() for seed, value in runs.items()]
    path.write_text("\n".join(["seed;group;loss", *rows]).replace(".", ","), encoding="utf-8")
    made = partwise.verdict(path, columns={"arm": "group", "value": "loss"}, margin=0.01)
    assert made.values == VALUES
    read = f"Read {path}: 6 rows separated by semicolons, decimal commas; columns seed, arm=group, value=loss."
    assert made.read == made.to_dict()["read"] == str(made).splitlines()[0] == read
    assert partwise.verdict(VALUES, margin=0.01).read is None
    made = partwise.verdict(write_runs(tmp_path / "logs"), columns={"value": "loss/val"}, margin=0.01, take=100)
    assert made.read == f"Read {tmp_path / 'logs'}: 6 runs, loss/val at step 100; base-0 is seed 0 of arm base."


@pytest.mark.parametrize("options", [{}, {"paired": False}, {"failure": 1.6}, {"judged": 2}, {"known_sd": 0.1}])
def test_documents_are_valid_by_the_schema(options: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(verdict_schema())
    document = partwise.verdict(
        {**VALUES, "wild": {0: math.nan, 1: math.inf, 5: 1.0}}, margin=0.005, **options
    ).to_dict()
    jsonschema.validate(json.loads(json.dumps(document, allow_nan=False)), schema)
    for damaged in ({**document, "extra": 1}, {"effects": document["effects"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(json.dumps(damaged)), schema)
