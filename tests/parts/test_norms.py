"""Norms against their equations in float64, against references, and at the zero vector."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partwise
from partwise.config import REGISTRY, ConfigError
from partwise.parts.layers import rms_norm
from recipes import error

EXACT = 1e-12
WIDTH = 8


def build(name: str, width: int = WIDTH, **options: Any) -> Any:
    return REGISTRY["norm"][name].from_dict(options, prefix="norm").build(width)


def randomized(layer: nn.Module) -> nn.Module:
    for number, parameter in enumerate(layer.double().parameters()):
        parameter.data = normal(*parameter.shape, seed=number + 2)
    return layer


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("layernorm", {}),
    ("layernorm", {"affine": False}),
    ("rmsnorm", {}),
    ("rmsnorm", {"bias": True}),
    ("rmsnorm", {"affine": False}),
    ("rmsnorm", {"unit_offset": True}),
    ("rmsnorm", {"unit_offset": True, "bias": True, "eps": 0.3}),
    ("scalenorm", {}),
    ("scalenorm", {"eps": 2.5}),
    ("l2", {}),
    ("l2", {"affine": True}),
    ("l2", {"eps": 2.5}),
    ("dyt", {}),
    ("dyt", {"alpha": 1.5, "bias": False}),
    ("dyt", {"affine": False}),
    ("none", {}),
]
each_kind = pytest.mark.parametrize(("name", "options"), KINDS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(KINDS)])


def equation(name: str, options: dict[str, Any], w: dict[str, Tensor], row: Tensor) -> list[float]:
    """One vector at a time, element by element."""
    x = row.tolist()
    weight = w["weight"].expand(WIDTH).tolist() if "weight" in w else [1.0] * WIDTH
    bias = w["bias"].tolist() if "bias" in w else [0.0] * WIDTH
    if name == "none":
        return x
    if name == "dyt":
        y = [math.tanh(w["alpha"].item() * value) for value in x]
    elif name == "layernorm":
        mean = math.fsum(x) / WIDTH
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in x) / WIDTH + options.get("eps", 1e-5))
        y = [(value - mean) / std for value in x]
    elif name == "rmsnorm":
        rms = math.sqrt(math.fsum(value**2 for value in x) / WIDTH + options.get("eps", 1e-6))
        y = [value / rms for value in x]
        weight = [1 + factor for factor in weight] if options.get("unit_offset") else weight
    else:
        y = [value / max(math.hypot(*x), options.get("eps", 1e-5)) for value in x]
    return [value * factor + shift for value, factor, shift in zip(y, weight, bias, strict=True)]


@each_kind
def test_each_norm_follows_its_equation(name: str, options: dict[str, Any]) -> None:
    layer, x = randomized(build(name, **options)), normal(2, 3, WIDTH)
    w = dict(layer.named_parameters())
    expected = torch.tensor([[equation(name, options, w, row) for row in rows] for rows in x], dtype=torch.float64)
    assert error(layer(x), expected) <= EXACT


INITIAL_VALUES = {
    "rmsnorm": ({"unit_offset": True, "bias": True}, {"weight": (WIDTH,), "bias": (WIDTH,)}, [0.0, 0.0]),
    "scalenorm": ({}, {"weight": ()}, [math.sqrt(WIDTH)]),
    "l2": ({"affine": True}, {"weight": (WIDTH,)}, [1.0]),
    "dyt": ({}, {"alpha": (), "weight": (WIDTH,), "bias": (WIDTH,)}, [0.5, 1.0, 0.0]),
}


@pytest.mark.parametrize("name", INITIAL_VALUES)
def test_initial_values(name: str) -> None:
    """Parameters, their shapes and initial values, which `init` does not change."""
    options, shapes, values = INITIAL_VALUES[name]
    words = {"vocab_size": 11, "d_model": WIDTH, "n_layers": 1, "context_length": 4, "norm": {"part": name, **options}}
    for init in ("torch", "gpt2"):
        model = partwise.Transformer(partwise.ModelConfig.from_dict({**words, "init": init}))
        found = {
            tensor.name.removeprefix("residual.norm."): tensor
            for tensor in model.logical_tensors()
            if tensor.name.startswith("residual.norm.")
        }
        assert {key: tuple(tensor.data.shape) for key, tensor in found.items()} == shapes
        assert {tensor.role for tensor in found.values()} == {"vector"}
        for tensor, value in zip(found.values(), values, strict=True):
            assert (tensor.data == torch.tensor(value)).all()


def test_optional_parameters() -> None:
    for name, options in (("l2", {}), ("dyt", {"affine": False}), ("dyt", {"bias": False})):
        names = {key for key, _ in build(name, **options).named_parameters()}
        expected = {"l2": set(), "dyt": {"alpha"} if "affine" in options else {"alpha", "weight"}}
        assert names == expected[name]


def test_l2_and_scalenorm_equal_torch() -> None:
    x = normal(2, 3, WIDTH)
    assert error(build("l2")(x), nn.functional.normalize(x, dim=-1)) <= EXACT
    scaled = build("scalenorm").double()
    scaled.weight.data.fill_(math.sqrt(WIDTH))
    assert error(scaled(x), nn.functional.rms_norm(x, (WIDTH,), None, 0.0)) <= EXACT
    assert error(math.sqrt(WIDTH) * build("l2")(x), scaled(x)) <= EXACT


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.bfloat16, 0.0)])
def test_unit_offset_equals_gemma(dtype: torch.dtype, near: float) -> None:
    pytest.importorskip("transformers", reason="transformers is a development dependency")
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    ours, gemma = randomized(build("rmsnorm", unit_offset=True)).to(dtype), GemmaRMSNorm(WIDTH, eps=1e-6).to(dtype)
    gemma.load_state_dict(ours.state_dict())
    x = normal(20, 3, WIDTH).to(dtype)
    assert error(ours(x), gemma(x)) <= near


def test_unit_offset_keeps_small_weights_in_bfloat16() -> None:
    """The smallest bfloat16 number above 1 is 1 + 2^-7: a weight of 2^-9 must not be added to 1 in bfloat16."""
    layer = build("rmsnorm", unit_offset=True, width=4).bfloat16()
    layer.weight.data.fill_(2**-9)
    assert (1 + layer.weight == 1).all()
    x = torch.tensor([[1.0, 1.2, 1.4, 1.6]], dtype=torch.bfloat16)
    expected = x.double() / (x.double() ** 2).mean(-1, keepdim=True).add(1e-6).sqrt() * (1 + 2**-9)
    assert torch.equal(layer(x), expected.bfloat16())
    assert not torch.equal(layer(x), build("rmsnorm", affine=False)(x)), "the weight changes a rounding here"


@each_kind
def test_zero_vectors_and_extremes_are_finite(name: str, options: dict[str, Any]) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        layer = build(name, **options).to(dtype)
        x = torch.zeros(4, WIDTH, dtype=dtype)
        x[1], x[2] = 1e-30, 1e15
        x[3, 0] = 1.0
        x.requires_grad_()
        y = layer(x)
        assert y.dtype == dtype and y.isfinite().all()
        assert not y[0].any(), "zero remains zero"
        (y * normal(4, WIDTH).to(dtype)).sum().backward()
        assert x.grad is not None and x.grad.isfinite().all()
        for parameter in layer.parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", ["scalenorm", "l2"])
def test_output_lengths(name: str) -> None:
    layer, x = build(name, width=32).double(), normal(5, 32) * torch.tensor([[1e-4], [0.1], [1.0], [30.0], [1e6]])
    length = math.sqrt(32) if name == "scalenorm" else 1.0
    assert error(layer(x).norm(dim=-1), torch.full((5,), length, dtype=torch.float64)) <= 1e-7
    assert error(layer(1e3 * x), layer(x)) <= EXACT, "the input's length does not matter"


def test_bfloat16_vectors_are_rounded_once() -> None:
    """A length rounded to bfloat16 would change all elements by up to 2^-9."""
    layer, x = build("l2").bfloat16(), normal(20, 48).bfloat16()
    assert torch.equal(layer(x), (x.double() / x.double().norm(dim=-1, keepdim=True)).bfloat16())


def test_unit_offset_requires_a_weight() -> None:
    with pytest.raises(ConfigError, match=r"^norm\.unit_offset=true needs a weight: set norm\.affine=true$"):
        build("rmsnorm", unit_offset=True, affine=False)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 4, 5)])
def test_rms_norm_function_equals_torch_in_values_and_gradients(shape: tuple[int, ...], scaled: bool) -> None:
    generator = torch.Generator().manual_seed(len(shape))

    def sample(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    inputs = [sample(*shape).requires_grad_(), sample(shape[-1]).requires_grad_() if scaled else None]
    upstream = sample(*shape)
    found = []
    for compute in (rms_norm, lambda x, weight, eps: nn.functional.rms_norm(x, x.shape[-1:], weight, eps)):
        y = compute(*inputs, 1e-3)
        sources = [tensor for tensor in inputs if tensor is not None]
        found.append([y, *torch.autograd.grad(y, sources, upstream)])
    assert "RMSNormFunction" in type(rms_norm(*inputs, 1e-3).grad_fn).__name__
    for mine, theirs in zip(*found, strict=True):
        assert error(mine, theirs) <= EXACT
    assert torch.autograd.gradcheck(rms_norm, (*inputs, 1e-3))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (slope,) = torch.autograd.grad(rms_norm(*inputs, 1e-3).square().sum(), inputs[:1], create_graph=True)
        slope.sum().backward()


def test_rms_norm_of_float32_is_the_same_under_autocast() -> None:
    x, weight = torch.randn(3, 8).requires_grad_(), torch.randn(8)
    with torch.autocast("cpu", torch.bfloat16):
        y = rms_norm(x, weight, 1e-6)
    assert "RMSNormFunction" in type(y.grad_fn).__name__
    assert torch.equal(y, rms_norm(x, weight, 1e-6))


def test_rms_norm_uses_torch_in_low_precision_and_without_gradients() -> None:
    """torch computes the norm in bfloat16, where it sums in float32, and without gradients."""
    x, weight = torch.randn(3, 8).requires_grad_(), torch.ones(8)
    assert "RMSNormFunction" not in type(rms_norm(x.bfloat16(), weight.bfloat16(), 1e-6).grad_fn).__name__
    with torch.no_grad():
        assert torch.equal(rms_norm(x, weight, 1e-6), nn.functional.rms_norm(x, (8,), weight, 1e-6))
