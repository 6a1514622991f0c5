"""MLP layers give the same result with the C++ kernels, and use them where they can."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import partwise
from backends import use_layer_backend
from kernel_inputs import BF16_ERROR, relative_error, require_kernels
from partwise.config import REGISTRY, ConfigError
from partwise.parts.contracts import FeedForward, LayerContext
from partwise.parts.feed_forward.dense import SwiGLU
from partwise.parts.feed_forward.mlp import OTHER, Activation, GatedMLP, MLPBase

FLOAT_ERROR = 2e-6  # relative to a tensor's largest element: a few hundred float32 roundings


@pytest.fixture(autouse=True)
def kernels(shared_cache: Path) -> None:
    require_kernels()


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY["ffn"].items() if hasattr(kind, "activation")])
def test_every_part_with_a_named_activation_uses_the_kernel(name: str) -> None:
    """Both backends agree; with dropout of the hidden units training is eager."""
    recipe = REGISTRY["ffn"][name](hidden=64, bias=True, hidden_dropout=0.5)
    assert isinstance(recipe, FeedForward)
    layer = recipe.build(LayerContext(32, 1, 8))
    assert isinstance(layer, MLPBase)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    x = torch.randn(3, 8, 32)
    use_layer_backend(layer, "cpp")
    assert layer.train().backend_for(x) is None
    assert (layer.eval().backend_for(x) is None) == (recipe.activation().name == OTHER)
    ours = layer(x)
    use_layer_backend(layer, "eager")
    assert (layer(x) - ours).detach().abs().max() <= FLOAT_ERROR * max(1.0, float(ours.detach().abs().max()))


def test_activation_names_depend_on_the_options() -> None:
    names = [
        partwise.preset("mingpt", *words.split()).ffn.activation().name  # type: ignore[union-attr]
        for words in ("ffn=swish", "ffn=swish ffn.beta=2", "ffn=swiglu ffn.trainable_beta=true", "ffn=elu")
    ]
    assert names == ["silu", OTHER, OTHER, OTHER]
    tanh = partwise.preset("mingpt", "ffn=geglu", "ffn.approximate=tanh").ffn
    assert tanh.activation().name == "gelu_tanh"  # type: ignore[union-attr]


def test_a_subclass_gives_another_activation_with_its_name() -> None:
    class Cubed(SwiGLU):
        def activation(self) -> Activation:
            return Activation("cube", lambda x: x**3)

    layer = Cubed(hidden=64).build(LayerContext(32, 1, 8))
    assert isinstance(layer, MLPBase) and layer.spec().activation == "cube"
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    use_layer_backend(layer, "eager")
    x = torch.randn(3, 8, 32)
    gate, up = layer.input_projection()(x)
    assert torch.equal(layer.eval()(x), layer.down(gate**3 * up))


def test_an_activation_without_a_name_is_refused() -> None:
    class Nameless(SwiGLU):
        def activation(self) -> Activation:
            return F.mish  # type: ignore[return-value]

    with pytest.raises(ConfigError, match=r"has no name: give Activation\(name, function\)"):
        Nameless(hidden=64).build(LayerContext(32, 1, 8))


def test_under_autocast_the_bf16_kernel_is_used_unless_hidden_units_are_dropped() -> None:
    layer = GatedMLP(32, 64, Activation("silu", F.silu), hidden_dropout=0.5)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    use_layer_backend(layer, "cpp")
    x = torch.randn(3, 8, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.backend_for(x) is None
        assert layer.eval().backend_for(x) is not None
        ours = layer(x).detach()
        use_layer_backend(layer, "eager")
        assert relative_error(ours, layer(x).detach().double()) <= 2 * BF16_ERROR
