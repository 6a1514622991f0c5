"""A search: candidates tried one after another against the present best, in a fixed time per run.

The rule is that of `comparison/search/rule.py`. What a killed process has begun is continued.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from partwise.any_code.candidates import Candidate, Given, make_candidate, parse_candidate
from partwise.any_code.provenance import git
from partwise.any_code.search_folder import SEEDS, TRIES, PoolFolder, SearchFolder, TryFolder
from partwise.any_code.search_ledger import record_answer, record_start
from partwise.any_code.search_runs import SearchRuns
from partwise.any_code.search_table import write_table
from partwise.any_code.worktrees import Repository
from partwise.comparison.results import TrialResult
from partwise.comparison.search.answer import Tried
from partwise.comparison.search.rule import Action, Pool, check_pool, next_action
from partwise.config import ConfigError
from partwise.config.yaml import show
from partwise.messages import quantity

MAX_DESCRIPTION = 300

Tell = Callable[[str], None]


@dataclass
class OpenSearch:
    """A search that no other process changes."""

    folder: SearchFolder
    repository: Repository
    runs: SearchRuns
    tell: Tell
    environment: Mapping[str, Any]

    def repeat_best(self) -> None:
        """Run the repeats of the present best that are missing. Raises ConfigError if it does not run."""
        pool = self.folder.pool or self.folder.add_pool(self.environment, fresh=not self.folder.pools)
        if pool.repeats:
            return
        design = self.folder.settings.design
        wanted = design.pool if pool.fresh else design.promotion
        self.tell(
            f"{quantity(wanted, 'run')} of the best, {pool.candidate.commit[:10]}, which candidates are judged against"
        )
        outcomes: list[TrialResult] = []
        runs = self.runs.in_order(pool.folder, "best", pool.candidate, pool.first_seed)
        while sum(each.value is not None for each in outcomes) < wanted:
            number = len(outcomes)
            if number == min(2 * wanted, SEEDS):
                raise ConfigError(
                    f"half of {number} runs of the best failed ({self.last_failure(outcomes)}): start another --search "
                    "from a commit that runs"
                )
            outcomes.append(next(runs))
            if number == 0 and outcomes[0].value is None and pool.fresh:
                what = f"try {pool.best}" if pool.best else f"the start, {self.folder.settings.start}"
                first = len(self.folder.pools) == 1
                remedy = "give all settings again" if first else "add --allow-changes, which repeats the best"
                raise ConfigError(
                    f"{what}, failed: {outcomes[0].reason}; its output is in {pool.folder / 'run-0'}: fix it, and {remedy}"
                )
        values = {each.seed: each.value for each in outcomes if each.value is not None}
        check_pool(Pool(tuple(values.values())), design)
        self.folder.end_pool(
            {
                "values": list(values.values()),
                "seeds": list(values),
                "failed": len(outcomes) - len(values),
                "peak_memory": max_memory(outcomes),
                "seconds": sum(each.seconds or 0.0 for each in outcomes),
            }
        )

    @staticmethod
    def last_failure(outcomes: list[TrialResult]) -> str:
        return next((each.reason or "" for each in reversed(outcomes) if each.value is None), "")

    def answer(self, text: str, description: str, again: bool) -> Tried:
        """Try a candidate, or continue; the answer that it had if it was tried against this best. Raises ConfigError."""
        given = parse_candidate(text, self.repository)
        earlier = self.earlier(given)
        unfinished = self.folder.unfinished
        if earlier and earlier.finished and not again:
            once_more = "" if earlier.tried.number == self.folder.best else "; --again tries it once more"
            self.tell(f"{show(text)} was try {earlier.tried.number}{once_more}")
            self.record(earlier)
            self.repeat_best()
            return earlier.tried
        if unfinished and unfinished.key != given.key:
            raise ConfigError(
                f"try {unfinished.tried.number} ({show(unfinished.tried.given)}) has not ended: give its command again to "
                "continue, or add --abandon"
            )
        attempt = unfinished or self.make(given)  # raises before the best is repeated
        self.repeat_best()
        if isinstance(attempt, Candidate):
            attempt = self.begin(given, attempt, description)
        for note in attempt.tried.notes:
            self.tell(f"note: {note}")
        ended = self.folder.end_try(self.judge(attempt))
        self.record(ended)
        if ended.tried.decision == "keep":
            self.repeat_best()
        return ended.tried

    def earlier(self, given: Given) -> TryFolder | None:
        """The last try of the same candidate against the present best, or that made it the best."""
        best = self.folder.best
        same = [each for each in self.folder.tries if each.key == given.key]
        return next((each for each in reversed(same) if best in (each.tried.against, each.tried.number)), None)

    def make(self, given: Given) -> Candidate:
        """The commit and the command to run. Raises ConfigError."""
        fixed = self.folder.settings.fixed_paths(self.repository)
        return make_candidate(given, self.repository, self.folder.best_candidate, fixed)

    def begin(self, given: Given, candidate: Candidate, description: str) -> TryFolder:
        """Record a candidate before its first run. Raises ConfigError."""
        folder, number = self.folder, len(self.folder.tries) + 1
        self.repository.keep(f"refs/partwise/{folder.name}/{number}", candidate.commit)
        tried = Tried(
            number=number,
            kind=given.kind,
            given=given.text,
            description=description or self.describe(given, candidate),
            commit=candidate.commit,
            command=candidate.command,
            against=folder.best,
            decision="unfinished",
            reason="",
            notes=candidate.notes + self.not_committed(given),
        )
        started = record_start(folder.path / TRIES / str(number), folder.name, tried, folder.settings.to_stored())
        return folder.add_try(tried, given.key, started)

    def describe(self, given: Given, candidate: Candidate) -> str:
        """The subject of a commit, or what was given."""
        subject = None
        if given.kind == "commit":
            subject = git(self.repository.root, "show", "--no-patch", "--format=%s", given.content)
        return plain((subject or "").strip() or given.text)[:MAX_DESCRIPTION]

    def not_committed(self, given: Given) -> tuple[str, ...]:
        if given.kind == "patch" or not git(self.repository.root, "diff", "--name-only", "HEAD"):
            return ()
        return ("uncommitted changes of this checkout are not part of it",)

    def judge(self, attempt: TryFolder) -> Tried:
        """Run the candidate until the rule decides."""
        known, design = self.folder.known(), self.folder.settings.design
        level = known.level(design)
        candidate = Candidate(attempt.tried.commit, attempt.tried.command)
        runs = self.runs.in_order(attempt.folder, f"try {attempt.tried.number}", candidate, attempt.first_seed)
        outcomes: list[TrialResult] = []
        while True:
            values = [math.nan if each.value is None else each.value for each in outcomes]
            action = next_action(values, known.pool, level, design)
            if action.kind != "run":
                break
            outcomes += itertools.islice(runs, action.runs)
        return attempt.tried.model_copy(
            update={
                "decision": action.kind,
                "reason": explain(action, outcomes, design.screen),
                "tested": action.tested,
                "p": action.p,
                "level": action.level,
                "estimate": action.estimate,
                "low": action.low,
                "high": action.high,
                **facts_of(outcomes),
            }
        )

    def abandon(self) -> Tried:
        """End the unfinished try as undecided. Raises ConfigError if there is none."""
        attempt = self.folder.unfinished
        if attempt is None:
            raise ConfigError(f"--abandon: no try of search {self.folder.name} is unfinished")
        runs = len(list(attempt.folder.glob("run-*/result.json")))
        update = {"decision": "undecided", "reason": "abandoned", "tested": runs > 0}
        ended = self.folder.end_try(attempt.tried.model_copy(update=update))
        self.record(ended)
        return ended.tried

    def record(self, ended: TryFolder) -> None:
        """Write the decision to the table, and to the ledger, unless it is there."""
        write_table(self.folder)
        pool = next((each for each in reversed(self.folder.pools) if each.best == ended.tried.against), None)
        repeats = repeats_of(pool)
        record_answer(
            ended.folder, self.folder.name, ended.tried, ended.started, repeats, self.folder.settings.to_stored()
        )


def repeats_of(pool: PoolFolder | None) -> dict[int, float]:
    return dict(zip(pool.repeats["seeds"], pool.values, strict=True)) if pool and pool.repeats else {}


def facts_of(outcomes: list[TrialResult]) -> dict[str, Any]:
    return {
        "values": tuple(each.value for each in outcomes),
        "seeds": tuple(each.seed for each in outcomes),
        "seconds": sum(each.seconds or 0.0 for each in outcomes),
        "peak_memory": max_memory(outcomes),
    }


def max_memory(outcomes: list[TrialResult]) -> int | None:
    return max((each.peak_memory for each in outcomes if each.peak_memory is not None), default=None)


def explain(action: Action, outcomes: list[TrialResult], screen: float) -> str:
    """The reason of a decision in words."""
    match action.reason:
        case "failure":
            return f"run {len(outcomes)} failed: {outcomes[-1].reason}"
        case "screen":
            return f"its first run does not look better (p {action.p:.2g}, above {screen:g})"
        case "hopeless":
            return f"its runs do not look better (p {action.p:.2g})"
        case "better":
            return f"p {action.p:.2g}, at most {action.level:.2g}"
        case _:
            return f"all {len(outcomes)} runs are used, and p is {action.p:.2g}"


def plain(text: str) -> str:
    """Text on one line."""
    return " ".join(text.split())
