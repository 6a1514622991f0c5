"""Looks at a comparison that nobody planned: someone has seen its arms under their names before the result."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError
from partwise.config import ConfigError

if TYPE_CHECKING:
    from partwise.comparison.ledger.entries import LedgerEntries


def record_reveal(entries: "LedgerEntries", started: int | None, seeds: int) -> None:
    """Record a look at `seeds` finished pairs, without a verdict. Raises ConfigError if the ledger cannot be written."""
    entries.started = started
    try:
        if started is None or not any(each.number == started for each in entries.ledger.read()):
            raise DamagedLedgerError(f"the ledger {entries.ledger.path} has no record of its start")
        place = entries.place()

        def content(records: Sequence[ChainEntry]) -> dict[str, object] | None:
            look = {"kind": "look", "seeds": seeds, "verdicts": [], "planned": False, **place, "started": started}
            return None if any(look.items() <= each.content.items() for each in records) else look

        entries.ledger.append(content)
    except DamagedLedgerError as error:
        raise ConfigError(f"{entries.folder}: nothing is shown, since this look cannot be recorded: {error}") from None


def is_revealed(records: Sequence[ChainEntry], started: int | None) -> bool:
    """Whether the ledger has a result of the comparison, or a look that nobody planned."""
    return any(
        each.content["kind"] == "result" or each.content.get("planned") is False
        for each in records
        if started is not None and each.content.get("started") == started and each.content["kind"] in ("look", "result")
    )
