"""`partwise verdict FILE.csv`: reading the file, error messages, and the output."""

import csv
import gc
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.number_format import format_p
from partwise.comparison.stats.protocol import Rules
from partwise.comparison.stats.value_files import parse_columns, read_table
from partwise.comparison.stats.value_verdicts import judge_arms, render_verdicts
from partwise.comparison.stats.verdict_text import explanations, undetected_failures
from partwise.config import ConfigError

GOOD = "seed,arm,value\n0,a,1.5\n1,a,1.6\n0,b,1.4\n1,b,1.45\n"
GERMAN = GOOD.replace(",", ";").replace(".", ",")
THOUSANDS = "seed;arm;value\n0;a;1,500\n1;a;1,600\n0;b;1,400\n1;b;1,450\n"
EXPECTED = {"a": {0: 1.5, 1: 1.6}, "b": {0: 1.4, 1: 1.45}}


def verdicts(values: dict[str, dict[int, float]], **options: Any) -> list[Effect]:
    return judge_arms(values, Rules(looks=(), **options))[0]


def read_values(path: Path, columns: dict[str, str] | None = None) -> dict[str, dict[int, float]]:
    return read_table(path, columns).values


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
        GOOD.replace(",", "\t"),
        GOOD.replace(",", ";"),
        GERMAN,
        "\ufeff" + GERMAN.replace("\n", "\r\n"),
        GERMAN.replace("0;", "0,0;").replace("1;", "1,0;"),
        GERMAN.replace(";", "\t"),
        GERMAN.replace("1,6", "1,600"),  # the others show what the comma means
        'seed,arm,value\n0,a,"1,5"\n1,a,"1,6"\n0,b,"1,4"\n1,b,"1,45"\n',
        'note;seed;arm;value\n"x, y;";0;a;1.5\n;1;a;1.6\n;0;b;1.4\n;1;b;1.45\n',
    ],
)
def test_common_csv_dialects_are_read(tmp_path: Path, text: str) -> None:
    values = read_values(write(tmp_path, text))
    assert values == EXPECTED and list(values) == ["a", "b"]


def test_arms_can_have_any_printable_name(tmp_path: Path) -> None:
    values = read_values(write(tmp_path, GOOD.replace(",a,", ',"swiglu, [red]wide",').replace(",b,", ",層,")))
    assert list(values) == ["swiglu, [red]wide", "層"]
    text = render_verdicts(verdicts(values), values)
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
    assert render_verdicts(verdicts(values), values)


RUNS = [(0, "a", 1.5), (1, "a", 1.6), (0, "b", 1.4), (1, "b", 1.45)]


def test_json_lines_and_columns_of_other_names(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps({"seed": s, "arm": a, "value": v, "note": "x"}) + "\n\n" for s, a, v in RUNS))
    assert read_values(path) == EXPECTED
    path.with_suffix(".json").write_text(json.dumps([{"seed": s, "arm": a, "value": v} for s, a, v in RUNS], indent=1))
    assert read_values(path.with_suffix(".json")) == EXPECTED
    nested = [{"config": {"seed": s}, "group": a, "summary": {"val/loss": v}} for s, a, v in RUNS]
    path.write_text("\n".join(map(json.dumps, nested)))
    assert read_values(path, parse_columns("seed=config.seed, arm=group,value=summary.val/loss")) == EXPECTED
    exported = "Name,Group,Seed,val_loss\n" + "".join(f'run{s},"{a}",{s},{v}\n' for s, a, v in RUNS)
    assert read_values(write(tmp_path, exported), parse_columns("arm=Group,value=val_loss")) == EXPECTED
    path.write_text(
        '{"seed": 0, "arm": "a", "value": NaN}\n{"seed": 1, "arm": "a", "value": null}\n' * 1
        + "\n".join(json.dumps({"seed": s, "arm": "b", "value": 1.0}) for s in (0, 1))
    )
    assert all(map(math.isnan, read_values(path)["a"].values()))


@pytest.mark.parametrize("package", ["polars", "pyarrow"])
def test_parquet(tmp_path: Path, package: str) -> None:
    pytest.importorskip(package)
    path = tmp_path / "runs.parquet"
    frame = {name: [run[index] for run in RUNS] for index, name in enumerate(("seed", "group", "value"))}
    if package == "polars":
        import polars

        polars.DataFrame(frame).write_parquet(path)
    else:
        import pandas

        pandas.DataFrame(frame).to_parquet(path)
    assert read_values(path, {"arm": "group"}) == EXPECTED
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ConfigError, match="cannot read") as caught:
        read_values(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ('{"seed": 0, "arms": "a", "value": 1}', None, "line 1: no 'arm'; did you mean 'arms'?"),
        ('{"seed": 0, "arms": "a", "value": 1}', None, "give --columns arm=NAME"),
        ('{"seed": 0, "arm": "a", "loss": 1}', {"value": "los"}, "line 1: no 'los'; did you mean 'loss'?"),
        ('{"seed": 0, "arm": "a", "value": "x"}', None, "line 1: value='x': expected a number"),
        ('{"seed": true, "arm": "a", "value": 1}', None, "line 1: seed='True': expected an integer"),
        ('{"seed": 0}\n[1]', None, "line 1: no 'arm'"),
        ("[1.5, 1.6]", None, 'row 1: 1.5: expected an object, such as {"seed": 0, "arm": "base", "value": 1.47}'),
        ("2", None, "line 1: 2: expected an object"),
        ("[{", None, "not JSON; expected an array of objects"),
        ('{"seed": 0, "arm": "a", "value": 1, "value": 2}', None, "line 1: the key 'value' occurs twice in an object"),
        ("{", None, "line 1: not JSON; expected one object per line"),
    ],
)
def test_invalid_json_lines(tmp_path: Path, text: str, columns: dict[str, str] | None, message: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_values(path, columns)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["arm", "arm=", "group=arm", "arm=a,loss=b", ""])
def test_columns_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected the file's names for seed, arm, value, as in arm=group"):
        parse_columns(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: expected the header seed,arm,value"),
        ("\n\n", "is empty"),
        ("seed,arm,value\n", "no rows below the header"),
        ("seed,arm,loss\n0,a,1\n", "line 1: no column 'value' in the header"),
        ("seeds,arm,value\n0,a,1\n", "no column 'seed' in the header; did you mean 'seeds'"),
        ("0,a,1\n1,a,2\n", "line 1: no column 'seed'"),
        ("seed;arm;loss\n0;a;1\n", "line 1: no column 'value' in the header (known: arm, loss, seed)"),
        (
            GERMAN.replace("1,45", "1.45"),
            "value='1,5' on line 2 has a comma and value='1.45' on line 5 a point: write all",
        ),
        (GERMAN.replace("1,45", "1.234,5"), "value='1,5' on line 2 has a comma and value='1.234,5' on line 5 a point"),
        (THOUSANDS, "line 2: value='1,500' is 1.500 or 1500: write the values as one of them"),
        (GERMAN.replace("1,45", "1,4,5"), "line 5: value='1,4,5': expected a number"),
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
    assert [(e.arm, e.against) for e in verdicts(values)] == [("b", "a"), ("c", "a")]
    assert [(e.arm, e.against) for e in judge_arms(values, Rules(looks=()), "b")[0]] == [("a", "b"), ("c", "b")]
    with pytest.raises(ConfigError, match="unknown baseline 'd'"):
        judge_arms(values, Rules(looks=()), "d")


def test_the_rules_apply() -> None:
    rng = np.random.default_rng(0)
    values = {arm: {s: float(v) for s, v in enumerate(rng.normal(m, 0.01, 5))} for arm, m in (("a", 1.5), ("b", 1.6))}
    assert verdicts(values)[0].verdict == "worse"
    options = {"lower_is_better": False, "margin": 0.01, "alpha": 0.01, "metric": "accuracy", "unit": "points"}
    (effect,) = verdicts(values, **options)
    assert effect == judge("b", "a", values["b"], values["a"], **options)
    assert effect.verdict == "better"


def test_rendered_text() -> None:
    values = {
        "base": {0: 1.50, 1: 1.51, 2: 1.49, 3: 1.52, 4: 1.48},
        "swiglu": {0: 1.455, 1: 1.453, 2: 1.445, 3: 1.463, 4: 1.429},
        "wild": {0: 1.5, 1: math.inf, 2: 1.49, 3: 1.5, 4: 1.48},
        "alone": {10: 1.5, 11: 1.51},
    }
    effects = verdicts(values, metric="loss")
    lines = render_verdicts(effects, values).splitlines()
    assert lines[0] == "swiglu is better than base: lower by 0.0510 nats per character"
    assert lines[2:4] == [
        "wild against base: no verdict",
        "  1 of 5 runs failed, 0 of 5 of base; adjusted p = 1",
    ]
    assert lines[12:17] == [
        "arm              seeds    mean      SD  failed",
        "base (baseline)      5  1.5000  0.0158       0",
        "swiglu               5  1.4490  0.0129       0",
        "wild                 5       -       -       1",
        "alone                2  1.5050  0.0071       0",
    ]
    x = np.array(list(values["swiglu"].values())) - np.array(list(values["base"].values()))
    low, high = stats.t.interval(
        1 - 0.05 / 3, 4, x.mean(), stats.sem(x)
    )  # the smallest of three p, so Holm's first level
    assert lines[8].split() == [
        *("swiglu", "-", "base", "5", "-0.0510", f"{low:.4f}", "to", f"{high:.4f}", "(98.33%)", "0.93", "<0.0001"),
        *("0.062", f"{3 * stats.ttest_1samp(x, 0).pvalue:.2g}", "better"),
    ]
    assert lines[9].split() == ["wild", "-", "base", "5", "-", "-", "-", "1", "-", "1", "no", "verdict"]
    assert lines[10].startswith("alone - base   2, 5") and lines[10].endswith("undecided")
    assert [effect.sentence for effect in effects] == lines[19:22]
    notes = "\n".join(lines[22:])
    assert "Seed SD, pooled over 3 arms: 0.0138." in notes
    assert all(each in notes for each in explanations(effects))
    assert "3 comparisons with base" in notes
    one = {"base": values["base"], "swiglu": values["swiglu"]}
    text = render_verdicts(verdicts(one), one)
    assert "adjusted" not in text and "  failed" not in text and "Undecided" not in text
    assert undetected_failures(verdicts(one)[0]) in text and f"{1 - 0.05 ** (1 / 5):.0%}" in text


def test_seeds_added_after_a_verdict_are_exploratory() -> None:
    """The first seeds in ascending order give the verdict, in whatever order the file has them."""
    rng = np.random.default_rng(4)
    values = {arm: dict(zip(range(9, -1, -1), rng.normal(0, 1, 10).tolist(), strict=True)) for arm in "ab"}
    first = {arm: {seed: runs[seed] for seed in range(4)} for arm, runs in values.items()}
    effects, exploratory = judge_arms(values, Rules(looks=()), judged=4)
    assert effects == verdicts(first)
    x = np.array([values["b"][seed] - values["a"][seed] for seed in range(10)])
    (estimate,) = exploratory
    low, high = stats.t.interval(0.95, 9, x.mean(), stats.sem(x))
    assert estimate.verdict is None and (estimate.n, estimate.confidence) == (10, 0.95)
    assert np.allclose([estimate.low, estimate.high], [low, high], rtol=1e-12)
    text = render_verdicts(effects, values, exploratory)
    assert estimate.sentence in text and all(f"{each:.4f}" in estimate.sentence for each in (x.mean(), low, high))
    assert judge_arms(first, Rules(looks=()), judged=4) == (effects, [])
    for judged in (1, 11):
        with pytest.raises(ConfigError, match=f"judged={judged}: expected the number of seeds of an earlier verdict"):
            judge_arms(values, Rules(looks=()), judged=judged)


def test_one_shared_seed_suggests_an_unpaired_verdict(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(1.5, 0.01, (2, 10)).tolist()
    values = {"a": dict(enumerate(x)), "b": {seed + 9: value for seed, value in enumerate(y)}}
    rows = [f"{seed},{arm},{value}" for arm, runs in values.items() for seed, value in runs.items()]
    path = write(tmp_path, "\n".join(["seed,arm,value", *rows]))
    done = CliRunner().invoke(app, ["verdict", str(path), "--margin", "0.005"])
    (pair,) = verdicts(values, margin=0.005, metric="value", unit="")
    assert (pair.n, pair.left_out) == (1, 18) and pair.sentence in done.output
    done = CliRunner().invoke(app, ["verdict", str(path), "--margin", "0.005", "--unpaired", "--failure", "2"])
    (unpaired,) = verdicts(values, margin=0.005, metric="value", unit="", design="unpaired", failure=2.0)
    assert unpaired.sentence in done.output and pair.sentence not in done.output
    half = {"a": {0: 1.0, 1: 1.1, 2: 1.2}, "b": {0: 1.0, 1: 1.2, 3: 1.3}}
    assert "--unpaired" not in verdicts(half)[0].sentence


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
    gc.disable()  # as `partwise verdict` does; here collecting would also visit whatever other tests have imported
    seconds = []
    try:
        for _ in range(3):  # other work on a shared machine lengthens processor time too, so the fastest counts
            start = time.process_time()
            table = read_values(path)
            text = render_verdicts(verdicts(table), table)
            seconds.append(time.process_time() - start)
    finally:
        gc.enable()
    assert min(seconds) < 1.0
    assert len(text.splitlines()) > 2 * arms
