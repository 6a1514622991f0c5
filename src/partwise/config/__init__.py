"""Parts, configuration classes, overrides and YAML. Does not import torch."""

from partwise.config.importing import import_parts
from partwise.config.neutral import Neutral, neutral_values, without_neutral
from partwise.config.own_parts import describe_error, own_error, own_names, own_parts
from partwise.config.parts import (
    NAME_WIDTH,
    REGISTRY,
    ByLayer,
    Config,
    Part,
    Pattern,
    digest,
    find_part,
    once_per_value,
    part,
    recipes_by_layer,
    register_plain_classes,
)
from partwise.config.reading import decode_text, open_to_read, read_file, skip_mark
from partwise.config.suggestions import did_you_mean
from partwise.config.yaml import ConfigError

__all__ = [
    "NAME_WIDTH",
    "REGISTRY",
    "ByLayer",
    "Config",
    "ConfigError",
    "Neutral",
    "Part",
    "Pattern",
    "decode_text",
    "describe_error",
    "did_you_mean",
    "digest",
    "find_part",
    "import_parts",
    "neutral_values",
    "once_per_value",
    "open_to_read",
    "own_error",
    "own_names",
    "own_parts",
    "part",
    "read_file",
    "recipes_by_layer",
    "register_plain_classes",
    "skip_mark",
    "without_neutral",
]
