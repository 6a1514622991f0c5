"""partwise: change one part of a transformer; know what it bought."""

import importlib
from typing import TYPE_CHECKING, Any

from partwise.openmp import limit_spinning
from partwise.version import __version__ as __version__

if TYPE_CHECKING:  # what `__getattr__` imports on first use, for type checkers and editors
    from partwise.comparison.experiment import Comparison as Comparison
    from partwise.comparison.stats.verdicts import verdict as verdict
    from partwise.compute.backend_plan import select_backends as select_backends
    from partwise.config import ConfigError as ConfigError
    from partwise.config import part as part
    from partwise.formats.loading import load as load
    from partwise.generation.generate import generate as generate
    from partwise.model import ModelConfig as ModelConfig
    from partwise.model import Transformer as Transformer
    from partwise.presets.lookup import preset as preset
    from partwise.scripting import compare as compare
    from partwise.scripting import compare_function as compare_function
    from partwise.train.config import RunConfig as RunConfig
    from partwise.train.config import run_config as run_config
    from partwise.train.loop import Run as Run
    from partwise.train.loop import Step as Step

_MODULES = {
    "ConfigError": "config",
    "part": "config",
    "ModelConfig": "model",
    "Transformer": "model",
    "preset": "presets.lookup",
    "RunConfig": "train.config",
    "run_config": "train.config",
    "Run": "train.loop",
    "Step": "train.loop",
    "load": "formats.loading",
    "generate": "generation.generate",
    "select_backends": "compute.backend_plan",
    "Comparison": "comparison.experiment",
    "compare": "scripting",
    "compare_function": "scripting",
    "verdict": "comparison.stats.verdicts",
}
__all__ = sorted(_MODULES)

limit_spinning()  # here, since every program of ours imports this before torch
del limit_spinning


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "Any", "importlib"})


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        # names are imported on first use, so that `import partwise` and `partwise --help` do not import torch
        if name not in _MODULES:
            raise AttributeError(f"module 'partwise' has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"partwise.{_MODULES[name]}"), name)
        except ModuleNotFoundError as error:
            from partwise.torch_extra import explained

            raise explained(error, f"partwise.{name}") from None
