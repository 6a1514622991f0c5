"""The float32 MLP kernel equals the equation in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_inputs import MLPS, MLPInputs, all_equal, mlp_inputs, output_and_gradients
from partwise.kernels.mlp import ACTIVATIONS, library, mlp, supports_mlp
from references import activations as reference

pytestmark = pytest.mark.usefixtures("kernels")

FLOAT_ERROR = 2e-6  # relative to a tensor's largest element: a few hundred float32 roundings


def check(activation: str, inputs: MLPInputs) -> None:
    assert supports_mlp(inputs[0], inputs[1], inputs[3])
    ours = output_and_gradients(lambda *x: mlp(*x, activation), inputs)
    eager = output_and_gradients(lambda *x: reference.mlp(*x, activation), inputs)
    exact = output_and_gradients(lambda *x: reference.mlp(*x, activation), inputs, double=True)
    for number, (x, other, y) in enumerate(zip(ours, eager, exact, strict=True)):
        assert x.shape == y.shape
        eager_error = float((other - y).abs().max())  # far in the tails every float32 implementation loses digits
        assert (x - y).abs().max() <= FLOAT_ERROR * max(1.0, float(y.abs().max())) + 3 * eager_error, number


@pytest.mark.parametrize(("activation", "gated", "bias"), MLPS)
def test_equals_the_equation_for_every_activation(activation: str, gated: bool, bias: bool) -> None:
    check(activation, mlp_inputs((2, 60, 32), 96, gated, bias))
    check(activation, mlp_inputs((2, 7, 48), 16, gated, bias, scale=30.0))  # far in the tails


@pytest.mark.promise
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
def test_equals_the_equation_for_any_shape(
    rows: int, D: int, hidden: int, gated: bool, bias: bool, activation: str, threads: int
) -> None:
    torch.set_num_threads(threads)
    W = library().W
    check(activation, mlp_inputs((2, rows, D * W), hidden * W, gated, bias))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_are_reproducible(threads: int) -> None:
    torch.set_num_threads(threads)
    inputs = mlp_inputs((2, 300, 32), 64, True, True)
    first = output_and_gradients(lambda *x: mlp(*x, "silu"), inputs)
    for _ in range(5):
        assert all_equal(output_and_gradients(lambda *x: mlp(*x, "silu"), inputs), first)


def test_any_memory_layout_is_supported() -> None:
    x, up, _, down, _ = mlp_inputs((2, 20, 32), 48, False, False)
    check("gelu", (x.transpose(0, 1), up.t().contiguous().t(), None, down.t().contiguous().t(), None))
    y = mlp(x.requires_grad_(), up, None, down, None, "relu")
    y.sum().backward()  # all strides of the output gradient are 0
    assert x.grad is not None and torch.allclose(x.grad, (torch.ones_like(y) @ down * (x @ up.t() > 0)) @ up, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_propagate(activation: str) -> None:
    x, up, _, down, _ = mlp_inputs((2, 50, 32), 48, False, False)
    x[0, 3, 5], x[1, 49, 0] = torch.nan, torch.inf
    finite = mlp(x, up, None, down, None, activation).isfinite().all(-1)
    assert finite.sum() >= 98 and not finite[0, 3]
    assert torch.equal(finite, reference.mlp(x, up, None, down, None, activation).isfinite().all(-1))


def test_huge_inputs_stay_finite() -> None:
    x, up, _, down, _ = mlp_inputs((2, 10, 32), 48, False, False, scale=1e6)
    for activation in ("gelu", "gelu_tanh", "silu", "sigmoid"):
        results = output_and_gradients(lambda *x: mlp(*x, activation), (x, up, None, down, None))  # noqa: B023
        assert all(each.isfinite().all() for each in results), activation


def test_unsupported_dtypes_devices_and_shapes() -> None:
    x, up, _, down, _ = mlp_inputs((2, 5, 32), 48, False, False)
    W = library().W
    assert supports_mlp(x, up, down)
    assert not supports_mlp(x.double(), up.double(), down.double())
    assert not supports_mlp(*(each.to("meta") for each in (x, up, down)))
    with torch.autocast("cpu", torch.bfloat16):
        assert not supports_mlp(x, up, down)
    assert not supports_mlp(torch.randn(5, W + 1), torch.randn(W, W + 1), torch.randn(W + 1, W))
    assert not supports_mlp(torch.randn(5, 1024), torch.randn(4096, 1024), torch.randn(1024, 4096))


def test_ops_pass_opcheck() -> None:
    inputs = mlp_inputs((2, 5, 16), 32, False, True)
    x, up, up_bias, down, down_bias = (each.requires_grad_() for each in inputs if each is not None)
    torch.library.opcheck(torch.ops.partwise.mlp.default, (x, up, up_bias, down, down_bias, 4))
    torch.library.opcheck(torch.ops.partwise.mlp.default, (x, up, None, down, None, 0))
