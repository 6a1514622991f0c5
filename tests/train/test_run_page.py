"""The page of a run: complete, from the files of the run alone, also if the run has not ended or its data are gone."""

import json
import re
from pathlib import Path

import pytest

from partwise.config import ConfigError
from partwise.train.config import run_config
from partwise.train.loop import Diverged
from partwise.train.run_folder import Interrupted, RunFolder
from partwise.train.run_metadata import open_run
from partwise.train.run_page import StoredRun, changes, write_run_page

TINY = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.batch_size=4", "train.threads=1"]
TINY += ["train.steps=12", "train.eval_every=3", "train.precision=float32"]
COMMAND = ["partwise train mingpt ffn=swiglu --data text.txt --name tried"]


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of 12 steps."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the quick brown fox <b>jumps</b> over the lazy dog. " * 60)
    config = run_config("mingpt", "ffn=swiglu", *TINY, data="text.txt")
    run = RunFolder(Path("runs/tried"), config, command=COMMAND)
    list(run.events())
    return run.path


def text_of(page: Path) -> str:
    """The page without its style, figures and tags."""
    html = re.sub(r"<(style|svg|script)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    return re.sub(r"<[^>]*>", "\n", re.sub(r"</?span[^>]*>", "", html))


def test_everything_is_on_the_page(tried: Path) -> None:
    page = write_run_page("tried")
    assert page == tried / "report.html"
    html, text = page.read_text("utf-8"), text_of(page)
    losses = [e["validation"] for e in json.loads((tried / "result.json").read_text())["evaluations"]]
    assert f"Validation loss {losses[-1]:.4f} nats per character: " in text and len(losses) == 4
    for loss in losses:
        assert f"{loss:.4f}" in text
    metadata = json.loads((tried / "run.json").read_text())
    for said in (*COMMAND, "mingpt", "swiglu", f"{metadata['parameters']:,}", metadata["machine"]["torch"], "768"):
        assert str(said) in text, said
    assert "12 of 12, each 4 x 16" in text and "Continued by the model:" in text
    assert html.count('<svg viewBox="0 0') >= 4, "three views of the loss and the scale"
    assert "7-gram" in html and "<b>" not in html, "text of the data is escaped"
    assert re.findall(r"https?:|src=", html) == []
    assert "2.66667" in text and re.findall(r".{20}\.0*[1-9]\d{8,}", html) == [], "the expansion of swiglu is 8/3"


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
def test_a_changed_loss_is_refused(name: str, tried: Path) -> None:
    file = tried / name
    text = file.read_text()
    file.write_text(text.replace('"validation": ', '"validation": 1', 1))
    assert file.read_text() != text
    with pytest.raises(ConfigError, match=rf"{name} was changed after the run had ended: restore it, or delete"):
        write_run_page("tried")


def test_the_differences_from_the_preset_are_complete(tried: Path) -> None:
    """Applying the listed changes to the preset gives the run's configuration."""
    found = {path: (old, new) for path, old, new in changes(StoredRun(*open_run("tried")))}
    assert found["ffn"] == ("relu", "swiglu") and found["train.steps"] == (5000, 12)
    words = [f"{path}={json.dumps(new)}" for path, (_, new) in found.items() if new is not None]
    again = run_config("mingpt", *words, data="text.txt")
    assert again.to_dict() == open_run("tried")[1].to_dict()


def test_a_page_without_its_data_says_so(tried: Path) -> None:
    Path("text.txt").unlink()
    text = text_of(write_run_page(tried))
    assert re.search(r"No n-gram scale and no sample: .*text\.txt", text) and "Continued by" not in text
    assert "Validation loss" in text and "gram and" not in text


def test_a_run_that_was_stopped_has_a_page(tried: Path) -> None:
    run = RunFolder(tried, run_config("mingpt", "ffn=swiglu", *TINY, data="text.txt"), fresh=True, command=COMMAND)
    run.stop_requested = True
    with pytest.raises(Interrupted):
        list(run.events())
    text = text_of(write_run_page("tried"))
    assert "Not finished: step 1 of 12." in text and "1 of 12, each 4 x 16" in text


def test_a_run_that_diverged_has_a_page(tried: Path) -> None:
    run = RunFolder(Path("runs/high"), run_config("mingpt", *TINY, "train.lr=1e30", data="text.txt"), command=COMMAND)
    with pytest.raises(Diverged):
        list(run.events())
    page = write_run_page("high")
    assert "logits are not finite: it diverged in training" in text_of(page)
    assert "Diverged at step" in text_of(page) and '<div class="verdict worse">' in page.read_text("utf-8")


def test_starting_over_removes_the_page(tried: Path) -> None:
    page = write_run_page("tried")
    RunFolder(tried, run_config("mingpt", *TINY, data="text.txt"), fresh=True).close()
    assert not page.exists()


def test_a_damaged_run_is_one_line(tried: Path) -> None:
    (tried / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="format"):
        write_run_page("tried")
