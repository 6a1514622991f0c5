"""The comparisons of a ledger that share one false discovery rate, and the level of the next."""

from collections.abc import Sequence
from typing import Any

from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.results import OnlineLevel
from partwise.comparison.stats.online import online_level
from partwise.config import ConfigError


def next_level(records: Sequence[ChainEntry], alpha: float) -> OnlineLevel:
    """The level of a comparison that starts now. Raises ConfigError if the sequence has another alpha.

    A comparison is a discovery if its first result has a claim that is better: a search keeps nothing else, and the rate is
    that of false ones among the kept. One that never finishes has spent its level; later results of the same comparison
    change nothing, since its seeds had been seen.
    """
    started: list[int] = []
    results: set[int] = set()
    discoveries: list[int] = []
    for record in records:
        content = record.content
        if content["kind"] == "started" and content.get("online"):
            check_alpha(content["online"]["alpha"], alpha)
            started.append(record.number)
        elif content["kind"] == "result" and content["started"] in started and content["started"] not in results:
            results.add(content["started"])
            if is_discovery(content):
                discoveries.append(len(started))
    level = online_level(len(started), discoveries, alpha)
    return OnlineLevel(alpha=alpha, level=level, number=len(started) + 1, discoveries=len(discoveries))


def check_alpha(stored: float, alpha: float) -> None:
    if stored != alpha:
        raise ConfigError(
            f"--online --alpha {alpha:g}: the earlier comparisons of this project were controlled at {stored:g}, "
            f"and a sequence has one false discovery rate: give --alpha {stored:g}"
        )


def is_discovery(result: dict[str, Any]) -> bool:
    """Whether any claim of a result is better; controls do not count.

    A claim that is worse is none, nor is a crash: changes that harm are easy to find, and would pay for false keeps. A
    claim that is better by its failure rate is one: given the number of failed runs, Fisher's test holds the level too.
    """
    return any(row["role"] == "claim" and row["verdict"] == "better" for row in result["verdicts"])
