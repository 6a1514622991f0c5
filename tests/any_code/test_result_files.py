"""The value of a trial is what that trial wrote: not the file of the trial before, of the one beside, or a log of all."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from partwise.any_code import command_comparison, command_workload
from partwise.any_code.command_execution import execute
from partwise.any_code.command_plan import plan_commands
from partwise.any_code.command_workload import CommandWorkload
from partwise.comparison.results import Results
from partwise.comparison.trials.job import COMMANDS
from partwise.comparison.trials.stored import StoredTrial, prepare_trial
from partwise.config import ConfigError
from programs import PYTHON, comparison, experiment
from repositories import git

PROGRAM = """\
import json, random, sys, time
seed, *words = sys.argv[1:]
value = random.Random(" ".join(sys.argv[1:])).random()
print(f"wrote {value}", flush=True)
if "crash" not in words or seed != "1":  # it ends with 0 and writes nothing
    with open("result.json", "w") as file:
        json.dump({"val": value}, file)
time.sleep(0.2)  # saves its checkpoint
"""
COMMAND = f"{PYTHON} program.py {{seed}} {{args}}"
SHARED = {"name": "val", "margin": 0.01, "from": "result.json", "value": "val"}
ARMS: dict[str, Any] = {"base": {}, "gain": {"args": "crash"}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def trial(folder: Path, seed: int = 0, arm: int = 0, short: bool = False, **changes: Any) -> StoredTrial:
    made = experiment(**{"command": COMMAND, "arms": ARMS, "metric": SHARED, **changes})
    plan = plan_commands(made, {}, seeds=2)
    job = CommandWorkload(made, folder, folder / "c").job(plan.arms[arm], seed)
    place = {"cwd": str(folder), "locks": str(folder), **({"short": "yes"} if short else {})}
    return prepare_trial(folder / "c" / f"{arm}" / f"seed-{seed}", plan.arms[arm].name, seed, job, COMMANDS, place)


def run(made: StoredTrial) -> str:
    (status,) = execute([made.folder], lambda: False)
    return status


def printed(folder: Path) -> float:
    return float((folder / "stdout.txt").read_text().split()[1])


@pytest.mark.parametrize(
    "path", ["result.json", "{seed}.json", "{folder}/../{seed}.json", "/tmp/{arm}.json", "{folder}"]
)
@pytest.mark.parametrize("key", ["metric", "curve"])
def test_a_file_that_trials_share_is_refused(here: Path, key: str, path: str) -> None:
    changes: dict[str, Any] = {"metric": {**SHARED, "from": path}}
    if key == "curve":
        changes = {"curve": {"from": path, "step": "step", "value": "val"}}
    with pytest.raises(ConfigError) as caught:
        comparison(here, command=COMMAND, arms=ARMS, **changes)
    message = str(caught.value)
    assert message.startswith(f"{key}.from={path}: trials would read each other's file") and "{folder}/" in message
    assert "{seed} and {arm}" in message and "\n" not in message and not (here / "runs").exists()


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        ("{folder}/logs/result.json", {"trial": {"resumable": True}}, None),
        ("out/{arm}-{seed}.json", {}, None),
        (
            "out/{arm}-{seed}.json",
            {"trial": {"resumable": True}},
            "a resumable trial continues from what it left in {f",
        ),
        ("{fodler}/x.json", {}, r"metric.from={fodler}/x.json: {fodler} is unknown; did you mean 'folder'\?"),
    ],
)
def test_paths_of_one_trial_alone(here: Path, path: str, changes: dict[str, Any], message: str | None) -> None:
    changes |= {"command": COMMAND, "arms": ARMS, "metric": {**SHARED, "from": path}}
    if message is None:
        comparison(here, **changes)
        return
    with pytest.raises(ConfigError, match=message):
        comparison(here, **changes)


def test_trials_that_share_a_file_run_one_at_a_time_and_keep_copies(here: Path) -> None:
    """As two seeds of a commit do in its worktree."""
    made = [trial(here, seed) for seed in range(3)]
    threads = [threading.Thread(target=run, args=(each,)) for each in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.outcome("").value for each in made] == [printed(each.folder) for each in made]
    assert len({each.outcome("").value for each in made}) == 3
    for each in made:
        stored = json.loads((each.folder / "result.json").read_text())
        assert list(stored["sources"]) == ["result-files/result.json"]
        (each.folder / "result-files/result.json").write_text("{}")
        with pytest.raises(ConfigError, match=r"result-files/result\.json was changed or removed"):
            each.outcome("")
    assert not list(here.glob(".*.lock"))


def test_a_file_from_before_the_trial_is_no_result(here: Path) -> None:
    assert run(trial(here, 0, arm=1)) == "done"
    left = (here / "result.json").read_bytes()
    assert (
        run(trial(here, 1, arm=1))
        == "no value: it did not write result.json, which has not changed since before the trial"
    )
    assert (here / "result.json").read_bytes() == left
    (here / "result.json").unlink()
    assert run(trial(here, 1, arm=1, env={"x": "y"})) == "no value: it did not write result.json"


def test_a_file_that_is_written_again_with_equal_content_is_a_result(here: Path) -> None:
    first = trial(here)
    assert run(first) == "done"
    (first.folder / "result.json").unlink()
    assert run(trial(here)) == "done" and trial(here).outcome("").value == printed(first.folder)


def test_a_log_to_which_trials_add_is_no_result(here: Path) -> None:
    text = 'print("val loss", 3 - int(__import__("sys").argv[1]), file=open("log.txt", "a"))'
    changes: dict[str, Any] = {"command": f"{PYTHON} -c '{text}' {{seed}} {{args}}"}
    changes["metric"] = {"name": "x", "margin": 1, "from": "log.txt", "pattern": r"val loss (\S+)", "take": "min"}
    (here / "log.txt").write_text("")
    assert run(trial(here, **changes)) == "done" and trial(here, **changes).outcome("").value == 3
    assert "it only added to log.txt, which has values of other trials" in run(trial(here, 1, **changes))
    assert (here / "log.txt").read_text() == "val loss 3\nval loss 2\n"


SLOW = """\
import os, sys, time
with open(f"{sys.argv[1]}.txt", "w") as log:
    print(1, file=log, flush=True)
    while os.path.exists("wait"):
        time.sleep(0.05)
    print(2, file=log)
"""


def test_what_an_interrupted_attempt_wrote_is_not_taken_for_an_older_file(here: Path) -> None:
    """It writes the same beginning again, as a deterministic training run does."""
    (here / "slow.py").write_text(SLOW)
    (here / "wait").touch()
    changes: dict[str, Any] = {"command": f"{PYTHON} slow.py {{arm}}{{seed}} {{args}}"}
    changes["metric"] = {"name": "x", "margin": 1, "from": "{arm}{seed}.txt", "pattern": r"^(\d)$"}
    made, log = trial(here, **changes), here / "base0.txt"
    assert execute([made.folder], lambda: log.exists() and log.read_text() == "1\n") == ["interrupted"]
    (here / "wait").unlink()
    assert log.read_text() == "1\n" and run(trial(here, **changes)) == "done"
    assert trial(here, **changes).outcome("").value == 2


def test_a_job_removes_no_file_that_its_folder_names(here: Path) -> None:
    """The folder of a trial may be from elsewhere."""
    made, thesis = trial(here), here / "thesis.tex"
    thesis.write_text("years")
    (made.folder / "started.json").write_text(json.dumps({"job": made.job, "absent": [str(thesis)]}))
    assert run(made) == "done" and thesis.exists()


def test_a_short_trial_leaves_nothing_outside_its_folder(here: Path) -> None:
    (here / "kept.json").write_text("{}")
    made = trial(here, short=True)
    assert run(made) == "done" and not (here / "result.json").exists()
    kept = trial(here, 1, short=True, metric={**SHARED, "from": "kept.json"})
    assert "no value: it did not write kept.json" in run(kept) and (here / "kept.json").exists()


def test_a_link_out_of_the_folder_is_no_result(here: Path) -> None:
    text = 'import os, sys; open("shared.json", "w").write("{\\"val\\": 1}"); '
    text += 'os.symlink(os.path.abspath("shared.json"), sys.argv[1] + "/r.json")'
    command = f"{PYTHON} -c '{text.replace('{', '{{').replace('}', '}}')}' {{folder}} {{seed}} {{args}}"
    status = run(trial(here, command=command, metric={**SHARED, "from": "{folder}/r.json"}))
    assert (
        status
        == f"no value: r.json is a link to {here.resolve()}/shared.json, outside {{folder}}: write the file itself"
    )


def test_another_job_does_not_continue_from_what_this_one_left(here: Path) -> None:
    """The command was edited; the first one had written its value when it was interrupted."""
    metric, limits = {**SHARED, "from": "{folder}/result.json"}, {"resumable": True}
    first = trial(
        here,
        command=f"cd {{folder}} && {PYTHON} ../../../../program.py {{seed}} {{args}}",
        shell=True,
        metric=metric,
        trial=limits,
    )
    assert run(first) == "done"
    second = trial(here, command="true {seed} {args}", metric=metric, trial=limits)
    assert second.folder == first.folder and not second.finished
    assert "no value: it did not write" in run(second)


def test_finished_comparisons_stay_readable_and_are_not_continued(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were made before such files were refused."""
    changes: dict[str, Any] = {"command": COMMAND, "arms": {"base": {}, "gain": {"args": "x"}}, "metric": SHARED}
    with monkeypatch.context() as patched:
        for module in (command_comparison, command_workload):
            patched.setattr(module, "shared_result_file", lambda experiment: None)
        before = comparison(here, options={"seeds": 2, "workers": 1}, **changes).run()
    again = comparison(here, options={"seeds": 2}, **changes).run()
    assert again.claims == before.claims and "so a value may be that of another trial" in again.scope
    assert Results.from_json(here / "runs/c/results.json").claims == before.claims
    with pytest.raises(ConfigError, match=r"values in runs/c may be those of other trials: choose another --name"):
        comparison(here, options={"seeds": 3}, **changes).run()


def test_commits_may_write_a_file_in_their_worktree(here: Path) -> None:
    """Seed 1 of `gain` writes none: it must not take the one of seed 0."""
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=one")
    (here / "program.py").write_text(
        PROGRAM.replace("seed, *words = sys.argv[1:]", "seed, *words = *sys.argv[1:], 'crash'")
    )
    git("commit", "--quiet", "--all", "--message=two")
    arms = {"base": {"ref": "HEAD~1"}, "gain": {"ref": "HEAD"}}
    made = comparison(
        here, options={"seeds": 3, "workers": 4}, command=f"{PYTHON} program.py {{seed}}", arms=arms, metric=SHARED
    )
    assert made.workload.notes(made.plan) == [
        "metric.from=result.json is one file for all seeds of an arm, so its trials run one at a time: write it to "
        "{folder} to run several"
    ]
    results = made.run()
    for arm, name in zip(results.arms, ("0-base", "1-gain"), strict=True):
        for each in arm.trials:
            expected = (
                None if (arm.name, each.seed) == ("gain", 1) else printed(here / f"runs/c/runs/{name}/seed-{each.seed}")
            )
            assert each.value == expected
    assert str(results.arms[1].trials[1].reason).startswith("it did not write result.json")
    with pytest.raises(ConfigError, match="trials would read each other's file"):  # one folder of all worktrees
        comparison(here, "d", arms=arms, command=COMMAND, metric={**SHARED, "from": "data/result.json"}, share=["data"])
