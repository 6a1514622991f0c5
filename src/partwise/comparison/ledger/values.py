"""The values that a comparison has judged, as hashes: the verdict on the first ones stands."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.stats.protocol import Values
from partwise.config import ConfigError, digest


def hash_values(values: Values) -> str:
    """SHA-256 of the value of every trial; trials that failed have none."""
    return digest(
        {
            arm: {str(seed): value if math.isfinite(value) else None for seed, value in runs.items()}
            for arm, runs in values.items()
        }
    )


@dataclass
class JudgedValues:
    """For each number of seeds, the hashes of the values that were judged, in order: those of the first verdict stand."""

    hashes: dict[int, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Any, source: str) -> Self:
        """The inverse of `to_dict`. Raises ConfigError for anything else."""
        if not isinstance(stored, Mapping) or not all(
            str(seeds).isdecimal() and isinstance(hashes, list) and all(isinstance(each, str) for each in hashes)
            for seeds, hashes in stored.items()
        ):
            raise ConfigError(f"{source} was changed: its judged values are not hashes; choose another --name")
        return cls({int(seeds): list(hashes) for seeds, hashes in stored.items()})

    @classmethod
    def recorded(cls, judgments: Iterable[ChainEntry]) -> Self:
        """The values of the looks and results of one comparison, from the ledger."""
        found = cls()
        for content in (record.content for record in judgments):
            if "values" in content:
                found.add(content["judged"], [content["values"]])
        return found

    def add(self, seeds: int, hashes: Iterable[str]) -> bool:
        """Add the hashes of values that were judged at a number of seeds; returns whether one is new."""
        known = self.hashes.setdefault(seeds, [])
        new = [each for each in dict.fromkeys(hashes) if each not in known]
        known += new
        return bool(new)

    def first(self, other: Self) -> Self:
        """These, followed by others that are not among them."""
        merged = type(self)({seeds: list(hashes) for seeds, hashes in self.hashes.items()})
        for seeds, hashes in other.hashes.items():
            merged.add(seeds, hashes)
        return merged

    @property
    def changes(self) -> int:
        """How often other values were judged after the first ones."""
        return max((len(hashes) - 1 for hashes in self.hashes.values()), default=0)

    def to_dict(self) -> dict[str, list[str]]:
        return {str(seeds): hashes for seeds, hashes in sorted(self.hashes.items())}
