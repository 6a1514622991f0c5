"""What a preset is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A one-line description and the overrides, nested as they would stand in a YAML file."""

    about: str
    settings: dict[str, Any]
