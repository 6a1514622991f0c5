"""Run a comparison: every arm on every seed, in parallel and resumably, then judge."""

import html
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.display import plot, to_frame, to_html, to_text
from partwise.comparison.extension import Extension, find_folder
from partwise.comparison.finished import is_read_only, read_finished
from partwise.comparison.gathering import gather
from partwise.comparison.judging import judge_results
from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.ledger.predictions import Prediction, record_outcome, record_prediction
from partwise.comparison.measures import Measure
from partwise.comparison.plan_file import PLAN_FILE, FixedPlan, PlanFile, stored_method
from partwise.comparison.plan_record import PlanRecord, remove_drafts
from partwise.comparison.repeats import repeat_failed
from partwise.comparison.report import show_report
from partwise.comparison.results import Matching, Provenance, Results, Tuning
from partwise.comparison.stats.effect import Verdict
from partwise.comparison.stats.protocol import is_open
from partwise.comparison.trials.executor import Executor, NoValuesError, run_trials
from partwise.comparison.trials.places import make_executor
from partwise.comparison.trials.trial import Trial, final_values
from partwise.comparison.trials.work import describe_workers
from partwise.comparison.trials.workload import Workload
from partwise.comparison.tuning import Tune, run_tuning
from partwise.comparison.tuning_file import TUNING_FILE, TuningFile, read_tuning_file
from partwise.config import ConfigError, digest
from partwise.files import refuse_links
from partwise.messages import quantity
from partwise.run_names import FolderLock, explain_write_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(repr=False)
class Comparison:
    """A comparison stored in a folder. Running the same plan again resumes it and repeats no finished trial.

    `requested_plan` is the plan before matching and tuning, which may change the arms of `plan`. `results` is available
    once `run` has returned.
    """

    path: Path
    plan: Plan
    workload: Workload
    command: str = ""
    match: Measure | None = None
    tune: Tune | None = None
    tune_seeds: int = 4
    online: bool = False
    on: str = "local"
    """Where trials run: in processes of this machine, wherever `partwise work` runs, or on a Ray cluster."""
    origin: dict[str, str] = field(default_factory=dict)
    """Why it runs, for the ledger: the study it belongs to, or the comparison it replicates."""
    shared_runs: Path | None = None
    """Where its trials are, if other comparisons have the same ones; below it, a folder for each configuration's key."""
    retry_failed: bool = False
    """Whether to repeat the trials of all arms that the machine has ended, before they are judged."""
    prediction: Prediction | None = None
    """The predicted difference of the first claim, which the ledger gets before the first trial."""
    predicted: Mapping[str, Any] | None = field(default=None, init=False)
    """The ledger's record of whether the prediction held, once `run` has returned."""
    extended: Path | None = field(default=None, init=False)
    """The folder of the judged comparison to which this one adds arms; its own folder is beside that."""
    extension: Extension | None = field(default=None, init=False)
    judged: Results | None = None
    trials: list[Trial] = field(default_factory=list)
    started: float = 0.0

    def __post_init__(self) -> None:
        if self.tune and self.plan.rules.baseline_runs > 1:
            raise ConfigError(
                f"baseline_runs={self.plan.rules.baseline_runs} cannot be combined with tune, which compares tuned arms with "
                "a tuned baseline: leave out one of them"
            )
        self._use_method()
        self.path, self.extended = find_folder(self.path, self.fixed())
        if self.extended:
            self._use_method()
        self.workload = self.workload.at(self.path)
        self.entries = LedgerEntries(self.path)

    def _use_method(self) -> None:
        """Judge by the method of the plan in the folder, if there is one."""
        rules = replace(self.plan.rules, method=stored_method(self.path))
        self.plan = self.requested_plan = replace(self.plan, rules=rules)

    @property
    def results(self) -> Results:
        """The content of `results.json`. Raises ConfigError before `run` has returned."""
        if self.judged is None:
            raise ConfigError(f"{self.path} has no results yet: call run() first")
        return self.judged

    @property
    def verdicts(self) -> dict[str, Verdict | None]:
        """The verdict on each arm, by its name."""
        return self.results.verdicts

    @property
    def is_started(self) -> bool:
        """Whether an earlier call of `run` has fixed the plan."""
        return (self.path / PLAN_FILE).exists()

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def to_frame(self, package: Literal["pandas", "polars"] | None = None) -> Any:
        """A row per claim and control. Needs the extra `frames`. Raises ConfigError."""
        return to_frame(self.results, package)

    def plot(self) -> "Figure":
        """A forest plot of the differences, as a matplotlib figure. Raises ConfigError before `run` has returned."""
        return plot(self.results)

    def __repr__(self) -> str:
        """The question, and the verdicts if there are any."""
        plan = self.plan
        title = f"Comparison in {self.path}: {len(plan.arms)} arms, {quantity(plan.seeds, 'paired seed')}"
        return f"{title}\n{to_text(self.judged) if self.judged else f'{plan.question} (not run: call run())'}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>" if self.judged is None else to_html(self.judged)

    def run(self, on_progress: Callable[["Comparison"], None] = lambda comparison: None) -> Results:
        """Train the missing runs, judge, and write the report. Raises ConfigError, or KeyboardInterrupt after saving."""
        self.plan = self.requested_plan
        data = self.workload.prepare(self.plan)
        if is_read_only(self.path):
            self.judged = read_finished(self.path, self.fixed(), data)
            return self.judged
        self.make_folder()
        lock = FolderLock(self.path, option="--first-seed" if "lesson" in self.origin else "--name")
        try:
            remove_drafts(self.path, of_trials=self.on == "local")
            self.workload.store_parts(self.plan, self.path)
            record = self._fix_plan(data)
            if self.prediction:
                record_prediction(self.entries, self.plan.claims[0], self.prediction, record.has_trials())
            if online := record.file.online:
                self.plan = replace(self.plan, rules=replace(self.plan.rules, alpha=online.level))
            power = self.workload.control_power(self.plan)
            with self.executor() as executor:
                matching, tuning = self._match_and_tune(record.file, executor, on_progress)
                self._run_looks(executor, record, on_progress)
            results = gather(self.plan, self.trials)
            added = self.workload.describe(self.plan, self.trials, results)
            plan, seeds = self.plan, self._most_seeds()
            judged = record.judge(seeds, final_values(self.trials, plan.rules.metric))
            added |= {"match": matching, "provenance": self._provenance(record)}
            if tuning:
                note = f"{tuning.key} tuned for each arm over {', '.join(tuning.values)}"
                added |= {"tuning": tuning, "tuning_note": note}
            self.judged = judge_results(
                results.model_copy(update=added),
                plan.claims,
                plan.additive_predictions,
                record.file.judged,
                power,
                record.first_effects() if record.changed else None,
            )
            record.finish()
            with explain_write_errors(self.path):
                self.judged = record.write(plan, self.judged, seeds, judged)
                self.predicted = record_outcome(self.entries, self.judged.effects)
                self.judged.to_json(self.path / "results.json")
                show_report(self.judged, self.path)
        except NoValuesError:
            self._forget()
            raise
        finally:
            lock.release()
        return self.judged

    def _forget(self) -> None:
        """Remove the outcomes and the plan, which no value belongs to, so that the fixed command can take the name."""
        for trial in self.trials:
            trial.forget()
        for name in (PLAN_FILE, TUNING_FILE):
            (self.path / name).unlink(missing_ok=True)

    def executor(self) -> Executor:
        """The executor of the trials."""
        return make_executor(self.on, self.path, self.workload)

    def _most_seeds(self) -> int:
        """The number of seeds of the arm that has most, counted as seeds of an arm besides the baseline."""
        return len({trial.seed for trial in self.trials}) // self.plan.rules.baseline_runs

    def _provenance(self, record: PlanRecord) -> Provenance:
        file = record.file
        return Provenance(
            name=self.path.name,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            command=self.command,
            protocol_hash=file.hash if self.plan.rules.looks else None,
            runtime=file.runtime,
            machine=file.machine,
            workers=tuple(describe_workers(trial.folder for trial in self.trials)),
            value_changes=file.values.changes,
            extends=self.extension.family() if self.extension else None,
        )

    def _match_and_tune(
        self, file: PlanFile, executor: Executor, on_progress: Callable[["Comparison"], None]
    ) -> tuple[Matching | None, Tuning | None]:
        """Match the arms, then tune them; both may change the plan's arms."""
        matching: Matching | None = None
        tuning: Tuning | None = None
        if self.match:
            self.plan, matching = self.workload.match(self.plan, self.match)
        if self.tune:

            def run(trials: list[Trial]) -> None:
                self._run(executor, trials, on_progress)

            self.plan, tuning = run_tuning(
                self.plan,
                self.tune,
                self.tune_seeds,
                self._tuning_folder,
                self.workload.tuning_trial,
                run,
                self.tuning_file(file),
                self.workload.tunes_on_held_out_data,
            )
        return matching, tuning

    def tuning_file(self, file: PlanFile) -> TuningFile:
        """The measurements of tuning so far, here or on another machine. Raises ConfigError."""
        stored = read_tuning_file(self.path, self.hash, file.data, file.runtime)
        if self.extension and not stored.losses:
            stored.losses = self.extension.losses(self.plan.arms, self.workload)
        return stored

    def _run_looks(self, executor: Executor, record: PlanRecord, on_progress: Callable[["Comparison"], None]) -> None:
        """Run the trials up to each look in turn, continuing only the arms that still have an open claim."""
        plan = self.plan
        seeds_of = {arm.name: 0 for arm in plan.arms}
        open_claims = plan.claims
        for seeds in plan.looks:
            ends = {end for claim in open_claims for end in claim[:2]}
            names = {name for end in ends for name in plan.additive_predictions.get(end, (end,))}
            seeds_of |= dict.fromkeys(names, seeds) | {plan.arms[0].name: plan.seeds_of(plan.arms[0], seeds)}
            self._run(executor, self._trials(seeds_of), on_progress)
            self.workload.check_trained(plan, self.trials)
            measured = final_values(self.trials, plan.rules.metric)
            effects = plan.rules.judge(plan.values(measured), plan.claims, plan.additive_predictions)
            if plan.rules.looks:
                _, values = record.judge(seeds, measured)
                self.entries.look(plan, seeds, effects, values)
            open_claims = tuple(claim for claim, effect in zip(plan.claims, effects, strict=True) if is_open(effect))
            if not open_claims:
                break

    def _run(self, executor: Executor, trials: list[Trial], on_progress: Callable[["Comparison"], None]) -> None:
        if self.retry_failed:  # but none that a look of this run has read
            read = {trial.folder for trial in self.trials}
            repeat_failed([trial for trial in trials if trial.folder not in read], self.entries)
        self.trials, self.started = trials, time.monotonic()
        run_trials(executor, trials, lambda: on_progress(self))
        on_progress(self)

    def fixed(self) -> FixedPlan:
        """Everything fixed before the first run."""
        fixed = self.requested_plan.identity()
        if self.match:
            fixed["match"] = self.match
        if self.tune:
            fixed["tune"] = {"key": self.tune.key, "values": list(self.tune.values), "seeds": self.tune_seeds}
        if self.online:
            fixed["online"] = True
        return FixedPlan(fixed, type(self.plan.arms[0].config), self.requested_plan.seeds)

    @property
    def hash(self) -> str:
        """SHA-256 of the protocol."""
        return digest(self.fixed().values)

    def make_folder(self) -> None:
        """Make the comparison's folder. Raises ConfigError for a link among the folders that it writes."""
        refuse_links(self.path, {"runs": 2, "tuning": 2, "check": 1, "worktrees": 1})
        if self.shared_runs:
            refuse_links(self.shared_runs, {".": 2})
        with explain_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def _fix_plan(self, data_hash: str) -> PlanRecord:
        """The record of what is fixed before the first trial. Raises ConfigError if the plan has changed."""
        record = PlanRecord(self.path, self.plan, self.fixed(), self.entries, self.workload.imports)
        extended, origin = self.extended, dict[str, Any](self.origin)
        self.extension = Extension.of(extended, self.plan, self.workload, data_hash) if extended else None
        if self.extension:
            origin["extends"] = self.extension.file.ledger
        if record.read(data_hash):
            self.workload.restore_setup(self.plan, record.file.setup)
            record.resume()
        else:
            timed = self.match == "seconds" or self.shared_runs is not None
            record.start(data_hash, self.workload.choose_setup(self.plan, timed), self.online, origin)
        return record

    def _trials(self, seeds_of: dict[str, int]) -> list[Trial]:
        """The trials of the first `seeds_of[arm]` seeds of each arm."""
        trials = []
        for index in range(max(seeds_of.values())):
            seed = self.plan.first_seed + index
            for number, arm in enumerate(self.plan.arms):
                if index < seeds_of[arm.name]:
                    own = self.path / "runs" / f"{number}-{self.workload.folder_name(arm)}"
                    folder = self._shared_folder(arm) or own
                    if self.extension and not self.shared_runs:
                        self.extension.reuse(arm, seed, folder / f"seed-{seed}", self.workload)
                    trials.append(self.workload.trial(arm, seed, folder / f"seed-{seed}"))
        return trials

    def _shared_folder(self, arm: Arm) -> Path | None:
        """The folder of the arm if other comparisons share its trials."""
        return self.shared_runs / self.workload.key(arm) if self.shared_runs else None

    def _tuning_folder(self, number: int, arm: Arm, value: str) -> Path:
        """The folder of the tuning trials of arm `number` at one value."""
        shared = self._shared_folder(arm)
        return shared / "tuning" / value if shared else self.path / "tuning" / f"{number}-{value}"


ProgressDisplay = Callable[[Comparison], AbstractContextManager[Callable[[Comparison], None]]]
"""Makes the context manager that displays a running comparison."""
