"""A model whose products take bfloat16 numbers: half the memory to read, and on many processors twice the rate."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from partwise.model import Transformer
from partwise.parts.experts import ExpertLinear
from partwise.parts.latent import LatentAttention
from partwise.parts.layers import FusedLinear
from partwise.parts.mlp import Perceptron


@torch.no_grad()
def rounded(model: Transformer) -> Transformer:
    """A copy of the model whose weights, and what its linear maps multiply them with, are bfloat16 numbers.

    They are held in the precision that they had, which is that of sums, norms, activations and attention. Routers and the
    dynamic weights of hyper-connections, which choose, take what they are given as it is.
    """
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    for module in model.modules():
        if isinstance(module, nn.Linear | FusedLinear | ExpertLinear):
            module.register_forward_pre_hook(round_input)
        elif isinstance(module, LatentAttention):  # its single tokens multiply by a map's weights without calling it
            module.kv_norm.register_forward_hook(round_output)
        elif isinstance(module, Perceptron):
            module.path = "torch"  # others would read its weights instead of calling its maps
    return model


def round_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = inputs
    return nearest(x), *others


def round_output(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return nearest(output)


def nearest(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)
