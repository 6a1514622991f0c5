"""Comparisons of commands: looks, failures, interrupts, resuming, changes midway, commits, and the command line."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from partwise.ablation.run_list import list_runs
from partwise.cli import main
from partwise.comparison.experiment import Comparison
from partwise.comparison.ledger.project import project_ledger
from partwise.comparison.results import Results
from partwise.config import ConfigError
from programs import ARMS, COMMAND, METRIC, PYTHON, comparison, expected, write_program
from repositories import git

LATE = {"base": {"args": "--sleep=0.3"}, "gain": {"args": "--gain=0.1 --sleep=0.3"}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a space in its name, and the program in it."""
    folder = tmp_path / "my project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_program(folder)
    return folder


def values_of(results: Results, arm: int) -> list[float | None]:
    return [trial.value for trial in results.arms[arm].trials]


def partwise(*words: str, **settings: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "partwise", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line of a refused command, run in this process: a new one would spend its time on imports."""

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["partwise", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        error = capsys.readouterr().err
        assert ended.value.code == 2 and len(error.splitlines()) == 1, error
        return error

    return run


@pytest.mark.promise
def test_values_are_the_programs_and_the_verdict_follows(here: Path) -> None:
    made = comparison(here, curve={"from": "{folder}/log.jsonl", "step": "step", "value": "val"})
    results = made.run()
    for arm, gain in enumerate((0.0, 0.1)):
        assert values_of(results, arm) == [round(expected(seed, gain), 6) for seed in range(4)]
    assert results.verdicts == {"gain": "better"}
    assert results == Results.from_json(here / "runs/c/results.json")
    assert [point.step for point in results.claims[0].effect_over_training] == [0, 10, 20]
    report = made.report.read_text()
    assert results.claims[0].effect.sentence in report and "--gain=0.1" in report
    (entry,) = list_runs(here / "runs")
    assert (entry.state, entry.verdict) == ("finished", "gain better")
    assert "tokens/s" not in report and "validation loss" not in report  # what is unknown is not shown


def test_looks_stop_early_and_failures_are_counted(here: Path) -> None:
    arms = {**ARMS, "crash": {"args": "--fail-at=1"}}
    made = comparison(here, arms=arms, options={"looks": (2, 4, 8)})
    results = made.run()
    assert len(results.arms[1].trials) == 4 and results.verdicts["gain"] == "better"
    assert len(results.arms[2].trials) == 8 and results.verdicts["crash"] is None
    (failed,) = [trial for trial in results.arms[2].trials if trial.value is None]
    assert failed.seed == 1 and failed.reason == "exit status 1: CUDA out of memory"
    report = (here / "runs/c/report.md").read_text()
    assert "exit status 1: CUDA out of memory" in report and "runs/2-crash/seed-1/stderr.txt" in report
    assert 'href="runs/2-crash/seed-1/stderr.txt"' in made.report.read_text()
    assert (here / "runs/c" / str(failed.log)).read_text() == "CUDA out of memory\n"


def test_resuming_repeats_no_finished_trial(here: Path) -> None:
    finished: list[int] = []

    def interrupt(running: Comparison) -> None:
        finished[:] = [sum(trial.finished for trial in running.trials)]
        if finished[0] >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comparison(here, arms=LATE).run(interrupt)
    written = {path: path.stat().st_mtime_ns for path in here.glob("runs/c/runs/*/*/result.json")}
    assert 3 <= len(written) < 8
    results = comparison(here, arms=LATE).run()
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert values_of(results, 1) == [round(expected(seed, 0.1), 6) for seed in range(4)]
    more = comparison(here, arms=LATE, options={"seeds": 6}).run()
    assert more.claims[0].effect == results.claims[0].effect and more.claims[0].exploratory is not None


def test_a_killed_comparison_leaves_nothing_running_and_resumes(here: Path) -> None:
    arms = {"base": {"args": "--sleep=3"}, "gain": {"args": "--gain=0.1 --sleep=3"}}
    text = yaml.safe_dump({"command": COMMAND, "arms": arms, "metric": METRIC})
    (here / "e.yaml").write_text(text)
    words = [sys.executable, "-m", "partwise", "compare", "e.yaml", "--seeds", "2", "--name", "c"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(400):
        if list(here.glob("runs/c/runs/*/*/stdout.txt")):
            break
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(200):
        if not [pid for pid in os.listdir("/proc") if pid.isdigit() and runs_in(here, pid)]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("a command still runs")
    assert not list(here.glob("runs/c/runs/*/*/result.json"))
    (here / "e.yaml").write_text(text.replace("--sleep=3", "--sleep=0"))
    refused = partwise("compare", "e.yaml", "--seeds", "2", "--name", "c")
    assert refused.returncode == 2 and "holds another comparison (plan.arms.base.args" in refused.stderr


def runs_in(folder: Path, pid: str) -> bool:
    try:
        return "train.py" in Path(f"/proc/{pid}/cmdline").read_text() and os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False


def test_a_change_of_the_code_midway_is_refused_unless_allowed(here: Path) -> None:
    comparison(here).run()
    with (here / "train.py").open("a") as program:
        program.write("# changed\n")
    with pytest.raises(
        ConfigError, match=r"changed since the first trial of .*: the file train\.py\. Choose another --name, or"
    ):
        comparison(here, options={"seeds": 6}).run()
    results = comparison(here, options={"seeds": 6, "allow_changes": True}).run()
    assert "Changed while it ran: the file train.py." in results.scope


def test_a_result_of_another_arm_is_not_believed(here: Path) -> None:
    results = comparison(here).run()
    source, target = (here / f"runs/c/runs/{arm}/seed-2/result.json" for arm in ("1-gain", "0-base"))
    shutil.copy(source, target)
    assert values_of(comparison(here).run(), 0) == values_of(results, 0)


def test_a_change_that_does_not_reach_the_program_is_refused(here: Path) -> None:
    arms = {"base": {}, "nothing": {"env": {"GAIN": "0.1"}}}
    with pytest.raises(
        ConfigError, match="nothing and base have identical values on all 4 seeds, so nothing is judged"
    ):
        comparison(here, arms=arms).run()


def test_the_check_comes_first_and_once(here: Path) -> None:
    made = comparison(here, check="--sleep=0.01", negative_control=True)
    results = made.run()
    assert json.loads((here / "runs/c/check.json").read_text())["repeats"] is True
    assert "The same seed gave the same value twice." in made.check().sentences
    assert results.claims[-1].role == "negative"
    assert not (here / "runs/c/check").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"check": "--no-such"}, "the check of base failed: exit status 2: .*its output is in runs/c/check/0-once"),
        ({"check": "--seed=3"}, "seeds 0 and 1 of base gave the same value, .*: make the command use {seed}"),
    ],
)
def test_a_check_that_fails_stops_before_the_first_trial(here: Path, changes: dict[str, Any], message: str) -> None:
    # one at a time: of several that fail at once, any may be the first, and its failure stops the others
    with pytest.raises(ConfigError, match=message):
        comparison(here, **changes, options={"workers": 1}).run()
    assert not (here / "runs/c/runs").exists()


def test_a_check_names_the_trial_that_failed_not_one_that_its_failure_stopped(here: Path) -> None:
    program = "import sys, time; time.sleep(60 * ('0-once' in sys.argv[1])); sys.exit('no data')"
    command = f"{PYTHON} -c {shlex.quote(program)} {{folder}} {{seed}} {{args}}"
    made = comparison(here, command=command, check="--short", options={"workers": 2})
    message = r"the check of \S+ failed: exit status 1: no data; its output is in runs.c.check.[12]"
    with pytest.raises(ConfigError, match=message):
        made.run()


@pytest.fixture
def repository(here: Path) -> Path:
    """The program at two commits; the second gains 0.1, adding noise of its own. Both read a file that git ignores."""
    git("init", "--quiet", "--initial-branch=main")
    (here / ".gitignore").write_text("runs\ndata\n")
    (here / "data").mkdir()
    (here / "data" / "offset").write_text("0")
    program = here / "train.py"
    program.write_text(program.read_text() + "\nprint('final', value + float(open('data/offset').read()))\n")
    git("add", ".")
    git("commit", "--quiet", "--message=one")
    git("checkout", "--quiet", "-b", "better")
    program.write_text(program.read_text().replace("default=0.0)", "default=0.1)", 1))
    git("commit", "--quiet", "--all", "--message=two")
    git("checkout", "--quiet", "main")
    return here


METRIC_WORDS = ("--metric", r"^final (\S+)", "--margin", "0.01")
REFS = ("compare", "--refs", "main", "better", *METRIC_WORDS, "--seeds", "3", "--share", "data")
RUN = ("--command", "x {seed}")


def test_two_commits_of_a_repository(repository: Path) -> None:
    command = f"{PYTHON} train.py --seed={{seed}} --out={{folder}}"
    (repository / "untracked").write_text("stays")
    done = partwise(*REFS, "--command", command, "--name", "refs", "--setup", "echo prepared > prepared.txt")
    assert done.returncode == 0, done.stderr
    results = Results.from_json(repository / "runs/refs/results.json")
    assert results.claims[0].effect.sentence in " ".join(done.stdout.split())
    assert values_of(results, 0) == pytest.approx([expected(seed, 0.0) for seed in range(3)])
    assert values_of(results, 1) == pytest.approx([expected(seed, 0.1) for seed in range(3)])
    assert "+parser.add_argument(" in (repository / "runs/refs/report.md").read_text()
    assert git("status", "--porcelain") == "?? untracked" and len(git("worktree", "list").splitlines()) == 1
    assert git("rev-parse", "--abbrev-ref", "HEAD") == "main"

    git("branch", "--force", "better", "main")
    moved = partwise(*REFS, "--command", command, "--name", "refs", "--setup", "echo prepared > prepared.txt")
    assert moved.returncode == 2 and "runs the same" not in moved.stderr
    assert "holds another comparison" in moved.stderr


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """On a file system of 300 KB the first trials are recorded; with room, the same command runs the others."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(*words: str) -> bool:
        return subprocess.run(["mount", *words, str(disk)], capture_output=True, check=False).returncode == 0

    if not mount("-t", "tmpfs", "-o", "size=300k", "tmpfs"):
        pytest.skip("mounting a file system needs privileges")
    try:
        write_program(disk)
        (disk / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": ARMS, "metric": METRIC}))
        words = [sys.executable, "-m", "partwise", "compare", "e.yaml", "--seeds", "20", "--name", "c"]
        full = subprocess.run(words, cwd=disk, capture_output=True, text=True, timeout=120)
        assert full.returncode == 2 and "run the same command again to resume" in full.stderr, full.stderr
        assert "Traceback" not in full.stderr and full.stderr.count("error:") == 1
        before = {path: path.read_bytes() for path in disk.glob("runs/c/runs/*/seed-*/result.json")}
        assert 0 < len(before) < 40 and all(json.loads(content) for content in before.values())
        assert mount("-o", "remount,size=60m")
        done = subprocess.run(words, cwd=disk, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        results = list(disk.glob("runs/c/runs/*/seed-*/result.json"))
        assert len(results) == 40 and all(path.read_bytes() == content for path, content in before.items())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KILLED = "import os, signal, sys\nif os.path.exists('kill') and sys.argv[1] in ('--seed=1', '--seed=2'):\n"
KILLED += "    os.kill(os.getpid(), signal.SIGKILL if sys.argv[1] == '--seed=1' else signal.SIGSEGV)\n"


def test_failures_of_the_machine_are_repeated_for_all_arms_alike(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refuse: Callable[..., str]
) -> None:
    """Seed 1 of both arms is killed, as by a system short of memory; seed 2 crashes by its own doing. A verdict stands."""
    (here / "train.py").write_text(KILLED + (here / "train.py").read_text())
    (here / "kill").touch()
    (here / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": ARMS, "metric": METRIC}))
    words = ["compare", "e.yaml", "--seeds", "4", "--name", "c"]
    reason = "killed by SIGKILL, as by a system that is out of memory"
    assert f"ended by the machine: 2 x {reason}; --retry-failed repeats such trials" in printed(
        words, monkeypatch, capsys
    )
    results = Results.from_json(here / "runs/c/results.json")
    assert values_of(results, 0)[1:3] == values_of(results, 1)[1:3] == [None, None]
    first, verdict = (here / "runs/c/runs/0-base/seed-1/result.json").read_bytes(), results.claims[0].effect
    (here / "kill").unlink()
    assert "ended by the machine" in printed(words, monkeypatch, capsys)  # repeated only if asked
    assert "ended by the machine" not in printed([*words, "--retry-failed"], monkeypatch, capsys)
    results = Results.from_json(here / "runs/c/results.json")
    for arm, gain in enumerate((0.0, 0.1)):
        assert values_of(results, arm)[1] == round(expected(1, gain), 6) and values_of(results, arm)[2] is None
    # repeated after the verdict, which stands: what the new values say is exploratory
    assert results.claims[0].effect == verdict and results.provenance.value_changes == 1
    assert (found := results.claims[0].exploratory) and found.n_arm == 4
    assert found.failed_arm < verdict.failed_arm
    assert (
        f"Repeated because the machine had ended them: base, seed 1 ({reason}), gain, seed 1 ({reason})."
        in results.scope
    )
    assert (here / "runs/c/runs/0-base/seed-1/result-before-repeat-1.json").read_bytes() == first
    (record,) = [each.content for each in project_ledger().read() if each.content["kind"] == "repeated"]
    assert [(each["arm"], each["seed"], each["reason"]) for each in record["trials"]] == [
        ("base", 1, reason),
        ("gain", 1, reason),
    ]


def printed(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--setup", "echo no compiler; false"), "ended with status 1: no compiler; its output:"),
        (("--share", "absent"), "absent does not exist"),
        (("--share", "../x"), "share: '../x' must be a path within the repository"),
        (("--share", "train.py"), "share: train.py is part of commit"),
    ],
)
def test_a_worktree_that_cannot_be_prepared(
    repository: Path, words: tuple[str, ...], message: str, refuse: Callable[..., str]
) -> None:
    assert message in refuse(*REFS, "--command", "python train.py --seed={seed}", *words)


def test_a_worktree_that_cannot_be_made(repository: Path, refuse: Callable[..., str]) -> None:
    (repository / ".git/worktrees").write_text("a file where git needs a folder")
    error = refuse(*REFS, "--command", "python train.py --seed={seed}")
    assert re.search(r"cannot create a worktree of [0-9a-f]{10}: .*worktrees", error)
    assert not list(repository.glob("runs/*/runs")) and git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--refs", "main"), "--refs needs two commits or more"),
        (("--refs", "main", "nope", *RUN, *METRIC_WORDS), "ref nope is not a commit of"),
        (("--refs", "main", "--output=x", *RUN, *METRIC_WORDS), "No such option: --output"),
        (("--refs", *RUN, *METRIC_WORDS, "--", "main", "--output=x"), "--output=x is not a commit"),
        (("--refs", "main", "better", "--metric", "(.)"), "--refs needs --command"),
        (("--refs", "main", "better", *RUN), "--refs needs --metric"),
        (("--refs", "main", "better", *RUN, "--metric", "loss in"), "--metric loss in: expected a pattern"),
        (("e.yaml", "ffn=swiglu"), "ffn=swiglu: unexpected argument; the arms are defined in e.yaml"),
    ],
)
def test_one_line_for_bad_words(
    repository: Path, words: tuple[str, ...], message: str, refuse: Callable[..., str]
) -> None:
    (repository / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": ARMS, "metric": METRIC}))
    assert message in refuse("compare", *words)


def test_a_training_loss_is_asked_about(here: Path) -> None:
    metric = {**METRIC, "name": "train loss"}
    (here / "e.yaml").write_text(
        yaml.safe_dump({"command": COMMAND, "arms": ARMS, "metric": {**metric, "pattern": "loss (.*)"}})
    )
    done = partwise("compare", "e.yaml", "--seeds", "2", stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "train loss is named like a training loss" in done.stderr


def test_comparing_commands_imports_no_torch(here: Path) -> None:
    (here / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": ARMS, "metric": METRIC}))
    code = (
        "import sys; sys.argv = ['partwise', 'compare', 'e.yaml', '--seeds', '2']\n"
        "from partwise.cli import main\n"
        "try: main()\n"
        "except SystemExit as error: assert not error.code, error.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_json_and_requirements_for_pipelines(here: Path) -> None:
    (here / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": ARMS, "metric": METRIC}))
    words = ("compare", "e.yaml", "--seeds", "3", "--json")
    done = partwise(*words, "--require", "gain better")
    assert done.returncode == 0, done.stderr
    assert Results.from_dict(json.loads(done.stdout)) == Results.from_json(here / "runs/e/results.json")
    assert "required: gain better: met" in done.stderr and "✓ gain" in done.stderr
    swapped = {"command": COMMAND, "arms": dict(reversed(ARMS.items())), "metric": METRIC}
    (here / "e.yaml").write_text(yaml.safe_dump(swapped, sort_keys=False))
    assert partwise(*words, "--name", "swapped", "--require", "base not-worse").returncode == 1
    assert partwise(*words, "--name", "third", "--require", "gain better").returncode == 2
    assert not (here / "runs/third").exists()


WITH_SETTING = {"command": f"{COMMAND} --gain={{gain}}", "settings": {"gain": 0.0}, "metric": METRIC}
BY_SETTING = {**WITH_SETTING, "arms": {"base": {}, "late": {"args": "--sleep=0.01"}}}


def test_settings_are_common_or_tuned(here: Path) -> None:
    """The same seed has the same value with and without a pause, so the program adds noise of the arm's name."""
    (here / "train.py").write_text((here / "train.py").read_text().replace("own = ", "own = 1e-4 * options.sleep + "))
    common = comparison(here, "common", {"common": ["gain=0.2"]}, **BY_SETTING).run()
    assert values_of(common, 0) == [round(expected(seed, 0.2), 6) for seed in range(4)]
    tuned = comparison(here, "tuned", {"tune": "gain=0,0.1,0.2", "tune_seeds": 4}, **BY_SETTING).run()
    assert tuned.tuning and len(tuned.tuning.values) == 6 and [arm.best for arm in tuned.tuning.arms] == ["0.5"] * 2
    assert {arm.name for arm in tuned.arms} == {"base", "late", "base gain=0.5", "late gain=0.5"}
    higher = {**BY_SETTING, "metric": {**METRIC, "better": "higher"}}
    tuned = comparison(here, "higher", {"tune": "gain=0,0.1,0.2", "tune_seeds": 4}, **higher).run()
    assert tuned.tuning and [arm.best for arm in tuned.tuning.arms] == ["-0.3"] * 2
    assert not tuned.tuning.held_out
    report = (here / "runs/higher/report.md").read_text()
    assert "The values were chosen by the metric of the verdict" in report and "held-out" not in report
    for setting, message in (
        ("common", r"--common x=1: the experiment has no such setting"),
        ("tune", "has no setting 'x'"),
    ):
        value: Any = ["x=1"] if setting == "common" else "x=1,2"
        with pytest.raises(ConfigError, match=message):
            comparison(here, "refused", {setting: value}, **BY_SETTING)


def test_a_grid_and_a_replication_of_commands(here: Path) -> None:
    values = {
        "command": f"{COMMAND} --gain={{gain}} --sleep={{pause}}",
        "arms": {"base": {}, "gain": {"gain": 0.1}},
        "metric": METRIC,
        "settings": {"gain": 0.0},
    }
    (here / "e.yaml").write_text(yaml.safe_dump(values))
    refused = partwise("compare", "e.yaml", "--seeds", "3")
    assert refused.returncode == 2 and "{pause} is unknown" in refused.stderr
    (here / "e.yaml").write_text(yaml.safe_dump({**values, "settings": {"gain": 0.0, "pause": 0}}))
    grid = partwise("compare", "e.yaml", "--seeds", "3", "--grid", "pause=0,0.01")
    assert grid.returncode == 0 and (here / "runs/e_pause-0.01/report.html").exists(), grid.stderr
    rows = json.loads((here / "runs/e/grid.json").read_text())["rows"]
    assert [row["verdict"] for row in rows] == ["better", "better"]
    replicated = partwise("compare", "e.yaml", "--seeds", "3", "--name", "r", "--replicate")
    assert replicated.returncode == 0 and "gain: replicated on fresh seeds" in replicated.stdout, replicated.stderr
