"""The main job: train every arm on every seed, in parallel and resumably, then judge."""

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from partwise.checkpoint import write_json
from partwise.comparison.matching import match_arms
from partwise.comparison.plan import Plan, dataset_of, make_plan
from partwise.comparison.pool import Crew, Job, prepare_job
from partwise.comparison.protocol import is_open
from partwise.comparison.rates import measure_rates, rates_of_runs, tokens_a_step
from partwise.comparison.report import write_report
from partwise.comparison.request import Measure, Request
from partwise.comparison.results import final_values, gather
from partwise.comparison.store import planted_power
from partwise.comparison.tuning import Tune, check_seeds, parse_tune, run_tuning
from partwise.config import ConfigError, digest
from partwise.data import Dataset
from partwise.evaluate.scores import dataset_floors
from partwise.inspection.paths import alike
from partwise.overrides import difference
from partwise.train.choices import Choices, choose, machine
from partwise.train.folder import check_length
from partwise.train.names import Lock, default_name, run_name
from partwise.train.settings import RunConfig

TOGETHER = 8
"""Seeds of an arm that an accelerator trains as one program."""

SMALL = 2**24
"""Parameters up to which it does so unasked: larger models keep it busy alone, and would need as many times their memory."""


@dataclass
class Comparison:
    """A comparison with a home on disk. The same plan continues where it stopped and repeats no finished run.

    `asked` is the plan before matching and tuning, which may change the arms of `plan`. `results` is what `results.json`
    holds, once `run` has ended.
    """

    path: Path
    plan: Plan
    command: str = ""
    imports: tuple[str, ...] = ()
    workers: int | None = None
    together: int | None = None
    match: Measure | None = None
    tune: Tune | None = None
    tune_seeds: int = 2
    results: dict[str, Any] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    started: float = 0.0

    def __post_init__(self) -> None:
        self.asked = self.plan

    @property
    def verdicts(self) -> dict[str, str | None]:
        """The verdict on each arm, by its name."""
        return {row["arm"]: row["verdict"] for row in self.results["comparisons"]}

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def run(self, watch: Callable[["Comparison"], None] = lambda comparison: None) -> dict[str, Any]:
        """Train what is missing, judge, and write the report. Raises ConfigError, and KeyboardInterrupt once saved."""
        self.plan = self.asked
        dataset = self.prepare()
        self.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.path)
        try:
            card = self._card(dataset)
            look = len([seeds for seeds in card["looks"] if seeds < self.plan.seeds]) + 1
            power = planted_power(self.plan, dataset)
            with Crew(card["workers"], card["together"]) as crew:
                before = self._before(card, crew, watch)
                self._train(Choices(**card["choices"]), crew, watch)
            rates = card["rates"] or rates_of_runs(self.jobs)
            self.results = gather(self.plan, self.jobs, dataset, look=look, rates=rates, floors=dataset_floors(dataset))
            for control in self.results["controls"]:
                control["power"] = power if control["role"] == "planted" else None
            self.results |= before | {
                "name": self.path.name,
                "choices": card["choices"],
                "machine": card["machine"],
                "command": self.command,
                "protocol": card.get("hash") if self.plan.rules.looks else None,
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            card["looks"] = sorted({*card["looks"], self.plan.seeds})
            write_json(self.path / "compare.json", card)
            write_json(self.path / "results.json", self.results)
            write_report(self.results, self.path)
        finally:
            lock.release()
        return self.results

    def _before(self, card: dict[str, Any], crew: Crew, watch: Callable[["Comparison"], None]) -> dict[str, Any]:
        """What the protocol does before the test: match the arms, then tune them. Both may change the plan's arms."""
        found: dict[str, Any] = {}
        if self.match:
            self.plan, matches = match_arms(self.plan, self.match, card["rates"])
            found["match"] = {"measure": self.match, "arms": [asdict(match) for match in matches]}
        if self.tune:
            choices = Choices(**card["choices"])

            def new_job(folder: Path, arm: str, seed: int, config: RunConfig) -> Job:
                return prepare_job(folder, arm, seed, config, choices, self.imports, self.command)

            def train(jobs: list[Job]) -> None:
                self.jobs, self.started = jobs, time.monotonic()
                crew.run(jobs, lambda: watch(self))
                watch(self)

            tuning = self.path / "tuning.json"
            self.plan, tuned = run_tuning(self.plan, self.tune, self.tune_seeds, self.path / "tuning", new_job, train)
            if tuning.exists():  # the time that it took when it was run
                tuned["seconds"] = max(tuned["seconds"], json.loads(tuning.read_text())["seconds"])
            write_json(tuning, tuned)
            found["tuned"] = tuned
            found["tuning"] = f"{self.tune.path} tuned for each arm over {', '.join(self.tune.values)}"
            if card["rates"]:
                for arm in self.plan.arms:  # an arm at another number is as fast as the one that it comes from
                    origin = max((name for name in card["rates"] if arm.name.startswith(name)), key=len)
                    card["rates"].setdefault(arm.name, card["rates"][origin])
        return found

    def _train(self, choices: Choices, crew: Crew, watch: Callable[["Comparison"], None]) -> None:
        """Train up to each look, and on with the arms of which a claim is still open."""
        plan = self.plan
        runs = {arm.name: 0 for arm in plan.arms}
        open_claims = plan.claims
        for seeds in plan.looks:
            names = {name for claim in open_claims for end in claim[:2] for name in plan.sums.get(end, (end,))}
            runs |= dict.fromkeys((*names, plan.arms[0].name), seeds)
            self.jobs = self._jobs(choices, runs)
            self.started = time.monotonic()
            crew.run(self.jobs, lambda: watch(self))
            watch(self)
            effects = plan.rules.judge(plan.values(final_values(self.jobs, plan.rules.metric)), plan.claims)
            open_claims = tuple(claim for claim, effect in zip(plan.claims, effects, strict=True) if is_open(effect))
            if not open_claims:
                break

    def identity(self) -> dict[str, Any]:
        """All that is fixed before the first run."""
        fixed = self.asked.identity()
        if self.match:
            fixed["match"] = self.match
        if self.tune:
            fixed["tune"] = {"path": self.tune.path, "values": list(self.tune.values), "seeds": self.tune_seeds}
        return fixed

    @property
    def hash(self) -> str:
        """SHA-256 of the protocol."""
        return digest(self.identity())

    def prepare(self) -> Dataset:
        first = self.plan.arms[0].config
        dataset = first.prepare()
        for arm in self.plan.arms:
            check_length(dataset_of(self.plan, arm, dataset), arm.config)
        return dataset

    def estimate(self) -> dict[str, Any]:
        """Minutes on this machine, and the smallest effect that these seeds could show; trains a few steps only."""
        dataset = self.prepare()
        choices, workers, together = self._choices()
        rates, scoring = measure_rates(self.plan, dataset, choices)
        seconds, runs = 0.0, 0
        claimed = {end for claim in self.plan.claims if claim.role == "claim" for end in claim[:2]}
        for arm in self.plan.arms:
            number = self.plan.seeds
            if self.tune and arm.name in claimed:
                number += self.plan.seeds + len(self.tune.values) * self.tune_seeds  # tuned, and tested at its best too
            tokens = arm.config.train.steps * tokens_a_step(arm, dataset)
            seconds += number * (tokens / (rates[arm.name] or math.inf) + scoring[arm.name])
            runs += number
        minutes = seconds / min(workers, runs) / 60
        return {"minutes": minutes, "runs": runs, "workers": workers, "together": together, "rates": rates}

    def _choices(self) -> tuple[Choices, int, int]:
        """Device and paths, how many programs run at once, and how many seeds of an arm are one program."""
        choices = choose(self.plan.arms[0].config.train)
        if any(getattr(arm.config.model.attention, "dropout", 0.0) for arm in self.plan.arms):
            # attention weights that are dropped out exist on this path only, and a path is never a difference of arms
            choices = replace(choices, attention_path="products")
        whole = choices.precision == "bfloat16" and choices.block_path == "kernel"
        if whole and not alike(arm.config.model for arm in self.plan.arms):
            choices = replace(choices, block_path="layers")  # the same rule: layers round more often than whole blocks
        small = all(arm.config.model.parameters() <= SMALL for arm in self.plan.arms)
        together = self.together or (TOGETHER if choices.device == "cuda" and small else 1)
        if together > 1:
            choices = choices.for_ensembles(self.plan.arms[0].config.train)
        if choices.device != "cpu":
            return choices, 1, together
        workers = self.workers or max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        threads = self.plan.arms[0].config.train.threads or 1
        return choices.with_threads(threads), workers, together

    def _card(self, dataset: Dataset) -> dict[str, Any]:
        """`compare.json`: what is fixed before the first run. A changed plan is refused."""
        path = self.path / "compare.json"
        if path.exists():
            card = json.loads(path.read_text())
            rows = difference({"plan": _by_name(card["plan"])}, {"plan": _by_name(self.identity())})
            if rows:
                key, old, new = rows[0]
                raise ConfigError(
                    f"{self.path} holds another comparison ({key} was {old}, now {new}): choose another --name"
                )
            if card.get("hash", self.hash) != self.hash:
                raise ConfigError(
                    f"{path} was changed after the first run: its hash does not fit; choose another --name"
                )
            if card["data"] != dataset.hash:
                raise ConfigError(f"the data of {self.path} has changed since its first run: choose another --name")
            if card["looks"] and self.plan.seeds < max(card["looks"]):
                raise ConfigError(
                    f"--seeds {self.plan.seeds}: {self.path} was already judged at {max(card['looks'])} seeds, "
                    "and seeds that were looked at cannot be taken back; give as many or more"
                )
            return {**card, "together": self.together or card.get("together", 1)}  # which changes the rounding alone
        choices, workers, together = self._choices()
        # what is held equal is fixed before the first run; else the runs themselves show how fast they are
        rates = measure_rates(self.plan, dataset, choices)[0] if self.match == "seconds" else {}
        card = {
            "format": 1,
            "plan": self.identity(),
            "hash": self.hash,
            "looks": [],
            "choices": choices.to_dict(),
            "workers": workers,
            "together": together,
            "rates": rates,
            "machine": machine(),
            "data": dataset.hash,
        }
        write_json(path, card)
        return card

    def _jobs(self, choices: Choices, runs: dict[str, int]) -> list[Job]:
        """The first so many runs of each arm."""
        jobs = []
        for place in range(max(runs.values())):
            seed = self.plan.first_seed + place
            for number, arm in enumerate(self.plan.arms):
                if place < runs[arm.name]:
                    folder = self.path / "runs" / f"{number}-{default_name([arm.name])}" / f"seed-{seed}"
                    config = arm.with_seed(seed)
                    jobs.append(prepare_job(folder, arm.name, seed, config, choices, self.imports, self.command))
        return jobs


Watching = Callable[[Comparison], AbstractContextManager[Callable[[Comparison], None]]]
"""What shows a comparison while it runs."""


def compare(
    preset: str,
    *overrides: str,
    watch: Callable[[Comparison], None] = lambda comparison: None,
    **settings: Any,
) -> Comparison:
    """Train a preset and its variants over paired seeds and judge what each change bought.

    `overrides` make the second arm; `settings` are those of a `Request`: each text in `arms` (`"ffn=geglu norm=rmsnorm"`)
    makes a further arm, `common` applies to every arm, and `data`, `seeds`, `margin`, `looks` and the others say how; or
    those of `plan_comparison`. Results and report are written to `runs/NAME`. Raises ConfigError.
    """
    comparison = plan_comparison(preset, *overrides, **settings)
    comparison.run(watch)
    return comparison


def plan_comparison(
    preset: str,
    *overrides: str,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    together: int | None = None,
    **settings: Any,
) -> Comparison:
    """The comparison that `compare` would run, checked but not begun. Raises ConfigError."""
    given = {key: value for key, value in settings.items() if value is not None}
    request = Request.from_dict({"preset": preset, "change": list(overrides), **given})
    return planned(request, name, imports, workers, together)


def planned(
    request: Request,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    together: int | None = None,
) -> Comparison:
    """The comparison that answers a request, checked but not begun; `workers` programs at once, of `together` seeds each.

    Raises ConfigError.
    """
    path = Path("runs") / (run_name(name) if name else request.name())
    tune = parse_tune(request.tune) if request.tune else None
    plan = make_plan(request)
    if tune:
        if request.variance != "pair":
            raise ConfigError(
                "variance=residual --tune: an arm and itself, tuned, share their noise: use variance=pair"
            )
        check_seeds(plan)
        for value in tune.values:
            tune.of(plan.arms[0], value)  # refuses what cannot be set, before anything runs
    command = request.command(name, imports)
    return Comparison(path, plan, command, imports, workers, together, request.match, tune, request.tune_seeds)


def _by_name(identity: dict[str, Any]) -> dict[str, Any]:
    return {**identity, "arms": {arm["name"]: arm["config"] for arm in identity["arms"]}}
