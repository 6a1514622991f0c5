"""A search whose runs go beside each other: pinned, and with the answers of one run at a time."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from partwise import machine
from partwise.any_code import search_runs
from partwise.any_code.open_search import open_search
from partwise.cli.commands.try_candidate import at_a_time
from partwise.comparison.search.answer import Tried
from partwise.config import ConfigError
from searches import METRIC, commit, make_repository, ran, settings, try_, words

SEES_CORES = """\
. ./settings.sh
grep Cpus_allowed_list /proc/self/status > "$LOG-$SEED"
for i in $(seq 400); do [ -e "$LOG-$((SEED ^ 1))" ] && break; sleep 0.05; done
[ -e "$LOG-$((SEED ^ 1))" ] || { echo no neighbour >&2; exit 1; }
echo $SEED >> "$LOG"
[ -z "$FAIL" ] || [ $((SEED % 100)) -ne $FAIL ] || { echo out of ideas >&2; exit 1; }
echo "loss $((100000 + GAIN + (SEED * 7919) % 97))"
"""

needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores to pin to"
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_repository(tmp_path, monkeypatch)


def tried(name: str, folder: Path, candidates: list[str], **others: object) -> list[Tried]:
    with open_search(name, settings(folder, **others), METRIC) as opened:
        return [opened.answer(each, "", again=False) for each in candidates]


@needs_two_cores
def test_two_workers_have_cores_of_their_own_and_give_the_answers_of_one(repository: Path) -> None:
    """Each run waits for the one beside it, and fails if that never starts."""
    start = commit("sees its cores", train__sh=SEES_CORES)
    good = commit("helps", settings__sh="GAIN=-200\nFAIL=\n")
    late = commit("its third run fails", settings__sh="GAIN=-500\nFAIL=2\n")
    candidates = [start, good, late, start]
    with pytest.raises(ConfigError, match="equals the best"):
        tried("two", repository, [start], start=start, workers=2)
    two = tried("two", repository, candidates[1:], workers=2)
    counts = Counter(ran(repository))
    assert set(counts.values()) == {1}
    seeds = [*range(4), *range(100, 104), *range(200, 204), *range(300, 304), 400, 401]
    assert sorted(counts) == seeds
    pinned = [(repository / f"ran-{seed}").read_text() for seed in counts]
    assert len(set(pinned)) == 2 and not any("-" in line or "," in line for line in pinned)
    for seed in counts:
        assert (repository / f"ran-{seed}").read_text() != (repository / f"ran-{seed ^ 1}").read_text()
    assert {(repository / f"ran-{seed}").read_text() for seed in range(0, 500, 100)} == set(pinned), (
        "no core is favored"
    )

    for seed in range(500):  # now nothing waits
        (repository / f"ran-{seed}").touch()
    one = tried("one", repository, candidates[1:], start=start)
    assert [each.decision for each in one] == ["keep", "discard", "discard"]
    assert one[1].values[-1] is None and len(one[1].values) == 3
    seconds = {"seconds": 0.0, "peak_memory": None}
    assert [each.model_copy(update=seconds) for each in two] == [each.model_copy(update=seconds) for each in one]


@needs_two_cores
def test_workers_are_a_setting_of_the_search_and_are_told(repository: Path) -> None:
    done = try_(*words(repository, "--workers", "2"))
    assert done.exit_code == 0 and "2 runs go at a time, each on cores of its own (0; 1)" in done.output, done.output
    assert sorted(ran(repository)) == [0, 1, 2, 3]
    done = try_("--search", "s", "--workers", "1")
    assert "--workers 1: search s has 2, and a search keeps its settings" in str(done.exception)
    done = try_(*words(repository), "--workers", "0")
    assert done.exit_code == 2


def test_cores_are_told_as_ranges() -> None:
    told = at_a_time([[*range(8), 64, 66, 67], [8]])
    assert told.startswith(
        "2 runs go at a time, each on cores of its own (0-7,64,66-67; 8): a time budget is fair only"
    )


def test_without_cores_of_their_own_nothing_runs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6, 7}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(machine, "physical_core", lambda cpu: (0, cpu % 2))
    if sys.platform != "win32":
        assert machine.core_groups(2) == [[4, 6], [5, 7]] and machine.core_groups(1) == [[4, 5, 6, 7]]
        with pytest.raises(
            ConfigError, match="3 workers need cores of their own, and this process has 2: give a new search fewer"
        ):
            tried("s", repository, [], workers=3)
    monkeypatch.setattr(search_runs, "visible_devices", lambda: ["0"])
    with pytest.raises(
        ConfigError, match="2 workers need GPUs of their own, and this machine has 1: give a new search fewer"
    ):
        tried("s", repository, [], workers=2)
    monkeypatch.setattr(search_runs, "visible_devices", list)
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ConfigError, match="does not pin processes to cores: leave --workers out"):
        tried("s", repository, [], workers=2)
    assert not (repository / "runs").exists()
