"""Run a comparison: every arm on every seed, in parallel and resumably, then judge."""

import html
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from partwise.checkpoint import write_json
from partwise.comparison.certificate.certificate import certify
from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.display import plot, to_frame, to_html, to_text
from partwise.comparison.finished import is_read_only, read_finished
from partwise.comparison.gathering import gather
from partwise.comparison.judging import judge_results
from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.ledger.project import code_version
from partwise.comparison.measures import Measure
from partwise.comparison.plan_file import PLAN_FILE, new_plan_file, read_plan_file
from partwise.comparison.report import write_report
from partwise.comparison.results import LedgerEntry, Matching, OnlineLevel, Provenance, Results, Tuning
from partwise.comparison.stats.effect import Verdict
from partwise.comparison.stats.protocol import is_open
from partwise.comparison.trials.executor import Executor, NoValuesError, run_trials
from partwise.comparison.trials.ray import RayExecutor
from partwise.comparison.trials.shared import SharedExecutor
from partwise.comparison.trials.trial import Trial, final_values
from partwise.comparison.trials.work import describe_workers
from partwise.comparison.trials.workload import Workload
from partwise.comparison.tuning import Tune, run_tuning
from partwise.comparison.tuning_file import TUNING_FILE, TuningFile, read_tuning_file
from partwise.config import ConfigError, did_you_mean, digest
from partwise.files import refuse_links
from partwise.messages import quantity
from partwise.train.run_names import FolderLock, explain_write_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = ("local", "workers", "ray", "ray://HOST:PORT")


def check_place(text: str) -> str:
    """Raises ConfigError for an unknown place."""
    if text not in PLACES[:3] and not re.fullmatch(r"ray://[\w.-]+:\d+", text):
        raise ConfigError(f"--on {text}: unknown place{did_you_mean(text, PLACES)}")
    return text


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
    judged: Results | None = None
    trials: list[Trial] = field(default_factory=list)
    started: float = 0.0

    def __post_init__(self) -> None:
        self.requested_plan = self.plan
        self.entries = LedgerEntries(self.path)

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
        """What is compared, and the verdicts if there are any."""
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
            self.judged = read_finished(self.path, self.identity(), self.plan.arms, self.plan.seeds, data)
            return self.judged
        self.make_folder()
        lock = FolderLock(self.path)
        try:
            self.workload.store_parts(self.plan, self.path)
            metadata = self._metadata(data)
            if metadata["online"]:
                rules = replace(self.plan.rules, alpha=metadata["online"]["level"])
                self.plan = replace(self.plan, rules=rules)
            power = self.workload.control_power(self.plan)
            with self.executor() as executor:
                matching, tuning = self._match_and_tune(metadata, executor, on_progress)
                self._run_looks(executor, on_progress)
            results = self.workload.describe(self.plan, self.trials, gather(self.plan, self.trials))
            added: dict[str, Any] = {"match": matching, "provenance": self._provenance(metadata)}
            if tuning:
                note = f"{tuning.key} tuned for each arm over {', '.join(tuning.values)}"
                added |= {"tuning": tuning, "tuning_note": note}
            plan = self.plan
            judged = min(metadata["looks"], default=None)  # the seeds of the first verdict, which stands
            self.judged = judge_results(
                results.model_copy(update=added), plan.rules, plan.claims, plan.additive_predictions, judged, power
            )
            metadata["looks"] = sorted({*metadata["looks"], self.plan.seeds})
            with explain_write_errors(self.path):
                write_json(self.path / PLAN_FILE, metadata)
                self._record(metadata)
                self.judged.to_json(self.path / "results.json")
                write_report(self.judged, self.path)
        except NoValuesError:
            self._forget()
            raise
        finally:
            lock.release()
        return self.judged

    def _forget(self) -> None:
        """Remove the outcomes and the plan, which no value belongs to, so that the mended command can take the name."""
        for trial in self.trials:
            trial.forget()
        for name in (PLAN_FILE, TUNING_FILE):
            (self.path / name).unlink(missing_ok=True)

    def executor(self) -> Executor:
        """The executor of the trials."""
        place = check_place(self.on)
        if place == "local":
            return self.workload.executor()
        return (
            SharedExecutor(self.path)
            if place == "workers"
            else RayExecutor(self.path, place, self.workload.resources())
        )

    def _record(self, metadata: dict[str, Any]) -> None:
        """Record the results in the ledger, add what it says about them, and write the certificate."""
        entries, plan, results = self.entries, self.plan, self.results
        record = entries.result(plan, max(len(arm.trials) for arm in results.arms), results.effects)
        added: dict[str, Any] = {"asked_before": tuple(entries.asked_before(plan))}
        if metadata["online"]:
            added["online"] = OnlineLevel(**metadata["online"])
        if entries.warning:
            added["warnings"] = (*results.warnings, entries.warning)
        self.judged = results.model_copy(update=added)
        entry = LedgerEntry(number=record.number, hash=record.hash) if record else None
        arms = {arm.name: arm.config.to_stored() for arm in plan.arms}
        code, imports = code_version(self.workload.imports), self.workload.imports
        predictions = plan.additive_predictions
        certify(self.judged, plan.claims, self.identity(), predictions, arms, metadata, code, imports, entry).write(
            self.path
        )

    def _provenance(self, metadata: dict[str, Any]) -> Provenance:
        return Provenance(
            name=self.path.name,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            command=self.command,
            protocol_hash=metadata.get("hash") if self.plan.rules.looks else None,
            runtime=metadata.get("runtime", {}),
            machine=metadata.get("machine", {}),
            workers=tuple(describe_workers(trial.folder for trial in self.trials)),
        )

    def _match_and_tune(
        self, metadata: Mapping[str, Any], executor: Executor, on_progress: Callable[["Comparison"], None]
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
                self.tuning_file(metadata),
                self.workload.tunes_on_held_out_data,
            )
        return matching, tuning

    def tuning_file(self, metadata: Mapping[str, Any]) -> TuningFile:
        """What tuning has measured so far, here or on another machine. Raises ConfigError."""
        return read_tuning_file(self.path, self.hash, metadata["data"], metadata.get("runtime", {}))

    def _run_looks(self, executor: Executor, on_progress: Callable[["Comparison"], None]) -> None:
        """Run the trials up to each look in turn, continuing only the arms that still have an open claim."""
        plan = self.plan
        seeds_of = {arm.name: 0 for arm in plan.arms}
        open_claims = plan.claims
        for seeds in plan.looks:
            ends = {end for claim in open_claims for end in claim[:2]}
            names = {name for end in ends for name in plan.additive_predictions.get(end, (end,))}
            seeds_of |= dict.fromkeys((*names, plan.arms[0].name), seeds)
            self._run(executor, self._trials(seeds_of), on_progress)
            self.workload.check_trained(plan, self.trials)
            values = plan.values(final_values(self.trials, plan.rules.metric))
            effects = plan.rules.judge(values, plan.claims, plan.additive_predictions)
            if plan.rules.looks:
                self.entries.look(plan, seeds, effects)
            open_claims = tuple(claim for claim, effect in zip(plan.claims, effects, strict=True) if is_open(effect))
            if not open_claims:
                break

    def _run(self, executor: Executor, trials: list[Trial], on_progress: Callable[["Comparison"], None]) -> None:
        self.trials, self.started = trials, time.monotonic()
        run_trials(executor, trials, lambda: on_progress(self))
        on_progress(self)

    def identity(self) -> dict[str, Any]:
        """Everything fixed before the first run."""
        fixed = self.requested_plan.identity()
        if self.match:
            fixed["match"] = self.match
        if self.tune:
            fixed["tune"] = {"key": self.tune.key, "values": list(self.tune.values), "seeds": self.tune_seeds}
        if self.online:
            fixed["online"] = True
        return fixed

    @property
    def hash(self) -> str:
        """SHA-256 of the protocol."""
        return digest(self.identity())

    def make_folder(self) -> None:
        """Make the comparison's folder. Raises ConfigError for a link among the folders that it writes."""
        refuse_links(self.path, {"runs": 2, "tuning": 2, "check": 1, "worktrees": 1})
        if self.shared_runs:
            refuse_links(self.shared_runs, {".": 2})
        with explain_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def _metadata(self, data_hash: str) -> dict[str, Any]:
        """`compare.json`: everything fixed before the first trial. Raises ConfigError if the plan has changed."""
        imports = self.workload.imports
        metadata = read_plan_file(self.path, self.identity(), self.requested_plan.arms, self.plan.seeds, data_hash)
        if metadata:
            online = OnlineLevel(**metadata["online"]) if metadata.get("online") else None
            self.workload.restore_setup(self.plan, metadata)
            self.entries.resume(metadata.get("ledger"), self.plan.seeds, online, imports)
            return {"online": None, "ledger": None, **metadata}
        setup = self.workload.choose_setup(self.plan, timed=self.match == "seconds" or self.shared_runs is not None)
        metadata = new_plan_file(self.identity(), data_hash, setup)
        machine = metadata.get("machine", {})
        level = self.entries.start(self.plan, self.identity(), data_hash, machine, imports, self.online, **self.origin)
        metadata |= {"ledger": self.entries.started, "online": level.to_dict() if level else None}
        with explain_write_errors(self.path):
            write_json(self.path / PLAN_FILE, metadata)
        return metadata

    def _trials(self, seeds_of: dict[str, int]) -> list[Trial]:
        """The trials of the first `seeds_of[arm]` seeds of each arm."""
        trials = []
        for index in range(max(seeds_of.values())):
            seed = self.plan.first_seed + index
            for number, arm in enumerate(self.plan.arms):
                if index < seeds_of[arm.name]:
                    own = self.path / "runs" / f"{number}-{self.workload.folder_name(arm)}"
                    folder = self._shared_folder(arm) or own
                    trials.append(self.workload.trial(arm, seed, folder / f"seed-{seed}"))
        return trials

    def _shared_folder(self, arm: Arm) -> Path | None:
        """The folder of the arm if other comparisons share its trials."""
        return self.shared_runs / self.workload.key(arm) if self.shared_runs else None

    def _tuning_folder(self, number: int, arm: Arm, value: str) -> Path:
        """The folder of the trials that tune an arm, the plan's `number`th, at one value."""
        shared = self._shared_folder(arm)
        return shared / "tuning" / value if shared else self.path / "tuning" / f"{number}-{value}"


ProgressDisplay = Callable[[Comparison], AbstractContextManager[Callable[[Comparison], None]]]
"""Makes the context manager that displays a running comparison."""
