"""Opening a search: created by its settings or read from its folder, locked, on the machine of its best."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partwise.any_code.provenance import changes_since, describe_environment
from partwise.any_code.search import OpenSearch, Tell
from partwise.any_code.search_folder import (
    POOLS,
    SEARCH_FILE,
    TRIES,
    WORKTREES,
    PoolFolder,
    create_search,
    read_search,
)
from partwise.any_code.search_runs import OnRun, SearchRuns, places_of
from partwise.any_code.search_settings import check_same, make_settings
from partwise.any_code.worktrees import Repository
from partwise.comparison.search.answer import SearchState
from partwise.comparison.trials.stored import RESULT
from partwise.config import ConfigError, did_you_mean
from partwise.drafts import make_folder
from partwise.files import refuse_links
from partwise.records import read_record
from partwise.run_names import FolderLock, check_run_name, explain_write_errors

RUNS = Path("runs")


def find_search(name: str) -> Path:
    """The folder of a search. Raises ConfigError for a name that is none."""
    path = RUNS / check_run_name(name, "--search")
    if "~" in name or name.endswith((".", ".lock")):
        raise ConfigError(f"--search {name!r}: git has no ref of this name: use letters, digits and -")
    return path


@contextmanager
def open_search(
    name: str,
    given: Mapping[str, Any],
    metric: Mapping[str, Any] | None,
    *,
    allow_changes: bool = False,
    tell: Tell = lambda line: None,
    on_run: OnRun = lambda what, outcome: None,
) -> Iterator[OpenSearch]:
    """The search of this name, created by its settings if it is new, locked. Raises ConfigError.

    `given` has the settings of this command, None where it gives none; `metric` the fields of its metric.
    """
    path, repository = find_search(name), Repository.around(Path())
    new = not (path / SEARCH_FILE).exists()
    if new:
        check_new(path, name, given, metric)
        places_of(make_settings(given, metric or {}, repository).workers)  # raises before anything is written
    with explain_write_errors(path):
        make_folder(path)
    lock = FolderLock(path, option="--search")
    try:
        refuse_links(path, {POOLS: 2, TRIES: 2, WORKTREES: 1})
        environment = describe_environment(Path(), [], [])
        del environment["code"]
        if not new:
            found = read_search(path)
            if metric is not None and given.get("command") and only_failed(found.pools):
                new = True  # the settings of a start that never had a value may be mended
        if new:
            assert metric is not None
            settings = make_settings(given, metric, repository)
            clear_runs(path)
            found = create_search(path, settings, environment)
        else:
            check_same(found.settings, given, metric, name)
        runs = SearchRuns(path, found.settings, repository, on_run)
        runs.remove_worktrees()
        opened = OpenSearch(found, repository, runs, tell, environment)
        check_environment(opened, allow_changes)
        yield opened
    finally:
        lock.release()


def check_new(path: Path, name: str, given: Mapping[str, Any], metric: Mapping[str, Any] | None) -> None:
    """Raise ConfigError unless a search can be created here."""
    if path.exists() and any(each.name not in (".lock", ".pid") for each in path.iterdir()):
        raise ConfigError(f"{path} exists and is no search: choose another --search")
    missing = [f"--{key}" for key in ("command", "minutes") if given.get(key) is None]
    missing += ["--metric"] if metric is None else []
    if missing:
        known = [each.parent.name for each in RUNS.glob(f"*/{SEARCH_FILE}")]
        raise ConfigError(
            f"search {name} does not exist{did_you_mean(name, known) if known else ''}; to start it, give "
            f"{', '.join(sorted(missing))} too"
        )


def only_failed(pools: Sequence[PoolFolder]) -> bool:
    """Whether repeats of the best have ended, and none has a value."""
    results = [result for pool in pools for result in pool.folder.glob(f"run-*/{RESULT}")]
    return bool(results) and all(read_record(result).get("status") != "done" for result in results)


def clear_runs(path: Path) -> None:
    """Remove the pools of a start that never had a value."""
    shutil.rmtree(path / POOLS, ignore_errors=True)


def check_environment(search: OpenSearch, allow_changes: bool) -> None:
    """Raise ConfigError on another machine; with `allow_changes` the best is repeated here."""
    no_code: dict[str, Any] = {"code": {"files": {}}}
    changed = changes_since({**search.folder.machine, **no_code}, {**search.environment, **no_code})
    if not changed:
        if allow_changes and search.folder.pool and only_failed([search.folder.pool]):  # what it needs may be here now
            search.folder.add_pool(search.environment, search.folder.pool.fresh)
        return
    if not allow_changes:
        raise ConfigError(
            f"changed since the best of search {search.folder.name} ran: {'; '.join(changed)}. Continue there, or add "
            "--allow-changes, which repeats the best here"
        )
    if search.folder.unfinished:
        raise ConfigError(
            f"--allow-changes: try {search.folder.unfinished.tried.number} has not ended, and its runs are from before the "
            "change: add --abandon"
        )
    search.folder.add_pool(search.environment, fresh=True)


def state_of(name: str) -> SearchState:
    """What is stored of a search. Raises ConfigError for an unknown name."""
    path = find_search(name)
    if not (path / SEARCH_FILE).exists():
        check_new(path, name, {}, None)
    return read_search(path).state()
