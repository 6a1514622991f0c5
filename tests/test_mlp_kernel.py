"""The compiled perceptron against its equation in float64, for every activation, width and number of rows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import partwise
from partwise.compute.runtime import choose_runtime
from partwise.config import REGISTRY
from partwise.kernels.library import kernels_available
from partwise.kernels.mlp import ACTIVATIONS, library, mlp, supports_mlp
from partwise.parts.contracts import FeedForward, LayerContext
from partwise.parts.feed_forward.mlp import MLPBase
from partwise.train.config import TrainConfig

FLOAT_UNITS = 2e-6  # of the largest number of a tensor: what some hundred roundings in float32 come to
EQUATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
Arguments = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]


@pytest.fixture(scope="module", autouse=True)
def width(shared_cache: Path) -> int:
    """How many numbers a vector holds here."""
    if not kernels_available():
        pytest.skip("no C++ compiler here")
    return int(library().W)


def draw(rows: int, D: int, hidden: int, gated: bool, bias: bool, scale: float = 1.0) -> Arguments:
    random = torch.Generator().manual_seed(rows + 3 * D + 5 * hidden + 7 * gated + 11 * bias)
    U = 2 * hidden if gated else hidden
    x, up, down = (torch.randn(shape, generator=random) for shape in ((2, rows, D), (U, D), (D, hidden)))
    biases = [torch.randn(n, generator=random) if bias else None for n in (U, D)]
    return scale * x, up / D**0.5, biases[0], down / hidden**0.5, biases[1]


def equation(
    activation: str, x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, last: Tensor | None
) -> Tensor:
    pre, hidden = F.linear(x, up, up_bias), down.shape[1]
    act = EQUATIONS[activation]
    units = act(pre) if up.shape[0] == hidden else act(pre[..., :hidden]) * pre[..., hidden:]
    return F.linear(units, down, last)


def differentiated(function: Callable[..., Tensor], arguments: Arguments, double: bool = False) -> list[Tensor]:
    """The output and all gradients."""
    given = [None if x is None else (x.double() if double else x.clone()).requires_grad_() for x in arguments]
    y = function(*given)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x for x in given if x is not None], grad)]


def check(activation: str, arguments: Arguments) -> None:
    assert supports_mlp(arguments[0], arguments[1], arguments[3])
    ours = differentiated(lambda *x: mlp(*x, activation), arguments)
    plain = differentiated(lambda *x: equation(activation, *x), arguments)
    true = differentiated(lambda *x: equation(activation, *x), arguments, double=True)
    for number, (x, other, y) in enumerate(zip(ours, plain, true, strict=True)):
        assert x.shape == y.shape
        lost = float((other - y).abs().max())  # by torch in float32: far in the tails every way loses digits
        assert (x - y).abs().max() <= FLOAT_UNITS * max(1.0, float(y.abs().max())) + 3 * lost, number


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, gated: bool, bias: bool) -> None:
    check(activation, draw(60, 32, 96, gated, bias))
    check(activation, draw(7, 48, 16, gated, bias, scale=30.0))  # far into the tails


@settings(max_examples=60)
@given(
    rows=st.integers(1, 120),
    D=st.integers(1, 10),
    hidden=st.integers(1, 16),
    gated=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    threads=st.integers(1, 3),
)
def test_any_shape(
    width: int, rows: int, D: int, hidden: int, gated: bool, bias: bool, activation: str, threads: int
) -> None:
    torch.set_num_threads(threads)
    check(activation, draw(rows, D * width, hidden * width, gated, bias))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_equal_numbers_on_every_call(threads: int) -> None:
    torch.set_num_threads(threads)
    arguments = draw(300, 32, 64, True, True)
    first = differentiated(lambda *x: mlp(*x, "silu"), arguments)
    for _ in range(5):
        again = differentiated(lambda *x: mlp(*x, "silu"), arguments)
        assert all(torch.equal(x, y) for x, y in zip(again, first, strict=True))


def test_any_layout() -> None:
    x, up, _, down, _ = draw(20, 32, 48, False, False)
    arguments = x.transpose(0, 1), up.t().contiguous().t(), None, down.t().contiguous().t(), None
    check("gelu", arguments)
    y = mlp(*(x.requires_grad_(), up, None, down, None), "relu")
    y.sum().backward()  # a gradient without memory of its own: all strides are 0
    assert x.grad is not None and torch.allclose(x.grad, (torch.ones_like(y) @ down * (x @ up.t() > 0)) @ up, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_not_a_number_is_seen(activation: str) -> None:
    x, up, _, down, _ = draw(50, 32, 48, False, False)
    x[0, 3, 5], x[1, 49, 0] = torch.nan, torch.inf
    seen = mlp(x, up, None, down, None, activation).isfinite().all(-1)
    assert seen.sum() >= 98 and not seen[0, 3]
    true = equation(activation, x, up, None, down, None).isfinite().all(-1)
    assert torch.equal(seen, true)


def test_huge_numbers_stay_finite() -> None:
    x, up, _, down, _ = draw(10, 32, 48, False, False, scale=1e6)
    for activation in ("gelu", "gelu_tanh", "silu", "sigmoid"):
        found = differentiated(lambda *x: mlp(*x, activation), (x, up, None, down, None))  # noqa: B023
        assert all(each.isfinite().all() for each in found), activation


def test_what_it_does_not_serve(width: int) -> None:
    x, up, _, down, _ = draw(5, 32, 48, False, False)
    assert supports_mlp(x, up, down)
    assert not supports_mlp(x.double(), up.double(), down.double())
    assert not supports_mlp(*(each.to("meta") for each in (x, up, down)))
    with torch.autocast("cpu", torch.bfloat16):
        assert not supports_mlp(x, up, down)
    assert not supports_mlp(torch.randn(5, width + 1), torch.randn(width, width + 1), torch.randn(width + 1, width))
    assert not supports_mlp(torch.randn(5, 1024), torch.randn(4096, 1024), torch.randn(1024, 4096))


def test_ops_keep_their_promises() -> None:
    x, up, up_bias, down, down_bias = (x.requires_grad_() for x in draw(5, 16, 32, False, True) if x is not None)
    torch.library.opcheck(torch.ops.partwise.mlp.default, (x, up, up_bias, down, down_bias, 4))
    torch.library.opcheck(torch.ops.partwise.mlp.default, (x, up, None, down, None, 0))


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY["ffn"].items() if hasattr(kind, "activation")])
def test_every_part_takes_the_path_that_its_activation_has(name: str) -> None:
    """Where a part names a compiled activation, both paths agree; dropout among the hidden units takes torch's."""
    recipe = REGISTRY["ffn"][name](hidden=64, bias=True, hidden_dropout=0.5)
    assert isinstance(recipe, FeedForward)
    layer = recipe.build(LayerContext(32, 1, 8))
    assert isinstance(layer, MLPBase)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(3, 8, 32)
    layer.backend = "cpp"
    assert layer.train().select_kernel(x) is None
    assert layer.eval().select_kernel(x) is (mlp if name != "elu" else None)
    ours = layer(x)
    layer.backend = "eager"
    assert (layer(x) - ours).detach().abs().max() <= FLOAT_UNITS * max(1.0, float(ours.detach().abs().max()))


def test_other_slopes_and_gates_have_names_of_their_own() -> None:
    found = {
        words: partwise.preset("mingpt", *words.split()).ffn.kernel_activation()  # type: ignore[union-attr]
        for words in ("ffn=swish", "ffn=swish ffn.beta=2", "ffn=swiglu ffn.trainable_beta=true", "ffn=elu")
    }
    assert list(found.values()) == ["silu", None, None, None]
    tanh = partwise.preset("mingpt", "ffn=geglu", "ffn.approximate=tanh").ffn
    assert tanh.kernel_activation() == "gelu_tanh"  # type: ignore[union-attr]


def test_the_choice_is_the_users() -> None:
    assert choose_runtime(TrainConfig(precision="float32", device="cpu")).ffn_backend == "cpp"
    assert choose_runtime(TrainConfig(precision="float32", device="cpu", ffn_backend="eager")).ffn_backend == "eager"
    assert choose_runtime(TrainConfig(precision="bfloat16", device="cpu", ffn_backend="cpp")).ffn_backend == "cpp"


def test_a_run_never_leaves_the_path_that_it_began_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = choose_runtime(TrainConfig(precision="float32", device="cpu", attention_backend="sdpa"))
    runtime.check()
    monkeypatch.setattr("partwise.compute.runtime.kernels_available", lambda: False)
    with pytest.raises(partwise.ConfigError, match=r"started with the C\+\+ kernels"):
        runtime.check()
    choose_runtime(TrainConfig(precision="float32", device="cpu")).check()
