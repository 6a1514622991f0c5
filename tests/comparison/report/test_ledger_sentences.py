"""What a report says from the ledger: repeated questions and the level in the online sequence."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from partwise.comparison.report.ledger_sentences import ledger_sentences
from partwise.comparison.report.rendering import summary, write_report
from partwise.comparison.results import ArmResult, ClaimResult, OnlineLevel, Protocol, RepeatedQuestion, Results
from partwise.comparison.stats.protocol import Claim, Rules

PROTOCOL = Protocol(metric="validation loss", unit="nats", lower_is_better=True, margin=0.005, alpha=0.0032)
VALUES = {"mingpt": {0: 2.0, 1: 2.01}, "ffn=swiglu": {0: 1.9, 1: 1.92}}
(EFFECT,) = Rules(looks=(), alpha=0.0032).judge(VALUES, [Claim("ffn=swiglu", "mingpt")])
RESULTS = Results(
    question="Does it?",
    protocol=PROTOCOL,
    seeds=(0, 1),
    arms=tuple(ArmResult(name=name) for name in VALUES),
    claims=(ClaimResult(effect=EFFECT),),
)


def asked(*outcomes: str) -> RepeatedQuestion:
    names = tuple(f"run-{number}" for number, _ in enumerate(outcomes))
    counts = {outcome: outcomes.count(outcome) for outcome in outcomes}
    return RepeatedQuestion(arm="<b>swiglu", against="mingpt", times=len(outcomes), outcomes=counts, names=names)


def rendered(results: Results, folder: Path) -> list[str]:
    """HTML, markdown and terminal."""
    write_report(results, folder)
    console = Console(file=io.StringIO(), width=1000)
    console.print(summary(results))
    assert isinstance(console.file, io.StringIO)
    return [(folder / "report.html").read_text(), (folder / "report.md").read_text(), console.file.getvalue()]


@pytest.mark.parametrize(
    ("outcomes", "sentence"),
    [
        (["better"], "against mingpt was asked once before in this project: 1 better (run-0)."),
        (
            ["undecided", "better", "undecided", "unfinished", "undecided", "no verdict"],
            "against mingpt was asked 6 times before in this project: 1 better, 1 no verdict, 3 undecided, 1 unfinished "
            "(latest: run-1, run-2, run-3, run-4, run-5).",
        ),
    ],
)
def test_every_report_says_how_often_it_was_asked(tmp_path: Path, outcomes: list[str], sentence: str) -> None:
    html, markdown, terminal = rendered(RESULTS.model_copy(update={"asked_before": (asked(*outcomes),)}), tmp_path)
    assert sentence in html and sentence in markdown and sentence in terminal
    assert "<b>swiglu" not in html


def test_every_report_names_seeds_that_were_judged_before(tmp_path: Path) -> None:
    question = asked().model_copy(update={"same_seeds": {"runs/a": (0, 3), "runs/b": (3, 3)}})
    results = RESULTS.model_copy(update={"asked_before": (question, question.model_copy(update={"arm": "geglu"}))})
    end = "the verdicts are not independent; "
    claims = "swiglu against mingpt and geglu against mingpt"
    for text in rendered(results, tmp_path):
        assert f"{claims} were judged before, in runs/a: {end}" in text and "no earlier comparison" not in text
        assert "Seeds 0 to 3 of " in text and "Seed 3 of " in text and f"{claims} was judged before, in runs/b" in text
    assert Results.from_dict(results.to_dict()) == results
    assert "same_seeds" not in asked().to_dict()  # results of earlier versions keep their hashes


def test_a_new_question_is_said_to_be_new(tmp_path: Path) -> None:
    results = RESULTS.model_copy(update={"asked_before": (asked(),)})
    html, markdown, terminal = rendered(results, tmp_path)
    assert "no earlier comparison" in html and "no earlier comparison" in markdown
    assert ledger_sentences(results) == [] and "earlier" not in terminal


def test_without_a_ledger_nothing_is_said(tmp_path: Path) -> None:
    assert not any("The record" in text for text in rendered(RESULTS, tmp_path)[:2])


def test_the_level_is_stated(tmp_path: Path) -> None:
    online = OnlineLevel(alpha=0.05, level=0.0032, number=7, discoveries=1)
    sentence = (
        "Comparison 7 of this project's online sequence, started after 1 discovery: tested at alpha = 0.0032, so that"
    )
    for text in rendered(RESULTS.model_copy(update={"online": online}), tmp_path):
        assert sentence in text.replace("&#39;", "'") and "at most 5%" in text
