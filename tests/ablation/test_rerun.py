"""A comparison that ran: its ledger, its certificate, and its trials repeated bit for bit."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import partwise
from comparisons import ARITHMETIC
from partwise.ablation.rerun import differences_here, rerun
from partwise.cli.commands.verify import repeat_trials
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import largest_difference, verify
from partwise.comparison.experiment import Comparison
from partwise.comparison.ledger.project import LEDGER_FILE, project_ledger
from partwise.comparison.results import Results
from partwise.config import ConfigError


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A comparison with planned looks in the online sequence, in a project whose name has a space."""
    project = tmp_path_factory.mktemp("my project")
    (project / ".git").mkdir()
    folder = project / "work"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = {"data": "arithmetic", "common": ARITHMETIC, "margin": 10.0, "looks": [2, 3], "failure": 100.0}
        comparison = partwise.compare("mingpt", "ffn=swiglu", name="c", online=True, **settings)
        yield folder, comparison


def test_the_ledger_holds_start_looks_and_result(finished: tuple[Path, Comparison]) -> None:
    folder, comparison = finished
    ledger = project_ledger(folder)
    assert ledger.path == folder.parent / LEDGER_FILE
    contents = [record.content for record in ledger.read()]
    looks = [content for content in contents if content["kind"] == "look"]
    assert [content["kind"] for content in contents] == ["started", *["look"] * len(looks), "result"]
    assert contents[0]["folder"] == "work/runs/c" and contents[0]["plan"] == comparison.hash
    assert contents[-1]["verdicts"][0]["verdict"] == comparison.verdicts["ffn=swiglu"]


def test_its_level_is_that_of_the_ledger(finished: tuple[Path, Comparison]) -> None:
    folder, comparison = finished
    online = comparison.results.online
    assert online is not None and online.number == 1 and online.alpha == 0.05
    started = project_ledger(folder).read()[0].content
    assert started["online"]["level"] == online.level == comparison.results.protocol.alpha
    assert json.loads((comparison.path / "compare.json").read_text())["online"]["level"] == online.level
    assert comparison.results.effects[0].total_alpha == online.level
    assert f"alpha = {online.level:.2g}" in (comparison.path / "report.md").read_text()


def test_a_level_that_was_edited_is_refused(finished: tuple[Path, Comparison], monkeypatch: pytest.MonkeyPatch) -> None:
    _, comparison = finished
    path = comparison.path / "compare.json"
    text = path.read_text()
    values = json.loads(text)
    try:
        for level in ({**values["online"], "level": 0.05}, None):
            path.write_text(json.dumps({**values, "online": level}))
            with pytest.raises(ConfigError, match="online level"):
                comparison.run()
    finally:
        path.write_text(text)


def test_the_certificate_holds(finished: tuple[Path, Comparison]) -> None:
    folder, comparison = finished
    certificate = Certificate.read(comparison.path)
    assert [check.fault for check in verify(certificate)] == [None] * 6
    assert certificate.plan_hash == comparison.hash
    record = project_ledger(folder).read()[-1]
    assert certificate.ledger is not None and certificate.ledger.hash == record.hash
    values = {arm.name: {trial.seed: trial.value for trial in arm.trials} for arm in comparison.results.arms}
    assert certificate.values == values


def test_trials_are_repeated_bit_for_bit(finished: tuple[Path, Comparison]) -> None:
    """All of them; and a value that is another in its last digit is found."""
    _, comparison = finished
    certificate = Certificate.read(comparison.path)
    assert differences_here(certificate) == []
    first = certificate.values["mingpt"][0]
    assert first is not None
    edited = {**certificate.values, "mingpt": {**certificate.values["mingpt"], 0: first * (1 + 2**-52)}}
    repeats = rerun(certificate.model_copy(update={"values": edited}), 100, on_progress=lambda jobs: None)
    assert len(repeats) == sum(map(len, certificate.values.values()))
    assert [(repeat.arm, repeat.seed) for repeat in repeats if not repeat.equal] == [("mingpt", 0)]
    assert not any(path.name.startswith("partwise-rerun") for path in comparison.path.rglob("*"))


def test_another_machine_explains_no_more_than_seeds_differ(
    finished: tuple[Path, Comparison], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value edited by half an SD over seeds passes elsewhere, one edited by four does not; here neither does."""
    certificate = Certificate.read(finished[1].path)
    most = largest_difference(certificate)
    assert most is not None and most > 0
    arms = certificate.numbers
    for sds, held in ((0.5, True), (4.0, False)):
        shift = sds * most / 3
        edited = {arm: {seed: value + shift for seed, value in runs.items()} for arm, runs in arms.items()}
        for machine, holds in ((["torch 2, not 1"], held), ([], False)):
            monkeypatch.setattr("partwise.ablation.rerun.differences_here", lambda *_, machine=machine: machine)
            [found] = repeat_trials(certificate.model_copy(update={"values": edited}), 1, ())
            printed = capsys.readouterr().out
            assert (found.fault is None) == holds and "off by" in printed
            assert ("more than another machine" in printed) == bool(machine and not held)
    alone = certificate.model_copy(update={"values": {arm: {0: runs[0]} for arm, runs in arms.items()}})
    assert largest_difference(alone) is None, "one seed says nothing of noise"


def test_other_code_machines_and_data_are_named(finished: tuple[Path, Comparison]) -> None:
    certificate = Certificate.read(finished[1].path)
    other = certificate.model_copy(
        update={
            "machine": {**certificate.machine, "torch": "1.0"},
            "code": certificate.code.model_copy(update={"sources": "0" * 64}),
            "seeds_per_process": 8,
            "runtime": {**certificate.runtime, "kernel_build": "another"},
        }
    )
    torch, kernels, code, seeds = differences_here(other)
    assert kernels.startswith("build ") and kernels.endswith(" of the kernels, not another")
    assert torch.endswith("not 1.0") and code == "other source files" and seeds.endswith("not 8")
    with pytest.raises(ConfigError, match="the data of c differs from that"):
        rerun(certificate.model_copy(update={"data": "0" * 64}), 1)


def test_an_edited_ledger_never_costs_a_comparison(
    here: Path, finished: tuple[Path, Comparison], capsys: pytest.CaptureFixture[str]
) -> None:
    """Only its record: the results say so, and one line."""
    ledger = here / LEDGER_FILE
    ledger.parent.mkdir()
    ledger.write_bytes(project_ledger(finished[0]).path.read_bytes())
    with sqlite3.connect(ledger) as connection:
        connection.execute("DELETE FROM records WHERE number = 1")
    comparison = partwise.compare("mingpt", "ffn=swiglu", data="arithmetic", common=ARITHMETIC, seeds=1, name="c")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "ledger" in line]
    assert str(os.path.realpath(ledger)) in line
    results = Results.from_json(comparison.path / "results.json")
    assert len(results.arms[1].trials) == 1 and any("ledger" in warning for warning in results.warnings)
    assert Certificate.read(comparison.path).ledger is None
