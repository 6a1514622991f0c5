"""The float32 attention kernel equals the equation in float64."""

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernel_inputs import all_equal, randn, random_layout, require_kernels
from partwise.config import ConfigError
from partwise.kernels.attention import attention, decode_attention, library, packed_attention

FLOAT_ERROR = 2e-6  # relative to a tensor's largest element: a few hundred float32 roundings


@pytest.fixture(scope="session")
def kernel(shared_cache: Path) -> ctypes.CDLL:
    require_kernels()
    loaded = library()
    assert loaded is not None
    return loaded


def reference(q: Tensor, k: Tensor, v: Tensor, scale: float, grad: Tensor) -> list[Tensor]:
    """The equation, head by head, with autograd's gradients, in float64."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    (T, H), (S, K) = q.shape[1:3], k.shape[1:3]
    masked = torch.tensor([[j > S - T + i for j in range(S)] for i in range(T)])
    heads = []
    for h in range(H):
        g = h // (H // K)
        scores = (q[:, :, h] @ k[:, :, g].transpose(1, 2) * scale).masked_fill(masked, -math.inf)
        heads.append(scores.softmax(-1) @ v[:, :, g])
    out = torch.stack(heads, dim=2)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad.double())]


def output_and_gradients(q: Tensor, k: Tensor, v: Tensor, scale: float, grad: Tensor) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, scale)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def inputs(B: int, T: int, S: int, H: int, K: int, E: int, V: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v and the gradient of the output."""
    shapes = ((B, T, H, E), (B, S, K, E), (B, S, K, V), (B, T, H, V))
    return randn(*shapes, seed=B + 3 * T + 5 * S + 7 * H + 11 * K + 13 * E + 17 * V, dtype=dtype)


def check(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, tolerance: float = FLOAT_ERROR) -> None:
    scale = q.shape[-1] ** -0.5
    # with one key its weight is 1 whatever q and k are: their gradients are rounding errors of a difference that is 0
    size = max(1.0, float(grad.abs().max()))
    for name, ours, expected in zip(
        ("out", "dq", "dk", "dv"),
        output_and_gradients(q, k, v, scale, grad),
        reference(q, k, v, scale, grad),
        strict=True,
    ):
        assert ours.shape == expected.shape
        error = float((ours - expected).abs().max()) / max(float(expected.abs().max()), size)
        assert error <= tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("T", [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_equals_the_equation_for_every_length(kernel: ctypes.CDLL, T: int) -> None:
    check(*inputs(2, T, T, 2, 1, 12, 12))


@pytest.mark.parametrize("E", [1, 3, 4, 5, 8, 12, 20, 33, 128])
def test_equals_the_equation_for_every_head_dim(kernel: ctypes.CDLL, E: int) -> None:
    check(*inputs(2, 37, 37, 3, 3, E, E))
    check(*inputs(1, 65, 65, 2, 1, E, 5))
    check(*inputs(1, 19, 50, 1, 1, 6, E))


@pytest.mark.parametrize(("T", "S"), [(300, 300), (129, 400), (1, 257), (2, 128), (255, 256), (33, 161)])
def test_equals_the_equation_beyond_one_tile(kernel: ctypes.CDLL, T: int, S: int) -> None:
    check(*inputs(1, T, S, 2, 2, 8, 8))


sizes = st.integers(1, 50)


@settings(max_examples=40)
@given(
    B=st.integers(1, 3), T=sizes, more=sizes, K=st.integers(1, 3), group=st.integers(1, 3), E=sizes, layout=st.data()
)
def test_equals_the_equation_for_any_shape_and_layout(
    kernel: ctypes.CDLL, B: int, T: int, more: int, K: int, group: int, E: int, layout: st.DataObject
) -> None:
    check(*(random_layout(x, layout) for x in inputs(B, T, T + more - 1, K * group, K, E, E)))


@settings(max_examples=80)
@given(
    T=st.integers(1, 9),
    more=st.integers(0, 60),
    K=st.integers(1, 3),
    group=st.integers(1, 3),
    E=st.integers(1, 40),
    V=st.integers(1, 40),
    causal=st.booleans(),
    threads=st.integers(1, 3),
)
def test_decoding_equals_the_equation(
    kernel: ctypes.CDLL, T: int, more: int, K: int, group: int, E: int, V: int, causal: bool, threads: int
) -> None:
    torch.set_num_threads(threads)
    check_decoding(T, more, K, group, E, V, causal)


def check_decoding(T: int, more: int, K: int, group: int, E: int, V: int, causal: bool) -> None:
    """A few queries over the filled part of a larger cache with heads before positions, as in generation."""
    q, k, v, _ = inputs(2, T, T + more, K * group, K, E, V)
    cache = torch.full((2, K, T + more + 5, E), math.nan)
    cache[:, :, : T + more] = k.transpose(1, 2)
    ours = decode_attention(q, cache[:, :, : T + more].transpose(1, 2), v, E**-0.5, causal)
    if causal:
        expected = reference(q, k, v, E**-0.5, torch.ones_like(ours))[0]
    else:
        heads = [x.double().repeat_interleave(group, dim=2) for x in (k, v)]
        weights = (torch.einsum("bthe,bshe->bhts", q.double(), heads[0]) * E**-0.5).softmax(-1)
        expected = torch.einsum("bhts,bshv->bthv", weights, heads[1])
    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() <= FLOAT_ERROR * max(1.0, float(expected.abs().max()))


def test_decoding_propagates_nan_and_large_scores(kernel: ctypes.CDLL) -> None:
    for column in (0, 20, 36):  # in a whole vector of scores, and in the remainder
        q, k, v, _ = inputs(1, 3, 37, 2, 1, 12, 12)
        k[0, column, 0, 3] = math.nan
        seen = decode_attention(q, k, v, 1.0, True).isnan().any(-1)[0, :, 0]
        assert seen.tolist() == [column <= 34 + i for i in range(3)]
    q, k, v, _ = inputs(1, 1, 9, 1, 1, 4, 4)
    x = 100 * q.sign()
    largest = (100 * k * x).sum(-1).argmax()
    assert (decode_attention(x, 100 * k, v, 1.0, True) - v[:, largest]).abs().max() < 1e-6


@pytest.mark.parametrize(("H", "K", "E"), [(8, 8, 12), (4, 2, 5), (3, 1, 16)])
def test_packed_attention_equals_attention(kernel: ctypes.CDLL, H: int, K: int, E: int) -> None:
    q, k, v, grad = inputs(2, 45, 45, H, K, E, E)
    qkv = torch.cat([x.flatten(2) for x in (q, k, v)], dim=2).requires_grad_()
    out = packed_attention(qkv, H, K, 0.3)
    (gradient,) = torch.autograd.grad(out, qkv, grad.flatten(2))
    expected = output_and_gradients(q, k, v, 0.3, grad)
    assert torch.equal(out, expected[0].flatten(2))
    assert torch.equal(gradient, torch.cat([x.flatten(2) for x in expected[1:]], dim=2))


@pytest.mark.parametrize("shape", [(3, 40, 40, 4, 2, 12, 12), (1, 300, 300, 1, 1, 12, 12), (1, 70, 600, 2, 1, 3, 3)])
def test_results_do_not_depend_on_the_number_of_threads(kernel: ctypes.CDLL, shape: tuple[int, ...]) -> None:
    q, k, v, grad = inputs(*shape)
    first = output_and_gradients(q, k, v, 0.5, grad)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert all_equal(output_and_gradients(q, k, v, 0.5, grad), first)


def test_huge_scores_stay_finite(kernel: ctypes.CDLL) -> None:
    """Scores from -10,000 to 10,000: one key gets all the weight, or tied keys share it."""
    q, k, v, grad = inputs(1, 50, 50, 1, 1, 1, 4)
    q = torch.where(q > 0, 100.0, -100.0)
    k = (100 * torch.linspace(-1, 1, 50)).round().view(1, 50, 1, 1)
    k[:, 10:20] = k[:, 10:11]
    ours, expected = output_and_gradients(q, k, v, 1.0, grad), reference(q, k, v, 1.0, grad)
    assert all(x.isfinite().all() for x in ours)
    assert float((ours[0] - expected[0]).abs().max()) <= FLOAT_ERROR
    error = (ours[3] - expected[3]).abs().max() / expected[3].abs().max()
    assert float(error) <= 1e-3  # the precision of lse at 10,000


def test_nan_and_infinity_propagate(kernel: ctypes.CDLL) -> None:
    q, k, v, _ = inputs(1, 64, 64, 1, 1, 4, 4)
    q[0, 40] = math.nan
    assert attention(q, k, v, 1.0).isnan().any(-1).nonzero()[:, 1].tolist() == [40]
    q, k, v, grad = inputs(1, 64, 64, 1, 1, 4, 4)
    k[0, 20] = math.nan
    assert torch.equal(attention(q, k, v, 1.0).isnan().any(-1)[0, :, 0], torch.arange(64) >= 20)
    k[0, 20], q[0, :, 0, 0], k[0, 20, 0, 0] = 0, 1, math.inf
    assert torch.equal(attention(q, k, v, 1.0).isnan().any(-1)[0, :, 0], torch.arange(64) >= 20)
    grad[0, 63], k[0, 20] = math.nan, 0
    assert all(x.isnan().any() for x in output_and_gradients(q, k, v, 1.0, grad)[1:])


def test_later_keys_have_no_influence(kernel: ctypes.CDLL) -> None:
    q, k, v, _ = inputs(1, 40, 60, 2, 2, 12, 12)
    before = attention(q, k, v, 0.3)
    k[:, 45:], v[:, 45:] = 1e4, 1e4
    assert torch.equal(attention(q, k, v, 0.3)[:, :25], before[:, :25])


def test_exp2_is_accurate(kernel: ctypes.CDLL) -> None:
    """2^x is exact to one unit in the last place, 1 at 0, 0 for results below float32's normal range, and NaN for NaN."""
    x = np.concatenate(
        [np.linspace(-126, 1, 400_001), -np.geomspace(1e-9, 126, 10_001), [0, -126.01, -1e30, -np.inf, np.nan]]
    )
    x = x.astype(np.float32)
    out = np.empty_like(x)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, out)]
    kernel.attention_exp2(*pointers, ctypes.c_int64(len(x)))
    expected = np.exp2(x[:-5].astype(np.float64))
    bound = 1 if kernel.attention_fuses(ctypes.c_float(1 + 2**-12)) else 1.2  # units in the last place
    assert np.max(np.abs(out[:-5] - expected) / np.spacing(expected.astype(np.float32))) < bound
    assert out[-5:-1].tolist() == [1, 0, 0, 0]
    assert np.isnan(out[-1])


def test_gradient_of_some_inputs_and_of_an_expanded_output_gradient(kernel: ctypes.CDLL) -> None:
    q, k, v, grad = inputs(1, 9, 9, 2, 2, 4, 4)
    expected = output_and_gradients(q, k, v, 0.5, grad)[1]
    q.requires_grad_()
    attention(q, k, v, 0.5).backward(grad)
    assert q.grad is not None and torch.equal(q.grad, expected)
    q.grad = None
    attention(q, k, v, 0.5).sum().backward()  # all strides of the output gradient are 0
    assert torch.equal(q.grad, output_and_gradients(q, k, v, 0.5, torch.ones(9, 2, 4)[None])[1])  # type: ignore[arg-type]


def test_empty_batches_and_sequences(kernel: ctypes.CDLL) -> None:
    q, k, v, grad = inputs(0, 5, 5, 2, 2, 4, 4)
    assert [x.shape for x in output_and_gradients(q, k, v, 0.5, grad)] == [(0, 5, 2, 4)] * 4
    q, k, v, grad = inputs(1, 0, 5, 2, 2, 4, 4)
    assert not any(x.any() for x in output_and_gradients(q, k, v, 0.5, grad))


def test_float64_is_computed_by_torch() -> None:
    q, k, v, grad = inputs(2, 11, 13, 4, 2, 5, 3, torch.float64)
    check(q, k, v, grad, 1e-14)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: attention(*x, 0.4), leaves)
    qkv = torch.randn(1, 5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: packed_attention(x, 4, 1, 0.4), [qkv])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ops_pass_opcheck(kernel: ctypes.CDLL, dtype: torch.dtype) -> None:
    q, k, v, _ = (x.requires_grad_() for x in inputs(2, 5, 7, 4, 2, 3, 3, dtype))
    torch.library.opcheck(torch.ops.partwise.attention.default, (q, k, v, 0.5))
    if dtype == torch.float32:
        torch.library.opcheck(
            torch.ops.partwise.decode_attention.default, (*(x.detach() for x in (q, k, v)), 0.5, True)
        )
    torch.library.opcheck(
        torch.ops.partwise.packed_attention.default, (q.detach().flatten(2).requires_grad_(), 2, 1, 0.5)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_compile_gives_the_same_gradients(kernel: ctypes.CDLL, dtype: torch.dtype) -> None:
    q, k, v, grad = inputs(2, 5, 7, 4, 2, 3, 3, dtype)
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, 0.5) * 2, backend="aot_eager", fullgraph=True)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    gradients = torch.autograd.grad(compiled(*leaves), leaves, grad)
    assert all_equal(gradients, output_and_gradients(q, k, v, 0.5, 2 * grad)[1:])


def test_mismatched_shapes_are_refused() -> None:
    q, k, v, _ = inputs(1, 5, 5, 4, 4, 3, 3)
    with pytest.raises(ConfigError, match="5 queries over 4 keys"):
        attention(q, k[:, :4], v[:, :4], 1.0)
    for bad in ((q[:, :, :3], k[:, :, :2], v[:, :, :2]), (q, k, v[:, :, :1]), (q, k[..., :2], v), (q, k[:0], v[:0])):
        with pytest.raises(ConfigError, match="make the shapes match"):
            attention(*bad, 1.0)
    with pytest.raises(ConfigError, match="qkv width 7 does not split"):
        packed_attention(torch.randn(1, 2, 7), 2, 1, 1.0)
