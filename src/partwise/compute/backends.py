"""The backends that the layers of a model use, found without allocating the model."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from partwise.compute.backend_check import compiled_training_blocks, uses_cpp_mlp
from partwise.compute.decoding import unsupported_layer
from partwise.compute.runtime import Runtime
from partwise.kernels.decoding_weights import library
from partwise.model import ModelConfig, Transformer
from partwise.model.block import Block
from partwise.model.compiled_block import supports_positions
from partwise.parts.attention.core import AttentionCore
from partwise.parts.feed_forward.mlp import MLPBase


class LayerBackends(NamedTuple):
    """The number of layers per backend; attention layers and MLPs inside compiled blocks are not counted."""

    blocks: Counter[str]
    attention: Counter[str]
    ffn: Counter[str]


def count_layer_backends(config: ModelConfig, runtime: Runtime) -> LayerBackends:
    """Count the backends used in training on full-length rows, with as many rows in the batch as threads."""
    attention: Counter[str] = Counter()
    with torch.device("meta"), torch.no_grad():
        model = Transformer(config).train()
        model.use_backend(runtime.attention_backend, runtime.ffn_backend, runtime.block_backend)
        tokens = torch.zeros(1, config.context_length, dtype=torch.long)
        blocks = [each for each in model.modules() if isinstance(each, Block)]
        compiled = compiled_training_blocks(model)
        inside = {module for each in compiled for module in each.modules()}

        def count(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            assert isinstance(module, AttentionCore)
            if module not in inside:
                attention[
                    module.backend_name(arguments[3], "eager" if runtime.precision == "bfloat16" else "sdpa")
                ] += 1

        handles = [each.register_forward_pre_hook(count) for each in model.modules() if isinstance(each, AttentionCore)]
        model(tokens, source=tokens if config.encoder_layers else None)
        for handle in handles:
            handle.remove()
        mlps = [each for each in model.modules() if isinstance(each, MLPBase) and each not in inside]
        ffn = Counter("cpp" if uses_cpp_mlp(each, runtime.precision) else "eager" for each in mlps)
    return LayerBackends(Counter("cpp" if each in compiled else "eager" for each in blocks), attention, ffn)


def same_block_backends(configs: Iterable[ModelConfig]) -> bool:
    """Whether the block kernel supports all blocks of all models or none, in training and in evaluation each."""
    fractions = set()
    for config in configs:
        with torch.device("meta"):
            model = Transformer(config)
        model.use_backend("eager", "eager", "cpp")
        n_evaluation = sum(bool(block.compiled and supports_positions(model.positions)) for block in model.blocks)
        fractions.add((len(compiled_training_blocks(model)) / config.n_layers, n_evaluation / config.n_layers))
    return len(fractions) == 1 and fractions <= {(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)}


def decoding_backend(config: ModelConfig) -> str:
    """The backend of generation on this CPU: "cpp", or "eager" followed by the reason."""
    with torch.device("meta"):
        reason = unsupported_layer(Transformer(config))
    if reason is None and library() is not None:
        return "cpp"
    return "eager" if reason is None else f"eager: {reason}"
