"""Presets by name."""

from partwise.config import ConfigError, did_you_mean
from partwise.config.overrides import apply_overrides, flatten, parse_overrides
from partwise.model import ModelConfig
from partwise.presets.calculators import CALCULATORS
from partwise.presets.classic import CLASSIC
from partwise.presets.decoders import DECODERS
from partwise.presets.fast import FAST
from partwise.presets.preset import Preset
from partwise.presets.tutorials import TUTORIALS

PRESETS: dict[str, Preset] = {**FAST, **TUTORIALS, **CALCULATORS, **CLASSIC, **DECODERS}


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises ConfigError with the closest known name."""
    if (known := preset_name(name)) is None:
        raise ConfigError(f"unknown preset {name!r}{did_you_mean(name, PRESETS)}")
    return PRESETS[known]


def preset_name(name: str) -> str | None:
    """The name of a preset that was written in any case; None if there is no such preset."""
    return next((each for each in PRESETS if each.lower() == name.lower()), None)


def preset(name: str, *overrides: str, vocab_size: int | None = None) -> ModelConfig:
    """The model of a preset with overrides such as `"ffn=swiglu"` (vocab_size: the preset's by default).

    Raises ConfigError.
    """
    base = ModelConfig().to_dict()
    settings = {key: value for key, value in find_preset(name).settings.items() if key in base}
    values = apply_overrides(base, flatten(settings))
    vocabulary = [] if vocab_size is None else [f"vocab_size={vocab_size}"]
    return ModelConfig.from_dict(apply_overrides(values, parse_overrides([*vocabulary, *overrides])))
