"""Named models: each a set of overrides of the defaults, including training settings."""

from partwise.presets.lookup import PRESETS, find_preset, preset, preset_name
from partwise.presets.preset import Preset

__all__ = ["PRESETS", "Preset", "find_preset", "preset", "preset_name"]
