"""Which of several equal ways each layer of a model computes by, found without allocating the model."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from partwise.block import Block
from partwise.fused import known
from partwise.kernels.decoding import unlike
from partwise.kernels.packing import library
from partwise.model import ModelConfig, Transformer
from partwise.parts.mlp import Perceptron
from partwise.parts.scores import Scores
from partwise.train.choices import Choices
from partwise.train.forced import in_one_pass, trained_whole


class Paths(NamedTuple):
    """How many of each take which path; attention layers and perceptrons where their block is not one pass."""

    blocks: Counter[str]
    attention: Counter[str]
    ffn: Counter[str]


def paths(config: ModelConfig, choices: Choices) -> Paths:
    """What training over a whole context takes, where rows of the batch are as many as threads."""
    attention: Counter[str] = Counter()
    with torch.device("meta"), torch.no_grad():
        model = Transformer(config).train()
        model.use_path(choices.attention_path, choices.ffn_path, choices.block_path)
        tokens = torch.zeros(1, config.max_len, dtype=torch.long)
        blocks = [each for each in model.modules() if isinstance(each, Block)]
        whole = trained_whole(model)
        inside = {module for each in whole for module in each.modules()}

        def count(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            assert isinstance(module, Scores)
            if module not in inside:
                attention[
                    module.path_over(arguments[3], "products" if choices.precision == "bfloat16" else "fused")
                ] += 1

        handles = [each.register_forward_pre_hook(count) for each in model.modules() if isinstance(each, Scores)]
        model(tokens, source=tokens if config.encoder_layers else None)
        for handle in handles:
            handle.remove()
        perceptrons = [each for each in model.modules() if isinstance(each, Perceptron) and each not in inside]
        ffn = Counter("kernel" if in_one_pass(each, choices.precision) else "torch" for each in perceptrons)
    return Paths(Counter("kernel" if each in whole else "layers" for each in blocks), attention, ffn)


def alike(configs: Iterable[ModelConfig]) -> bool:
    """Whether all these models have one share of blocks that are one compiled pass, in training and in evaluation: all, or
    none."""
    found = set()
    for config in configs:
        with torch.device("meta"):
            model = Transformer(config)
        model.use_path("products", "torch", "kernel")
        scored = sum(bool(block.fused and known(model.positions)) for block in model.blocks)
        found.add((len(trained_whole(model)) / config.n_layers, scored / config.n_layers))
    return len(found) == 1 and found <= {(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)}


def decoding_path(config: ModelConfig) -> str:
    """How the model generates on a CPU here: by the compiled step of a whole decoder, or by torch, and why."""
    with torch.device("meta"):
        reason = unlike(Transformer(config))
    if reason is None and library() is not None:
        return "kernel"
    return "torch" if reason is None else f"torch: {reason}"
