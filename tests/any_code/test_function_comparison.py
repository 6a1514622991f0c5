"""Functions as trials: in this process and in workers, with failures, interrupts and settings that cannot be stored."""

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partwise
from partwise.any_code.function_comparison import make_function_comparison
from partwise.comparison.certificate.agreement import check_folder
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import check_protocol, check_seeds, verify
from partwise.comparison.ledger.project import project_folder
from partwise.comparison.trials.job import FUNCTIONS
from partwise.comparison.trials.servers import start_server
from partwise.config import ConfigError
from processes import gone

Report = Callable[[int, float], None]
called: list[tuple[int, float]] = []


def train(seed: int, report: Report, gain: float = 0.0, crash: int = -1, stop: int = -1) -> float:
    """A noisy loss that `gain` lowers."""
    called.append((seed, gain))
    if seed == crash:
        raise ValueError("no\nmemory")
    if seed == stop:
        raise KeyboardInterrupt
    loss = expected(seed, gain)
    for step in range(3):
        report(step, loss + 1 / (1 + step))
    report(3, float("nan"))
    return np.float32(loss)  # type: ignore[return-value]


def expected(seed: int, gain: float) -> float:
    return 1 - gain + random.Random(seed).gauss(0, 0.05) + random.Random(f"{seed} {gain}").gauss(0, 0.002)


ARMS: dict[str, dict[str, Any]] = {"base": {}, "gain": {"gain": 0.1}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    called.clear()
    return tmp_path


def compare(arms: dict[str, dict[str, Any]] = ARMS, function: Any = train, **settings: Any) -> partwise.Comparison:
    usual = {"margin": 0.01, "seeds": 4, "progress": False, "name": "f"}
    return partwise.compare_function(function, arms, **{**usual, **settings})


def test_a_function_is_called_for_every_arm_and_seed_and_judged() -> None:
    made = compare(metric="loss", unit="nats")
    assert called == [(seed, gain) for seed in range(4) for gain in (0.0, 0.1)]
    assert made.verdicts == {"gain": "better"}
    assert [trial.value for trial in made.results.arms[1].trials] == [
        float(np.float32(expected(s, 0.1))) for s in range(4)
    ]
    assert [step for step, _, _ in made.results.arms[0].trials[0].evaluations] == [0, 1, 2]
    assert made.results.claims[0].effect.sentence in made.report.read_text()
    called.clear()
    compare(metric="loss", unit="nats")
    assert called == []


def test_a_changed_value_is_refused() -> None:
    made = compare()
    path = made.path / "runs" / "0-base" / "seed-1" / "result.json"
    path.write_text(re.sub(r'("value": )\d', r"\g<1>7", path.read_text()))
    with pytest.raises(ConfigError, match=r"seed-1/result\.json was changed after it was written: restore it, or"):
        compare()
    shutil.rmtree(path.parent)
    assert compare().results.claims == made.results.claims


@pytest.mark.parametrize("write", ["plan_file.write_json", "results.results.write_hashed"])
def test_a_full_disk_is_one_line_and_the_comparison_goes_on(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"partwise.comparison.{write}", full)
        with pytest.raises(
            ConfigError, match=r"cannot write runs/f: No space left on device: check disk space .*resume$"
        ):
            compare()
    assert compare().verdicts == {"gain": "better"}


def test_a_deleted_working_folder_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    server = start_server(FUNCTIONS)
    for use in (project_folder, lambda: server.submit(0, [Path("trial")])):
        with pytest.raises(ConfigError, match=r"^the working folder was deleted: change to an existing folder"):
            use()
    server.end()


def test_a_folder_that_cannot_be_written_shows_only_results_that_its_certificate_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = compare()
    monkeypatch.setattr("partwise.comparison.finished.os.access", lambda *_: False)
    assert compare().verdicts == made.verdicts
    made.results.model_copy(update={"claims": ()}).to_json(made.path / "results.json")  # its hash is right
    with pytest.raises(ConfigError, match=r"results\.json and certificate\.json differ: it has no verdict on gain"):
        compare()


def test_higher_may_be_better() -> None:
    assert compare(higher_is_better=True).verdicts == {"gain": "worse"}


def test_an_exception_is_a_failed_trial_and_the_others_go_on() -> None:
    made = compare({"base": {}, "crash": {"crash": 2, "gain": 0.1}})
    (failed,) = [trial for trial in made.results.arms[1].trials if trial.value is None]
    assert failed.seed == 2 and failed.reason == "ValueError: no memory"
    assert "raise ValueError" in (made.path / str(failed.log)).read_text()
    assert made.verdicts == {"crash": None}


@pytest.mark.parametrize("value", [None, "good", [1.0], float("nan")])
def test_what_is_no_finite_number_is_a_failed_trial(value: Any) -> None:
    def function(seed: int, report: Report, x: int = 0) -> Any:
        return value if x else random.Random(seed).random()

    made = compare({"a": {}, "b": {"x": 1}}, function)
    assert all(trial.value is None and "returned" in str(trial.reason) for trial in made.results.arms[1].trials)


def test_a_function_that_always_fails_stops_at_once_and_can_be_mended() -> None:
    def broken(seed: int, report: Report, gain: float = 0.0) -> float:
        called.append((seed, gain))
        return expected(seed, gain) if len(called) > 2 else 1 / 0

    with pytest.raises(ConfigError, match=r"the first 2 trials all ended without a value \(ZeroDivisionError"):
        compare(function=broken)
    assert len(called) == 2
    assert compare(function=broken).verdicts == {"gain": "better"}


def test_an_interrupt_loses_no_finished_trial() -> None:
    with pytest.raises(KeyboardInterrupt):
        compare({"base": {}, "gain": {"gain": 0.1, "stop": 2}})
    assert called == [(0, 0.0), (0, 0.1), (1, 0.0), (1, 0.1), (2, 0.0), (2, 0.1)]
    called.clear()
    with pytest.raises(KeyboardInterrupt):
        compare({"base": {}, "gain": {"gain": 0.1, "stop": 2}})
    assert called == [(2, 0.1)]


SCRIPT = """\
import partwise
from training import train

if __name__ == "__main__":
    made = partwise.compare_function(train, {"base": {}, "gain": {"gain": 0.1}}, margin=0.01, seeds=4, workers=2)
    assert made.verdicts == {"gain": "better"}, made
    import sys
    assert "torch" not in sys.modules
"""

TRAINING = """\
import random

def train(seed, report, gain=0.0):
    print("training", seed)
    shared, own = random.Random(seed).gauss(0, 0.05), random.Random(f"{seed} {gain}").gauss(0, 0.002)
    return 1 - gain + shared + own
"""


SLOW = """\
import os, time
from pathlib import Path

def train(seed, report, gain=0.0):
    if seed or Path("go").exists():
        return 1 + seed - gain
    Path(f"pid-{gain}").write_text(str(os.getpid()))
    time.sleep(60)
"""

SLOW_SCRIPT = """\
import partwise
from slow import train

arms = {"base": {}, "gain": {"gain": 0.1}}
made = partwise.compare_function(train, arms, margin=0.01, seeds=2, workers=2, name="f", progress=False)
print(len(made.verdicts))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: only there a call ends with its server")
@pytest.mark.parametrize("ended", ["parent killed", "server killed", "interrupt", "a call asked to end"])
def test_a_running_call_ends_with_its_comparison(here: Path, ended: str) -> None:
    (here / "slow.py").write_text(SLOW)
    (here / "script.py").write_text(SLOW_SCRIPT)
    words = [sys.executable, "script.py"]
    script = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pids = [here / "pid-0.0", here / "pid-0.1"]
    for _ in range(400):
        if all(path.exists() and path.read_text() for path in pids):
            break
        time.sleep(0.05)
    calls = [int(path.read_text()) for path in pids]
    server = int(Path(f"/proc/{calls[0]}/stat").read_text().rpartition(")")[2].split()[1])
    target, number = {
        "parent killed": (script.pid, signal.SIGKILL),
        "server killed": (server, signal.SIGKILL),
        "interrupt": (script.pid, signal.SIGINT),
        "a call asked to end": (calls[0], signal.SIGTERM),
    }[ended]
    os.kill(target, number)
    assert all(map(gone, [*calls, server]))
    _, errors = script.communicate(timeout=20)
    assert script.returncode != 0
    assert ("base, seed 0: interrupted; run the same command again" in errors) == (ended == "a call asked to end")
    (here / "go").touch()
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "1\n"


def test_workers_import_the_function_from_its_file(here: Path) -> None:
    folder = here / "my project"
    folder.mkdir()
    (folder / "training.py").write_text(TRAINING)
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(folder / "script.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = here.glob("runs/*/runs/1-gain/seed-3/stdout.txt")
    assert log.read_text() == "training 3\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arms": {"base": {}}}, "arms needs at least two"),
        ({"arms": {"a": {"gain": 1}, "b": {"gain": 1}}}, "arm 'b' has the same settings as 'a'"),
        (
            {"arms": {"a": {}, "b": {"model": object()}}},
            r"arms\['b'\]\['model'\]=<object.*settings are stored",
        ),
        ({"arms": {"a": {}, "b": {"seed": 1}}}, r"arms\['b'\]\['seed'\]: the name is taken"),
        ({"margin": 0.0}, r"margin=0\.0: give the largest difference"),
        ({"function": lambda seed: 1.0}, "has no parameter 'report': define it as train"),
        ({"function": lambda seed, report, x=0: 1.0, "workers": 2}, "worker processes cannot import .*lambda"),
    ],
)
def test_one_line_for_what_cannot_be_compared(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compare(**settings)
    assert "\n" not in str(caught.value) and not Path("runs").exists()


def test_another_version_of_the_function_does_not_continue() -> None:
    def first(seed: int, report: Report, gain: float = 0.0) -> float:
        return expected(seed, gain)

    def second(seed: int, report: Report, gain: float = 0.0) -> float:
        return expected(seed, gain) + 1

    second.__qualname__ = first.__qualname__
    compare(function=first)
    with pytest.raises(ConfigError, match="holds another comparison"):
        compare(function=second)


def test_a_function_is_no_preset() -> None:
    with pytest.raises(ConfigError, match=r"compare a function by partwise\.compare_function"):
        partwise.compare(train)  # type: ignore[arg-type]


def test_tuples_are_settings_and_come_as_lists() -> None:
    seen: list[Any] = []

    def function(seed: int, report: Report, widths: Any = ()) -> float:
        seen.append(widths)
        return expected(seed, len(widths))

    made = make_function_comparison(function, {"a": {}, "b": {"widths": (1, 2)}}, margin=0.1, seeds=2, name="t")
    made.run()
    assert [1, 2] in seen


def test_designs_with_more_runs_of_the_baseline_from_start_to_certificate() -> None:
    """The baseline has further seeds; a repeated command trains nothing, and more seeds or arms keep the verdict."""
    for design in ("unpaired", "covariate"):
        settings: dict[str, Any] = {"seeds": 8, "design": design, "baseline_runs": 2, "name": design}
        called.clear()
        made = compare(**settings)
        assert sorted(called) == sorted([*((seed, 0.0) for seed in range(16)), *((seed, 0.1) for seed in range(8))])
        (effect,) = made.results.effects
        assert (effect.verdict, effect.n_arm, effect.n_against) == ("better", 8, 16)
        certificate = Certificate.read(made.path)
        assert (certificate.plan["design"], certificate.plan["baseline_runs"]) == (design, 2)
        assert certificate.judged_seeds == 8
        called.clear()
        assert compare(**settings).results.effects == made.results.effects and not called
        more = compare(**settings | {"seeds": 10})
        assert len(called) == 2 + 4 and more.results.effects == made.results.effects
        (exploratory,) = [claim.exploratory for claim in more.results.claims]
        assert exploratory and (exploratory.n_arm, exploratory.n_against) == (10, 20)
        certificate = Certificate.read(made.path)
        faults = [check.fault for check in [*verify(certificate), *check_folder(certificate, made.path)]]
        assert faults == [None] * len(faults)
        called.clear()
        further = compare({**ARMS, "third": {"gain": 0.2}}, **settings | {"seeds": 10})
        assert {gain for _, gain in called} == {0.2} and len(called) == 10
        assert further.path.name == f"{design}-2" and len(further.results.effects) == 2
        with pytest.raises(ConfigError, match="baseline_runs was 2, now 3"):
            compare(**settings | {"seeds": 10, "baseline_runs": 3})
        with pytest.raises(ConfigError, match=f"design was {design}"):
            compare(seeds=10, name=design)


def test_looks_of_a_design_with_more_runs_of_the_baseline() -> None:
    made = compare(looks=(4, 8), design="covariate", baseline_runs=2, name="looks")
    certificate = Certificate.read(made.path)
    n = made.results.effects[0].n_arm
    assert {arm: len(runs) for arm, runs in certificate.values.items()} == {"base": 2 * n, "gain": n}
    assert not any(check.fault for check in [*verify(certificate), *check_folder(certificate, made.path)])
    shorter = certificate.model_copy(
        update={"values": {**certificate.values, "base": dict(list(certificate.values["base"].items())[:-1])}}
    )
    assert check_seeds(shorter) == f"base has {2 * n - 1} seeds, which is not a planned look"
    paired = certificate.model_copy(update={"protocol": certificate.protocol.model_copy(update={"design": "paired"})})
    assert check_protocol(paired) == "design was planned as covariate, but is paired"


def test_few_seeds_are_refused_with_more_runs_of_the_baseline() -> None:
    with pytest.raises(ConfigError, match="needs at least 8 seeds, and 7 are planned"):
        compare(seeds=7, design="unpaired", baseline_runs=2)
    assert not called
