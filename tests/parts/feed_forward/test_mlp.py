"""MLP layers give the same result with the C++ kernels, and use them where they can."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import partwise
from kernel_inputs import BF16_ERROR, relative_error, require_kernels
from partwise.config import REGISTRY
from partwise.kernels.bf16 import bf16_mlp
from partwise.kernels.mlp import mlp
from partwise.parts.contracts import FeedForward, LayerContext
from partwise.parts.feed_forward.mlp import GatedMLP, MLPBase

FLOAT_ERROR = 2e-6  # relative to a tensor's largest element: a few hundred float32 roundings


@pytest.fixture(autouse=True)
def kernels(shared_cache: Path) -> None:
    require_kernels()


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY["ffn"].items() if hasattr(kind, "activation")])
def test_every_part_with_a_kernel_activation_uses_the_kernel(name: str) -> None:
    """Both backends agree; with dropout of the hidden units training is eager."""
    recipe = REGISTRY["ffn"][name](hidden=64, bias=True, hidden_dropout=0.5)
    assert isinstance(recipe, FeedForward)
    layer = recipe.build(LayerContext(32, 1, 8))
    assert isinstance(layer, MLPBase)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    x = torch.randn(3, 8, 32)
    layer.backend = "cpp"
    assert layer.train().select_kernel(x) is None
    assert layer.eval().select_kernel(x) is (mlp if name != "elu" else None)
    ours = layer(x)
    layer.backend = "eager"
    assert (layer(x) - ours).detach().abs().max() <= FLOAT_ERROR * max(1.0, float(ours.detach().abs().max()))


def test_kernel_activations_depend_on_the_options() -> None:
    kernel_activations = [
        partwise.preset("mingpt", *words.split()).ffn.kernel_activation()  # type: ignore[union-attr]
        for words in ("ffn=swish", "ffn=swish ffn.beta=2", "ffn=swiglu ffn.trainable_beta=true", "ffn=elu")
    ]
    assert kernel_activations == ["silu", None, None, None]
    tanh = partwise.preset("mingpt", "ffn=geglu", "ffn.approximate=tanh").ffn
    assert tanh.kernel_activation() == "gelu_tanh"  # type: ignore[union-attr]


def test_under_autocast_the_bf16_kernel_is_used_unless_hidden_units_are_dropped() -> None:
    layer = GatedMLP(32, 64, F.silu, kernel_activation="silu", hidden_dropout=0.5)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    layer.backend, x = "cpp", torch.randn(3, 8, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.select_kernel(x) is None
        assert layer.eval().select_kernel(x) is bf16_mlp
        ours = layer(x).detach()
        layer.backend = "eager"
        assert relative_error(ours, layer(x).detach().double()) <= 2 * BF16_ERROR
