"""Attention and perceptrons of bfloat16 numbers against their equations in float64, beside torch's autocast."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.kernels.bf16 import bf16_attention, bf16_mlp, supports_bf16_attention, supports_bf16_mlp
from partwise.kernels.library import kernels_available
from partwise.kernels.mlp import ACTIVATIONS
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import AttentionMask
from partwise.parts.feed_forward.mlp import GatedMLP

HALF = 2**-8  # what a number is off by at most when it is rounded to bfloat16
EQUATIONS: dict[str, Any] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


@pytest.fixture(scope="module", autouse=True)
def kernel(shared_cache: Path) -> None:
    if not kernels_available():
        pytest.skip("no C++ compiler here")


def error(ours: Tensor, true: Tensor) -> float:
    assert ours.shape == true.shape
    return float((ours.double() - true).norm() / true.norm().clamp_min(1e-30))


# ----------------------------------------------------------------------------------------------------------- attention


def draw(B: int, T: int, H: int, K: int, E: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(B + 3 * T + 5 * H + 7 * K + 11 * E)
    return [torch.randn(B, T, heads, E, generator=random).bfloat16() for heads in (H, K, K, H)]


def reference(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    group, T = q.shape[2] // k.shape[2], q.shape[1]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bthe,bshe->bhts", q, k) * scale
    weights = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    return torch.einsum("bhts,bshe->bthe", weights, v)


def check(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    scale = q.shape[3] ** -0.5
    ours = [x.detach().requires_grad_() for x in (q, k, v)]
    true = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out, exact = bf16_attention(*ours, scale), reference(*true, scale)
    assert error(out.detach(), exact.detach()) <= HALF
    found = torch.autograd.grad(out, ours, grad)
    for name, mine, other in zip("qkv", found, torch.autograd.grad(exact, true, grad.double()), strict=True):
        # a query that sees one key has no gradient: what is there is the rounding of a difference to zero
        assert mine.dtype == torch.bfloat16
        assert float((mine.double() - other).norm()) <= 2 * HALF * max(float(other.norm()), float(grad.norm()) / 4), (
            name
        )


@pytest.mark.parametrize("T", [1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 130, 257, 400])
def test_every_length(T: int) -> None:
    check(*draw(2, T, 2, 1, 12))


@pytest.mark.parametrize("E", [2, 4, 6, 8, 12, 16, 18, 24, 32, 34, 48, 64, 96, 128, 256])
def test_every_width(E: int) -> None:
    check(*draw(1, 40, 6, 3, E))


@settings(max_examples=40)
@given(
    B=st.integers(1, 3), T=st.integers(1, 70), K=st.integers(1, 3), group=st.integers(1, 4), pairs=st.integers(1, 20),
    threads=st.integers(1, 3), layout=st.data(),
)  # fmt: skip
def test_any_shape_and_layout(
    B: int, T: int, K: int, group: int, pairs: int, threads: int, layout: st.DataObject
) -> None:
    def laid_out(x: Tensor) -> Tensor:
        order = layout.draw(st.permutations([0, 1, 2]))
        room = x.new_full([x.shape[i] for i in order] + [x.shape[3] + layout.draw(st.integers(0, 3))], torch.nan)
        view = room.permute(*(order.index(i) for i in range(3)), 3)[
            ..., layout.draw(st.integers(0, room.shape[3] - x.shape[3])) :
        ]
        view = view[..., : x.shape[3]]
        view.copy_(x)
        return view

    torch.set_num_threads(threads)
    try:
        check(*(laid_out(x) for x in draw(B, T, K * group, K, 2 * pairs)))
    finally:
        torch.set_num_threads(1)


def test_equal_for_any_number_of_threads() -> None:
    q, k, v, grad = draw(3, 90, 6, 3, 12)
    found = []
    for threads in (1, 2, 3, 3):
        torch.set_num_threads(threads)
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        out = bf16_attention(*given, 0.3)
        found.append([out.detach(), *torch.autograd.grad(out, given, grad)])
    torch.set_num_threads(1)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(other, found[0], strict=True))


def test_no_later_key_matters() -> None:
    q, k, v, _ = draw(1, 90, 2, 2, 12)
    before = bf16_attention(q, k, v, 0.3)
    k[:, 45:], v[:, 45:] = 1e4, 1e4
    assert torch.equal(bf16_attention(q, k, v, 0.3)[:, :45], before[:, :45])


def test_long_rows_lose_nothing() -> None:
    """Weights of 8192 equal scores add up to one, however many blocks of keys they are found in."""
    q, v = torch.zeros(1, 8192, 1, 2).bfloat16(), torch.ones(1, 8192, 1, 2).bfloat16().requires_grad_()
    (grad,) = torch.autograd.grad(bf16_attention(q, q, v, 1.0), [v], torch.ones_like(v))
    assert abs(float(grad.double().sum()) / v.numel() - 1) <= 5e-4


def test_huge_scores() -> None:
    q, k, v, grad = draw(1, 50, 2, 2, 16)
    given = [(100 * x).requires_grad_() for x in (q, k)] + [v.requires_grad_()]
    out = bf16_attention(*given, 1.0)
    assert out.isfinite().all() and all(x.isfinite().all() for x in torch.autograd.grad(out, given, grad))


def test_not_a_number_is_seen() -> None:
    q, k, v, _ = draw(1, 80, 1, 1, 12)
    k[0, 70, 0, 3] = torch.nan
    out = bf16_attention(q, k, v, 1.0).isfinite().all(-1)[0, :, 0]
    assert out[:64].all() and not out[70:].any()


def test_what_attention_does_not_serve() -> None:
    q, k, v, _ = draw(1, 8, 2, 2, 12)
    assert supports_bf16_attention(q, k, v)
    assert not supports_bf16_attention(q.float(), k.float(), v.float())
    assert not supports_bf16_attention(q[:, :4], k, v)  # over a cache
    assert not supports_bf16_attention(*(x[..., :11] for x in (q, k, v)))
    assert not supports_bf16_attention(*(x.to("meta") for x in (q, k, v)))


@pytest.mark.parametrize("E", [12, 11])
def test_the_layer_takes_it_under_autocast(E: int) -> None:
    """And torch's kernel for what it does not serve: the same but for rounding."""
    layer = AttentionCore(0.3, None, 0, 0.0)
    q, k, v = (x.transpose(1, 2) for x in draw(2, 20, 4, 2, E)[:3])
    mask = AttentionMask(lambda: torch.full((20, 20), -torch.inf).triu(1), causal=True, causal_lower_right=True)
    found = []
    for path in ("eager", "cpp"):
        layer.use_backend(path)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(layer(q, k, v, mask))
    assert error(found[1], found[0].double()) <= 2 * HALF


# --------------------------------------------------------------------------------------------------------- perceptrons


def perceptron(rows: int, D: int, hidden: int, gated: bool, bias: bool) -> list[Tensor | None]:
    random = torch.Generator().manual_seed(rows + 3 * D + 5 * hidden)
    U = 2 * hidden if gated else hidden
    x, up, down = (torch.randn(shape, generator=random) for shape in ((rows, D), (U, D), (D, hidden)))
    biases = [torch.randn(n, generator=random) if bias else None for n in (U, D)]
    return [x, up / D**0.5, biases[0], down / hidden**0.5, biases[1]]


def equation(activation: str, x: Any, up: Any, up_bias: Any, down: Any, down_bias: Any) -> Tensor:
    pre, hidden = F.linear(x, up, up_bias), down.shape[1]
    act = EQUATIONS[activation]
    units = act(pre) if up.shape[0] == hidden else act(pre[..., :hidden]) * pre[..., hidden:]
    return F.linear(units, down, down_bias)


def differentiated(function: Any, given: list[Tensor | None], double: bool = False) -> list[Tensor]:
    leaves = [None if x is None else (x.double() if double else x.detach()).requires_grad_() for x in given]
    with torch.autocast("cpu", torch.bfloat16, enabled=not double):
        y = function(*leaves)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x for x in leaves if x is not None], grad)]


def check_mlp(activation: str, given: list[Tensor | None]) -> None:
    """As near the truth as torch's autocast, which rounds more often."""
    true = differentiated(lambda *x: equation(activation, *x), given, double=True)
    theirs = differentiated(lambda *x: equation(activation, *x), given)
    slack = 3e-2 if activation == "relu" else 2e-3  # its slope jumps where a rounding changes a sign
    for mine, other, exact in zip(
        differentiated(lambda *x: bf16_mlp(*x, activation), given), theirs, true, strict=True
    ):
        assert mine.dtype == torch.float32
        assert error(mine, exact) <= 1.25 * error(other, exact) + slack


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, gated: bool, bias: bool) -> None:
    check_mlp(activation, perceptron(61, 32, 96, gated, bias))


@settings(max_examples=40)
@given(
    rows=st.integers(1, 420), D=st.integers(1, 8), hidden=st.integers(1, 23), gated=st.booleans(), bias=st.booleans(),
    activation=st.sampled_from(["gelu", "silu", "identity"]), threads=st.integers(1, 3),
)  # fmt: skip
def test_any_perceptron(rows: int, D: int, hidden: int, gated: bool, bias: bool, activation: str, threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        check_mlp(activation, perceptron(rows, 16 * D, 16 * hidden, gated, bias))
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_equal_numbers_on_every_call(threads: int) -> None:
    torch.set_num_threads(threads)
    given = perceptron(500, 32, 64, True, True)
    first = differentiated(lambda *x: bf16_mlp(*x, "silu"), given)
    for _ in range(5):
        again = differentiated(lambda *x: bf16_mlp(*x, "silu"), given)
        assert all(torch.equal(x, y) for x, y in zip(again, first, strict=True))
    torch.set_num_threads(1)


def test_a_gradient_without_memory_of_its_own() -> None:
    x, up, _, down, _ = perceptron(20, 32, 48, False, False)
    assert x is not None and up is not None and down is not None
    turned = up.t().contiguous().t(), None, down.t().contiguous().t(), None
    x.requires_grad_()
    bf16_mlp(x, *turned, "gelu").sum().backward()
    exact = x.detach().double().requires_grad_()
    equation("gelu", exact, up.double(), None, down.double(), None).sum().backward()
    assert x.grad is not None and exact.grad is not None and error(x.grad, exact.grad) <= 4 * HALF


def test_what_perceptrons_it_does_not_serve() -> None:
    x, up, _, down, _ = perceptron(5, 32, 48, False, False)
    assert x is not None and up is not None and down is not None
    assert not supports_bf16_mlp(x, up, down)  # without autocast
    with torch.autocast("cpu", torch.bfloat16):
        assert supports_bf16_mlp(x, up, down)
        assert not supports_bf16_mlp(x.bfloat16(), up, down)
        assert not supports_bf16_mlp(x, up.double(), down.double())
        assert not supports_bf16_mlp(x, up[:-1], down[:, :-1])
        assert not supports_bf16_mlp(torch.randn(5, 1024), torch.randn(4096, 1024), torch.randn(1024, 4096))


def test_the_layer_takes_it_under_autocast_and_with_dropout_does_not() -> None:
    layer = GatedMLP(32, 64, F.silu, kernel_activation="silu", hidden_dropout=0.5)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    layer.backend, x = "cpp", torch.randn(3, 8, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.select_kernel(x) is None
        assert layer.eval().select_kernel(x) is bf16_mlp
        ours = layer(x).detach()
        layer.backend = "eager"
        assert error(ours, layer(x).detach().double()) <= 2 * HALF
