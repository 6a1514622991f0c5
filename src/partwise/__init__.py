"""partwise: change one part of a transformer; know what it bought."""

import importlib
from typing import Any

_MODULES = {
    "ConfigError": "config",
    "part": "config",
    "ModelConfig": "model",
    "Transformer": "model",
    "preset": "presets",
    "RunConfig": "train.config",
    "run_config": "train.config",
    "Run": "train.loop",
    "Step": "train.loop",
    "load": "checkpoint",
    "generate": "generation.generate",
    "select_backends": "compute.plan",
    "Comparison": "comparison.experiment",
    "compare": "comparison.experiment",
}
__all__ = sorted(_MODULES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # names are imported on first use, so that `import partwise` and `partwise --help` do not import torch
    if name not in _MODULES:
        raise AttributeError(f"module 'partwise' has no attribute {name!r}")
    return getattr(importlib.import_module(f"partwise.{_MODULES[name]}"), name)
