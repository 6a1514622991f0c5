"""The folder of a search: its settings, the pools of repeats of each best, and the tries, one folder each.

Every file is written once and at once, in the order in which things happen, and what a search knows is read from them: a
killed process leaves a beginning, which the next one continues.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from partwise.any_code.candidates import Candidate
from partwise.any_code.search_settings import SearchSettings
from partwise.comparison.results.value import read_json
from partwise.comparison.search.answer import Best, SearchState, Tried
from partwise.comparison.search.rule import Action, Pool, Search
from partwise.comparison.stats.samples import mean, sd
from partwise.config import ConfigError
from partwise.drafts import make_folder
from partwise.json_files import check_hash, write_hashed
from partwise.records import Record
from partwise.run_names import explain_write_errors

SEARCH_FILE, POOL_FILE, REPEATS_FILE, TRY_FILE, ANSWER_FILE = (
    f"{name}.json" for name in ("search", "pool", "repeats", "try", "answer")
)
POOLS, TRIES, WORKTREES = "pools", "tries", "worktrees"

SEEDS = 100
"""The number of seeds that belong to each pool and each try."""


@dataclass(frozen=True)
class PoolFolder:
    """The repeats of one best."""

    folder: Path
    best: int
    """The try that it was; 0 for the start."""
    candidate: Candidate
    first_seed: int
    environment: Mapping[str, Any]
    fresh: bool
    """Whether its noise is not pooled with that of the pools before: it is the first, or they ran elsewhere."""
    repeats: Record | None
    """Values and memory, once all have run."""

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.repeats["values"]) if self.repeats else ()


@dataclass(frozen=True)
class TryFolder:
    """One candidate."""

    folder: Path
    tried: Tried
    """With the decision "unfinished" until it is answered."""
    key: str
    """Of what was given."""
    first_seed: int
    started: int | None
    """The number of its record in the ledger."""
    pool: int
    """The number of the pool that it is judged against."""

    @property
    def finished(self) -> bool:
        return self.tried.decision != "unfinished"


@dataclass
class SearchFolder:
    """A search as its folder has it."""

    path: Path
    settings: SearchSettings
    environment: Mapping[str, Any]
    pools: list[PoolFolder] = field(default_factory=list)
    tries: list[TryFolder] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def pool(self) -> PoolFolder | None:
        """The pool of the present best; None before it has begun."""
        last = self.pools[-1] if self.pools else None
        return last if last and last.best == self.best else None

    @property
    def kept(self) -> list[TryFolder]:
        return [each for each in self.tries if each.tried.decision == "keep"]

    @property
    def best(self) -> int:
        """The number of the try that is the best; 0 for the start."""
        return self.kept[-1].tried.number if self.kept else 0

    @property
    def best_candidate(self) -> Candidate:
        if not self.kept:
            return Candidate(self.settings.commit, self.settings.command)
        last = self.kept[-1].tried
        return Candidate(last.commit, last.command)

    @property
    def unfinished(self) -> TryFolder | None:
        return next((each for each in self.tries if not each.finished), None)

    @property
    def next_seed(self) -> int:
        return SEEDS * (len(self.pools) + len(self.tries))

    @property
    def machine(self) -> Mapping[str, Any]:
        """Where the present pool runs."""
        return self.pools[-1].environment if self.pools else self.environment

    def known(self) -> Search:
        """What the rule needs to judge a candidate. The pool of the present best must be complete."""
        found = Search(Pool(()))
        for number, pool in enumerate(self.pools):
            if pool.repeats:
                before = Pool(()) if pool.fresh else found.pool
                found = replace(found, pool=Pool(pool.values, before.squares, before.df))
            for tried in (each.tried for each in self.tries if each.pool == number and each.finished):
                found = found.ended(values_of(tried), action_of(tried))
        return found

    def state(self, answer: Tried | None = None, notes: tuple[str, ...] = ()) -> SearchState:
        best, pool = self.best_candidate, self.pool
        values = pool.values if pool else ()
        known = self.known()
        return SearchState(
            search=self.name,
            metric=self.settings.metric.name,
            lower_is_better=self.settings.design.lower_is_better,
            minutes=self.settings.minutes,
            alpha=self.settings.alpha,
            answer=answer,
            best=Best(
                number=self.best,
                description=self.kept[-1].tried.description if self.kept else self.settings.start,
                commit=best.commit,
                command=best.command,
                values=values,
                mean=mean(values) if values else None,
                sd=sd(values, max(map(abs, values))) if len(values) > 1 else None,
                peak_memory=pool.repeats["peak_memory"] if pool and pool.repeats else None,
            ),
            tries=tuple(each.tried for each in self.tries),
            tests=known.tests,
            next_level=known.level(self.settings.design),
            runs=len(list(self.path.glob("*/*/run-*/result.json"))),
            notes=notes,
        )

    def add_pool(self, environment: Mapping[str, Any], fresh: bool) -> PoolFolder:
        """Begin the repeats of the present best."""
        best = self.best_candidate
        folder = self.path / POOLS / str(len(self.pools))
        content = {
            "best": self.best,
            "commit": best.commit,
            "command": best.command,
            "first_seed": self.next_seed,
            "environment": dict(environment),
            "fresh": fresh,
        }
        write_once(folder / POOL_FILE, content)
        self.pools.append(read_pool(folder))
        return self.pools[-1]

    def end_pool(self, content: Mapping[str, Any]) -> None:
        write_once(self.pools[-1].folder / REPEATS_FILE, content)
        self.pools[-1] = read_pool(self.pools[-1].folder)

    def add_try(self, tried: Tried, key: str, started: int | None) -> TryFolder:
        folder = self.path / TRIES / str(tried.number)
        write_once(
            folder / TRY_FILE,
            {
                "tried": tried.to_dict(),
                "key": key,
                "first_seed": self.next_seed,
                "started": started,
                "pool": len(self.pools) - 1,
            },
        )
        self.tries.append(read_try(folder))
        return self.tries[-1]

    def end_try(self, tried: Tried) -> TryFolder:
        """Store the decision on the unfinished try."""
        place = next(index for index, each in enumerate(self.tries) if each.tried.number == tried.number)
        write_once(self.tries[place].folder / ANSWER_FILE, tried.to_dict())
        self.tries[place] = replace(self.tries[place], tried=tried)
        return self.tries[place]


def create_search(path: Path, settings: SearchSettings, environment: Mapping[str, Any]) -> SearchFolder:
    content = {"format": 1, "settings": settings.to_stored(), "environment": dict(environment)}
    write_once(path / SEARCH_FILE, content)
    return SearchFolder(path, settings, environment)


def read_search(path: Path) -> SearchFolder:
    """Raises ConfigError for a folder that was damaged."""
    stored = read_once(path / SEARCH_FILE)
    if stored["format"] != 1:
        raise ConfigError(f"{path} is a search of a newer version of partwise: update partwise")
    found = SearchFolder(path, SearchSettings.from_stored(stored["settings"]), stored["environment"])
    found.pools = [read_pool(folder) for folder in numbered(path / POOLS, POOL_FILE)]
    found.tries = [read_try(folder) for folder in numbered(path / TRIES, TRY_FILE)]
    return found


def numbered(parent: Path, file: str) -> list[Path]:
    """The folders with this file, in the order of their numbers."""
    folders = [each.parent for each in parent.glob(f"*/{file}") if each.parent.name.isdecimal()]
    return sorted(folders, key=lambda folder: int(folder.name))


def read_pool(folder: Path) -> PoolFolder:
    stored = read_once(folder / POOL_FILE)
    repeats = read_once(folder / REPEATS_FILE) if (folder / REPEATS_FILE).exists() else None
    candidate = Candidate(stored.text("commit"), stored.text("command"))
    environment = stored["environment"]
    return PoolFolder(
        folder, stored.whole("best"), candidate, stored.whole("first_seed"), environment, bool(stored["fresh"]), repeats
    )


def read_try(folder: Path) -> TryFolder:
    stored = read_once(folder / TRY_FILE)
    answered = (folder / ANSWER_FILE).exists()
    tried = read_once(folder / ANSWER_FILE) if answered else stored.record("tried")
    return TryFolder(
        folder,
        Tried.from_dict(tried, str(folder)),
        stored.text("key"),
        stored.whole("first_seed"),
        stored["started"],
        stored.whole("pool"),
    )


def values_of(tried: Tried) -> list[float]:
    """The values of its runs; nan for one that failed."""
    return [math.nan if value is None else value for value in tried.values]


def action_of(tried: Tried) -> Action:
    """How the rule ended it."""
    assert tried.decision != "unfinished"
    failed = None in tried.values
    return Action(kind=tried.decision, reason="failure" if failed else "test", tested=tried.tested)


def write_once(path: Path, content: Mapping[str, Any]) -> None:
    with explain_write_errors(path.parent):
        make_folder(path.parent)
        write_hashed(path, dict(content))


def read_once(path: Path) -> Record:
    """Raises ConfigError for a file that was changed."""
    stored = read_json(path)
    sha256 = stored.pop("sha256", None)
    check_hash(stored, sha256, path, "restore it, or choose another --search")
    return stored
