"""The Preset class."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A one-line description, and overrides nested as in a YAML file."""

    description: str
    settings: dict[str, Any]
