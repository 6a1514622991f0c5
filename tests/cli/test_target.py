"""`partwise verdict --target`: files with runs alone, presets of contests, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.targets.contests import rules
from partwise.config import ConfigError

ENTRIES = "arm,value\na,3.2771\na,3.2778\na,3.2783\na,3.2774\nb,3.2791\nb,3.2821\nb,3.2807\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text("value\n3.2791\n3.2778\n3.2787\n3.2784\n")
    Path("entries.csv").write_text(ENTRIES)
    Path("times.csv").write_text("arm,seconds\n" + "a,88\n" * 7 + "a,\n" + "b,inf\n" * 8)
    return tmp_path


def output(*words: str) -> str:
    done = CliRunner().invoke(app, ["verdict", *words])
    assert done.exit_code == 0, done.output or done.exception
    return done.output


def test_runs_without_arm_or_seed_are_judged_without_torch(here: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from partwise.cli import app; "
        "done = CliRunner().invoke(app, 'verdict runs.csv --target 3.28'.split()); "
        "print(done.output); assert done.exit_code == 0 and 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "4 runs separated by commas; column value" in shown
    assert "runs: reached. The mean of 4 runs is 3.2785, below the target of 3.28 (p 0.006)." in shown
    assert "3.2773 to 3.2797 (98%)" in shown


def test_several_entries_share_alpha_and_json_has_a_record_of_its_own(here: Path) -> None:
    document = json.loads(output("entries.csv", "--target", "3.28", "--alpha", "0.05", "--json"))
    first, second = document["entries"]
    assert document["question"] == "target" and document["target"]["alpha"] == 0.05
    assert (first["outcome"], second["outcome"]) == ("reached", "undecided")
    assert first["p_reached_adjusted"] == pytest.approx(2 * first["p_reached"])
    assert first["values"] == [3.2771, 3.2778, 3.2783, 3.2774]


def test_times_are_judged_by_the_median_and_empty_cells_never_arrived(here: Path) -> None:
    shown = output("times.csv", "--target", "90", "--time", "seconds", "--alpha", "0.1")
    assert "a: reached. The median of 8 runs is 88.00, below the target of 90" in shown
    assert "b: missed. At least half of 8 runs never arrived; the median is above the target of 90" in shown
    assert "a: 1 of 8 runs never arrived" in shown


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_seeds_order_the_runs_of_looks(here: Path, suffix: str) -> None:
    rows = [(3, 9.0), (1, -1.0), (0, -1.01), (2, -0.99)]
    lines = ["seed,value", *(f"{seed},{value}" for seed, value in rows)]
    if suffix == "jsonl":
        lines = [json.dumps({"seed": seed, "value": value}) for seed, value in rows]
    Path(f"looks.{suffix}").write_text("\n".join(lines))
    document = json.loads(output(f"looks.{suffix}", "--target", "0", "--looks", "3,6", "--json"))
    assert document["entries"][0]["values"] == [-1.01, -1.0, -0.99]


@pytest.mark.parametrize("name", sorted(rules()))
def test_a_rule_states_its_source_and_sets_the_target(here: Path, name: str) -> None:
    rule = rules()[name]
    record = [] if rule.gain is None else ["--record", "3.285"]
    shown = output("runs.csv", "--rule", name, *record)
    assert rule.source in shown and rule.dated in shown
    target = json.loads(output("runs.csv", "--rule", name, *record, "--json"))["target"]
    assert target["alpha"] == rule.alpha and target["known_sd"] == rule.known_sd
    assert target["value"] == pytest.approx(3.28 if rule.gain in (None, 0.005) else 3.285)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs.csv", "--target", "3.28", "--margin", "0.01"], "--margin 0.01 is for comparing arms"),
        (["runs.csv", "--target", "3.28", "--baseline", "a"], "--baseline a is for comparing arms"),
        (["runs.csv", "--target", "3.28", "--unpaired"], "--unpaired is for comparing arms"),
        (["runs.csv", "--margin", "0.01", "--looks", "3,6"], "--looks 3,6 is about a target"),
        (["runs.csv", "--margin", "0.01", "--sd-source", "x"], "--sd-source x is about a target"),
        (["runs.csv", "--target", "nan"], "--target nan: expected a finite number"),
        (["runs.csv", "--target", "3.28", "--alpha", "0.6"], "--alpha 0.6"),
        (["runs.csv", "--target", "3.28", "--looks", "3;6"], "--looks 3;6"),
        (["runs.csv", "--target", "3.28", "--looks", "6,3"], "ascending"),
        (["runs.csv", "--target", "3.28", "--looks", "2,4", "--known-sd", "1", "--sd-source", "x"], "leave out one"),
        (["times.csv", "--target", "9", "--time", "seconds", "--looks", "3,6"], "--looks with --time"),
        (["times.csv", "--target", "9", "--time", "seconds", "--higher-is-better"], "--higher-is-better with --time"),
        (["times.csv", "--target", "9", "--time", "seconds", "--columns", "value=x"], "give the column of times once"),
        (["times.csv", "--target", "9", "--time", "second"], "did you mean 'seconds'"),
        (["runs.csv", "--target", "3.28", "--columns", "arm=group"], "no column 'group'"),
        (["runs.csv", "--target", "3.28", "--record", "3.3"], "--record 3.3: only with a --rule"),
        (["runs.csv", "--rule", "modded-nanogpt", "--target", "3.3"], "--target 3.3: --rule modded-nanogpt sets it"),
        (["runs.csv", "--rule", "modded-nanogpt", "--record", "3.3"], "has a fixed target, 3.28"),
        (["runs.csv", "--rule", "modded-nanogpt", "--sd-source", "x"], "--sd-source x: --rule modded-nanogpt sets it"),
        (["runs.csv", "--target", "3.28", "--metric", "loss"], "--metric loss is for comparing arms"),
        (["empty.csv", "--target", "3.28"], "empty.csv is empty: expected the header value"),
        (["runs.csv", "--rule", "parameter-golf"], "needs --record"),
        (["runs.csv", "--rule", "parameter-glof"], "did you mean 'parameter-golf'? (known: modded-nanogpt"),
        (["crash.csv", "--target", "3.28"], "crash.csv line 3: value='crashed'"),
        (["twice.csv", "--target", "3.28"], "twice.csv line 4: 'a' already has seed 1 on line 3"),
        (["mixed.csv", "--target", "3.28"], "mixed.csv line 3: some rows have a seed and others none"),
        (["none.csv", "--target", "3.28"], "none.csv: no rows below the header"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else None,
)
def test_what_does_not_fit_a_target_is_refused_in_one_line(here: Path, words: list[str], message: str) -> None:
    Path("crash.csv").write_text("value\n3.27\ncrashed\n")
    Path("twice.csv").write_text("arm\tseed\tvalue\na\t0\t3.27\na\t1\t3.27\na\t1\t3.28\n")
    Path("mixed.csv").write_text("seed,value\n1,3.27\n,3.28\n")
    Path("empty.csv").write_text("")
    Path("none.csv").write_text("value\n")
    done = CliRunner().invoke(app, ["verdict", *words])
    assert isinstance(done.exception, ConfigError), done.output
    assert message in str(done.exception) and "\n" not in str(done.exception)
    assert str(done.exception).count("parameter-golf-end") <= 1, "known names are listed once"


def test_json_follows_the_published_schema(here: Path) -> None:
    from partwise.comparison.schemas import TargetDocument

    for words in (["entries.csv", "--target", "3.28"], ["times.csv", "--target", "9", "--time", "seconds"]):
        printed = json.loads(output(*words, "--json"))
        assert TargetDocument.model_validate(printed).model_dump(mode="json") == printed
    assert TargetDocument.model_validate(json.loads(output("runs.csv", "--rule", "modded-nanogpt", "--json"))).rule


ROOT = Path(__file__).parents[2]


def test_the_page_has_the_outcomes_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page that names a rule, in its order, and the row of the table that states its result."""
    page = (ROOT / "docs/against-a-target.md").read_text(encoding="utf-8")
    monkeypatch.chdir(ROOT / "examples/targets")
    words = [line.split()[2:] for line in page.splitlines() if line.startswith("partwise verdict") and "--rule" in line]
    cells = [
        [cell.strip() for cell in line.split("|")[2:-1]]
        for line in page.splitlines()
        if line.startswith(("| modded-nanogpt ", "| parameter-golf "))
    ]
    assert len(words) == len(cells) == 5
    for command, (runs, mean, target, p, outcome) in zip(words, cells, strict=True):
        document = json.loads(output(*command, "--json"))
        (entry,) = document["entries"]
        assert (int(runs), outcome) == (entry["n"], entry["outcome"])
        assert float(target) == pytest.approx(document["target"]["value"])
        assert float(mean) == pytest.approx(entry["center"], abs=0.6 * 10.0 ** -len(mean.split(".")[1]))
        assert float(p) == pytest.approx(entry["p_reached"], rel=0.05)
    first = output("record-84-fp8-up.csv", "--target", "3.28").split("\n\n")
    assert f"{first[1]}\n\n{first[2]}" in page


def test_the_page_has_the_runs_that_a_plan_gives() -> None:
    page = (ROOT / "docs/against-a-target.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("partwise plan")]
    plan = json.loads(CliRunner().invoke(app, [*line.split()[1:], "--json"]).output)
    needed, power = plan["runs_needed"], {row["runs"]: row["power"] for row in plan["rows"]}
    assert f"shown by {needed['0.8']} runs in 80%\nof cases, and by {needed['0.95']} in 95%" in page
    assert f"3 runs show it in {100 * power[3]:.0f}%" in page
