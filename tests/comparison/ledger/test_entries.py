"""What comparisons write to the ledger of their project, and what it says: repeated questions, levels, listings."""

import csv
import hashlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import partwise
from comparisons import ARITHMETIC
from partwise.ablation.request import Request
from partwise.ablation.run_plan import plan_runs
from partwise.comparison.design.plan import Plan
from partwise.comparison.ledger.chain import Ledger
from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.ledger.listing import count, list_comparisons, to_csv, to_json_lines
from partwise.comparison.ledger.project import LEDGER_FILE, code_version, project_folder, project_ledger
from partwise.comparison.ledger.questions import question_key
from partwise.comparison.ledger.sequence import next_level
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.protocol import Claim
from partwise.config import ConfigError
from partwise.files import sources_hash
from repositories import git
from users import IS_ROOT


def plan_of(*change: str, **settings: Any) -> Plan:
    given = {"preset": "mingpt", "change": list(change), "data": "arithmetic", "common": ARITHMETIC, **settings}
    return plan_runs(Request.from_dict(given))


def judge(plan: Plan, difference: float) -> list[Effect]:
    """The effects of all claims if every arm is `difference` worse than the baseline, up to noise."""
    noise = [0.0005 * (seed % 3) for seed in range(plan.seeds)]
    values = {
        arm.name: {seed: 2.0 + (difference + x * (1 + number) if number else 0.0) for seed, x in enumerate(noise)}
        for number, arm in enumerate(plan.arms)
    }
    return plan.rules.judge(plan.values(values), plan.claims)


def run(folder: Path, plan: Plan, difference: float | None, **facts: Any) -> LedgerEntries:
    """Record a comparison; it does not finish if `difference` is None."""
    entries = LedgerEntries(folder, project_ledger(folder.parent))
    entries.start(plan, plan.identity(), "data", {"cpu": "one"}, **facts)
    if difference is not None:
        entries.result(plan, plan.seeds, judge(plan, difference))
    return entries


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("ffn=swiglu")


# projects


def test_the_ledger_lies_in_the_nearest_repository(tmp_path: Path) -> None:
    folder = tmp_path / "my project" / "sub" / "folder"
    folder.mkdir(parents=True)
    assert project_folder(folder) == folder and project_ledger(folder).path == folder / LEDGER_FILE
    (tmp_path / ".git").mkdir()
    assert project_folder(folder) == tmp_path
    (tmp_path / "my project" / ".git").write_text("gitdir: elsewhere")  # a worktree
    assert project_folder(folder) == tmp_path / "my project"


def test_the_version_identifies_sources_and_imports(tmp_path: Path) -> None:
    (tmp_path / "my part.py").write_text("x = 1")
    version = code_version([str(tmp_path / "my part.py"), "a_module"])
    assert version["version"] == partwise.__version__
    assert version["imports"] == {"my part.py": hashlib.sha256(b"x = 1").hexdigest()}
    assert version["sources"] == sources_hash(Path(partwise.__file__).parent)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "a.py").write_text("1")
    (copy / "__pycache__").mkdir()
    first = sources_hash(copy)
    (copy / "__pycache__" / "a.pyc").write_text("compiled")
    assert sources_hash(copy) == first
    (copy / "a.py").write_text("2")
    assert sources_hash(copy) != first


def test_the_commit_is_that_of_a_checkout_that_tracks_the_sources(tmp_path: Path) -> None:
    from partwise.comparison.ledger.project import commit_of

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    assert commit_of(package) is None
    (tmp_path / "other").touch()
    for words in (["init", "-q"], ["add", "other"], ["commit", "-q", "-m", "one"]):
        git(*words, folder=tmp_path)
    assert commit_of(package) is None  # installed within another project
    for words in (["add", "package"], ["commit", "-q", "-m", "two"]):
        git(*words, folder=tmp_path)
    assert commit_of(package) == git("rev-parse", "HEAD", folder=tmp_path)


# questions


def test_a_question_is_the_same_whatever_its_seeds_margin_and_length(plan: Plan) -> None:
    (claim,) = plan.claims
    key = question_key(plan, claim)
    for same in (
        plan_of("ffn=swiglu", seeds=9, margin=0.1, first_seed=4),
        plan_of("--ffn=swiglu", looks=[2, 4]),
        plan_of("ffn=swiglu", common=[*ARITHMETIC, "train.steps=24"]),
        plan_of(arms=["norm=rmsnorm", "ffn=swiglu"], negative_control="ffn"),
    ):
        assert key in {question_key(same, claim) for claim in same.claims if claim.role == "claim"}
    for other in (
        plan_of("ffn=geglu"),
        plan_of("ffn=swiglu", "norm=rmsnorm"),
        plan_of("ffn=swiglu", metric="exact_match"),
        plan_of("ffn=swiglu", preset="toy"),
    ):
        assert question_key(other, other.claims[0]) != key
    first, second = plan_of("ffn=swiglu", "norm=rmsnorm"), plan_of("norm=rmsnorm", "ffn=swiglu")
    assert question_key(first, first.claims[0]) == question_key(second, second.claims[0])


def test_the_sum_of_two_effects_is_a_question() -> None:
    interaction = plan_of(interaction=["ffn=swiglu", "norm=rmsnorm"])
    swapped = plan_of(interaction=["norm=rmsnorm", "ffn=swiglu"])
    keys, other = ({question_key(p, claim) for claim in p.claims} for p in (interaction, swapped))
    assert len(keys) == len(interaction.claims) == 4 and keys == other


def test_the_ledger_says_how_often_a_question_was_asked(tmp_path: Path, plan: Plan) -> None:
    several = plan_of(arms=["ffn=swiglu", "ffn=geglu"])
    run(tmp_path / "one", plan, 0.1)
    run(tmp_path / "several", several, 0.0001)
    run(tmp_path / "broken off", replace(plan, seeds=3), None)
    last = run(tmp_path / "last", several, -0.1)
    swiglu, geglu = last.asked_before(several)
    assert (swiglu.times, swiglu.names) == (3, ("one", "several", "broken off"))
    assert swiglu.outcomes == {"worse": 1, "equivalent": 1, "unfinished": 1}
    assert (geglu.arm, geglu.times, geglu.outcomes) == ("ffn=geglu", 1, {"equivalent": 1})


def test_the_same_seeds_under_another_name_are_named(tmp_path: Path, plan: Plan) -> None:
    """Whatever the margin and the number of seeds; not with other seeds, another length, other data, or no look at them."""

    def shared(name: str, again: Plan, data: str = "data", looked: int | None = None) -> dict[str, tuple[int, int]]:
        entries = LedgerEntries(tmp_path / name, project_ledger(tmp_path))
        entries.start(again, again.identity(), data, {"cpu": "one"})
        if looked:
            entries.look(again, looked, [])
        (question,) = entries.asked_before(again)
        return question.same_seeds

    run(tmp_path / "one", replace(plan, seeds=4), 0.1)
    more = replace(plan, seeds=8, rules=replace(plan.rules, margin=0.5))
    assert shared("two", more) == {"one": (0, 3)}
    assert shared("three", replace(plan, first_seed=2, seeds=8), looked=3) == {"one": (2, 3)}  # two judged nothing
    assert shared("four", replace(plan, first_seed=3, seeds=1)) == {"one": (3, 3), "three": (3, 3)}
    assert shared("fresh", replace(plan, first_seed=100)) == {}
    assert shared("of other data", more, "other data") == {}
    assert shared("longer", plan_of("ffn=swiglu", common=[*ARITHMETIC, "train.steps=77"])) == {}
    assert shared("other arm", plan_of("ffn=geglu")) == {}


def test_arms_that_were_renamed_or_tuned_are_recognized(tmp_path: Path, plan: Plan) -> None:
    swiglu = plan.arm("ffn=swiglu")
    arms = (replace(plan.arms[0], name="A"), replace(swiglu, name="B"))
    renamed = replace(plan, arms=arms, claims=(Claim("B", "A"),))
    run(tmp_path / "one", plan, 0.1)
    (question,) = run(tmp_path / "two", renamed, 0.1).asked_before(renamed)
    assert question.same_seeds == {"one": (0, plan.seeds - 1)}

    def best(arm: Any) -> Any:
        return replace(arm, name=f"{arm.name} lr", overrides=(*arm.overrides, "train.lr=0.1"))

    tuned = replace(plan, arms=tuple(map(best, plan.arms)), claims=(Claim("ffn=swiglu lr", f"{plan.arms[0].name} lr"),))
    for name in ("tuned", "tuned again"):  # the plan of the start has no tuned arm
        entries = LedgerEntries(tmp_path / name, project_ledger(tmp_path))
        entries.start(plan, plan.identity(), "data", {"cpu": "one"})
        entries.result(tuned, plan.seeds, judge(tuned, 0.1))
    (question,) = entries.asked_before(tuned)
    assert (question.times, question.names) == (1, ("tuned",)) and question.outcomes == {"worse": 1}
    assert question.same_seeds == {"tuned": (0, plan.seeds - 1)}


# the records of one comparison


def test_a_comparison_records_start_looks_and_results(tmp_path: Path) -> None:
    plan = plan_of("ffn=swiglu", looks=[3, 6])
    entries = LedgerEntries(tmp_path / "runs of mine" / "c", project_ledger(tmp_path))
    entries.start(plan, plan.identity(), "data", {"cpu": "one"}, study="glu")
    for _ in range(2):  # a resumed comparison repeats its looks
        entries.look(plan, 3, judge(plan, 0.1))
        entries.result(plan, 3, judge(plan, 0.1))
    entries.resume(entries.started, 6, None)
    entries.result(plan, 6, judge(plan, -0.1))
    contents = [record.content for record in entries.ledger.read()]
    assert [content["kind"] for content in contents] == ["started", "look", "result", "resumed", "result"]
    start, look, result, _, again = contents
    assert start["folder"] == "runs of mine/c" and start["study"] == "glu"
    assert start["identity"]["looks"] == [3, 6] and start["code"]["sources"] and start["machine"] == {"cpu": "one"}
    assert look["started"] == result["started"] == 1 and look["verdicts"][0]["verdict"] == "worse"
    assert (result["supersedes"], again["supersedes"]) == (None, 3)
    other = LedgerEntries(tmp_path / "runs of mine" / "c", project_ledger(tmp_path))
    other.start(plan, plan.identity(), "data", {"cpu": "one"})  # the folder was deleted
    assert other.ledger.read()[-1].content["supersedes"] == 1


def test_a_ledger_that_cannot_be_written_costs_one_line(
    tmp_path: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / LEDGER_FILE
    ledger.parent.mkdir()
    ledger.write_text("not a database, but text of some length" * 20)
    entries = run(tmp_path / "c", plan, 0.1)
    assert entries.started is None and entries.asked_before(plan) == []
    assert entries.warning is not None and "move the file away" in entries.warning
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and str(ledger) in lines[0]


@pytest.mark.skipif(IS_ROOT, reason="root writes anywhere")
def test_a_read_only_folder_costs_one_line(tmp_path: Path, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    assert run(tmp_path / "c", plan, 0.1).warning is not None
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_edited_ledger_costs_one_line(tmp_path: Path, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    run(tmp_path / "a", plan, 0.1)
    with sqlite3.connect(tmp_path / LEDGER_FILE) as connection:
        connection.execute("UPDATE records SET content = replace(content, 'worse', 'better')")
    run(tmp_path / "b", plan, 0.1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "record 2: its content does not match its hash" in line


# the online sequence


def test_levels_follow_from_the_results_that_are_known(tmp_path: Path, plan: Plan) -> None:
    """Levels by the paper's formula; a comparison outside the sequence, and a second result, change nothing."""
    gamma = [j**-1.3 / 3.93194921180954 for j in range(1, 10)]  # zeta(1.3)
    start = {"online": True}
    first = LedgerEntries(tmp_path / "1", project_ledger(tmp_path))
    arguments = (plan, plan.identity(), "data", {})
    level = first.start(*arguments, **start)
    assert level is not None and (level.number, level.discoveries) == (1, 0)
    assert level.level == pytest.approx(0.025 * gamma[0])
    run(tmp_path / "outside", plan, -0.1)
    second = LedgerEntries(tmp_path / "2", project_ledger(tmp_path))
    level = second.start(*arguments, **start)  # before the first has finished
    assert level is not None and level.level == pytest.approx(0.025 * gamma[1])
    first.result(plan, 5, judge(plan, -0.1))
    first.result(plan, 6, judge(plan, 0.0001))
    level = next_level(first.ledger.read(), 0.05)
    assert (level.number, level.discoveries) == (3, 1)
    assert level.level == pytest.approx(0.025 * gamma[2] + 0.025 * gamma[0])
    second.result(plan, 5, judge(plan, -0.1))
    level = next_level(first.ledger.read(), 0.05)
    assert level.level == pytest.approx(0.025 * gamma[2] + (0.025 + 0.05) * gamma[0])


def test_only_what_is_better_earns_a_level(tmp_path: Path, plan: Plan) -> None:
    """A search keeps nothing else: changes that harm or crash are easy to find, and would pay for false keeps."""
    run(tmp_path / "1", plan, 0.1, online=True)
    run(tmp_path / "2", plan, math.nan, online=True)
    records = run(tmp_path / "3", plan, -0.1, online=True).ledger.read()
    verdicts = [row["verdict"] for each in records for row in each.content.get("verdicts", ())]
    assert verdicts[0] == "worse" and verdicts[-1] == "better"
    assert next_level(records, 0.05).discoveries == 1


def test_failing_less_often_earns_a_level(tmp_path: Path, plan: Plan) -> None:
    """Fisher's test holds its level as the t test does, so a better failure rate counts among the discoveries."""
    baseline, arm = (arm.name for arm in plan.arms)
    values = {baseline: dict.fromkeys(range(plan.seeds), math.nan), arm: dict.fromkeys(range(plan.seeds), 2.0)}
    effects = plan.rules.judge(plan.values(values), plan.claims)
    assert [(effect.verdict, effect.mean) for effect in effects] == [("better", None)]
    entries = run(tmp_path / "1", plan, None, online=True)
    entries.result(plan, plan.seeds, effects)
    assert next_level(entries.ledger.read(), 0.05).discoveries == 1


def test_an_equivalence_or_a_control_is_no_discovery(tmp_path: Path, plan: Plan) -> None:
    controlled = plan_of("ffn=swiglu", positive_control="d_model=32")
    run(tmp_path / "1", plan, 0.0001, online=True)
    entries = LedgerEntries(tmp_path / "2", project_ledger(tmp_path))
    entries.start(controlled, controlled.identity(), "data", {}, online=True)
    effects = [judge(controlled, 0.0001)[0], judge(controlled, 0.1)[1]]
    assert [effect.verdict for effect in effects] == ["equivalent", "worse"]
    entries.result(controlled, 5, effects)
    assert next_level(entries.ledger.read(), 0.05).discoveries == 0


def test_a_sequence_has_one_rate(tmp_path: Path, plan: Plan) -> None:
    run(tmp_path / "1", plan, None, online=True)
    with pytest.raises(ConfigError, match=r"--alpha 0\.1: the earlier comparisons.*give --alpha 0\.05"):
        run(tmp_path / "2", plan_of("ffn=swiglu", alpha=0.1), None, online=True)
    assert len(project_ledger(tmp_path).read()) == 1


def test_without_a_ledger_there_is_no_level(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / LEDGER_FILE).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"--online: the ledger .* omit --online"):
        run(tmp_path / "1", plan, None, online=True)


def test_an_edited_level_is_refused(tmp_path: Path, plan: Plan) -> None:
    entries = LedgerEntries(tmp_path / "1", project_ledger(tmp_path))
    level = entries.start(plan, plan.identity(), "data", {}, online=True)
    assert level is not None
    again = LedgerEntries(tmp_path / "1", project_ledger(tmp_path))
    with pytest.raises(ConfigError, match="another online level than record 1"):
        again.resume(1, 5, level.model_copy(update={"level": 0.05}))
    again.resume(1, 5, level)
    assert again.ledger.read()[-1].content["kind"] == "resumed"


# listings


def test_rows_counts_and_exports(tmp_path: Path, plan: Plan) -> None:
    run(tmp_path / "one", plan, 0.1, online=True)
    run(tmp_path / "two", plan_of(arms=["ffn=swiglu", "ffn=geglu"]), 0.0001)
    run(tmp_path / "three", plan, None)
    records = project_ledger(tmp_path).read()
    rows = list_comparisons(records)
    assert [(row.number, row.name, row.outcome) for row in rows] == [
        (1, "one", "ffn=swiglu worse"),
        (3, "two", "ffn=swiglu equivalent, ffn=geglu equivalent"),
        (5, "three", "unfinished"),
    ]
    assert rows[0].level == pytest.approx(0.00636, rel=1e-3) and rows[1].level is None
    expected = {"comparisons": 3, "questions": 2, "equivalent": 2, "worse": 1, "unfinished": 1}
    assert count(records) == expected
    lines = [json.loads(line) for line in to_json_lines(records).splitlines()]
    assert [line["hash"] for line in lines] == [record.hash for record in records]
    assert lines[0]["question"] == plan.question and lines[1]["verdicts"][0]["mean"] == pytest.approx(0.1, abs=0.01)
    table = list(csv.DictReader(io.StringIO(to_csv(records))))
    assert [row["kind"] for row in table] == ["started", "result"] * 2 + ["started"]
    assert table[1]["verdicts"] == "ffn=swiglu worse" and table[4]["previous"] == table[3]["hash"]


def test_an_empty_ledger_has_no_rows(tmp_path: Path) -> None:
    records = Ledger(tmp_path / "none").read()
    assert list_comparisons(records) == [] and to_json_lines(records) == "" and count(records)["comparisons"] == 0
