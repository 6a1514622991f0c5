"""The scorecard of docs/reliability.md: its checks find the faults that they look for, and its table shows its figures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partwise.config import ConfigError
from partwise.generation.sampling import Sampling
from partwise.json_files import write_hashed
from partwise.kernels.threads import set_threads
from partwise.train import run_checkpoints
from partwise.train.averaging import KEPT
from partwise.train.loop import Run
from reliability import CHECKS, measure
from reliability_runs import Check

LONG = ("compare-kill", "report-kill", "compare-flip", "reading-flip")
"""Checks whose trials run commands for many seconds: `make test-reliability` begins with their tests."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CHECKS]
)
def test_the_first_trials_of_every_check_keep_their_promise(name: str, tmp_path: Path) -> None:
    trial = CHECKS[name].prepare(tmp_path)
    for number in range(1 if name == "compare-kill" else 3):
        trial(number)


def test_a_resume_that_forgets_the_optimizer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = CHECKS["resume"].prepare(tmp_path)
    monkeypatch.setattr(Run, "restore", lambda run, step, weights, optimizer: setattr(run, "step", step))
    with pytest.raises(AssertionError, match="ends differently"):
        trial(0)


def test_damage_that_nothing_verifies_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = CHECKS["flip"].prepare(tmp_path)
    monkeypatch.setattr("partwise.checkpoint.verify", lambda folder: None)
    monkeypatch.setattr(run_checkpoints, "check_metrics", lambda *_: None, raising=False)
    with pytest.raises(AssertionError, match="silent damage"):
        for number in range(200):
            trial(number)


def test_a_save_that_is_not_synced_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.checkpoint.sync", lambda path: None)
    trial = CHECKS["power"].prepare(tmp_path)
    with pytest.raises((AssertionError, ConfigError)):
        for number in range(300):
            trial(number)


def test_two_owners_of_a_run_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filelock.FileLock.acquire", lambda lock, timeout: None)
    trial = CHECKS["race"].prepare(tmp_path)
    with pytest.raises((AssertionError, ConfigError, FileNotFoundError)):
        for number in range(50):
            trial(number)


def test_prepared_data_that_are_not_verified_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = CHECKS["prepare-flip"].prepare(tmp_path)
    monkeypatch.setattr("partwise.data.shards._open_ids", lambda path, shard: np.fromfile(path, dtype=shard.dtype))
    with pytest.raises(AssertionError, match="silent damage"):
        for number in range(100):
            trial(number)


def test_a_kernel_that_is_not_verified_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = CHECKS["kernel-flip"].prepare(tmp_path)
    monkeypatch.setattr("partwise.kernels.build.file_sha256", lambda path: path.name.split(".")[-2])
    monkeypatch.setattr("partwise.kernels.build.ctypes.CDLL", lambda path: None)  # it might crash
    with pytest.raises(AssertionError, match="a damaged kernel was loaded"):
        trial(0)


def change_a_digit(path: Path, key: str) -> Path:
    """Change the third digit after the point of the first value of a key."""
    text = path.read_text()
    at = text.index(".", text.index(f'"{key}": ')) + 3
    path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")
    return path


@pytest.mark.long
def test_results_that_are_not_verified_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed digit of the file that reports and lists are made from."""
    trial = CHECKS["reading-flip"].prepare(tmp_path)
    monkeypatch.setattr(
        "reliability_stored.flip_bit", lambda folder, draw: change_a_digit(folder / "c/results.json", "value")
    )
    assert trial(0) == "told"
    monkeypatch.setattr(
        "partwise.comparison.results.results.check_hash", lambda content, *_: content.pop("sha256", None)
    )
    with pytest.raises(AssertionError, match="silent damage"):
        trial(0)


def test_changed_values_of_commands_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by their hash; and by the check, if the change includes the hash."""
    trial = CHECKS["command-flip"].prepare(tmp_path)

    def change_a_value(folder: Path, draw: object) -> Path:
        return change_a_digit(sorted(folder.glob("c/runs/*/seed-*/result.json"))[0], "value")

    def change_a_value_and_its_hash(folder: Path, draw: object) -> Path:
        path = change_a_value(folder, draw)
        content = json.loads(path.read_text())
        del content["sha256"]
        write_hashed(path, content)
        return path

    monkeypatch.setattr("reliability_stored.flip_bit", change_a_value)
    assert [trial(number) for number in range(2)] == ["told", "told"]
    monkeypatch.setattr("reliability_stored.flip_bit", change_a_value_and_its_hash)
    for number in range(2):
        with pytest.raises(AssertionError, match="silent damage"):
            trial(number)


def test_a_gradient_that_is_not_checked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = CHECKS["nonfinite"].prepare(tmp_path)
    monkeypatch.setattr("partwise.train.loop.math.isfinite", lambda value: True)
    monkeypatch.setattr(Run, "check_finite", lambda run: None)
    with pytest.raises((AssertionError, ValueError)):  # JSON refuses NaN
        trial(0)


def test_every_file_operation_of_a_run_may_fail(tmp_path: Path) -> None:
    trial = CHECKS["errors"].prepare(tmp_path)
    outcomes = [trial(number) for number in range(0, 200, 2)]
    assert set(outcomes) == {"told", "harmless"}  # only prepared data that cannot be read are prepared again in silence
    assert outcomes.count("harmless") < 10


def test_threads_that_change_the_rounding_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = CHECKS["threads"].prepare(tmp_path)
    monkeypatch.setattr("partwise.compute.runtime.set_threads", lambda threads, deterministic: set_threads(threads))
    with pytest.raises(AssertionError, match="threads differ"):
        for number in range(3):
            trial(number)


def test_a_configuration_that_resumes_differently_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = CHECKS["configurations"].prepare(tmp_path)
    monkeypatch.setattr(Run, "restore", forgetful(Run.restore))
    with pytest.raises(AssertionError, match="the resumed run ends differently"):
        for number in range(12):
            trial(number)


def forgetful(restore: Callable[..., None]) -> Callable[..., None]:
    """A run that resumes without its optimizer's state, which is refused without the averages of the weights."""

    def forget(run: Run, step: int, weights: Any, optimizer: Any) -> None:
        restore(run, step, weights, {name: optimizer[name] for name in optimizer if name.rpartition(".")[2] in KEPT})

    return forget


def test_a_biased_sampler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, sample = CHECKS["sampling"].prepare(tmp_path), Sampling.sample
    monkeypatch.setattr(Sampling, "sample", lambda self, logits, uniform: sample(self, logits, uniform * 0.99))
    with pytest.raises(AssertionError, match="chi-square"):
        trial(0)


def test_trials_go_on_where_they_stopped_and_misses_are_counted() -> None:
    seen: list[int] = []

    def trial(number: int) -> str:
        seen.append(number)
        assert number != 2, "broken"
        return "equal"

    check = Check("p", 4, lambda folder: trial)
    counts: dict[str, Any] = measure(check, {"trials": 1, "outcomes": {"equal": 1}}, 60)
    assert seen == [1, 2, 3] and measure(check, counts, 60) == counts
    assert counts == {
        "trials": 4,
        "outcomes": {"equal": 3},
        "missed": 1,
        "misses": ["trial 2: AssertionError: broken"],
    }
