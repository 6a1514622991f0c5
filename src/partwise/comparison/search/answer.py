"""What `partwise try` answers: the document of `--json`, and what a search stores about each try."""

from typing import Literal

from partwise.comparison.results.value import Value

Decision = Literal["keep", "discard", "undecided", "unfinished"]


class Tried(Value):
    """One candidate: what it was, what it was judged against, and the decision."""

    number: int
    kind: Literal["commit", "patch", "command"]
    given: str
    """As it was given: a branch, the name of a file, a command."""
    description: str
    commit: str
    """The commit that ran: that of the candidate, with the fixed files of the best."""
    command: str
    against: int
    """The number of the try that was the best; 0 for the start."""
    decision: Decision
    reason: str
    tested: bool = False
    """Whether it passed its first run, and so has a number in the sequence of tests."""
    p: float | None = None
    """One-sided, of "not better than the best"."""
    level: float | None = None
    """What `p` had to reach."""
    estimate: float | None = None
    """The difference from the mean of the best's runs."""
    low: float | None = None
    high: float | None = None
    values: tuple[float | None, ...] = ()
    """Of its runs in order; null for a run that failed."""
    seeds: tuple[int, ...] = ()
    seconds: float = 0.0
    """Of all its runs."""
    peak_memory: int | None = None
    """In bytes, the most of its runs; null where the system does not tell."""
    notes: tuple[str, ...] = ()


class Best(Value):
    """The present best, and the repeats that candidates are judged against."""

    number: int
    """The try that was kept; 0 for the start."""
    description: str
    commit: str
    command: str
    values: tuple[float, ...]
    """Of its repeats; none before the first has run."""
    mean: float | None
    sd: float | None
    peak_memory: int | None


class SearchState(Value):
    """What `partwise try --json` prints."""

    search: str
    metric: str
    lower_is_better: bool
    minutes: float
    alpha: float
    answer: Tried | None
    """The try that this command asked for."""
    best: Best
    tries: tuple[Tried, ...]
    tests: int
    """Tries that passed their first run."""
    next_level: float
    """The error that the next test may spend, over all its looks."""
    runs: int
    """All runs so far, with those of the best."""
    notes: tuple[str, ...]
