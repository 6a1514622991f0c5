"""The bfloat16 attention and MLP kernels are as close to the equations in float64 as torch's autocast."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernel_inputs import (
    BF16_ERROR,
    MLPS,
    MLPInputs,
    all_equal,
    mlp_inputs,
    output_and_gradients,
    randn,
    random_layout,
    relative_error,
    threads,
)
from partwise.kernels.bf16 import bf16_attention, bf16_mlp, supports_bf16_attention, supports_bf16_mlp
from references import activations as reference

pytestmark = pytest.mark.usefixtures("kernels")

# ----------------------------------------------------------------------------------------------------------- attention


def attention_inputs(B: int, T: int, H: int, K: int, E: int) -> list[Tensor]:
    """q, k, v and the gradient of the output."""
    shapes = ((B, T, heads, E) for heads in (H, K, K, H))
    return [x.bfloat16() for x in randn(*shapes, seed=B + 3 * T + 5 * H + 7 * K + 11 * E)]


def attention_equation(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    group, T = q.shape[2] // k.shape[2], q.shape[1]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bthe,bshe->bhts", q, k) * scale
    weights = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    return torch.einsum("bhts,bshe->bthe", weights, v)


def check_attention(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    scale = q.shape[3] ** -0.5
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out, expected = bf16_attention(*leaves, scale), attention_equation(*doubles, scale)
    assert relative_error(out.detach(), expected.detach()) <= BF16_ERROR
    gradients, expected_gradients = (
        torch.autograd.grad(out, leaves, grad),
        torch.autograd.grad(expected, doubles, grad.double()),
    )
    for name, ours, true in zip("qkv", gradients, expected_gradients, strict=True):
        assert ours.dtype == torch.bfloat16
        # a query that attends to one key has no gradient: ours is the rounding error of a difference that is 0
        size = max(float(true.norm()), float(grad.norm()) / 4)
        assert float((ours.double() - true).norm()) <= 2 * BF16_ERROR * size, name


@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 33, 64, 65, 128, 129, 257])
@pytest.mark.parametrize("E", [12, 32])  # the second fills tile registers
def test_attention_equals_the_equation_for_every_length(E: int, T: int) -> None:
    check_attention(*attention_inputs(2, T, 2, 1, E))


@pytest.mark.parametrize("E", [2, 6, 8, 16, 18, 32, 34, 256])
def test_attention_equals_the_equation_for_every_head_dim(E: int) -> None:
    check_attention(*attention_inputs(1, 40, 6, 3, E))


@settings(max_examples=40)
@given(
    B=st.integers(1, 3), T=st.integers(1, 70), K=st.integers(1, 3), group=st.integers(1, 4), pairs=st.integers(1, 20),
    n_threads=st.integers(1, 3), layout=st.data(),
)  # fmt: skip
def test_attention_equals_the_equation_for_any_shape_and_layout(
    B: int, T: int, K: int, group: int, pairs: int, n_threads: int, layout: st.DataObject
) -> None:
    inputs = attention_inputs(B, T, K * group, K, 2 * pairs)
    with threads(n_threads):
        check_attention(*(random_layout(x, layout, any_offset=True) for x in inputs))


def test_attention_does_not_depend_on_the_number_of_threads() -> None:
    q, k, v, grad = attention_inputs(3, 90, 6, 3, 12)
    results = []
    for number in (1, 2, 3, 3):
        with threads(number):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            out = bf16_attention(*leaves, 0.3)
            results.append([out.detach(), *torch.autograd.grad(out, leaves, grad)])
    assert all(all_equal(other, results[0]) for other in results[1:])


def test_later_keys_have_no_influence() -> None:
    q, k, v, _ = attention_inputs(1, 90, 2, 2, 12)
    before = bf16_attention(q, k, v, 0.3)
    k[:, 45:], v[:, 45:] = 1e4, 1e4
    assert torch.equal(bf16_attention(q, k, v, 0.3)[:, :45], before[:, :45])


def test_weights_of_a_long_row_sum_to_one() -> None:
    """8192 equal scores, computed in many tiles of keys."""
    q, v = torch.zeros(1, 8192, 1, 2).bfloat16(), torch.ones(1, 8192, 1, 2).bfloat16().requires_grad_()
    (grad,) = torch.autograd.grad(bf16_attention(q, q, v, 1.0), [v], torch.ones_like(v))
    assert abs(float(grad.double().sum()) / v.numel() - 1) <= 5e-4


def test_huge_scores_stay_finite() -> None:
    q, k, v, grad = attention_inputs(1, 50, 2, 2, 16)
    leaves = [(100 * x).requires_grad_() for x in (q, k)] + [v.requires_grad_()]
    out = bf16_attention(*leaves, 1.0)
    assert out.isfinite().all() and all(x.isfinite().all() for x in torch.autograd.grad(out, leaves, grad))


def test_nan_propagates() -> None:
    q, k, v, _ = attention_inputs(1, 80, 1, 1, 12)
    k[0, 70, 0, 3] = torch.nan
    finite = bf16_attention(q, k, v, 1.0).isfinite().all(-1)[0, :, 0]
    assert finite[:64].all() and not finite[70:].any()


def test_unsupported_attention() -> None:
    q, k, v, _ = attention_inputs(1, 8, 2, 2, 12)
    assert supports_bf16_attention(q, k, v)
    assert not supports_bf16_attention(q[:, :4], k, v)  # over a cache
    assert not supports_bf16_attention(*(x[..., :11] for x in (q, k, v)))
    assert not supports_bf16_attention(*(x.to("meta") for x in (q, k, v)))


# ----------------------------------------------------------------------------------------------------------------- MLP


def check_mlp(activation: str, inputs: MLPInputs) -> None:
    exact = output_and_gradients(lambda *x: reference.mlp(*x, activation), inputs, double=True)
    autocast = output_and_gradients(lambda *x: reference.mlp(*x, activation), inputs, autocast=True)
    slack = 3e-2 if activation == "relu" else 2e-3  # its derivative jumps where rounding changes a sign
    ours = output_and_gradients(lambda *x: bf16_mlp(*x, activation), inputs, autocast=True)
    for mine, other, true in zip(ours, autocast, exact, strict=True):
        assert mine.dtype == torch.float32
        assert relative_error(mine, true) <= 1.25 * relative_error(other, true) + slack


@pytest.mark.parametrize(("activation", "gated", "bias"), MLPS)
def test_mlp_is_as_accurate_as_autocast_for_every_activation(activation: str, gated: bool, bias: bool) -> None:
    check_mlp(activation, mlp_inputs((61, 32), 96, gated, bias))


@pytest.mark.promise
@settings(max_examples=40)
@given(
    rows=st.integers(1, 420), D=st.integers(1, 8), hidden=st.integers(1, 23), gated=st.booleans(), bias=st.booleans(),
    activation=st.sampled_from(["gelu", "silu", "identity"]), n_threads=st.integers(1, 3),
)  # fmt: skip
def test_mlp_is_as_accurate_as_autocast_for_any_shape(
    rows: int, D: int, hidden: int, gated: bool, bias: bool, activation: str, n_threads: int
) -> None:
    with threads(n_threads):
        check_mlp(activation, mlp_inputs((rows, 16 * D), 16 * hidden, gated, bias))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_mlp_is_reproducible(n_threads: int) -> None:
    inputs = mlp_inputs((500, 32), 64, True, True)
    with threads(n_threads):
        first = output_and_gradients(lambda *x: bf16_mlp(*x, "silu"), inputs, autocast=True)
        for _ in range(5):
            assert all_equal(output_and_gradients(lambda *x: bf16_mlp(*x, "silu"), inputs, autocast=True), first)


def test_mlp_with_transposed_weights_and_an_expanded_output_gradient() -> None:
    x, up, _, down, _ = mlp_inputs((20, 32), 48, False, False)
    x.requires_grad_()
    bf16_mlp(x, up.t().contiguous().t(), None, down.t().contiguous().t(), None, "gelu").sum().backward()
    exact = x.detach().double().requires_grad_()
    reference.mlp(exact, up.double(), None, down.double(), None, "gelu").sum().backward()
    assert x.grad is not None and exact.grad is not None and relative_error(x.grad, exact.grad) <= 4 * BF16_ERROR


def test_unsupported_mlps() -> None:
    x, up, _, down, _ = mlp_inputs((5, 32), 48, False, False)
    assert not supports_bf16_mlp(x, up, down)  # without autocast
    with torch.autocast("cpu", torch.bfloat16):
        assert supports_bf16_mlp(x, up, down)
        assert not supports_bf16_mlp(x.bfloat16(), up, down)
        assert not supports_bf16_mlp(x, up.double(), down.double())
        assert not supports_bf16_mlp(x, up[:-1], down[:, :-1])
        assert not supports_bf16_mlp(torch.randn(5, 1024), torch.randn(4096, 1024), torch.randn(1024, 4096))
