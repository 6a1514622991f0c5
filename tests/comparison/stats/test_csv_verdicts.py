"""`partwise verdict FILE.csv`: reading the file, error messages, and the output."""

import csv
import dataclasses
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.comparison.stats.csv_verdicts import judge_arms, read_values, render_verdicts
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.number_format import format_p
from partwise.config import ConfigError

GOOD = "seed,arm,value\n0,a,1.5\n1,a,1.6\n0,b,1.4\n1,b,1.45\n"
EXPECTED = {"a": {0: 1.5, 1: 1.6}, "b": {0: 1.4, 1: 1.45}}


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "runs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.rstrip("\n"),
        "\ufeff" + GOOD,
        "\n" + GOOD.replace("0,b", "\n , ,\n0,b"),
        "Value , ARM,note,Seed\n1.5,a,x,0\n1.6, a ,,1\n1.4,b,,0.0\n1.45,b,,1.0\n",
        '"seed","arm","value"\n"0","a","1.5"\n1,"a",1.6\n0,b,"1.4"\n1,b,1.45\n',
        GOOD.replace(",1.5\n", ",1.5,,\n"),
    ],
)
def test_common_csv_dialects_are_read(tmp_path: Path, text: str) -> None:
    values = read_values(write(tmp_path, text))
    assert values == EXPECTED and list(values) == ["a", "b"]


def test_arms_can_have_any_printable_name(tmp_path: Path) -> None:
    values = read_values(write(tmp_path, GOOD.replace(",a,", ',"swiglu, [red]wide",').replace(",b,", ",層,")))
    assert list(values) == ["swiglu, [red]wide", "層"]
    text = render_verdicts(judge_arms(values), values)
    assert "swiglu, [red]wide (baseline)" in text and "層 - swiglu, [red]wide" in text


@given(st.dictionaries(st.integers(-5, 5), st.tuples(st.floats(), st.floats()), min_size=2))
def test_values_written_by_csv_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: dict) -> None:
    path = tmp_path_factory.mktemp("csv") / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "arm", "value"])
        writer.writerows(
            (seed, arm, value) for seed, pair in rows.items() for arm, value in zip("ab", pair, strict=True)
        )
    values = read_values(path)
    for index, arm in enumerate("ab"):
        assert list(values[arm]) == list(rows)
        for seed, pair in rows.items():
            assert values[arm][seed] == pair[index] or math.isnan(pair[index])
    assert render_verdicts(judge_arms(values), values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: expected the header seed,arm,value"),
        ("\n\n", "is empty"),
        ("seed,arm,value\n", "no rows below the header"),
        ("seed,arm,loss\n0,a,1\n", "line 1: no column 'value' in the header"),
        ("seeds,arm,value\n0,a,1\n", "no column 'seed' in the header; did you mean 'seeds'"),
        ("0,a,1\n1,a,2\n", "line 1: no column 'seed'"),
        ("seed;arm;value\n0;a;1\n", "not comma-separated"),
        ("seed,arm,value,value\n0,a,1,1\n", "line 1: column 'value' occurs 2 times"),
        (GOOD.replace("1.6", "1.6x"), "line 3: value='1.6x': expected a number"),
        (GOOD.replace("1.6", ""), "line 3: value='': expected a number such as 1.47, or nan if the run diverged"),
        (GOOD.replace("1.6", "1_6"), "value='1_6'"),
        (GOOD.replace("1,a", "one,a"), "line 3: seed='one': expected an integer"),
        (GOOD.replace("1,a", "1.5,a"), "seed='1.5'"),
        (GOOD.replace("1,a", ",a"), "seed=''"),
        (GOOD.replace("1,a", "nan,a"), "seed='nan'"),
        (GOOD.replace("1,a", "1,"), "line 3: arm='': give the arm a printable name"),
        (GOOD.replace("1,a", "1,\x1b[31m"), r"line 3: arm='\x1b[31m'"),
        (GOOD.replace("1,a", "0,a"), "line 3: arm 'a' already has seed 0 on line 2"),
        (GOOD.replace("1.6", "1,6"), "line 3: 4 fields but 3 columns in the header"),
        (GOOD.replace(",1.6", ""), "line 3: 2 fields but 3 columns in the header"),
        (GOOD.replace(",b,", ",a2,").replace("0,a2", "2,a").replace("1,a2", "3,a"), "only arm 'a'"),
        (GOOD.replace("1,b,1.45\n", ""), "arm 'b' has only one seed, which gives no interval"),
        (GOOD.replace("1,a", '1,"a'), "not valid CSV"),
        (GOOD.replace("1,a", "1,é").encode("latin-1"), "line 3: not UTF-8 text"),
        (GOOD.encode("utf-16"), "line 1: not UTF-8 text; save the file as CSV in UTF-8"),
    ],
)
def test_an_invalid_file_raises_a_one_line_error(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_values(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.csv: No such file"):
        read_values(tmp_path / "nothing.csv")
    with pytest.raises(ConfigError, match="cannot read"):
        read_values(tmp_path)


def test_the_first_arm_is_the_default_baseline() -> None:
    values = {"a": {0: 1.0, 1: 1.1}, "b": {0: 2.0, 1: 2.1}, "c": {0: 3.0, 1: 3.2}}
    assert [(e.arm, e.against) for e in judge_arms(values)] == [("b", "a"), ("c", "a")]
    assert [(e.arm, e.against) for e in judge_arms(values, baseline="b")] == [("a", "b"), ("c", "b")]
    with pytest.raises(ConfigError, match="unknown baseline 'd'"):
        judge_arms(values, baseline="d")


def test_options_are_passed_to_judge() -> None:
    rng = np.random.default_rng(0)
    values = {arm: {s: float(v) for s, v in enumerate(rng.normal(m, 0.01, 5))} for arm, m in (("a", 1.5), ("b", 1.6))}
    assert judge_arms(values)[0].verdict == "worse"
    (effect,) = judge_arms(
        values, higher_is_better=True, margin=0.01, alpha=0.01, look=2, metric="accuracy", unit="points"
    )
    expected = judge(
        "b",
        "a",
        values["b"],
        values["a"],
        lower_is_better=False,
        margin=0.01,
        alpha=0.01,
        look=2,
        metric="accuracy",
        unit="points",
    )
    assert effect == dataclasses.replace(expected, p_looks=expected.p, p_adjusted=expected.p)
    assert effect.verdict == "better" and "accuracy is higher" in effect.sentence


def test_rendered_text() -> None:
    values = {
        "base": {0: 1.50, 1: 1.51, 2: 1.49, 3: 1.52, 4: 1.48},
        "swiglu": {0: 1.455, 1: 1.453, 2: 1.445, 3: 1.463, 4: 1.429},
        "wild": {0: 1.5, 1: math.inf, 2: 1.49, 3: 1.5, 4: 1.48},
        "alone": {10: 1.5, 11: 1.51},
    }
    effects = judge_arms(values, metric="loss", look=2)
    lines = render_verdicts(effects, values).splitlines()
    assert lines[:5] == [
        "arm              seeds    mean      SD  diverged",
        "base (baseline)      5  1.5000  0.0158         0",
        "swiglu               5  1.4490  0.0129         0",
        "wild                 5       -       -         1",
        "alone                2  1.5050  0.0071         0",
    ]
    assert lines[6:10] == [
        "difference        n     mean     98.75% interval     r        p  p (Holm)     verdict",
        "swiglu - base     5  -0.0510  -0.0626 to -0.0394  0.93  <0.0001   <0.0001      better",
        "wild - base       5        -                   -     -        -         -  no verdict",
        lines[9],
    ]
    assert lines[9].startswith("alone - base   2, 5") and lines[9].endswith("undecided")
    assert [effect.sentence for effect in effects] == lines[11:14]
    notes = "\n".join(lines[15:])
    assert "Seed SD, pooled over 3 arms: 0.0138." in notes
    assert "3 comparisons with base" in notes and "18.8%" in notes
    assert "This is look 2; the looks so far spend an alpha of 6.25% in total." in notes
    one = {"base": values["base"], "swiglu": values["swiglu"]}
    assert "Holm" not in render_verdicts(judge_arms(one), one) and "diverged" not in render_verdicts(
        judge_arms(one), one
    )


def test_p_is_never_rounded_across_alpha() -> None:
    assert (
        format_p(0.0496, 0.05) == "0.0496"
        and format_p(0.04996, 0.05) == "0.04996"
        and format_p(0.0449, 0.05) == "0.045"
    )
    assert format_p(0.0119, 0.012) == "0.0119" and format_p(0.012501, 0.0125) == "0.013"
    assert format_p(1e-9, 0.05) == "<0.0001" and format_p(1e-9, 1e-8) == "1e-09" and format_p(0.5, 0.05) == "0.5"


@pytest.mark.parametrize(("arms", "seeds"), [(10, 1000), (2000, 5)])
def test_ten_thousand_rows_take_under_a_second(tmp_path: Path, arms: int, seeds: int) -> None:
    values = np.random.default_rng(0).normal(1.5, 0.01, (arms, seeds))
    rows = (f"{seed},arm {arm},{values[arm, seed]}" for seed in range(seeds) for arm in range(arms))
    path = write(tmp_path, "seed,arm,value\n" + "\n".join(rows))
    start = time.process_time()
    table = read_values(path)
    text = render_verdicts(judge_arms(table), table)
    assert time.process_time() - start < 1.0
    assert len(text.splitlines()) > 2 * arms
