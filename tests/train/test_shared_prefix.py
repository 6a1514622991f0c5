"""A run that starts from the steps that it shares with a shorter run is bitwise the run that starts at step 0."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.test_run_folder import DROPOUT, last_checkpoint, metrics_of

from partwise.checkpoint import list_checkpoints, step_of
from partwise.model import Transformer
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Step
from partwise.train.run_folder import Interrupted, RunFolder
from partwise.train.shared_prefix import SharedRun, shared_steps, with_steps

Tiny = Callable[..., RunConfig]
SETTINGS = {
    "wsd": (["schedule=wsd", "schedule.warmup=2", "schedule.decay_fraction=0.5"], 4),
    "dropout": ([*DROPOUT, "schedule=wsd", "schedule.warmup=0", "train.grad_accumulation=2"], 6),
    "muon": (["schedule=wsd", "schedule.decay_fraction=0.5", "optimizer=muon", "train.grad_clip=0.5"], 4),
    "constant": ([], 6),
    "averaged weights": (["averaging=ema", "averaging.decay=0.5"], 6),
    "averages of the last half": (["averaging=swa", "averaging.fraction=0.5"], 4),
    "warmup of a cosine": (["schedule=cosine", "schedule.warmup=2"], 3),
    "late multi-token prediction": (["mtp=heads", "mtp.start_fraction=0.5"], 3),
}


def steps_of(folder: RunFolder, stop: int | None = None) -> Iterator[int]:
    for event in folder.events():
        if isinstance(event, Step):
            folder.stop_requested = event.step == stop
            yield event.step


@pytest.fixture
def lengths(tiny: Tiny) -> Callable[..., tuple[RunConfig, RunConfig]]:
    """A run of 6 steps and one of 12."""

    def make(words: list[str]) -> tuple[RunConfig, RunConfig]:
        short = tiny(*words, "train.steps=6", "train.eval_every=2")
        return short, with_steps(short, 12)

    return make


@pytest.mark.parametrize(("words", "shared"), SETTINGS.values(), ids=SETTINGS)
def test_an_extended_run_is_bitwise_the_run_alone(
    tmp_path: Path, lengths: Callable[..., tuple[RunConfig, RunConfig]], words: list[str], shared: int
) -> None:
    short, long = lengths(words)
    alone, first, second = (tmp_path / name for name in ("alone", "first", "second"))
    assert list(steps_of(RunFolder(alone, long))) == list(range(1, 13))
    assert list(steps_of(RunFolder(first, short, extension=SharedRun(to=12)))) == list(range(1, 7))
    assert shared in [step_of(path) for path in list_checkpoints(first / "checkpoints")]
    assert list(steps_of(RunFolder(second, long, extension=SharedRun(of=first)))) == list(range(shared + 1, 13))
    assert last_checkpoint(second) == last_checkpoint(alone)
    assert metrics_of(second) == metrics_of(alone)


def test_an_extended_run_resumes_from_its_own_checkpoints(
    tmp_path: Path, lengths: Callable[..., tuple[RunConfig, RunConfig]]
) -> None:
    short, long = lengths(SETTINGS["wsd"][0])
    list(steps_of(RunFolder(tmp_path / "alone", long)))
    list(steps_of(RunFolder(tmp_path / "first", short, extension=SharedRun(to=12))))
    extension = SharedRun(of=tmp_path / "first")
    with pytest.raises(Interrupted):
        list(steps_of(RunFolder(tmp_path / "second", long, extension=extension), stop=8))
    shutil.rmtree(tmp_path / "first")
    assert list(steps_of(RunFolder(tmp_path / "second", long, extension=extension))) == [9, 10, 11, 12]
    assert last_checkpoint(tmp_path / "second") == last_checkpoint(tmp_path / "alone")


@pytest.mark.parametrize("damage", ["model.safetensors", "metrics.jsonl", "run.json", "another run", "no checkpoint"])
def test_a_damaged_or_different_shorter_run_is_not_extended(
    tmp_path: Path, tiny: Tiny, lengths: Callable[..., tuple[RunConfig, RunConfig]], damage: str
) -> None:
    short, long = lengths(SETTINGS["wsd"][0])
    first = tmp_path / "first"
    list(steps_of(RunFolder(first, short, extension=SharedRun(to=12))))
    checkpoint = first / "checkpoints" / "step-00000004"
    if damage == "another run":
        long = long.with_override("train.lr=1e-3")
    elif damage == "no checkpoint":
        shutil.rmtree(checkpoint)
    else:
        path = (checkpoint if damage == "model.safetensors" else first) / damage
        content = bytearray(path.read_bytes())
        content[10] ^= 1
        path.write_bytes(content)
    lines: list[str] = []
    folder = RunFolder(tmp_path / "second", long, extension=SharedRun(of=first), log=lines.append)
    assert list(steps_of(folder)) == list(range(1, 13))
    assert len(lines) == 1 and "training from step 0 instead" in lines[0], lines


@given(
    name=st.sampled_from(["constant", "cosine", "wsd", "linear", "inverse_sqrt"]),
    warmup=st.integers(0, 30),
    short=st.integers(1, 60),
    more=st.integers(1, 60),
)
def test_steps_are_shared_until_the_schedule_depends_on_the_number_of_steps(
    name: str, warmup: int, short: int, more: int
) -> None:
    config = run_config("mingpt", f"schedule={name}", f"schedule.warmup={warmup}", f"train.steps={short}", "n_layers=1")
    expected = {
        "constant": short,
        "inverse_sqrt": short,
        "cosine": min(short, warmup + 1),
        "linear": min(short, warmup + 1),
        "wsd": short - max(1, round(0.2 * short)) + 1,
    }
    with torch.device("meta"):
        model = Transformer(config.model)
    assert shared_steps(config, short + more, model) == expected[name]


def test_evaluations_at_other_steps_are_another_run(tmp_path: Path, tiny: Tiny) -> None:
    """The metrics of the shared steps would differ."""
    words = ["schedule=wsd", "schedule.warmup=2"]
    list(steps_of(RunFolder(tmp_path / "first", tiny(*words, "train.steps=6"), extension=SharedRun(to=12))))
    lines: list[str] = []
    long = tiny(*words, "train.steps=12", "train.eval_every=5")
    folder = RunFolder(tmp_path / "second", long, extension=SharedRun(of=tmp_path / "first"), log=lines.append)
    assert list(steps_of(folder)) == list(range(1, 13)) and "another run" in lines[0]
