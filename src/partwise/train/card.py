"""`run.json`: everything needed to repeat a run, read back."""

from pathlib import Path
from typing import Any

from partwise.checkpoint import FORMAT, Damaged, find_run, read_json
from partwise.config import ConfigError
from partwise.train.choices import Choices, choose
from partwise.train.settings import RunConfig, TrainConfig


def read_card(folder: Path) -> dict[str, Any]:
    """The run's `run.json`. Raises ConfigError where it cannot be read."""
    try:
        card = read_json(folder / "run.json")
    except Damaged as error:
        raise ConfigError(f"{error}: start over with --fresh") from None
    if card.get("format") != FORMAT:
        raise ConfigError(
            f"{folder} was written in format {card.get('format')}, and this version reads {FORMAT}: "
            "start over with --fresh"
        )
    for key in ("config", "choices", "machine", "data"):
        if not isinstance(card.get(key), dict):
            raise ConfigError(f"{folder / 'run.json'} lacks {key!r}: start over with --fresh")
    return card


def stored_choices(folder: Path, card: dict[str, Any]) -> Choices:
    """The choices that a run began with. Raises ConfigError where this machine cannot follow them."""
    try:
        choices = Choices(**card["choices"])
    except TypeError:
        raise ConfigError(
            f"{folder / 'run.json'} names other choices than this version: start over with --fresh"
        ) from None
    try:
        choose(TrainConfig.from_dict({"device": choices.device}))
    except ConfigError:
        raise ConfigError(
            f"{folder} was trained on {choices.device}, which is not to be had here: continue it where it began, or "
            "start over with --fresh"
        ) from None
    return choices


def open_run(name: str | Path) -> tuple[Path, RunConfig, dict[str, Any]]:
    """The folder, configuration and card of a run that exists. Raises ConfigError."""
    folder = find_run(name)
    card = read_card(folder)
    return folder, RunConfig.from_dict(card["config"]), card
