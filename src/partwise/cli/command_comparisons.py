"""Whether a comparison, its noise or its plan is one of commands rather than of presets."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def is_command_comparison(first: str, refs: bool = False, options: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether commands are compared rather than presets. Raises ConfigError for options without --refs."""
    given = next((name for name, value in options.items() if value), None)
    if given and not refs:
        from partwise.config import ConfigError

        raise ConfigError(f"--{given} needs --refs, as in `partwise compare --refs main my-branch --command ...`")
    if refs:
        return True
    if not first.endswith((".yaml", ".yml")):
        return False
    from partwise.comparison.commands.experiment_file import is_experiment

    return is_experiment(first)


def refuse_preset_options(options: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that commands do not have."""
    given = next((name for name, value in options.items() if value), None)
    if given:
        from partwise.config import ConfigError

        raise ConfigError(f"--{given.replace('_', '-')} is for presets: omit it for an experiment's YAML file")
