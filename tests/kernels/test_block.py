"""The block kernel equals the equation of pre-norm blocks in float64."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from kernel_inputs import MLPS, all_equal, threads
from partwise.kernels import block as kernels
from partwise.kernels.block import (
    GRADIENTS,
    BlockDropout,
    BlockOptions,
    BlockWeights,
    forward_blocks,
    supports_batch_size,
    unsupported_width,
)
from partwise.kernels.dropout import DropoutKey
from partwise.kernels.mlp import ACTIVATIONS
from partwise.parts.dropout import keep_mask
from references import activations as reference

pytestmark = pytest.mark.usefixtures("kernels")

FLOAT_ERROR = 4e-6  # relative to a tensor's norm: some thousand float32 roundings


@dataclass
class Case:
    B: int = 2
    T: int = 33
    D: int = 32
    n_heads: int = 4
    n_kv_heads: int = 4
    head_dim: int = 8
    hidden: int = 64
    gated: bool = False
    activation: str = "gelu"
    centered: bool = True
    affine: bool = True
    bias: bool = False
    rotary_pairs: int = 0
    interleaved: bool = False
    qk_norm: str = ""  # "head" or "full"
    token_shift: bool = False
    draw: int = 0  # of the inputs
    drops: str = ""  # w(eights), a(ttention branch), f(fn branch), h(idden units), o(utput of the ffn)

    def spec(self) -> BlockOptions:
        return BlockOptions(
            self.n_heads, self.n_kv_heads, self.head_dim, self.hidden, self.gated, self.activation, self.centered,
            self.interleaved, (1e-5, 1e-3), self.head_dim**-0.5, self.qk_norm_widths(), (1e-2, 1e-4),
            self.token_shift,
        )  # fmt: skip

    def qk_norm_widths(self) -> tuple[int, int]:
        factors = {"": (0, 0), "head": (1, 1), "full": (self.n_heads, self.n_kv_heads)}[self.qk_norm]
        return factors[0] * self.head_dim, factors[1] * self.head_dim

    def dropout(self) -> BlockDropout | None:
        keys = [
            DropoutKey(0.1 + 0.05 * i, 2**62 + 77 * i, 3) if letter in self.drops else None
            for i, letter in enumerate("wafho")
        ]
        return BlockDropout(*keys) if self.drops else None

    def inputs(self) -> tuple[Tensor, BlockWeights, Tensor]:
        """x, the weights and the gradient of the output."""
        generator = torch.Generator().manual_seed(
            self.B + 3 * self.T + 5 * self.D + 7 * self.head_dim + 11 * self.hidden + 1009 * self.draw
        )

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator) / columns**0.5

        def vector(size: int, present: bool, mean: float = 0.0) -> Tensor | None:
            return mean + 0.3 * torch.randn(size, generator=generator) if present else None

        A, Q = self.n_heads * self.head_dim, (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
        U = (1 + self.gated) * self.hidden
        frequencies = torch.logspace(0, -1, self.rotary_pairs)
        angles = torch.outer(torch.arange(self.T), frequencies) if self.rotary_pairs else None
        norms = [(vector(self.D, self.affine, 1.0), vector(self.D, self.bias and self.affine)) for _ in range(2)]
        weights = BlockWeights(
            *norms[0], matrix(Q, self.D), vector(Q, self.bias), matrix(self.D, A), vector(self.D, self.bias),
            *norms[1], matrix(U, self.D), vector(U, self.bias), matrix(self.D, self.hidden), vector(self.D, self.bias),
            *(vector(width, bool(width) and self.affine, 1.0) for width in self.qk_norm_widths()),
            vector(self.D, self.token_shift, 0.5),
            None if angles is None else angles.cos(), None if angles is None else angles.sin(),
        )  # fmt: skip
        x, grad = (torch.randn(self.B, self.T, self.D, generator=generator) for _ in range(2))
        return x, weights, grad


BlockFunction = Callable[[Tensor, BlockWeights, BlockOptions, BlockDropout | None], Tensor]


def forward_block(x: Tensor, weights: BlockWeights, spec: BlockOptions, dropout: BlockDropout | None = None) -> Tensor:
    return forward_blocks(x, [weights], spec, dropout and [dropout])


def drop(x: Tensor, key: DropoutKey | None) -> Tensor:
    return x if key is None else x * keep_mask(x, key) / (1 - key.p)


def equation(x: Tensor, w: BlockWeights, spec: BlockOptions, dropout: BlockDropout | None = None) -> Tensor:
    """The equation of the block, by torch's operations."""

    def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        if spec.centered:
            return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        y = F.rms_norm(x, x.shape[-1:], weight, eps)
        return y if bias is None else y + bias

    def rotate(heads: Tensor) -> Tensor:
        if w.cosines is None or w.sines is None:
            return heads
        n, cos, sin = w.cosines.shape[1], w.cosines.to(heads.dtype), w.sines.to(heads.dtype)
        if spec.interleaved:
            a, b = heads[..., 0 : 2 * n : 2], heads[..., 1 : 2 * n : 2]
            rotated = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = heads[..., :n], heads[..., n : 2 * n]
            rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((rotated, heads[..., 2 * n :]), -1)

    def norm_heads(x: Tensor, weight: Tensor | None, width: int, eps: float) -> Tensor:
        groups = (x if weight is None else x.to(weight.dtype)).unflatten(-1, (-1, width or x.shape[-1]))
        return F.rms_norm(groups, groups.shape[-1:], weight, eps).flatten(-2).to(x.dtype) if width else x

    def split_heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, spec.head_dim)).transpose(1, 2)

    sizes = [spec.n_heads * spec.head_dim] + [spec.n_kv_heads * spec.head_dim] * 2
    normed = norm(x, w.norm_1, w.norm_1_bias, spec.eps[0])
    if w.mu is not None:
        normed = normed * w.mu + F.pad(normed, (0, 0, 1, -1)) * (1 - w.mu)
    qkv = F.linear(normed, w.qkv, w.qkv_bias).split(sizes, -1)
    norms = zip((w.q_norm, w.k_norm), spec.qk_norm, spec.qk_eps, strict=True)
    q, k = (split_heads(norm_heads(each, *options)) for each, options in zip(qkv[:2], norms, strict=True))
    v = split_heads(qkv[2])
    k, v = (each.repeat_interleave(spec.n_heads // spec.n_kv_heads, 1) for each in (rotate(k), v))
    scores = rotate(q) @ k.transpose(-1, -2) * spec.scale
    masked = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    dropout = dropout or BlockDropout(None, None, None, None, None)
    y = drop(scores.masked_fill(masked, -torch.inf).softmax(-1), dropout.attention).to(v.dtype) @ v
    mid = x + drop(F.linear(y.transpose(1, 2).flatten(2), w.out, w.out_bias), dropout.attention_branch)
    normed = norm(mid, w.norm_2, w.norm_2_bias, spec.eps[1])
    hidden = drop(reference.hidden_units(normed, w.up, w.up_bias, spec.hidden, spec.activation), dropout.hidden)
    return mid + drop(drop(F.linear(hidden, w.down, w.down_bias), dropout.ffn_output), dropout.ffn_branch)


def output_and_gradients(
    function: BlockFunction, case: Case, double: bool = False, autocast: bool = False
) -> list[Tensor]:
    x, weights, grad = case.inputs()
    leaves = [
        None if each is None else (each.double() if double else each).requires_grad_()
        for each in (x, *weights[:GRADIENTS])
    ]
    tables = [None if each is None else each.to(leaves[0].dtype) for each in weights[GRADIENTS:]]  # type: ignore[union-attr]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = function(leaves[0], BlockWeights(*leaves[1:], *tables), case.spec(), case.dropout())  # type: ignore[arg-type]
    return [
        y.detach(),
        *torch.autograd.grad(y, [each for each in leaves if each is not None], grad.to(y.dtype)),
    ]


def errors(ours: list[Tensor], expected: list[Tensor]) -> list[float]:
    assert [x.shape for x in ours] == [y.shape for y in expected]
    size = max(float(y.norm() / y.numel() ** 0.5) for y in expected[1:])
    return [
        # relative to the size of the other gradients for one that is zero by the equation
        float((x - y).norm() / max(float(y.norm()), 1e-2 * size * y.numel() ** 0.5))
        for x, y in zip(ours, expected, strict=True)
    ]


def check(case: Case) -> None:
    exact = output_and_gradients(equation, case, double=True)
    worst = max(errors(output_and_gradients(forward_block, case), exact))
    assert worst <= FLOAT_ERROR, f"{case}: {worst:.1e}"


def check_bf16(case: Case) -> None:
    """The kernel is as accurate as torch's autocast, which rounds more often.

    The errors of QK-norm's weights, which are few numbers, are means over draws: of one draw either may be the larger.
    """
    draws = [replace(case, draw=draw) for draw in range(4 if case.qk_norm else 1)]
    exact = [output_and_gradients(equation, each, double=True) for each in draws]
    ours, autocast = (
        torch.tensor(
            [
                errors(output_and_gradients(function, each, autocast=True), expected)
                for each, expected in zip(draws, exact, strict=True)
            ]
        )
        .mean(dim=0)
        .tolist()
        for function in (forward_block, equation)
    )
    slack = 2e-2 if case.activation == "relu" else 2e-3  # its derivative jumps where rounding changes a sign
    for number, (own, other) in enumerate(zip(ours, autocast, strict=True)):
        assert own <= 1.25 * other + slack, f"{case}: {number}: {own:.1e}, autocast {other:.1e}"


each_precision = pytest.mark.parametrize("check_case", [check, check_bf16], ids=["float32", "bfloat16"])
each_autocast = pytest.mark.parametrize("autocast", [False, True])


@each_precision
@pytest.mark.parametrize(("activation", "gated", "bias"), MLPS)
def test_equals_the_equation_for_every_activation(
    activation: str, gated: bool, bias: bool, check_case: Callable[[Case], None]
) -> None:
    check_case(Case(activation=activation, gated=gated, bias=bias))


@each_precision
@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 64, 65, 128, 129])
def test_equals_the_equation_for_every_length(T: int, check_case: Callable[[Case], None]) -> None:
    check_case(Case(T=T, n_heads=2, n_kv_heads=1, head_dim=16))


@each_precision
@pytest.mark.parametrize("head_dim", [2, 6, 8, 16, 18, 32, 128])
def test_equals_the_equation_for_every_head_dim(head_dim: int, check_case: Callable[[Case], None]) -> None:
    check_case(Case(n_heads=8, n_kv_heads=8, head_dim=head_dim, T=40))


@each_precision
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [1, 3, 4])
def test_equals_the_equation_with_rotary_positions(
    pairs: int, interleaved: bool, check_case: Callable[[Case], None]
) -> None:
    check_case(Case(rotary_pairs=pairs, interleaved=interleaved, n_kv_heads=2, n_heads=6, head_dim=16, centered=False))


@each_precision
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("qk_norm", "head_dim"), [("head", 2), ("head", 32), ("full", 8), ("full", 18)])
def test_equals_the_equation_with_qk_norm(
    head_dim: int, qk_norm: str, affine: bool, check_case: Callable[[Case], None]
) -> None:
    case = Case(n_heads=8, n_kv_heads=4, head_dim=head_dim, qk_norm=qk_norm, affine=affine)
    check_case(replace(case, rotary_pairs=head_dim // 4, bias=affine))


@each_precision
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("T", [1, 2, 64, 65, 130])
def test_equals_the_equation_with_token_shift(T: int, centered: bool, check_case: Callable[[Case], None]) -> None:
    """Rows of even and odd length, of one batch or several of them per chunk."""
    check_case(Case(B=5, T=T, token_shift=True, centered=centered, rotary_pairs=2))


@each_precision
@pytest.mark.parametrize(
    ("drops", "gated"),
    [("w", False), ("a", False), ("f", False), ("h", False), ("h", True), ("o", True), ("wafho", True)],
)
def test_equals_the_equation_with_dropout(drops: str, gated: bool, check_case: Callable[[Case], None]) -> None:
    check_case(Case(B=3, T=77, n_heads=4, n_kv_heads=2, head_dim=16, gated=gated, bias=True, drops=drops, hidden=112))


@each_precision
@pytest.mark.parametrize("T", [1, 16, 65, 129])
@pytest.mark.parametrize("head_dim", [12, 32])  # the second fills tile registers
def test_equals_the_equation_with_dropout_for_every_length(
    head_dim: int, T: int, check_case: Callable[[Case], None]
) -> None:
    check_case(Case(T=T, n_heads=4, n_kv_heads=2, head_dim=head_dim, D=48, drops="wafho", token_shift=True))


@pytest.mark.parametrize("T", [1, 16, 17, 64, 544])
@pytest.mark.parametrize(
    ("D", "hidden", "gated"), [(64, 64, False), (96, 208, True), (160, 320, False), (128, 352, True)]
)
def test_equals_the_equation_at_widths_of_whole_tile_registers(T: int, D: int, hidden: int, gated: bool) -> None:
    """Matmuls with tile registers where the CPU has them: whole registers, parts of them, and several blocks of rows."""
    check_bf16(
        Case(B=3, T=T, D=D, n_heads=4, n_kv_heads=2, head_dim=16, hidden=hidden, gated=gated, bias=True, drops="h")
    )


@each_autocast
@pytest.mark.parametrize("T", [1, 21, 64, 130])
def test_rows_do_not_depend_on_the_number_of_rows(T: int, autocast: bool) -> None:
    case = Case(B=5, T=T, D=96, n_heads=4, n_kv_heads=2, head_dim=16, hidden=128, gated=True, rotary_pairs=4)
    x, weights, _ = case.inputs()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast), threads(1):
        whole = forward_block(x, weights, case.spec())
        for rows in (1, 2, 4):
            assert torch.equal(forward_block(x[:rows], weights, case.spec()), whole[:rows])


@pytest.mark.promise
@settings(max_examples=60)
@given(data=st.data())
def test_equals_the_equation_for_any_block(data: st.DataObject) -> None:
    """The block has any combination of options, and panels of every width."""
    n_kv_heads, group = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from([1, 2, 4]))
    head_dim = 16 * data.draw(st.integers(1, 2)) if n_kv_heads * group % 8 else 2 * data.draw(st.integers(1, 9))
    qk_norm = data.draw(st.sampled_from(["", "head", "full"]))
    case = Case(
        B=data.draw(st.integers(1, 7)),
        T=data.draw(st.integers(2 if qk_norm else 1, 70)),  # of one token, the gradients of these norms are zero
        D=16 * data.draw(st.integers(1, 12)),
        n_heads=n_kv_heads * group,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        hidden=16 * data.draw(st.integers(1, 23)),
        gated=data.draw(st.booleans()),
        activation=data.draw(st.sampled_from(ACTIVATIONS)),
        centered=data.draw(st.booleans()),
        affine=data.draw(st.booleans()),
        bias=data.draw(st.booleans()),
        rotary_pairs=data.draw(st.integers(0, head_dim // 2)),
        interleaved=data.draw(st.booleans()),
        qk_norm=qk_norm,
        token_shift=data.draw(st.booleans()),
        drops=data.draw(st.sampled_from(["", "w", "af", "ho", "wafho"])),
    )
    if unsupported_width(case.D, case.spec()):
        return
    with threads(data.draw(st.integers(1, 3))):
        check(case)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@each_autocast
def test_results_are_reproducible(n_threads: int, autocast: bool) -> None:
    case = Case(B=7, T=50, rotary_pairs=2)
    with threads(n_threads):
        first = output_and_gradients(forward_block, case, autocast=autocast)
        for _ in range(5):
            assert all_equal(output_and_gradients(forward_block, case, autocast=autocast), first)


def test_the_number_of_threads_changes_only_the_order_of_weight_gradient_sums() -> None:
    results = []
    for number in (1, 2, 3, 8):
        with threads(number):
            results.append(output_and_gradients(forward_block, Case(B=5, T=40), autocast=True))
    for other in results[1:]:
        assert torch.equal(other[0], results[0][0]) and torch.equal(other[1], results[0][1])
        assert max(errors(other, results[0])) <= FLOAT_ERROR


@each_autocast
def test_later_tokens_have_no_influence(autocast: bool) -> None:
    case = Case(T=80)
    x, weights, _ = case.inputs()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        before = forward_block(x, weights, case.spec())
        x[:, 45:] = 1e4
        after = forward_block(x, weights, case.spec())
    assert torch.equal(after[:, :45], before[:, :45]) and not torch.equal(after[:, 45:], before[:, 45:])


@each_autocast
def test_nan_and_infinity_propagate(autocast: bool) -> None:
    case = Case(T=80)
    x, weights, _ = case.inputs()
    x[0, 70, 3], x[1, 79, 0] = torch.nan, torch.inf
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        finite = forward_block(x, weights, case.spec()).isfinite().all(-1)
    assert not finite[0, 70:].any() and not finite[1, 79] and finite[:, :64].all()


@each_autocast
def test_huge_scores_stay_finite(autocast: bool) -> None:
    """Scores of thousands: the softmax selects one."""
    case = Case(activation="silu")
    x, weights, grad = case.inputs()
    weights = weights._replace(qkv=300 * weights.qkv)
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = forward_block(x, weights, case.spec())
    y.backward(grad)
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_any_memory_layout_is_supported() -> None:
    """Rows of a larger tensor, transposed weights, an expanded output gradient."""
    case = Case(bias=True)
    x, weights, _ = case.inputs()
    expected = forward_block(x, weights, case.spec())
    larger = torch.randn(2, 33, 50)
    larger[..., 5:37] = x
    transposed = weights._replace(qkv=weights.qkv.t().contiguous().t(), down=weights.down.t().contiguous().t())
    assert torch.equal(forward_block(larger[..., 5:37], transposed, case.spec()), expected)
    x.requires_grad_()
    forward_block(x, transposed, case.spec()).sum().backward()
    ours, x.grad = x.grad, None
    equation(x, weights, case.spec()).sum().backward()
    assert ours is not None and torch.allclose(ours, x.grad, atol=1e-4)  # type: ignore[arg-type]


def stack(case: Case, number: int) -> tuple[list[BlockWeights], list[Tensor]]:
    """The weights of several blocks, which lack different norm weights and biases; and all their tensors as leaves."""
    cases = [replace(case, affine=(case.affine + n) % 2 == 0, bias=(case.bias + n) % 3 != 1) for n in range(number)]
    weights = [each.inputs()[1] for each in cases]
    for n, each in enumerate(weights):
        scaled = [None if w is None else (1 + 0.1 * n) * w for w in each[:GRADIENTS]]
        weights[n] = BlockWeights(*scaled, *each[GRADIENTS:])
    return weights, [w.requires_grad_() for each in weights for w in each[:GRADIENTS] if w is not None]


@each_autocast
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("number", [2, 5])
def test_one_call_equals_one_call_per_block(number: int, n_threads: int, autocast: bool) -> None:
    """Outputs, gradients, and outputs without gradients are bitwise equal."""
    case = Case(B=5, T=40, rotary_pairs=2, gated=True, activation="silu", qk_norm="head", token_shift=True)
    weights, leaves = stack(case, number)
    x, _, grad = case.inputs()
    x.requires_grad_()
    with threads(n_threads):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            separate = x
            for each in weights:
                separate = forward_block(separate, each, case.spec())
            together = forward_blocks(x, weights, case.spec())
            with torch.no_grad():
                without_gradients = forward_blocks(x, weights, case.spec())
        ours, expected = (torch.autograd.grad(y, [x, *leaves], grad) for y in (together, separate))
    assert torch.equal(together, separate) and torch.equal(without_gradients, separate)
    assert all_equal(ours, expected)


def test_large_gradients_split_the_blocks_over_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = Case(), list[int]()
    weights, leaves = stack(case, 5)
    x, _, grad = case.inputs()
    real = kernels.run_forward
    monkeypatch.setattr(kernels, "run_forward", lambda *args, **options: (calls.append(1), real(*args, **options))[1])
    results, n_calls = [], []
    with threads(2):
        for limit in (2**26, 40_000, 1):
            monkeypatch.setattr(kernels, "MAX_GRADIENT_ELEMENTS", limit)
            calls.clear()
            y = forward_blocks(x, weights, case.spec())
            results.append([y, *torch.autograd.grad(y, leaves, grad)])
            n_calls.append(len(calls))
    assert n_calls == [1, 3, 5]
    assert all(all_equal(other, results[0]) for other in results[1:])


def test_frozen_weights_change_no_other_gradient() -> None:
    case = Case()
    weights, leaves = stack(case, 3)
    x, _, grad = case.inputs()
    expected = torch.autograd.grad(forward_blocks(x, weights, case.spec()), leaves, grad)
    for each in leaves[:5]:
        each.requires_grad_(False)
    gradients = torch.autograd.grad(forward_blocks(x, weights, case.spec()), leaves[5:], grad)
    assert all_equal(gradients, expected[5:])


@pytest.mark.parametrize(("frozen", "saved"), [(0, [3]), (1, [0, 2]), (2, [0, 1]), (3, [0])])
def test_leading_frozen_blocks_save_nothing(frozen: int, saved: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their backward pass is skipped, unless the input needs a gradient."""
    case = Case()
    weights, leaves = stack(case, 3)
    x, _, grad = case.inputs()
    gradients = torch.autograd.grad(forward_blocks(x, weights, case.spec()), leaves, grad)
    for block in weights[:frozen]:
        for each in block[:GRADIENTS]:
            if each is not None:
                each.requires_grad_(False)
    trained = [each for each in leaves if each.requires_grad]
    calls, real = list[int](), kernels.run_forward

    def record(x: Tensor, bf16: bool, spec: Any, weights: Any, save: bool, **options: Any) -> Any:
        calls.append(len(weights) // kernels.FIELDS if save else 0)
        return real(x, bf16, spec, weights, save, **options)

    monkeypatch.setattr(kernels, "run_forward", record)
    y = forward_blocks(x, weights, case.spec())
    assert calls == saved
    assert y.requires_grad == bool(trained)
    if trained:
        assert all_equal(torch.autograd.grad(y, trained, grad), gradients[-len(trained) :])
    calls.clear()
    forward_blocks(x.clone().requires_grad_(), weights, case.spec())
    assert calls == [3]


def test_batch_sizes_that_would_leave_threads_idle_are_not_supported() -> None:
    with threads(4):
        assert [rows for rows in range(13) if supports_batch_size(rows)] == [3, 4, 6, 7, 8, 9, 10, 11, 12]


SMALLER_CPUS = {
    "without tiles": "-mno-amx-tile -mno-amx-bf16",
    "without bfloat16": "-mno-avx512bf16",
    "eight lanes": "-mno-avx512f",
    "four lanes": "-mno-avx",
}
"""Compiler flags that disable instructions which smaller CPUs lack."""


@pytest.mark.parametrize(
    "flag",
    [
        pytest.param(flag, id=name, marks=() if name == "eight lanes" else pytest.mark.long)  # that of most laptops
        for name, flag in SMALLER_CPUS.items()
    ],
)
def test_smaller_cpus_compute_the_same(flag: str, tmp_path: Path) -> None:
    if "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU is a smaller one itself")
    if "amx" in flag and "amx_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no tile registers")
    tests = Path(__file__).parents[1]
    folders = [str(tests / name) for name in ("", "kernels", "compute/backends", "../examples")]
    program = (
        f"import sys; sys.path[:0] = {folders!r}\n"
        "import pytest, test_attention, test_bf16, test_block, test_compiled_block, test_cross_entropy, test_decoding\n"
        "from kernel_inputs import logits_and_targets, mlp_inputs\n"
        "Case = test_block.Case\n"
        "gated = Case(gated=True, bias=True, activation='silu', head_dim=12, T=70)\n"
        "options = Case(qk_norm='head', token_shift=True, drops='wafho', T=70, head_dim=18, n_heads=8, n_kv_heads=8)\n"
        "for case in (Case(rotary_pairs=2, n_kv_heads=2), gated, options):\n"
        "    test_block.check(case); test_block.check_bf16(case)\n"
        "test_attention.check(*test_attention.inputs(1, 33, 40, 2, 1, 12, 7))\n"
        "test_attention.check_decoding(3, 20, 2, 2, 7, 7, True)  # rows that are not aligned\n"
        "test_block.test_one_call_equals_one_call_per_block(3, 2, True)\n"
        "test_bf16.check_attention(*test_bf16.attention_inputs(2, 40, 4, 2, 12))\n"
        "test_bf16.check_mlp('silu', mlp_inputs((61, 32), 96, True, True))\n"
        "test_cross_entropy.check(*logits_and_targets(37, 65), 0.1)\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    test_compiled_block.test_decoding_equals_one_pass('llama', True, patch)\n"
        "for shape in ((61, 33, 'relu', 7, 3), (20, 7, 'reglu', 29, 1)):\n"
        "    test_decoding.check_exact_matmuls(*shape)\n"
    )
    environment = {**os.environ, "CXX": f"g++ {flag}", "PARTWISE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compiling block.cpp" in done.stderr
