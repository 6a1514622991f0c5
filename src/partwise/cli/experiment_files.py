"""Whether `calibrate`, `plan` or `compare` was given an experiment's YAML file, or an assignment, rather than a preset."""

from pathlib import Path
from typing import Any


def is_experiment_file(context: Any, word: str) -> bool:
    """Whether the word is a YAML file that describes commands; its values are then `context.obj`.

    Raises ConfigError if the file is missing or is not YAML.
    """
    if "=" in word or not word.endswith((".yaml", ".yml")):
        return False
    from partwise.config import ConfigError
    from partwise.config.yaml import read_yaml

    if not Path(word).exists():
        raise ConfigError(f"{word}: no such file")
    context.obj = read_yaml(Path(word))
    return "command" in context.obj


def is_assignment(context: Any) -> bool:
    """Whether the values of a YAML file, which `is_experiment_file` has read, are those of a class's assignment."""
    return isinstance(context.obj, dict) and "assignment" in context.obj
