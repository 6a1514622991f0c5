"""Whether `calibrate`, `plan` or `compare` was given an experiment's YAML file rather than a preset."""

from pathlib import Path


def is_experiment_file(word: str) -> bool:
    """Whether the word is a YAML file that describes commands. Raises ConfigError if the file is missing or is not YAML."""
    if "=" in word or not word.endswith((".yaml", ".yml")):
        return False
    from partwise.config import ConfigError
    from partwise.config.yaml import read_yaml

    if not Path(word).exists():
        raise ConfigError(f"{word}: no such file")
    return "command" in read_yaml(Path(word))
