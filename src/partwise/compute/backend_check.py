"""Checks that a C++ backend forced by the settings is used by at least one layer of the model.

A forced setting must not silently have no effect.
"""

from torch import nn

from partwise.compute.runtime import RuntimeSettings
from partwise.config import ConfigError
from partwise.kernels.bf16 import supports_bf16_mlp_shapes
from partwise.kernels.mlp import supports_mlp_shapes
from partwise.model import Transformer
from partwise.parts.attention.core import AttentionCore
from partwise.parts.feed_forward.mlp import MLPBase


def check_forced_backends(train: RuntimeSettings, model: Transformer, precision: str) -> None:
    """Raise ConfigError if a setting is `cpp` but no layer of the model, with its backends set, trains with it."""
    modules = list(model.modules())
    used = {
        "block_backend": bool(compiled_training_blocks(model)),
        "ffn_backend": any(isinstance(each, MLPBase) and uses_cpp_mlp(each, precision) for each in modules),
        "attention_backend": any(isinstance(each, AttentionCore) and not each.eager_only for each in modules),
    }
    for key, is_used in used.items():
        if getattr(train, key) == "cpp" and not is_used:
            raise ConfigError(
                f"no layer of this model supports train.{key}=cpp (parts, widths or dropout): use train.{key}=auto "
                "(partwise doctor shows the backends of each preset)"
            )


def compiled_training_blocks(model: Transformer) -> list[nn.Module]:
    """The blocks that train as one C++ call."""
    return [block for block in model.blocks if block.compiled and block.compiled.supports_training(model.positions)]  # type: ignore[union-attr, operator]


def uses_cpp_mlp(layer: MLPBase, precision: str) -> bool:
    supports_shapes = supports_mlp_shapes if precision == "float32" else supports_bf16_mlp_shapes
    return layer.can_use_kernel() and supports_shapes(layer.input_projection().weight, layer.down.weight)
