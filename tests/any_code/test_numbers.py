"""The metric is found in what programs really print and write, and whatever is no finite number is told with its reason."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import write_events
from partwise.any_code.experiment_file import Curve, Metric
from partwise.any_code.numbers import MAX_POINTS, read_curve, read_metric
from partwise.config import ConfigError

LOSS = {"pattern": r"val loss (\S+)"}


def metric_of(folder: Path, stdout: str = "", **settings: Any) -> float:
    (folder / "stdout.txt").write_bytes(stdout.encode())
    return read_metric(Metric.from_dict({"name": "m", **settings}), folder, folder, {"folder": str(folder)})


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_every_number_that_python_prints_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    text = "".join(f"step {step}: val loss {number!r}, lr 1e-3\n" for step, number in enumerate(numbers))
    (folder / "log.csv").write_text(
        "step,val\n" + "".join(f"{step},{number!r}\n" for step, number in enumerate(numbers))
    )
    (folder / "log.jsonl").write_text("".join(json.dumps({"a": {"b": number}}) + "\n" for number in numbers))
    wanted = {"last": numbers[-1], "first": numbers[0], "min": min(numbers), "max": max(numbers)}
    for take, number in wanted.items():
        assert metric_of(folder, text, **LOSS, take=take) == number
        assert metric_of(folder, **{"from": "{folder}/log.csv"}, value="val", take=take) == number
        assert metric_of(folder, **{"from": "log.jsonl"}, value="a.b", take=take) == number


def test_progress_bars_and_colors_hide_nothing(tmp_path: Path) -> None:
    text = "\x1b[32m 10%\x1b[0m val loss 3.0\r 20% val loss \x1b[1m2.5\x1b[0m\r\n100% val loss 1.25\n"
    assert metric_of(tmp_path, text, pattern=r"^.* val loss ([\d.]+)$") == 1.25
    assert metric_of(tmp_path, text, **LOSS, take="first") == 3.0


def test_json_with_nested_and_dotted_keys(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"eval/loss": 2, "eval": {"acc": 0.5}, "x.y": 3}))
    for key, number in {"eval/loss": 2, "eval.acc": 0.5, "x.y": 3}.items():
        assert metric_of(tmp_path, **{"from": "r.json"}, value=key) == number


def test_rows_without_the_column_and_a_line_cut_off_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"val": 2.0}\n{"train": 1.0}\n{"val": 1.5}\n{"val": 1.')
    assert metric_of(tmp_path, **{"from": "m.jsonl"}, value="val") == 1.5
    (tmp_path / "m.csv").write_text("train,val\n1,2.0\n3,\n")
    assert metric_of(tmp_path, **{"from": "m.csv"}, value="val") == 2.0


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("nothing", LOSS, r"no match for val loss \(\\S\+\) in stdout"),
        ("val loss nan", LOSS, "m is nan"),
        ("val loss inf", LOSS, "m is inf"),
        (
            "val loss 1.0\nval loss nan\nval loss 1.0",
            {**LOSS, "take": "min"},
            "m is nan at least once, so it has no min",
        ),
        ("val loss 1_5", LOSS, "m is 1_5, which is not a number"),
        ("val loss 1.5e", LOSS, "m is 1.5e, which is not a number"),
        ("", {"from": "absent.json", "value": "v"}, "it did not write absent.json"),
        ("", {"from": "broken.json", "value": "v"}, "broken.json line 1 is not JSON"),
        ("", {"from": "good.json", "value": "los"}, r"no value 'los' in good.json \(known: loss, name\)"),
        ("", {"from": "good.json", "value": "name"}, "m is a, which is not a number"),
    ],
)
def test_what_is_no_finite_number_has_a_reason(
    tmp_path: Path, text: str, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "good.json").write_text('{"loss": 1.0, "name": "a"}')
    with pytest.raises(ConfigError, match=message) as caught:
        metric_of(tmp_path, text, **settings)
    assert "\n" not in str(caught.value)


def test_curves_are_ordered_thinned_and_keep_their_end(tmp_path: Path) -> None:
    steps = list(range(3 * MAX_POINTS))
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"i": step, "v": 1 / (1 + step)}) + "\n" for step in steps[::-1])
    )
    curve = Curve.from_dict({"from": "c.jsonl", "step": "i", "value": "v"})
    points = read_curve(curve, tmp_path, tmp_path, {})
    assert len(points) <= MAX_POINTS and points == sorted(points) and points[-1] == (steps[-1], 1 / (1 + steps[-1]))
    (tmp_path / "stdout.txt").write_text("step 1: 2.0\nstep 2: nan\nstep 1: 3.0\nstep 3: 1.0\n")
    printed = Curve.from_dict({"pattern": r"step (\d+): (\S+)"})
    assert read_curve(printed, tmp_path, tmp_path, {}) == [(1, 3.0), (3, 1.0)]
    assert not any(math.isnan(value) for _, value in points)


def test_event_files_of_tensorboard(tmp_path: Path) -> None:
    """The scalar of a tag, anywhere below the trial's folder, in the order of its steps."""
    write_events(tmp_path / "logs", {"loss/val": {20: 1.5, 0: 2.0, 10: 1.25}, "lr": {0: 0.5}})
    for take, number in {"last": 1.5, "first": 2.0, "min": 1.25, "max": 2.0}.items():
        assert metric_of(tmp_path, **{"from": "tensorboard"}, value="loss/val", take=take) == number
    curve = Curve.from_dict({"from": "tensorboard", "value": "loss/val"})
    assert read_curve(curve, tmp_path, tmp_path, {"folder": str(tmp_path)}) == [(0, 2.0), (10, 1.25), (20, 1.5)]

    def fails(message: str, value: str = "loss/val", take: str = "last") -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            metric_of(tmp_path, **{"from": "tensorboard"}, value=value, take=take)
        assert "\n" not in str(caught.value)

    fails(
        r"no tag 'loss/vall' in event files of TensorBoard; did you mean 'loss/val'\? \(known: loss/val, lr\)",
        "loss/vall",
    )
    path = write_events(tmp_path / "more", {"loss/val": {0: 1.0}})
    fails("tag 'loss/val' is in logs and in more: make the command log it once")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    fails("is damaged at byte")
    path.unlink()
    write_events(tmp_path / "logs", {"loss/val": {0: 1.0, 10: math.nan, 20: 2.0}})
    fails("m is nan at least once, so it has no min", take="min")
    write_events(tmp_path / "logs", {"loss/val": {0: 1.0, 10: math.nan}})
    fails("m is nan")
    (tmp_path / "logs" / "events.out.tfevents.1").unlink()
    fails("no tag 'loss/val' in event files of TensorBoard: make the command log to {folder}")
