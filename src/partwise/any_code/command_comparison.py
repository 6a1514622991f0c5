"""The comparison of commands that an experiment describes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partwise.any_code.brief_trials import BriefRun, CheckResult
from partwise.any_code.command_plan import CommandPlan, plan_commands
from partwise.any_code.command_workload import CommandWorkload
from partwise.any_code.equal_seconds import check_match
from partwise.any_code.experiment_file import Experiment
from partwise.any_code.result_files import check_result_files, shared_result_file
from partwise.any_code.worktrees import Repository
from partwise.comparison.calibration import check_pairs
from partwise.comparison.experiment import Comparison
from partwise.comparison.finished import is_read_only
from partwise.comparison.measures import Measure
from partwise.comparison.plan_file import PLAN_FILE
from partwise.comparison.results import Results, read_json
from partwise.comparison.tuning import check_seeds, parse_tune
from partwise.config import ConfigError, did_you_mean
from partwise.config.yaml import parse_value
from partwise.json_files import write_json
from partwise.run_names import check_run_name

CHECK_FILE = "check.json"


@dataclass(repr=False)
class CommandComparison(Comparison):
    """A comparison of commands."""

    plan: CommandPlan
    workload: CommandWorkload

    def check(self) -> CheckResult:
        """Run every arm shortly, once for the comparison; later calls return what was found. Raises ConfigError."""
        path = self.path / CHECK_FILE
        if path.exists():
            return CheckResult.from_dict(read_json(path), str(path))
        self.make_folder()
        self.workload.add_worktrees(self.plan)
        found = BriefRun(self.workload, self.plan, self.path / "check").run()
        write_json(path, found.to_dict())
        return found

    def run(self, on_progress: Callable[[Comparison], None] = lambda comparison: None) -> Results:
        if is_read_only(self.path):  # no worktree can be made, and none is needed
            return super().run(on_progress)
        if self.workload.experiment.check and not (self.path / PLAN_FILE).exists():
            self.check()
        self.make_folder()  # before worktrees are written into it
        self.workload.add_worktrees(self.plan)
        results = super().run(on_progress)
        self.workload.remove_worktrees(self.plan)
        return results


def make_command_comparison(
    experiment: Experiment,
    folder: Path,
    name: str,
    command: str = "",
    *,
    workers: int | None = None,
    allow_changes: bool = False,
    retry_failed: bool = False,
    online: bool = False,
    on: str = "local",
    common: Sequence[str] = (),
    match: Measure | None = None,
    tune: str | None = None,
    tune_seeds: int = 4,
    **settings: Any,
) -> CommandComparison:
    """The comparison of an experiment whose file is in `folder`, validated but not started. Raises ConfigError.

    `common` sets settings of all arms, such as `steps=2000`; `match="seconds"` changes the steps of the arms until they
    take equally long; `tune` tunes a setting for each arm, over values in its range.
    """
    experiment = with_settings(experiment, common)
    folder = folder / experiment.folder
    if not folder.is_dir():
        raise ConfigError(f"folder: {folder} does not exist; it is relative to the experiment's file")
    refs = list(dict.fromkeys(spec.ref for spec in experiment.arms.values() if spec.ref))
    commits = {ref: Repository.around(folder).commit_of(ref) for ref in refs}
    path = Path("runs") / check_run_name(name)
    plan = plan_commands(experiment, commits, **settings)
    check_result_files(experiment)
    if not (path / PLAN_FILE).exists() and (fault := shared_result_file(experiment)):
        raise ConfigError(fault)
    if match:
        check_match(plan, match)
    workload = CommandWorkload(experiment, folder, path, workers, allow_changes)
    chosen = parse_tune(tune) if tune else None
    if chosen:
        check_seeds(plan)
        for value in chosen.values:
            chosen.apply(plan.arms[0], value)  # raises for an unknown setting before anything runs
    plan, tuning = replace(plan, common=tuple(common)), (match, chosen, tune_seeds)
    return CommandComparison(path, plan, workload, command, *tuning, online, on, retry_failed=retry_failed)


def make_command_calibration(
    experiment: Experiment, folder: Path, name: str, command: str = "", **settings: Any
) -> CommandComparison:
    """The experiment's baseline against itself on other seeds: the differences are noise. Raises ConfigError."""
    check_pairs(settings["seeds"])
    name_of_baseline = next(iter(experiment.arms))
    alone = experiment.model_copy(
        update={"arms": {name_of_baseline: experiment.arms[name_of_baseline]}, "negative_control": True}
    )
    made = make_command_comparison(alone, folder, name, command, **settings)
    claims = tuple(claim._replace(role="claim") for claim in made.plan.claims)  # judged as a claim, not as a control
    return replace(made, plan=replace(made.plan, claims=claims))


def with_settings(experiment: Experiment, common: Sequence[str]) -> Experiment:
    """The experiment with other values of its settings. Raises ConfigError for one that it does not have."""
    changed = dict(experiment.settings)
    given = dict[str, str]()
    for word in common:
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals or key not in changed:
            raise ConfigError(
                f"--common {word}: the experiment has no such setting{did_you_mean(key, changed)}; give it under `settings`"
            )
        if given.setdefault(key, value) != value:
            raise ConfigError(f"{key} is given twice, as {given[key]} and {value}: keep one")
        changed[key] = parse_value(value)
    return experiment.model_copy(update={"settings": changed})
