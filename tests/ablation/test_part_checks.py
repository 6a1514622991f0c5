"""A comparison checks the parts of a user's own: each arm before the first run, each run before it is judged."""

from pathlib import Path
from typing import Any

import pytest

from comparisons import SETTINGS
from own_parts import write_parts
from partwise.ablation import part_checks
from partwise.ablation.rerun import rerun
from partwise.ablation.run_comparison import RunComparison, plan_comparison
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.report import write_report
from partwise.comparison.results import Results
from partwise.config import REGISTRY, ConfigError, import_parts


@pytest.fixture(autouse=True)
def own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "ffn", dict(REGISTRY["ffn"]))
    import_parts(write_parts(here, "compare"))


def comparison(here: Path, *words: str, **settings: Any) -> RunComparison:
    imports = (str(here / "parts_compare.py"),)
    return plan_comparison("mingpt", *words, name="c", seeds=2, imports=imports, workers=1, **{**SETTINGS, **settings})


def test_an_arm_that_looks_ahead_is_refused_before_anything_runs(here: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"arm ffn=ahead_compare: ffn=ahead_compare .*sees the tokens that it predicts"
    ):
        comparison(here, "ffn=ahead_compare").run()
    assert not (here / "runs").exists() and not (here / "ledger.jsonl").exists()


def test_a_leak_that_training_opens_is_refused_before_the_verdict(here: Path) -> None:
    """The runs stay: the same comparison that allows it judges them, and its report says so first."""
    opens = ("ffn=ahead_compare", "ffn.opens=6.0")
    with pytest.raises(ConfigError, match=r"arm .*, seed 0: .* with the trained weights"):
        comparison(here, *opens).run()
    assert not (here / "runs/c/results.json").exists()
    before = {path: path.stat().st_mtime_ns for path in here.glob("runs/c/runs/*/seed-*/result.json")}
    results = comparison(here, *opens, allow_leak=True).run()
    assert len(before) == 4 and before == {path: path.stat().st_mtime_ns for path in before}
    found = results.arms[1].findings
    assert [(each.seed, each.outcome) for each in found if each.outcome != "passed"] == [(0, "leak"), (1, "leak")]
    assert results.arms[0].findings == ()
    assert (here / "runs/c/report.md").read_text().startswith("**Arm ffn=ahead_compare ffn.opens=6.0 sees the tokens")
    imports = (str(here / "parts_compare.py"),)
    repeats = rerun(Certificate.read(here / "runs/c"), 4, imports, lambda trials: None)
    assert [bool(each.leak) for each in repeats] == [each.arm != "mingpt" for each in repeats]
    page = (here / "runs/c/report.html").read_text()
    assert page.index("no verdict on it counts") < page.index("<h1>")


def test_arms_are_checked_once_and_warnings_are_in_the_report(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    check_arm = part_checks.check_arm
    monkeypatch.setattr(
        part_checks, "check_arm", lambda config, dataset: (checked.append(config), check_arm(config, dataset))[1]
    )
    arms = ["ffn=plain_compare train.lr=1e-3", "ffn=plain_compare ffn.hidden=4"]
    results = comparison(here, "ffn=plain_compare", arms=arms).run()
    assert len(checked) == 2  # the learning rate changes nothing
    assert [len(arm.findings) for arm in results.arms] == [0, 7, 7, 7]
    assert {each.outcome for arm in results.arms for each in arm.findings} == {"passed"}
    assert "Checks of your own parts" in (here / "runs/c/report.md").read_text()
    again = Results.from_json(here / "runs/c/results.json")
    assert again.arms[1].findings == results.arms[1].findings
    write_report(again, here)


def test_weights_that_were_deleted_are_a_warning(here: Path) -> None:
    import shutil

    comparison(here, "ffn=plain_compare").run()
    for folder in here.glob("runs/c/runs/1-*/seed-1/checkpoints"):
        shutil.rmtree(folder)
    found = comparison(here, "ffn=plain_compare").run().arms[1].findings
    assert [each.measured for each in found if each.outcome == "warning"] == [
        "the trained weights were deleted, so they were not checked"
    ]
