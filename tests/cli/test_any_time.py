"""`partwise verdict --any-time`: text and JSON of arms and of a target, without torch, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.schemas import AnyTimeDocument
from partwise.config import ConfigError

DIFFERENCES = (0.011, 0.009, 0.012, 0.008, 0.010, 0.011)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{seed},base,{1.5 + seed / 100}\n{seed},new,{1.5 + seed / 100 - d}\n" for seed, d in enumerate(DIFFERENCES)
    ]
    Path("numbers.csv").write_text("seed,arm,value\n" + "".join(rows))
    Path("runs.csv").write_text("value\n" + "".join(f"{3.28 - d}\n" for d in DIFFERENCES))
    return tmp_path


def output(*words: str) -> str:
    done = CliRunner().invoke(app, ["verdict", *words])
    assert done.exit_code == 0, done.output or done.exception
    return done.output


def test_arms_are_judged_without_torch_and_without_a_margin(here: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from partwise.cli import app; "
        "done = CliRunner().invoke(app, 'verdict numbers.csv --any-time'.split()); "
        "print(done.output); assert done.exit_code == 0 and 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "new: better. The mean difference from base over 6 pairs is -0.0102" in shown
    assert "ask after every new run" in shown


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        (["numbers.csv"], "better"),
        (["numbers.csv", "--margin", "0.1"], "equivalent"),
        (["numbers.csv", "--higher-is-better"], "worse"),
        (["runs.csv", "--target", "3.28"], "reached"),
        (["runs.csv", "--target", "3.26", "--alpha", "0.05"], "missed"),
    ],
)
def test_json_names_its_method_and_fits_its_schema(here: Path, words: list[str], outcome: str) -> None:
    document = json.loads(output(*words, "--any-time", "--json"))
    TypeAdapter(AnyTimeDocument).validate_python(document, strict=False)
    assert (document["question"], document["rows"][0]["outcome"]) == ("any-time", outcome)
    assert document["method"].startswith("one-sided t test by a mixture")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("numbers.csv --looks 3,6", "--looks 3,6 is not for --any-time"),
        ("numbers.csv --judged 3", "--judged 3 is not for --any-time"),
        ("numbers.csv --unpaired", "--unpaired is not for --any-time"),
        ("numbers.csv --known-sd 1", "--known-sd 1.0 is not for --any-time"),
        ("runs.csv --target 1 --margin 1", "--margin 1.0 is for comparing arms"),
        ("numbers.csv --alpha 0", "--alpha 0"),
    ],
)
def test_what_is_refused(here: Path, words: str, message: str) -> None:
    done = CliRunner().invoke(app, ["verdict", *words.split(), "--any-time"])
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise done.exception
