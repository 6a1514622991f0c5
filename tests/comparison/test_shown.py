"""What is only shown fails in its own place: the verdict, results.json and the exit status stay."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comparisons import ARITHMETIC
from partwise.ablation import facts
from partwise.cli import main
from partwise.comparison.report import rendering, sections
from partwise.comparison.results import Results
from partwise.config import ConfigError

COMMON = [word for each in ARITHMETIC for word in ("--common", each)]
COMMAND = ["compare", "mingpt", "ffn=swiglu", "--data", "arithmetic", *COMMON, "--seeds", "2", "--name", "c"]
FAILURES: dict[str, Exception] = {"error": ZeroDivisionError("of a figure"), "own": ConfigError("the value is wrong")}
REASONS = {"error": "ZeroDivisionError: of a figure", "own": "the value is wrong"}


def fail(error: BaseException) -> Any:
    def raise_it(*args: Any, **options: Any) -> Any:
        raise error

    return raise_it


def run(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["partwise", *COMMAND, *words])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished comparison and its working folder; the same command judges it again, and writes its pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("shown"))
        assert run("--require", "ffn=swiglu better") in (1, 3)
        yield folder


def verdict_of(folder: Path) -> Any:
    return json.loads((folder / "runs/c/results.json").read_text())["claims"]


@pytest.mark.parametrize("kind", FAILURES)
def test_nothing_that_is_shown_costs_the_verdict(
    kind: str, finished: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before, status = verdict_of(finished), run("--require", "ffn=swiglu better")
    assert len(Results.from_json(finished / "runs/c/results.json").arm("mingpt").samples) > 0  # type: ignore[union-attr]
    broken = fail(FAILURES[kind])
    monkeypatch.setattr(sections, "SECTIONS", tuple((title, (broken,)) for title, _ in sections.SECTIONS))
    for module, names in (
        (facts, ("sample_lines", "measure_activations", "describe_task", "describe_arm", "dataset_references")),
        (rendering, ("control_sentence", "_arms", "_small_print", "reference_sentence")),
    ):
        for name in names:
            broken_part = fail(FAILURES[kind])
            broken_part.__name__ = name
            monkeypatch.setattr(module, name, broken_part)
    monkeypatch.setattr(rendering, "SUMMARY", tuple(vars(rendering)[make.__name__] for make in rendering.SUMMARY))
    capfd.readouterr()
    assert run("--require", "ffn=swiglu better") == status
    out, err = capfd.readouterr()
    assert verdict_of(finished) == before
    results = Results.from_json(finished / "runs/c/results.json")
    reason = REASONS[kind]
    assert results.left_out == dict.fromkeys(
        ("The arms", "How it was run", "Activation statistics", "References"), reason
    )
    assert all(arm.samples == (f"Not shown: {reason}.",) for arm in results.arms)
    html = (finished / "runs/c/report.html").read_text()
    assert html.count(f"Not shown: {reason}.") >= len(sections.SECTIONS)
    assert results.effects[0].sentence in " ".join(out.split()) and f"Not shown: {reason}." in out
    lines = [line for line in err.splitlines() if line.startswith("warning:")]
    assert len(lines) >= len(sections.SECTIONS) and all(
        line.endswith(f"could not be shown: {reason}") for line in lines
    )
    assert "Traceback" not in err


def test_pages_that_cannot_be_written_cost_nothing(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before, status = verdict_of(finished), run("--require", "ffn=swiglu not-worse")
    for name in rendering.RENDERERS:
        monkeypatch.setitem(rendering.RENDERERS, name, fail(OSError(28, "No space left on device")))
        (finished / "runs/c" / name).unlink()
    capfd.readouterr()
    assert run("--require", "ffn=swiglu not-worse") == status and verdict_of(finished) == before
    out, err = capfd.readouterr()
    assert "report:" not in out
    for name in rendering.RENDERERS:
        assert f"warning: {Path('runs/c', name)} could not be shown: OSError: [Errno 28] No space left on device" in err


def test_a_section_loses_only_the_part_that_fails(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results.from_json(finished / "runs/c/results.json")
    whole = {section.title: section.blocks for section in sections.sections(results)}
    for number, (title, makers) in enumerate(sections.SECTIONS):
        for place in range(len(makers)):
            broken = (*makers[:place], fail(ValueError("x")), *makers[place + 1 :])
            with monkeypatch.context() as patch:
                table = (*sections.SECTIONS[:number], (title, broken), *sections.SECTIONS[number + 1 :])
                patch.setattr(sections, "SECTIONS", table)
                found = {section.title: section.blocks for section in sections.sections(results)}
            others = [block for block in found.pop(title) if getattr(block, "text", "") != "Not shown: ValueError: x."]
            assert all(block in whole[title] for block in others)
            assert found == {key: blocks for key, blocks in whole.items() if key != title}


def test_an_interrupt_is_not_swallowed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "sample_lines", fail(KeyboardInterrupt()))
    assert run() == 130
