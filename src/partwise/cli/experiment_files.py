"""Whether `calibrate`, `plan` or `compare` was given an experiment's YAML file rather than a preset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def is_experiment_file(word: str) -> bool:
    """Whether the word is a YAML file that describes commands. Raises ConfigError if the file is missing or is not YAML."""
    if "=" in word or not word.endswith((".yaml", ".yml")):
        return False
    from partwise.any_code.experiment_file import is_experiment
    from partwise.config import ConfigError

    if not Path(word).exists():
        raise ConfigError(f"{word}: no such file")
    return is_experiment(word)


def refuse_preset_options(options: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that commands do not have."""
    given = next((name for name, value in options.items() if value), None)
    if given:
        from partwise.config import ConfigError

        raise ConfigError(f"--{given.replace('_', '-')} is for presets: omit it for an experiment's YAML file")
