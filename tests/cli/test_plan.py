"""`partwise plan` from numbers alone."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.stats.simulated_power import Design, one_real_claim
from partwise.config import ConfigError


def test_numbers_alone_give_the_table_without_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from partwise.cli import app; "
        "done = CliRunner().invoke(app, 'plan --claims 3 --sd 0.01 --effect 0.02 --looks 4,8'.split()); "
        "print(done.output); assert done.exit_code == 0 and 'torch' not in sys.modules"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    rates = one_real_claim(Design((4, 8), 3, 0.005), 0.02, 0.01)
    (row,) = re.findall(r"^8 +4, 8 .*$", output, re.MULTILINE)
    assert f"{100 * rates.better:.0f}%" in row and f"{rates.pairs:.1f}" in row
    assert "SD 0.01" in output and "judged once, with 80% power" in output


ABOUT_TRIALS = (["--workers", "2"], ["--machines", "2"], ["--import", "my_parts"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--claims", "3"], "needs --sd"),
        (["--sd", "0.01", "--data", "arithmetic"], "--data is an option of `plan PRESET`, not of `plan --sd X`"),
        (["--sd", "0.01", "--arm", "ffn=swiglu"], "--arm is an option of `plan PRESET`"),
        *((["--sd", "0.01", *words], f"{words[0]} is an option of `plan PRESET`") for words in ABOUT_TRIALS),
        (["--effect", "0.1"], "plan needs PRESET, FILE.yaml, --sd X or --target X; see `partwise plan --help`"),
        (["mingpt", "ffn=swiglu", "--claims", "2"], "--claims is an option of `plan --sd X`, not of `plan PRESET`"),
        (["--sd", "0.01", "--looks", "4,x"], "--looks 4,x"),
        (["--sd", "-1"], "sd=-1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["plan", *words])
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)


def test_json_has_the_numbers_of_the_table() -> None:
    words = ["plan", "--claims", "3", "--sd", "0.01", "--effect", "0.02", "--looks", "4,8"]
    table = CliRunner().invoke(app, words).output
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    (design,) = document["designs"]
    rates = one_real_claim(Design((4, 8), 3, 0.005), 0.02, 0.01)
    assert (design["detected"], design["pairs"]) == (rates.better, rates.pairs) and design["looks"] == [4, 8]
    assert (
        f"{design['minimum_detectable_effect']:.4f}" in table and document["sd"] == 0.01 and design["seconds"] is None
    )
    assert f"takes {document['seeds_for_effect']:,} seeds" in table
    assert f"equivalent takes {document['seeds_for_equivalence']:,}" in table
    without = json.loads(CliRunner().invoke(app, ["plan", "--sd", "0.01", "--json"]).output)
    assert without["effect"] is None and [each["detected"] for each in without["designs"]] == [None] * 4


def test_a_plan_from_numbers_says_which_sd_and_counts_seeds() -> None:
    out = " ".join(CliRunner().invoke(app, ["plan", "--sd", "0.01"]).output.split())
    assert "the SD of the difference between two arms trained on the same seed, from --sd" in out
    assert "calling equal arms equivalent takes 36 seeds" in out
    assert "equivalent if equal: how often arms without a difference are called equivalent" in out


def test_a_target_has_the_fewest_runs_and_the_power_of_looks() -> None:
    words = ["plan", "--target", "3.28", "--effect", "0.0015", "--sd", "0.0013"]
    shown = CliRunner().invoke(app, words).output
    plan = json.loads(CliRunner().invoke(app, [*words, "--looks", "4,8", "--json"]).output)
    needed = plan["runs_needed"]["0.8"]
    power = {row["runs"]: row["power"] for row in plan["rows"]}
    assert max(n for n in power if power[n] < 0.8) < needed <= min(n for n in power if power[n] >= 0.8)
    assert f"{needed} runs in 80%" in shown and f"{100 * power[10]:.0f}%" in shown
    looks = plan["planned_looks"]
    assert power[4] < looks["power"] < power[10] and 4 < looks["mean_runs"] < 8
    several = json.loads(CliRunner().invoke(app, [*words, "--entries", "5", "--json"]).output)
    assert several["runs_needed"]["0.8"] > needed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "3.28"], "plan --target needs --sd"),
        (["--target", "3.28", "--sd", "0"], "--sd 0"),
        (["--target", "3.28", "--sd", "1", "--effect", "-1"], "a distance of -1"),
        (["--target", "3.28", "--sd", "1", "--looks", "3,6"], "give --effect"),
        (["--target", "3.28", "--sd", "1", "--alpha", "2"], "--alpha 2"),
        (["--target", "3.28", "--sd", "1", "--margin", "1"], "--margin is an option of"),
    ],
)
def test_a_plan_against_a_target_refuses_what_does_not_fit(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["plan", *words])
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)
