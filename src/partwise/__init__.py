"""partwise: change one part of a transformer; know what it bought."""

import importlib
from typing import Any

_HOMES = {
    "ConfigError": "config",
    "part": "config",
    "ModelConfig": "model",
    "Transformer": "model",
    "preset": "presets",
    "RunConfig": "train.settings",
    "run_config": "train.settings",
    "Run": "train.loop",
    "Step": "train.loop",
    "load": "checkpoint",
    "generate": "generation",
    "Comparison": "comparison.experiment",
    "compare": "comparison.experiment",
}
__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # names are imported when first used, so that `import partwise` and `partwise --help` stay free of torch
    if name not in _HOMES:
        raise AttributeError(f"module 'partwise' has no attribute {name!r}")
    return getattr(importlib.import_module(f"partwise.{_HOMES[name]}"), name)
