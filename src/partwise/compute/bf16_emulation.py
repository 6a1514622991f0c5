"""Emulation of bfloat16 matmuls, which read half the memory and run at twice the rate on many CPUs."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from partwise.model import Transformer
from partwise.parts.attention.mla import MultiHeadLatentAttention
from partwise.parts.feed_forward.mlp import MLPBase
from partwise.parts.feed_forward.moe import ExpertLinear
from partwise.parts.layers import FusedLinear


@torch.no_grad()
def emulate_bf16(model: Transformer) -> Transformer:
    """A copy of the model whose weights and inputs of linear layers are rounded to bfloat16 values.

    All tensors keep their dtype, which is also that of sums, norms, activations and attention. The inputs of routers,
    whose selections rounding could change, and of the dynamic weights of hyper-connections are not rounded.
    """
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    for module in model.modules():
        if isinstance(module, nn.Linear | FusedLinear | ExpertLinear):
            module.register_forward_pre_hook(round_input)
        elif isinstance(
            module, MultiHeadLatentAttention
        ):  # decoding multiplies by a layer's weights without calling it
            module.kv_norm.register_forward_hook(round_output)
        elif isinstance(module, MLPBase):
            module.backends = ()  # other backends would read the weights without calling the layers
    return model


def round_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = inputs
    return round_to_bf16(x), *others


def round_output(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return round_to_bf16(output)


def round_to_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)
