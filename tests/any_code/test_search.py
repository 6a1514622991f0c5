"""A search: what is kept and discarded, its pools, its ledger, kills, and what a candidate cannot change."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from partwise import json_files
from partwise.any_code import open_search
from partwise.any_code.search_settings import SearchSettings
from partwise.any_code.worktrees import Repository
from partwise.comparison.ledger.chain import Ledger
from partwise.comparison.ledger.project import project_ledger
from partwise.comparison.search.answer import SearchState
from partwise.comparison.search.rule import Design
from partwise.config import ConfigError
from repositories import git
from searches import ENVIRONMENT, METRIC, answer, command, commit, make_repository, ran, settings, try_, words

GOOD, NULL, CRASH = "GAIN=-200\nFAIL=\n", "GAIN=0 \nFAIL=\n", "GAIN=0\nFAIL=1\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_repository(tmp_path, monkeypatch)


def test_from_command_to_verdict(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that helps is kept and its fresh repeats are the next pool; the old best is then discarded after one run."""
    monkeypatch.setattr(SearchSettings, "design", Design())
    good = commit("helps", settings__sh=GOOD)
    done = try_(good, *words(repository, "--start", "HEAD~1", "--json"))
    assert done.exit_code == 0, done.output
    state = json.loads(done.stdout)
    assert state["answer"]["decision"] == "keep" and state["answer"]["description"] == "helps"
    assert state["best"]["commit"] == good and len(state["best"]["values"]) == 8
    assert state["answer"]["peak_memory"] > 2**20
    first = ran(repository)
    assert first == [*range(16), *range(100, 104), *range(200, 208)] and state["runs"] == len(first)
    assert SearchState.from_dict(state).to_dict() == state

    done = try_("HEAD~1", "--search", "s")
    assert done.exit_code == 1 and "✕ discard: the start" in done.output
    assert ran(repository)[len(first) :] == [300]
    shown = try_("--search", "s").output
    assert "best: try 1" in shown and "2 candidates tried, 1 kept; 29 runs in all" in shown
    assert ran(repository)[len(first) :] == [300], "showing a search runs nothing"


def test_the_pool_is_repeated_afresh_and_its_noise_is_pooled(repository: Path) -> None:
    good = commit("helps", settings__sh=GOOD)
    answer(repository, good, start="HEAD~1")
    with open_search.open_search("s", {}, None) as opened:
        known = opened.folder.known()
        winning, repeats = opened.folder.tries[0].tried.seeds, opened.folder.pools[-1].repeats
    assert len(known.pool.values) == 3 and not set(repeats["seeds"]) & set(winning)
    assert known.pool.df == 3 + 2 and known.pool.squares > 0, "of the first pool and of the candidate's 3 test runs"
    assert (known.tests, known.discoveries) == (1, (1,))


def test_a_candidate_that_crashes_ends_after_its_first_failure(repository: Path) -> None:
    crash = commit("crashes", settings__sh=CRASH)
    done = try_(crash, *words(repository, "--start", "HEAD~1"))
    assert done.exit_code == 1 and "run 1 failed: exit status 1: out of ideas" in done.output
    assert ran(repository) == [*range(4), 100]


def test_a_start_that_fails_can_be_mended_and_a_search_keeps_its_settings(repository: Path) -> None:
    mistaken = {**METRIC, "pattern": r"lost (\S+)"}
    message = r"the start, HEAD, failed: no match for lost .* in stdout; its output is in"
    with (
        pytest.raises(ConfigError, match=message),
        open_search.open_search("s", settings(repository), mistaken) as opened,
    ):
        opened.repeat_best()
    null = commit("nothing", settings__sh=NULL)
    assert answer(repository, null, start="HEAD~1").decision in ("discard", "undecided")
    with pytest.raises(ConfigError, match=r"--minutes 5.0: search s has 0.1, and a search keeps its settings"):
        answer(repository, null, start="HEAD~1", minutes=5.0)
    with pytest.raises(ConfigError, match=r"--fixed measure.sh: search s has none"):
        answer(repository, null, start="HEAD~1", fixed=["measure.sh"])


class Killed(BaseException):
    """The end of a process between two writes."""


def test_killed_before_every_write_nothing_is_lost_and_nothing_runs_twice(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process is killed before its first, second, third write: into its folder, the ledger or a ref."""
    monkeypatch.setattr(SearchSettings, "design", Design(pool=2, promotion=2, looks=(2,), shares=(1.0,)))
    good = f"{command(repository)} -50000"
    allowed = 0

    def counted(write: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal allowed
            if allowed == 0:
                raise Killed
            allowed -= 1
            return write(*arguments, **options)

        return called

    monkeypatch.setattr(json_files, "replace_file", counted(json_files.replace_file))
    monkeypatch.setattr(Repository, "keep", counted(Repository.keep))
    monkeypatch.setattr(Ledger, "append", counted(Ledger.append))
    kills, limit = 0, 1
    while True:
        allowed, before = limit, len(list(repository.glob("runs/s/**/*.json")))
        try:
            decided = answer(repository, good)
            break
        except Killed:
            kills += 1
        limit = 1 if len(list(repository.glob("runs/s/**/*.json"))) > before else limit + 1
    assert kills > 12 and decided.decision == "keep"
    assert ran(repository) == [0, 1, 100, 101, 102, 200, 201]
    kinds = Counter(record.content["kind"] for record in project_ledger(repository).read())
    assert kinds == {"started": 1, "result": 1}
    assert not list(repository.glob("runs/s/worktrees")) and len(git("worktree", "list").splitlines()) == 1


def test_a_killed_process_leaves_no_command_and_is_continued(repository: Path) -> None:
    """SIGKILL in the midst of the repeats and of a candidate."""
    Path("train.sh").write_text("sleep 0.2\n" + Path("train.sh").read_text())
    commit("slow")
    good = commit("helps", settings__sh=GOOD)
    code = "from partwise.any_code.search_settings import SearchSettings, Design; from partwise.cli import main; "
    code += "SearchSettings.design = Design(pool=3, promotion=2); main()"
    line = [sys.executable, "-c", code, "try", good, *words(repository, "--start", "HEAD~1")]
    for wanted in (2, 5):
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 120
        while len(ran(repository)) < wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = Counter(ran(repository))
    assert set(counts) == {*range(3), *range(100, 104), *range(200, 202)}
    assert sum(counts.values()) - len(counts) <= 2, "only what ran when its process was killed runs again"


def test_another_candidate_waits_for_the_unfinished_one(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, null = commit("helps", settings__sh=GOOD), commit("nothing", settings__sh=NULL)
    with monkeypatch.context() as patch:
        patch.setattr("partwise.any_code.search.next_action", lambda *values: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answer(repository, good, start="HEAD~2")
    with pytest.raises(
        ConfigError, match=r"try 1 \(\w+\) has not ended: give its command again to continue, or add --aban"
    ):
        answer(repository, null)
    done = try_(null, "--search", "s", "--abandon")
    assert done.exit_code in (1, 3), done.output
    with open_search.open_search("s", {}, None) as opened:
        assert opened.folder.tries[0].tried.reason == "abandoned"


def test_the_same_candidate_has_the_same_answer_and_runs_once(repository: Path) -> None:
    good = commit("helps", settings__sh=GOOD)
    first = answer(repository, good, start="HEAD~1")
    runs = ran(repository)
    assert answer(repository, good) == first and ran(repository) == runs
    done = try_("main~1", "--search", "s")
    assert done.exit_code == 1
    runs = ran(repository)
    assert try_("main~1", "--search", "s").exit_code == 1 and ran(repository) == runs
    assert try_("main~1", "--search", "s", "--again").exit_code == 1 and len(ran(repository)) > len(runs)


def test_the_evaluation_runs_from_fixed_files_in_another_checkout(repository: Path) -> None:
    """Neither the candidate's commit nor its run reaches the program that measures."""
    train = ". ./settings.sh\necho 'echo loss 1' > measure.sh\n"
    train += 'echo $((100000 + GAIN + (SEED * 7919) % 97)) > "$1/loss"\necho loss 0\n'
    start = commit("measured", train__sh=train)
    cheat = commit("cheats", measure__sh="echo loss 2\n", settings__sh="GAIN=1\nFAIL=\n")
    line = "env SEED={seed} sh train.sh {folder}"
    with open_search.open_search(
        "s",
        {
            "command": line,
            "minutes": 0.1,
            "start": start,
            "fixed": ["measure.sh"],
            "evaluate": "sh measure.sh {folder}",
        },
        METRIC,
    ) as opened:
        tried = opened.answer(cheat, "", again=False)
        values = opened.folder.known().pool.values
    assert values == tuple(100000 + seed * 7919 % 97 for seed in range(4))
    assert tried.values[0] == 100001 + 100 * 7919 % 97
    unfixed = settings(repository, evaluate="sh measure.sh")
    with (
        pytest.raises(ConfigError, match="name its program with --fixed"),
        open_search.open_search("t", unfixed, METRIC),
    ):
        pass


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('rm -f "$PARTWISE_FOLDER/../stdout.txt"; echo loss 1', "it did not write stdout"),
        ('rm -rf "$(dirname "$PARTWISE_FOLDER")"; echo loss 1', "it did not write stdout"),
        ('rm -rf "$PWD"/* "$PWD"/.git; echo bye >&2; exit 3', "exit status 3: bye"),
    ],
)
def test_a_candidate_that_deletes_its_log_or_its_files_has_failed(repository: Path, line: str, reason: str) -> None:
    bad = commit("deletes", train__sh=f"{line}\n")
    tried = answer(repository, bad, start="HEAD~1")
    assert (tried.decision, tried.reason) == ("discard", f"run 1 failed: {reason}")
    assert len(git("worktree", "list").splitlines()) == 1
    assert answer(repository, bad) == tried


def test_a_run_that_takes_too_long_is_ended(repository: Path) -> None:
    slow = commit("slow", train__sh="sleep 60\n")
    tried = answer(repository, slow, start="HEAD~1", minutes=0.01)
    assert tried.reason == "run 1 failed: it ran longer than 0.03 minutes" and tried.seconds < 30


def test_every_try_is_in_the_ledger(repository: Path) -> None:
    good = commit("helps", settings__sh=GOOD)
    answer(repository, good, start="HEAD~1")
    answer(repository, "main~1")
    records = [record.content for record in project_ledger(repository).read()]
    assert [record["kind"] for record in records] == ["started", "result"] * 2
    assert records[0]["name"] == "s: try 1" and records[0]["identity"]["commit"] == good
    assert [record["verdicts"][0]["verdict"] for record in records[1::2]] == ["better", "not better"]
    assert records[1]["values"] and records[1]["level"] > 0


def test_on_another_machine_the_best_is_repeated_or_nothing_runs(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    null = commit("nothing", settings__sh=NULL)
    answer(repository, null, start="HEAD~1")
    monkeypatch.setattr(open_search, "describe_environment", lambda *_: {**ENVIRONMENT, "machine": {"cores": 512}})
    done = try_("--search", "s", "--start", "HEAD~1")
    assert "changed since the best of search s ran: cores was 2, now 512" in str(done.exception)
    assert "add --allow-changes, which repeats the best here" in str(done.exception)
    before = len(ran(repository))
    assert try_("--search", "s", "--allow-changes").exit_code == 0
    assert len(ran(repository)) == before + 4
    with open_search.open_search("s", {}, None) as opened:
        assert opened.folder.known().pool.df == 0, "noise of the other machine is not pooled"


def test_a_best_that_fails_on_another_machine_is_repeated_there_once_it_runs(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure is stored, so the same command alone would tell it for ever."""
    start = commit("needs a file", train__sh='[ ! -e "$LOG-missing" ] || exit 3\n' + Path("train.sh").read_text())
    assert try_(*words(repository, "--start", start)).exit_code == 0
    monkeypatch.setattr(open_search, "describe_environment", lambda *_: {**ENVIRONMENT, "machine": {"cores": 512}})
    Path("ran-missing").touch()
    failed = try_("--search", "s", "--allow-changes")
    assert "failed: exit status 3" in str(failed.exception)
    assert str(failed.exception).endswith("fix it, and add --allow-changes, which repeats the best")
    Path("ran-missing").unlink()
    assert try_("--search", "s", "--allow-changes").exit_code == 0
    with open_search.open_search("s", {}, None) as opened:
        assert len(opened.folder.known().pool.values) == 4 and opened.folder.known().pool.df == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["x", "--search", "t"],
            "search t does not exist (known: s); to start it, give --command, --metric, --minutes",
        ),
        (["--search", "../s"], "--search '../s': start with a letter or digit"),
        (["HEAD", "--search", "s", "--description", "a\tb"], "give one line of text, without tabs"),
        (["--search", "s", "--description", "a"], "--description and --again belong to a candidate"),
        (["HEAD", "--search", "s", "--higher-is-better"], "--higher-is-better belongs to --metric"),
        (["HEAD", "--search", "plain"], "runs/plain exists and is no search"),
        (["sh train.sh {seed} {fodler}", "--search", "s"], "{fodler} is unknown; did you mean 'folder'?"),
        (["sh 'train.sh {seed}", "--search", "s"], "cannot be split into words: no closing quotation"),
    ],
)
def test_bad_input_is_one_line(repository: Path, given: list[str], message: str) -> None:
    with open_search.open_search("s", settings(repository), METRIC):
        pass
    Path("runs/plain").mkdir()
    Path("runs/plain/file").touch()
    done = try_(*given)
    assert isinstance(done.exception, ConfigError) and message in str(done.exception), done.output
    assert not ran(repository)
