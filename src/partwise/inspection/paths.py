"""Which of several equal ways each layer of a model computes by, found without allocating the model."""

from collections import Counter
from typing import Any

import torch
from torch import nn

from partwise.kernels.decoding import unlike
from partwise.kernels.mlp import narrow
from partwise.kernels.packing import library
from partwise.model import ModelConfig, Transformer
from partwise.parts.mlp import Perceptron
from partwise.parts.scores import Scores
from partwise.train.choices import Choices


def paths(config: ModelConfig, choices: Choices) -> tuple[Counter[str], Counter[str]]:
    """How many attention layers and how many perceptrons take each path in training over a whole context."""
    attention: Counter[str] = Counter()
    with torch.device("meta"), torch.no_grad():
        model = Transformer(config).train()
        model.use_path(choices.attention_path, choices.ffn_path, choices.block_path)
        tokens = torch.zeros(1, config.max_len, dtype=torch.long)
        compiled = choices.precision == "float32"

        def count(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            assert isinstance(module, Scores)
            attention[module.path_over(arguments[3], compiled)] += 1

        handles = [each.register_forward_pre_hook(count) for each in model.modules() if isinstance(each, Scores)]
        model(tokens, source=tokens if config.encoder_layers else None)
        for handle in handles:
            handle.remove()
        perceptrons = [each for each in model.modules() if isinstance(each, Perceptron)]
        ffn = Counter("kernel" if compiled and in_one_pass(each) else "torch" for each in perceptrons)
    return attention, ffn


def in_one_pass(layer: Perceptron) -> bool:
    return layer.has_kernel() and narrow(layer.matrix().weight, layer.down.weight)


def decoding_path(config: ModelConfig) -> str:
    """How the model generates on a CPU here: by the compiled step of a whole decoder, or by torch, and why."""
    with torch.device("meta"):
        reason = unlike(Transformer(config))
    if reason is None and library() is not None:
        return "kernel"
    return "torch" if reason is None else f"torch: {reason}"
