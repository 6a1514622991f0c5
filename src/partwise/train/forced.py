"""Whether a compiled path that the settings force serves anything of a model: it must not be a word without effect."""

from torch import nn

from partwise.config import ConfigError
from partwise.kernels.halves import takes_widths
from partwise.kernels.mlp import narrow
from partwise.model import Transformer
from partwise.parts.mlp import Perceptron
from partwise.parts.scores import Scores
from partwise.train.settings import TrainConfig


def check_forced(train: TrainConfig, model: Transformer, precision: str) -> None:
    """Raises ConfigError where a setting says kernel and no layer of the model, its paths chosen, trains by one."""
    modules = list(model.modules())
    served = {
        "block_path": bool(trained_whole(model)),
        "ffn_path": any(isinstance(each, Perceptron) and in_one_pass(each, precision) for each in modules),
        "attention_path": any(isinstance(each, Scores) and not each.only_products for each in modules),
    }
    for key, serves in served.items():
        if getattr(train, key) == "kernel" and not serves:
            raise ConfigError(
                f"train.{key}=kernel serves no layer of this model, with its parts, widths and dropout: use "
                f"train.{key}=auto (partwise doctor says which paths the presets take)"
            )


def trained_whole(model: Transformer) -> list[nn.Module]:
    """The blocks that are one compiled pass in training."""
    return [block for block in model.blocks if block.fused and block.fused.trains(model.positions)]  # type: ignore[union-attr, operator]


def in_one_pass(layer: Perceptron, precision: str) -> bool:
    takes = narrow if precision == "float32" else takes_widths
    return layer.has_kernel() and takes(layer.matrix().weight, layer.down.weight)
