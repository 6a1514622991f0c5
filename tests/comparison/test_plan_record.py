"""What is fixed about a comparison: one record and one level, whatever was killed or deleted; the first verdict stands."""

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from faults import in_child
from partwise.any_code.function_comparison import make_function_comparison
from partwise.cli import main
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import verify
from partwise.comparison.experiment import Comparison
from partwise.comparison.ledger.chain import DamagedLedgerError, Ledger
from partwise.comparison.ledger.listing import list_comparisons
from partwise.comparison.ledger.project import code_version, project_ledger
from partwise.comparison.report import summary
from partwise.comparison.report.cells import seed_counts
from partwise.comparison.report.ledger_sentences import ledger_sentences
from partwise.comparison.report.tables import arm_table
from partwise.comparison.results import Results
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.methods import METHODS, Method
from partwise.config import ConfigError
from partwise.run_names import LOCK, OWNER

DRIFT = {"gain": 0.0}
"""What makes repeated trials differ, as the threads of a GPU may."""


def train(seed: int, report: Any, gain: float = 0.0) -> float:
    gain += DRIFT["gain"] * (gain > 0)
    return 1.0 + 0.01 * (seed * 7 % 5) - gain * (1 + 0.01 * (seed % 3))


def comparison(name: str = "c", arms: Any = None, **settings: Any) -> Comparison:
    given: Any = {"seeds": 2, "margin": 0.05, "online": True, "name": name, **settings}
    return make_function_comparison(train, arms or {"base": {}, "gain": {"gain": 0.2}}, **given)


def kinds() -> list[str]:
    return [record.content["kind"] for record in project_ledger().read() if record.content["kind"] != "resumed"]


def drafts() -> list[Path]:
    return [path for path in Path("runs").rglob(".*") if path.name not in (LOCK, OWNER)]


def killed_at(step: int, work: Callable[[], Any]) -> bool:
    """Run this in a process that ends before its write number `step` to a comparison's folder or the ledger, or after it."""
    replace, append, done = os.replace, Ledger.append, 0

    def count() -> None:
        nonlocal done
        if done == step:
            os._exit(7)
        done += 1

    def replacement(draft: Any, path: Any) -> None:
        outer = Path(path).parent.parent.name == "runs"
        count() if outer else None
        replace(draft, path)
        count() if outer else None

    def addition(*arguments: Any) -> Any:
        count()
        added = append(*arguments)
        count()
        return added

    def run() -> None:
        os.replace, Ledger.append = replacement, addition  # type: ignore[assignment,method-assign]
        work()

    return os.waitstatus_to_exitcode(os.waitpid(in_child(run), 0)[1]) == 7


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what takes most of the time of so small a comparison: pages, and hashes of our sources."""
    code = code_version()
    monkeypatch.setattr("partwise.comparison.experiment.show_report", lambda *arguments: None)
    for module in ("plan_record", "ledger.entries"):
        monkeypatch.setattr(f"partwise.comparison.{module}.code_version", lambda imports: code)


def test_a_kill_between_two_writes_costs_no_record_and_no_level(here: Path, quick: None) -> None:
    expected = None
    for step in range(100):
        shutil.rmtree("runs", ignore_errors=True)
        killed = killed_at(step, lambda: comparison().run())
        results = comparison().run()
        assert kinds() == ["started", "result"], f"killed at write {step}"
        assert not drafts(), f"killed at write {step}"
        assert results.online is not None and results.online.number == 1
        expected = expected or results.effects
        assert results.effects == expected
        certificate = Certificate.read(Path("runs/c"))
        assert not [check for check in verify(certificate) if check.fault]
        (result,) = [record for record in project_ledger().read() if record.content["kind"] == "result"]
        assert certificate.ledger is not None and certificate.ledger.hash == result.hash
        if not killed:
            break
    assert step >= 12


def test_a_comparison_that_a_full_disk_kept_out_of_the_ledger_is_recorded_later(
    here: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: Any) -> None:
        raise DamagedLedgerError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", full)
        first = comparison(online=False).run()
    assert kinds() == [] and "not recorded" in capsys.readouterr().err
    again = comparison(online=False).run()
    assert kinds() == ["started", "result"] and again.effects == first.effects and not again.warnings
    assert json.loads(Path("runs/c/compare.json").read_text())["ledger"] == 1
    assert Certificate.read(Path("runs/c")).ledger is not None
    comparison(online=False).run()
    assert kinds() == ["started", "result"]


def test_a_comparison_from_elsewhere_takes_no_record_of_another(
    here: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of its start in the ledger of another project may be that of any comparison in this one's."""
    for project, gain in (("one", 0.2), ("two", -0.2)):
        (here / project).mkdir()
        monkeypatch.chdir(here / project)
        comparison(project, {"base": {}, "gain": {"gain": gain}}, online=False, seeds=4).run()
    shutil.copytree(here / "one/runs/one", here / "two/runs/one")
    comparison("one", online=False, seeds=4).run()
    assert [(row.name, row.outcome) for row in list_comparisons(project_ledger().read())] == [
        ("two", "gain worse"),
        ("one", "gain better"),
    ]
    Path("runs/one").rename("runs/renamed")  # continues under its record
    comparison("renamed", online=False, seeds=4).run()
    assert [row.name for row in list_comparisons(project_ledger().read())] == ["two", "one"]


def repeat(drift: float, monkeypatch: pytest.MonkeyPatch, folder: str = "1-gain", **settings: Any) -> Results:
    """Delete trials of the changed arm and run the same command again, which gives other values."""
    shutil.rmtree(Path("runs/c/runs") / folder)
    monkeypatch.setitem(DRIFT, "gain", drift)
    return comparison(seeds=4, **settings).run()


def test_the_first_verdict_stands_whatever_is_repeated(
    here: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = comparison(seeds=4).run()
    assert first.verdicts == {"gain": "better"} and first.provenance.value_changes == 0
    certificate = Certificate.read(Path("runs/c"))
    for number, drift in enumerate((-0.4, -0.5), start=1):
        again = repeat(drift, monkeypatch)
        (claim,) = again.claims
        assert again.verdicts == first.verdicts and claim.effect == first.claims[0].effect
        assert claim.exploratory is not None and claim.exploratory.verdict is None
        assert claim.exploratory.mean == pytest.approx(-(0.2 + drift) * 1.0075)
        assert "have changed since" in claim.exploratory.sentence
        assert again.provenance.value_changes == number
        assert ledger_sentences(again)[0].startswith("After the first verdict, which stands, trials were repeated")
        stands = Certificate.read(Path("runs/c"))
        assert (stands.values, stands.verdicts, stands.ledger) == (
            certificate.values,
            certificate.verdicts,
            certificate.ledger,
        )
        assert stands.changes == number and not [check for check in verify(stands) if check.fault]
        (row,) = list_comparisons(project_ledger().read())
        assert (row.outcome, row.changes) == ("gain better", number)
    assert status("verify", "runs/c") == 0
    assert "trials were repeated with other values after this verdict (2 times)" in capsys.readouterr().out
    restored = repeat(0.0, monkeypatch)
    assert restored.claims[0].exploratory is None and restored.effects == first.effects
    assert restored.provenance.value_changes == Certificate.read(Path("runs/c")).changes == 2
    more = comparison(seeds=6).run()
    assert more.effects == first.effects and more.claims[0].exploratory is not None
    assert seed_counts(first) == [] and seed_counts(more) == ["6 (4 judged)"] * 2
    terminal = Console(width=100, file=io.StringIO())
    terminal.print(summary(more))
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"base +6 \(4 judged\)", shown) and re.search(r"gain +4 +-0\.2", shown)
    (table,) = arm_table(more)
    assert table.head[:2] == ["arm", "seeds"] and [row[1] for row in table.rows] == seed_counts(more)


def test_values_that_changed_before_a_certificate_was_written_give_no_verdict(
    here: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a planned look, and in a folder whose certificate is gone."""

    def stop(running: Comparison) -> None:
        if len(running.trials) > 4 and not running.trials[-1].finished:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comparison(looks=[2, 4], online=False, alpha=1e-6).run(stop)
    assert kinds() == ["started", "look"]
    shutil.rmtree("runs/c/runs/1-gain/seed-0")
    monkeypatch.setitem(DRIFT, "gain", 0.3)
    results = comparison(looks=[2, 4], online=False, alpha=1e-6).run()
    assert results.verdicts == {"gain": None} and results.provenance.value_changes == 1
    assert not Path("runs/c/certificate.json").exists()
    assert list_comparisons(project_ledger().read())[0].outcome == "gain no verdict"


@pytest.mark.parametrize("deleted", ["runs/ledger.sqlite", "runs/c/compare.json"])
def test_a_verdict_of_an_older_version_stands(
    here: Path, quick: None, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    """It wrote no hash of its values, but a certificate that has them."""
    first = comparison(seeds=4, online=False).run()
    plan, folder = json.loads(Path("runs/c/compare.json").read_text()), Path("runs/c")
    del plan["values"]
    (folder / "compare.json").write_text(json.dumps({**plan, "ledger": None}))
    Certificate.read(folder).model_copy(update={"judged_values": "", "ledger": None}).write(folder)
    Path("runs/ledger.sqlite").unlink()
    Path(deleted).unlink(missing_ok=True)
    again = repeat(-0.4, monkeypatch, online=False)
    assert again.effects == first.effects and again.provenance.value_changes == 1
    assert again.claims[0].exploratory is not None


def test_a_new_name_does_not_hide_seeds_that_were_judged(here: Path, quick: None) -> None:
    """The first verdict is undecided, and the same seeds are judged again with more of them."""
    comparison("first", seeds=2, online=False).run()
    results = comparison("second", seeds=4, online=False).run()
    said = (
        "Seeds 0 to 1 of gain against base were judged before, in runs/first: the verdicts are not independent; "
        "--first-seed gives fresh seeds."
    )
    assert said in ledger_sentences(results)
    assert not any(
        "judged before" in text for text in ledger_sentences(comparison("first", seeds=2, online=False).run())
    )
    fresh = comparison("fresh", seeds=4, first_seed=50, online=False).run()
    assert fresh.asked_before[0].times == 2 and not fresh.asked_before[0].same_seeds


@pytest.mark.parametrize("kept", ["certificate.json", "runs"])
def test_a_deleted_plan_still_judges_its_trials(here: Path, quick: None, kept: str) -> None:
    """By its own margin and number of seeds; whatever else of the folder was deleted, its trials are left."""
    first = comparison(seeds=4).run()
    for name in {"compare.json", "certificate.json", "results.json"} - {kept}:
        Path("runs/c", name).unlink()
    with pytest.raises(ConfigError, match=r"margin was 0\.05, now 0\.5\): choose another --name"):
        comparison(seeds=4, margin=0.5).run()
    with pytest.raises(ConfigError, match="already judged at 4 seeds"):
        comparison(seeds=3).run()
    again = comparison(seeds=6).run()
    assert again.effects == first.effects and again.claims[0].exploratory is not None
    assert kinds().count("started") == 1 and again.online == first.online
    shutil.rmtree("runs/c")  # that is another comparison, which the ledger counts
    assert comparison(margin=0.5).run().asked_before[0].times == 1
    assert kinds().count("started") == 2


def test_a_folder_whose_results_say_another_verdict_does_not_verify(
    here: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    results = comparison(seeds=4).run()
    assert status("verify", "runs/c") == 0
    path = Path("runs/c/results.json")
    (claim,) = results.claims
    edited = claim.model_copy(update={"effect": claim.effect.replace(verdict="worse")})
    results.model_copy(update={"claims": (edited,)}).to_json(path)
    assert status("verify", "runs/c") == 1
    assert "verdict is better, but there worse" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"worse"', '"better"'))
    assert status("verify", "runs/c") == 1
    assert "was changed after it was written" in capsys.readouterr().out
    results.to_json(path)
    other = make_function_comparison(train, {"base": {}, "gain": {"gain": -0.2}}, seeds=4, margin=0.05, name="other")
    other.run()
    forged = Certificate.read(other.path)
    plan = Certificate.read(Path("runs/c"))
    plan.model_copy(
        update={
            "values": forged.values,
            "verdicts": forged.verdicts,
            "judged_values": forged.judged_values,
            "ledger": None,
        }
    ).write(Path("runs/c"))
    path.unlink()
    assert status("verify", "runs/c") == 1
    assert "it has better for gain against base" in capsys.readouterr().out


def test_a_certificate_of_a_function_cannot_be_repeated(
    here: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison().run()
    assert status("verify", "runs/c", "--rerun", "2") == 2
    shown = capsys.readouterr()
    assert "differs" not in shown.out and "not None" not in shown.out
    assert shown.err == (
        "error: --rerun: c compares commands or functions, which only their own code can repeat: run the comparison again "
        "under another --name\n"
    )


def status(*words: str) -> int:
    """The exit status of a command, run in this process."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["partwise", *words])
        main()
    return int(ended.value.code or 0)


class Stricter(Method):
    """A method with another rule: what is better is undecided."""

    def decide(self, *arguments: Any) -> list[Effect]:
        return [
            effect.replace(verdict="undecided") if effect.verdict == "better" else effect
            for effect in super().decide(*arguments)
        ]


def test_a_verdict_keeps_its_method(
    here: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is judged, resumed and verified by it; a new comparison has the newest, and `ledger recheck` lists the change."""
    for number in set(METHODS) - {1}:  # as a version with one method, until another is added below
        monkeypatch.delitem(METHODS, number)
    old = comparison(seeds=4, online=False).run()
    plan = Path("runs/c/compare.json").read_text()
    assert "method" not in json.loads(plan)["plan"] and '"method"' not in Path("runs/c/certificate.json").read_text()
    assert status("ledger", "recheck") == 0
    assert "1 verdict judged again by method 1: it would change none" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, 2, Stricter(**vars(METHODS[1])))
        again = comparison(seeds=4, online=False).run()
        assert again.effects == old.effects and again.protocol.method == 1
        assert comparison(seeds=4, online=False).hash == json.loads(plan)["hash"]
        assert status("verify", "runs/c") == 0
        new = comparison("new", seeds=4, online=False).run()
        assert new.verdicts == {"gain": "undecided"} and new.protocol.method == 2
        assert json.loads(Path("runs/new/compare.json").read_text())["plan"]["method"] == 2
        assert comparison("new", seeds=5, online=False).run().effects == new.effects
        assert status("verify", "runs/new") == 0
        before = {path: path.read_bytes() for path in Path("runs").rglob("*.json")}
        capsys.readouterr()
        assert status("ledger", "recheck") == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "2 verdicts judged again by method 2: it would change 1; nothing was overwritten" in shown
        assert re.search(r"1\W+c\W+gain - base\W+1\W+better\W+undecided", shown)
        assert {path: path.read_bytes() for path in Path("runs").rglob("*.json")} == before
    for words in (["verify", "runs/new"], ["ledger", "recheck"]):
        status(*words)
    newer = "the verdict follows from method 2 of judging, and this version of partwise knows methods up to 1"
    with pytest.raises(ConfigError, match=f"new: {newer}: install a newer version"):
        comparison("new", seeds=5, online=False)
    shown = " ".join(" ".join(capsys.readouterr()).split())
    assert shown.count(newer) == 2


def nearly_equal(seed: int, report: Any, shift: float = 0.0) -> float:
    return 1.0 + shift * [0.0, 1.2, -3.1, 4.4, -2.2, 2.7, 7.1, -3.5][seed]


def test_a_plan_of_method_2_keeps_its_test_of_equivalence(
    here: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judged(name: str) -> Comparison:
        arms = {"base": {}, "same": {"shift": 0.001}}
        return make_function_comparison(nearly_equal, arms, seeds=8, margin=0.0035, name=name)

    with monkeypatch.context() as patch:
        patch.delitem(METHODS, 3)
        old = judged("old").run()
        stored = Path("runs/old/results.json").read_text()
    assert old.verdicts == {"same": "undecided"} and "equivalence_low" not in stored
    assert judged("old").run().effects == old.effects and judged("old").plan.rules.method == 2
    assert judged("new").run().verdicts == {"same": "equivalent"}
    for name, states in (("old", False), ("new", True)):
        assert status("verify", f"runs/{name}") == 0
        assert ("equivalence_low" in Path(f"runs/{name}/certificate.json").read_text()) == states
    capsys.readouterr()
    assert status("ledger", "recheck") == 0
    assert re.search(r"1\W+old\W+same - base\W+2\W+undecided\W+equivalent", " ".join(capsys.readouterr().out.split()))
    certificate = Certificate.read(Path("runs/new"))
    (verdict,) = certificate.verdicts
    edited = verdict.model_copy(update={"equivalence_high": 0.001})
    faults = [check.fault for check in verify(certificate.model_copy(update={"verdicts": (edited,)})) if check.fault]
    assert "equivalence_high is 0.001" in faults[-1]
