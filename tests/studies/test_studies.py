"""Studies: the outcome of a claim follows from the verdict, and covers the setting of its comparisons only."""

import json
import math
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from comparisons import TINY
from partwise.ablation.run_workload import ArmTime
from partwise.cli import app
from partwise.comparison.report.cells import number
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.config import ConfigError
from partwise.studies.claims import find_outcomes, overall, scope
from partwise.studies.claims_page import facts, grouped, horizon_table, markdown, place, verdict_cell
from partwise.studies.forest import draw_claims
from partwise.studies.study import LIBRARY, NOT_SEEN, SEEN, StudyResults, all_studies, find_study, outcome


@pytest.mark.parametrize(
    ("expected", "verdict", "diverged", "written"),
    [
        ("better", "better", 0, "seen here"),
        ("better", "worse", 0, "opposite here"),
        ("worse", "better", 0, "opposite here"),
        ("better", "equivalent", 0, "not seen here"),
        ("better", "undecided", 0, "too noisy here"),
        ("equivalent", "equivalent", 0, "seen here"),
        ("worse", None, 2, "too noisy here"),
        ("diverges", "worse", 2, "seen here"),
        ("diverges", None, 2, "too noisy here"),
        ("diverges", "worse", 0, "not seen here"),
        (None, "better", 0, ""),
    ],
)
def test_the_outcome_follows_from_the_verdict_only(
    expected: str | None, verdict: str | None, diverged: int, written: str
) -> None:
    effect = replace(judge("a", "b", {0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0}), verdict=verdict, failed_arm=diverged)
    assert outcome(expected, effect) == written


def test_an_outcome_covers_the_setting_of_its_study_only(here: Path) -> None:
    folder = here / "studies"
    folder.mkdir()
    text = "claim: it helps\nsource: a paper\npublished: 1 to 2\ncomparisons:\n  one:\n    preset: mingpt\n"
    text += "    change: [attention.fused_qkv=false]\n    data: text.txt\n    seeds: 2\n    failure: 100\n"
    text += f"    common: {json.dumps(TINY)}\n"
    (folder / "same.yaml").write_text(text + "    grid: [train.steps=4]\n    expect: equivalent\n")
    study = find_study("same")
    assert overall(study, find_outcomes([study])["same"]) == "not run yet" and list(study.comparisons) == [
        "one train.steps=4"
    ]
    done = CliRunner().invoke(app, ["study", "run", "same"])
    assert done.exit_code == 0, done.output
    assert overall(study, find_outcomes([study])["same"]) == "seen here" and scope(study) == "text.txt, 4 steps only"
    assert "| **seen here** |" in markdown([study]) and "seen here" in CliRunner().invoke(app, ["study", "list"]).output
    assert "## The claim" in (Path("runs/study-same-one-train.steps=4") / "report.md").read_text()
    stored = StudyResults.from_json(folder / "same" / "results.json").comparisons["one train.steps=4"]
    assert not any(trial.training_curve or trial.evaluations for arm in stored.arms for trial in arm.trials)
    assert stored.study is not None and stored.study.expect == {"": "equivalent"}
    for word, message in (
        ("expect: good", "expect='good'"),
        ("expect: {ffn=x: better}", "names no arm"),
        ("seed: 3", "seed"),
        (
            "variance: residual",
            "variance=residual of one no longer exists, as it erred with unequal SDs: delete this line",
        ),
    ):
        (folder / "bad.yaml").write_text(text + f"    {word}\n")
        with pytest.raises(ConfigError, match=message):
            list(find_study("bad").plan())


def test_the_studies_of_the_package_work_outside_a_clone(here: Path) -> None:
    found = all_studies()
    names = [study.name for study in found]
    assert len(names) >= 17 and names == sorted(names)
    assert all(list(study.plan()) for study in found), "every comparison of every study is valid"
    study = find_study("swiglu")
    assert study.results is not None and study.results.is_relative_to(LIBRARY)
    (here / "studies").mkdir()
    (here / "studies" / "swiglu.yaml").write_text(study.path.read_text())
    assert not find_study("swiglu").path.is_relative_to(LIBRARY), "a study of the working folder hides the package's"


def test_one_comparison_of_a_study_runs_alone_and_keeps_the_results_of_the_others(here: Path) -> None:
    folder = here / "studies"
    folder.mkdir()
    entry = (
        f"{{change: [attention.fused_qkv=false], preset: mingpt, data: text.txt, seeds: 2, common: {json.dumps(TINY)}}}"
    )
    (folder / "two.yaml").write_text(f"claim: c\ncomparisons:\n  first: {entry}\n  second: {entry}\n")
    for key, there in (("second", ["second"]), ("first", ["first", "second"])):
        done = CliRunner().invoke(app, ["study", "run", "two", "--comparison", key])
        assert done.exit_code == 0, done.output
        assert list(StudyResults.from_json(folder / "two" / "results.json").comparisons) == there
    assert {path.name for path in Path("runs").glob("study-*")} == {"study-two-first", "study-two-second"}
    (folder / "two.yaml").write_text(f"claim: c\ncomparisons:\n  first: {entry}\n  other: {entry}\n")
    assert CliRunner().invoke(app, ["study", "run", "two", "--comparison", "first"]).exit_code == 0
    kept = StudyResults.from_json(folder / "two" / "results.json").comparisons
    assert list(kept) == ["first", "second"], "also results of a comparison that the study has no more"
    (folder / "two.yaml").write_text(f"claim: c\ncomparisons:\n  first: {entry}\n  second: {entry}\n")
    for words, message in (
        (["two", "--comparison", "frist"], "two has no comparison 'frist'; did you mean 'first'?"),
        (["two", "two", "--comparison", "first"], "--comparison first: 2 studies; name the one that it belongs to"),
    ):
        failed = CliRunner().invoke(app, ["study", "run", *words])
        assert isinstance(failed.exception, ConfigError) and message in str(failed.exception)


def test_two_processes_that_run_two_comparisons_of_a_study_keep_the_results_of_both(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = find_study("swiglu")
    stored, read = study.read(), StudyResults.from_json

    def read_slowly(path: Path) -> StudyResults:
        found = read(path)
        time.sleep(0.2)
        return found

    study.write(stored.model_copy(update={"comparisons": {}}))
    monkeypatch.setattr(StudyResults, "from_json", read_slowly)
    alone = [stored.model_copy(update={"comparisons": {key: value}}) for key, value in stored.comparisons.items()]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda results: study._store(results, keep_others=True), alone))
    assert len(alone) == 2 and read(study.own_results).comparisons == stored.comparisons


def test_results_that_cannot_be_written_are_one_line(here: Path) -> None:
    study = find_study("swiglu")
    (here / "studies").mkdir(exist_ok=True)
    (here / "studies" / "swiglu").write_text("in its place")
    with pytest.raises(ConfigError, match=r"^[^\n]*studies.swiglu[^\n]*$"):
        study.write(study.read())


def test_the_outcome_counts_claims_that_were_not_run_and_the_scope_leaves_them_out(here: Path) -> None:
    study = find_study("swiglu")
    stored = study.read()
    assert overall(study, find_outcomes([study])["swiglu"]) == "seen here"
    study.write(stored.model_copy(update={"comparisons": {"shakespeare": stored.comparisons["shakespeare"]}}))
    assert overall(study, find_outcomes([study])["swiglu"]) == "seen here, 1 of 2 claims not run yet"
    assert scope(study) == "shakespeare, 5,000 steps only"


def test_a_study_of_the_package_writes_its_results_to_the_working_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "claim: it helps\ncomparisons:\n  one:\n    preset: mingpt\n    change: [attention.fused_qkv=false]\n"
    text += f"    data: text.txt\n    seeds: 2\n    common: {json.dumps(TINY)}\n"
    library = tmp_path / "library"
    library.mkdir()
    (library / "same.yaml").write_text(text)
    monkeypatch.setattr("partwise.studies.study.LIBRARY", library)
    assert CliRunner().invoke(app, ["study", "run", "same"]).exit_code == 0
    assert [path.name for path in library.iterdir()] == ["same.yaml"]
    assert find_study("same").results == Path("studies/same/results.json")


def test_what_changed_after_a_first_answer_is_in_the_table(here: Path) -> None:
    (here / "studies").mkdir()
    text = "claim: c\nsource: s\npublished: p\nhistory: [First undecided., Then run again.]\n"
    entry = "comparisons: {one: {preset: mingpt, change: [ffn=swiglu], expect: better}}\n"
    (here / "studies" / "mine.yaml").write_text(text + entry)
    page = markdown([find_study("mine")])
    assert "Changed after a first answer: [history](studies/mine.yaml)." in page
    (here / "studies" / "mine.yaml").write_text(text.replace("[First undecided., Then run again.]", "3") + entry)
    with pytest.raises(ConfigError, match="history: expected a list of sentences"):
        find_study("mine")


@pytest.mark.parametrize(
    ("fields", "cell", "expected_outcome"),
    [
        ({"verdict": "equivalent", "low": 0.001, "high": 0.004}, "equivalent, excludes 0", SEEN),
        ({"verdict": "equivalent", "low": -0.001, "high": 0.004}, "equivalent", SEEN),
        ({"verdict": "better", "low": -0.3, "high": -0.1}, "better", NOT_SEEN),
        ({"verdict": None, "not_bracketed": "at an edge"}, "none: not bracketed", "tuning not bracketed"),
    ],
)
def test_the_verdict_of_an_equality_says_whether_zero_is_excluded(
    fields: dict[str, Any], cell: str, expected_outcome: str
) -> None:
    committed = next(iter(StudyResults.from_json(LIBRARY / "swiglu" / "results.json").comparisons.values()))
    effect = committed.effects[0].replace(**fields)
    assert verdict_cell(effect) == cell and outcome("equivalent", effect) == expected_outcome


def test_a_claim_whose_tuning_is_not_bracketed_is_counted(here: Path) -> None:
    study = find_study("glu")
    stored = study.read()
    ((key, results),) = stored.comparisons.items()
    first, *others = results.claims
    open_ended = first.effect.replace(
        verdict=None, low=None, high=None, p_looks=None, p_equivalence=None, not_bracketed="at an edge"
    )
    changed = results.model_copy(update={"claims": (first.model_copy(update={"effect": open_ended}), *others)})
    study.write(stored.model_copy(update={"comparisons": {key: changed}}))
    found = find_outcomes([study])["glu"]
    assert found[0].outcome == "tuning not bracketed" and f"1 of {len(found)} tuning not bracketed" in overall(
        study, found
    )
    page = markdown([study])
    assert "| none: not bracketed | equivalent | tuning not bracketed |" in page
    assert ">tuning not bracketed<" in draw_claims([study])


def test_the_cell_of_a_verdict_names_the_arm_that_failed() -> None:
    committed = next(iter(StudyResults.from_json(LIBRARY / "swiglu" / "results.json").comparisons.values()))
    effect = committed.effects[0].replace(verdict=None, arm="one", against="base", failed_against=3, n_against=8)
    assert verdict_cell(effect) == "3 of 8 failed (base)"
    both = effect.replace(failed_arm=1, n_arm=8)
    assert verdict_cell(both) == "1 of 8 failed (one), 3 of 8 failed (base)"


def test_the_scope_is_that_of_the_runs_however_the_file_has_changed_since(here: Path) -> None:
    study = find_study("muon")
    before = scope(study)
    entry = study.entries["shakespeare"]
    request = entry.request.model_copy(update={"horizons": [500, 8000], "data": "python"})
    assert scope(replace(study, entries={"shakespeare": replace(entry, request=request)})) == before


def test_every_ratio_of_steps_is_stated_and_why_one_is_missing(here: Path) -> None:
    page = markdown([find_study(name) for name in ("relu2", "dyt", "swiglu", "reversed")])
    assert re.search(r"\| ffn=relu2 ffn.hidden=576: -0.005, 1\.05 times \(1\.00\d to 1\.10\) fewer steps \|", page)
    assert "\nCompute saved: not computed, because a loss does not fall with the number of steps.\n" in page
    assert "\nCompute saved: not computed, because all runs have one length.\n" in page
    assert page.count("not computed, because") == 2, "accuracies have none"


def test_results_of_a_study_named_by_its_file_are_never_written_into_the_package() -> None:
    study = find_study(os.path.relpath(LIBRARY / "muon.yaml"))
    assert not study.path.is_absolute() and study.own_results == Path("studies/muon/results.json")


def test_a_prediction_for_a_tuned_arm_is_found_however_the_setting_is_written(family: Path) -> None:
    entry = find_study("rms").entries["one"]
    dashes = replace(
        entry, request=entry.request.model_copy(update={"tune": "--train.lr=1e-3,1e-2"}), expect={"a=1": "worse"}
    )
    assert dashes.expected("a=1 train.lr=1e-3") == "worse" and dashes.expected("a=2 train.lr=1e-3") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comparisons: {one: some text}", "one: expected the fields of a comparison"),
        ("comparisons: {one: [a]}", "one: expected the fields of a comparison"),
        (
            "comparisons: {one: {preset: mingpt, change: [ffn=relu], expect: [better]}}",
            "expect of one: give a prediction",
        ),
        ("comparisons: {one: {preset: mingpt, change: [ffn=relu], expect: 3}}", "expect of one: give a prediction"),
        ("comparisons: {one: {preset: mingpt, change: [ffn=relu], common: 3}}", "common=3: expected a list"),
        (
            "comparisons: {one: {preset: mingpt, change: [ffn=relu], common: train.lr=1}}",
            "common=train.lr=1: expected a list",
        ),
        ("comparisons: {one: {preset: mingpt, change: [ffn=relu], grid: [1]}}", r"grid=\[1\]: expected a list"),
    ],
)
def test_a_value_of_the_wrong_type_is_one_line(here: Path, text: str, message: str) -> None:
    (here / "studies").mkdir(exist_ok=True)
    (here / "studies" / "mine.yaml").write_text(f"claim: c\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        find_study("mine")


@pytest.mark.parametrize("comparisons", [[1], "text", 3])
def test_damaged_results_are_one_line(here: Path, comparisons: Any) -> None:
    path = here / "results.json"
    facts = dict.fromkeys(("claim", "source", "published", "changed"), "")
    path.write_text(json.dumps({**facts, "comparisons": comparisons}))
    with pytest.raises(ConfigError, match="is damaged"):
        StudyResults.from_json(path)


PROTOCOL = f"""about: frozen
preset: mingpt
data: text.txt
seeds: 2
margin: 0.05
failure: 100
tune: train.lr=1e-3,1e-2
tune_steps: 3
tuned_only: true
horizons: [4, 8]
common: {json.dumps([word for word in TINY if not word.startswith("train.steps")])}
"""


@pytest.fixture
def family(here: Path) -> Path:
    """Two studies with one protocol."""
    folder = here / "studies"
    (folder / "protocols").mkdir(parents=True)
    (folder / "protocols" / "small.yaml").write_text(PROTOCOL)
    for name, change in (("rope", "positions=rope"), ("rms", "norm=rmsnorm")):
        text = f"claim: {name}\nprotocol: small\ncomparisons: {{one: {{change: [{change}], expect: better}}}}\n"
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_studies_of_one_protocol_share_the_runs_of_the_baseline_and_are_judged_together(family: Path) -> None:
    for name in ("rope", "rms"):
        done = CliRunner().invoke(app, ["study", "run", name])
        assert done.exit_code == 0, done.output
        if name == "rope":  # the baseline's, of the other study: eight runs that tune it, and two at its best value
            dry = CliRunner().invoke(app, ["study", "run", "rms", "--dry-run"]).output
            assert " for 20 runs, " in dry and "\n10 runs finished earlier; the rest takes about 0:0" in dry, dry
    shared = list(Path("runs/protocol-small").iterdir())
    stored = [StudyResults.from_json(family / name / "results.json").comparisons["one"] for name in ("rope", "rms")]
    baselines = [results.arms[0] for results in stored]
    assert baselines[0].values == baselines[1].values and baselines[0].name == baselines[1].name
    assert all(arm.name.partition(" train.lr=")[1] for results in stored for arm in results.arms), "only tuned arms"
    assert not Path("runs/study-rms-one/runs").exists(), "every run is where the other studies find it"
    finished = {path: path.stat().st_mtime_ns for path in Path("runs/protocol-small").rglob("result.json")}
    # the baseline tuned at two values on four seeds, and trained on two seeds to two horizons
    assert len(finished) >= 2 * 4 + 2 * 2 and len(shared) == 6  # of three arms, each at its default and at its best
    studies = [find_study(name) for name in ("rms", "rope")]
    found = find_outcomes(studies)
    assert all(finding.effect.n_comparisons == 2 for findings in found.values() for finding in findings)
    alone = find_outcomes(studies[:1])["rms"]
    assert alone[0].effect.n_comparisons == 1
    page = markdown(studies)
    assert (
        "## Protocol small\n\nfrozen [Settings and history](" in page
        and "| difference after | 4 steps | 8 steps | change | steps, baseline / arm |" in page
    )
    assert page.count(" Steps timed in turn on: ") == page.count(" References: 2-gram ") == 1, "of both studies"
    (effect,) = (finding.effect for finding in found["rope"])
    (baseline,) = (number(arm.mean) for arm in found["rope"][0].results.arms if arm.name == effect.against)
    assert f"| one | {effect.arm} − {effect.against} | 2 | {baseline} | " in page
    (family / "rope" / "results.json").unlink()
    untested = find_outcomes(studies)
    assert not untested["rope"] and untested["rms"][0].effect.n_comparisons == 2, "claims not run yet count as members"


def test_runs_that_studies_share_have_the_data_of_today(family: Path) -> None:
    assert CliRunner().invoke(app, ["study", "run", "rope"]).exit_code == 0
    text = Path("text.txt").read_text()
    Path("text.txt").write_text(text[::-1])
    done = CliRunner().invoke(app, ["study", "run", "rms"])
    assert isinstance(done.exception, ConfigError)
    assert re.search(
        r"runs/protocol-small/.* was trained on other data than data=text has now: restore the data",
        str(done.exception),
    )
    Path("text.txt").write_text(text)
    shutil.rmtree("runs/study-rms-one")
    assert CliRunner().invoke(app, ["study", "run", "rms"]).exit_code == 0


def test_the_page_has_every_claim_with_its_prediction_before_it_is_run(family: Path) -> None:
    page = markdown([find_study("rms"), find_study("rope")])
    assert "| one | norm=rmsnorm − mingpt | 2 | – | – | – | – | better | not run yet |" in page
    committed = markdown([find_study("swiglu")])
    assert "0.0032) | 95% | equivalent | equivalent | seen here |" in committed and "not run yet" not in committed


def test_differences_are_under_the_number_of_steps_of_their_comparison() -> None:
    (finding,) = find_outcomes([find_study("tying")])["tying"]
    moved = tuple(point.model_copy(update={"step": 10 * point.step}) for point in finding.over_horizons)
    later = replace(finding, key="later", over_horizons=moved)
    _, head, _, first, second = horizon_table(find_study("tying"), [finding, later])
    columns = [cell.strip() for cell in head.split("|")][2:8]
    assert columns == [f"{steps} steps" for steps in ("500", "1,000", "2,000", "5,000", "10,000", "20,000")]
    cells = [[cell.strip() for cell in line.split("|")][2:8] for line in (first, second)]
    assert cells[0][:3] == cells[1][3:] and cells[0][3:] == cells[1][:3] == ["–"] * 3


def test_accuracies_stand_beside_those_of_constant_answers_and_have_no_compute_saved() -> None:
    study = find_study("answer-loss")
    page = markdown([study])
    assert (
        "| difference after | 300 steps | 1,000 steps | change |\n" in page
        and "baseline / arm" not in page.partition("### answer-loss")[2]
    )
    assert "References: the most frequent character at each position 0.1677." in page and "-gram" not in page
    for key in study.entries:  # the arms have one name
        assert f"{key}, data.answer_only_loss=false: -0." in page


def test_results_name_the_device_and_the_precision_of_their_runs() -> None:
    runs = StudyResults.from_json(find_study("growth-3m").results).comparisons["2.7M"]
    for runtime, machine, sentence in (
        ({"device": "cpu", "precision": "float32"}, {"cpu": "EPYC"}, "EPYC in float32"),
        ({}, {"cpu": "EPYC"}, "EPYC"),
        (
            {"device": "cuda", "precision": "bfloat16"},
            {"accelerator": "H100", "cpu": "Xeon"},
            "H100 in bfloat16, in a machine with Xeon",
        ),
        ({"device": "cuda"}, {}, "cuda"),
        ({"device": "cpu", "precision": "float32"}, {}, ""),
    ):
        provenance = runs.provenance.model_copy(update={"runtime": runtime, "machine": machine})
        assert place(runs.model_copy(update={"provenance": provenance})) == sentence
    (line,) = filter(None, facts([find_study("growth-3m")]))
    assert f"Trained on: {place(runs)}." in line and "Scope: shakespeare, 500 and 1,000 steps only." in line


def test_what_studies_have_in_common_is_said_once() -> None:
    assert grouped({"a": "x", "b": "x"}) == "x" and grouped({}) == grouped({"a": ""}) == ""
    assert grouped({"a": "x", "b": "", "c": "y", "d": "x"}) == "x; y (c)"


def test_comparisons_that_share_runs_of_their_baseline_are_named() -> None:
    """Also if one has more lengths; not if the values are equal because all are right."""
    names = ["positions", "tying", "dropout", "differential", "answer-loss", "reversed"]
    lines = [
        line for line in markdown([*map(find_study, names)]).splitlines() if line.startswith("These comparisons share")
    ]
    assert lines == [
        "These comparisons share runs of their baseline: differential and positions (ALiBi); dropout, positions "
        "(shakespeare) and tying.",
        "These comparisons share runs of their baseline: answer-loss (addition train.lr=1e-3) and reversed (addition "
        "train.lr=1e-3); answer-loss (addition train.lr=2e-3) and reversed (addition train.lr=2e-3).",
    ]


@pytest.mark.parametrize(
    ("values", "words"), [([0.0] * 8, "undecided: all differences are 0"), ([math.nan] * 8, "worse"), ([1e-9] * 8, "")]
)
def test_a_verdict_says_if_all_differences_are_zero(values: list[float], words: str) -> None:
    """Not of an arm whose runs failed, which has no differences."""
    arms = {"base": dict.fromkeys(range(8), 0.5), "arm": {seed: 0.5 + value for seed, value in enumerate(values)}}
    (effect,) = Rules(margin=0.02, looks=()).judge(arms, [Claim("arm", "base")])
    assert verdict_cell(effect) == (words or effect.verdict)


def test_flops_are_stated_where_a_step_has_more_of_them() -> None:
    page = markdown([find_study("muon"), find_study("tying")])
    muon, tying = (
        next(line for line in page.splitlines() if line.startswith(f"| [{name}]")) for name in ("muon", "tying")
    )
    assert " fewer steps, 1.45 times (1.35 to 1.55) fewer FLOPs |" in muon
    assert "as many steps |" in tying and "FLOPs" not in tying


def test_only_the_value_that_tuning_chose_is_left_out_of_a_name() -> None:
    names = [each.short_name for each in find_outcomes([find_study("calculator")])["calculator"]]
    assert (
        "optimizer=muon optimizer.momentum=0.9 optimizer.adamw_lr_ratio=2.0 optimizer.beta2=0.95 train.lr=5e-3" in names
    )
    (finding,) = find_outcomes([find_study("tying")])["tying"]
    assert finding.effect.arm == "tie_embeddings=false train.lr=4e-3" and finding.short_name == "tie_embeddings=false"


def test_the_time_of_a_protocol_counts_the_runs_that_its_studies_share_once(
    family: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for left, rest in ((60.0, "counted once"), (45.0, "counted once; 2:15:00 of it is left")):
        monkeypatch.setattr(
            "partwise.cli.commands.study.show_estimate",
            lambda comparison, sd, left=left: SimpleNamespace(
                arms={arm.name: ArmTime(60.0, left) for arm in comparison.plan.arms}
            ),
        )
        for words in (["--protocol", "small"], ["rope", "rms"]):
            done = CliRunner().invoke(app, ["study", "run", *words, "--dry-run"])
            assert " ".join(done.output.split()).endswith(
                f"together about 3:00:00, with the runs that these studies share {rest}"
            )
    assert "together" not in CliRunner().invoke(app, ["study", "run", "rope", "--dry-run"]).output
    monkeypatch.undo()


def test_every_study_of_a_protocol_runs_with_one_command(family: Path) -> None:
    done = CliRunner().invoke(app, ["study", "run", "--protocol", "small"])
    assert done.exit_code == 0, done.output
    assert all((family / name / "results.json").exists() for name in ("rope", "rms"))
    for words, message in (
        ([], "name a study, or --protocol NAME; protocols: "),
        (["--protocol", "smal"], "no study has the protocol 'smal'; protocols: "),
    ):
        done = CliRunner().invoke(app, ["study", "run", *words])
        assert isinstance(done.exception, ConfigError) and str(done.exception).startswith(message)
        assert {"decoder-1m", "growth", "small"} <= set(str(done.exception).removeprefix(message).split(", "))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("change: [ffn=swiglu], seeds: 3", "seeds: its protocol sets this for all studies"),
        ("change: [ffn=swiglu], looks: [4, 8]", "looks: its protocol sets this"),
        ("change: [ffn=swiglu], preset: llama", "preset: its protocol sets this"),
    ],
)
def test_a_study_cannot_change_its_protocol(family: Path, entry: str, message: str) -> None:
    text = f"claim: c\nprotocol: small\ncomparisons: {{one: {{{entry}}}}}\n"
    (family / "other.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        find_study("other")


def test_a_comparison_about_the_tuned_setting_says_why_it_is_not_tuned(family: Path) -> None:
    text = "claim: c\nprotocol: small\ncomparisons: {one: {untuned: %s, common: [train.lr=1e-1], change: [norm=rmsnorm]}}\n"
    (family / "high.yaml").write_text(text % "the claim is about a rate far above the best")
    [(_, comparison)] = find_study("high").plan()
    assert comparison.tune is None and [arm.config.train.lr for arm in comparison.plan.arms] == [0.1, 0.1]
    for reason in ("''", "true", "[]"):
        (family / "high.yaml").write_text(text % reason)
        with pytest.raises(ConfigError, match="say why this comparison leaves out the tuning"):
            find_study("high")
    (family / "high.yaml").write_text(text % "other rates, tune: 'train.lr=1,2'")
    with pytest.raises(ConfigError, match="tune: its protocol sets this"):
        find_study("high")


def test_unknown_and_invalid_protocols_are_refused(family: Path) -> None:
    text = "claim: c\nprotocol: smal\ncomparisons: {one: {change: [ffn=swiglu]}}\n"
    (family / "other.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"there is no .*smal.yaml.*small"):
        find_study("other")
    (family / "protocols" / "small.yaml").write_text(PROTOCOL + "looks: [4, 8]\n")
    with pytest.raises(ConfigError, match="have no looks in common"):
        find_study("rope")
