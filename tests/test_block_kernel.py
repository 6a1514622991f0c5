"""The compiled block against its equation in float64, for every part that it knows; and which blocks take it."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import partwise
from partwise.compute.runtime import choose_runtime, has_fast_bfloat16
from partwise.kernels import block as kernels
from partwise.kernels.block import (
    BlockSpec,
    BlockWeights,
    decode,
    forward_blocks,
    prefill,
    supports_batch_size,
    supports_block,
)
from partwise.kernels.library import kernels_available
from partwise.kernels.mlp import ACTIVATIONS
from partwise.train.config import TrainConfig, run_config
from partwise.train.loop import Run

UNITS = 4e-6  # of a tensor's norm: what some thousand roundings in float32 come to
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


@dataclass
class Case:
    B: int = 2
    T: int = 33
    D: int = 32
    heads: int = 4
    kv_heads: int = 4
    width: int = 8
    hidden: int = 64
    gated: bool = False
    activation: str = "gelu"
    centered: bool = True
    affine: bool = True
    bias: bool = False
    pairs: int = 0
    interleaved: bool = False

    def spec(self) -> BlockSpec:
        return BlockSpec(
            self.heads, self.kv_heads, self.width, self.hidden, self.gated, self.activation, self.centered,
            self.interleaved, (1e-5, 1e-3), self.width**-0.5,
        )  # fmt: skip

    def draw(self) -> tuple[Tensor, BlockWeights, Tensor]:
        random = torch.Generator().manual_seed(self.B + 3 * self.T + 5 * self.D + 7 * self.width + 11 * self.hidden)

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=random) / columns**0.5

        def vector(size: int, there: bool, around: float = 0.0) -> Tensor | None:
            return around + 0.3 * torch.randn(size, generator=random) if there else None

        A, Q = self.heads * self.width, (self.heads + 2 * self.kv_heads) * self.width
        U = (1 + self.gated) * self.hidden
        angles = torch.outer(torch.arange(self.T), torch.logspace(0, -1, self.pairs)) if self.pairs else None
        norm = [(vector(self.D, self.affine, 1.0), vector(self.D, self.bias and self.affine)) for _ in range(2)]
        weights = BlockWeights(
            *norm[0], matrix(Q, self.D), vector(Q, self.bias), matrix(self.D, A), vector(self.D, self.bias),
            *norm[1], matrix(U, self.D), vector(U, self.bias), matrix(self.D, self.hidden), vector(self.D, self.bias),
            None if angles is None else angles.cos(), None if angles is None else angles.sin(),
        )  # fmt: skip
        x, grad = (torch.randn(self.B, self.T, self.D, generator=random) for _ in range(2))
        return x, weights, grad


def block(x: Tensor, weights: BlockWeights, spec: BlockSpec) -> Tensor:
    return forward_blocks(x, [weights], spec)


def equation(x: Tensor, w: BlockWeights, spec: BlockSpec) -> Tensor:
    """The block as the papers have it, by torch's operations."""

    def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        if spec.centered:
            return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        y = F.rms_norm(x, x.shape[-1:], weight, eps)
        return y if bias is None else y + bias

    def turned(heads: Tensor) -> Tensor:
        if w.cosines is None or w.sines is None:
            return heads
        n, cos, sin = w.cosines.shape[1], w.cosines.to(heads.dtype), w.sines.to(heads.dtype)
        if spec.interleaved:
            a, b = heads[..., 0 : 2 * n : 2], heads[..., 1 : 2 * n : 2]
            pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = heads[..., :n], heads[..., n : 2 * n]
            pairs = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((pairs, heads[..., 2 * n :]), -1)

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, spec.head_dim)).transpose(1, 2)

    sizes = [spec.n_heads * spec.head_dim] + [spec.n_kv_heads * spec.head_dim] * 2
    parts = F.linear(norm(x, w.norm_1, w.norm_1_bias, spec.eps[0]), w.qkv, w.qkv_bias).split(sizes, -1)
    q, k, v = (heads(part) for part in parts)
    k, v = (each.repeat_interleave(spec.n_heads // spec.n_kv_heads, 1) for each in (turned(k), v))
    scores = turned(q) @ k.transpose(-1, -2) * spec.scale
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    y = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype) @ v
    mid = x + F.linear(y.transpose(1, 2).flatten(2), w.out, w.out_bias)
    up = F.linear(norm(mid, w.norm_2, w.norm_2_bias, spec.eps[1]), w.up, w.up_bias)
    units = EQUATIONS[spec.activation](up[..., : spec.hidden])
    return mid + F.linear(units * up[..., spec.hidden :] if spec.gated else units, w.down, w.down_bias)


def differentiated(way: Any, case: Case, double: bool = False, half: bool = False) -> list[Tensor]:
    """The output and all gradients."""
    x, weights, grad = case.draw()
    wanted = [each for each in (x, *weights[:12]) if each is not None]
    given = [
        None if each is None else (each.double() if double else each).requires_grad_() for each in (x, *weights[:12])
    ]
    tables = [None if each is None else each.to(given[0].dtype) for each in weights[12:]]  # type: ignore[union-attr]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        y = way(given[0], BlockWeights(*given[1:], *tables), case.spec())  # type: ignore[arg-type]
    found = torch.autograd.grad(y, [each for each in given if each is not None], grad.to(y.dtype))
    assert len(found) == len(wanted)
    return [y.detach(), *found]


def errors(ours: list[Tensor], true: list[Tensor]) -> list[float]:
    assert [x.shape for x in ours] == [y.shape for y in true]
    size = max(float(y.norm() / y.numel() ** 0.5) for y in true[1:])
    return [
        # a gradient that is zero by the equation is held to the others' size
        float((x - y).norm() / max(float(y.norm()), 1e-2 * size * y.numel() ** 0.5))
        for x, y in zip(ours, true, strict=True)
    ]


def check(case: Case) -> None:
    true = differentiated(equation, case, double=True)
    worst = max(errors(differentiated(block, case), true))
    assert worst <= UNITS, f"{case}: {worst:.1e}"


def check_half(case: Case) -> None:
    """Products of bfloat16 numbers: as near the truth as torch's autocast, which rounds more often."""
    true = differentiated(equation, case, double=True)
    ours = errors(differentiated(block, case, half=True), true)
    theirs = errors(differentiated(equation, case, half=True), true)
    slack = 2e-2 if case.activation == "relu" else 2e-3  # its slope jumps where a rounding changes a sign
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        assert own <= 1.25 * other + slack, f"{case}: {number}: {own:.1e}, autocast {other:.1e}"


BOTH = pytest.mark.parametrize("checked", [check, check_half], ids=["float32", "bfloat16"])


@BOTH
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, gated: bool, bias: bool, checked: Any) -> None:
    checked(Case(activation=activation, gated=gated, bias=bias))


@BOTH
@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300])
def test_every_length(T: int, checked: Any) -> None:
    checked(Case(T=T, heads=2, kv_heads=1, width=16))


@BOTH
@pytest.mark.parametrize("width", [2, 4, 6, 8, 12, 16, 18, 20, 32, 34, 48, 64, 128])
def test_every_width_of_heads(width: int, checked: Any) -> None:
    checked(Case(heads=8, kv_heads=8, width=width, T=40))


@BOTH
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [1, 3, 4])
def test_rotary_positions(pairs: int, interleaved: bool, checked: Any) -> None:
    checked(Case(pairs=pairs, interleaved=interleaved, kv_heads=2, heads=6, width=16, centered=False))


@settings(max_examples=60)
@given(data=st.data())
def test_any_block(data: st.DataObject) -> None:
    """Every combination of what the kernel knows, in panels of every width."""
    kv_heads, group = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from([1, 2, 4]))
    width = 16 * data.draw(st.integers(1, 2)) if kv_heads * group % 8 else 2 * data.draw(st.integers(1, 9))
    case = Case(
        B=data.draw(st.integers(1, 7)),
        T=data.draw(st.integers(1, 70)),
        D=16 * data.draw(st.integers(1, 12)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        width=width,
        hidden=16 * data.draw(st.integers(1, 23)),
        gated=data.draw(st.booleans()),
        activation=data.draw(st.sampled_from(ACTIVATIONS)),
        centered=data.draw(st.booleans()),
        affine=data.draw(st.booleans()),
        bias=data.draw(st.booleans()),
        pairs=data.draw(st.integers(0, width // 2)),
        interleaved=data.draw(st.booleans()),
    )
    if not supports_block(case.D, case.spec()):
        return
    torch.set_num_threads(data.draw(st.integers(1, 3)))
    try:
        check(case)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("half", [False, True])
def test_equal_numbers_on_every_call(threads: int, half: bool) -> None:
    torch.set_num_threads(threads)
    case = Case(B=7, T=50, pairs=2)
    try:
        first = differentiated(block, case, half=half)
        for _ in range(5):
            assert all(torch.equal(x, y) for x, y in zip(differentiated(block, case, half=half), first, strict=True))
    finally:
        torch.set_num_threads(1)


def test_threads_change_nothing_but_the_order_of_sums() -> None:
    found = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        found.append(differentiated(block, Case(B=5, T=40), half=True))
    torch.set_num_threads(1)
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0]) and torch.equal(other[1], found[0][1])
        assert max(errors(other, found[0])) <= UNITS


@pytest.mark.parametrize("half", [False, True])
def test_no_later_token_matters(half: bool) -> None:
    case = Case(T=80)
    x, weights, _ = case.draw()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        before = block(x, weights, case.spec())
        x[:, 45:] = 1e4
        after = block(x, weights, case.spec())
    assert torch.equal(after[:, :45], before[:, :45]) and not torch.equal(after[:, 45:], before[:, 45:])


@pytest.mark.parametrize("half", [False, True])
def test_not_a_number_is_seen(half: bool) -> None:
    case = Case(T=80)
    x, weights, _ = case.draw()
    x[0, 70, 3], x[1, 79, 0] = torch.nan, torch.inf
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        seen = block(x, weights, case.spec()).isfinite().all(-1)
    assert not seen[0, 70:].any() and not seen[1, 79] and seen[:, :64].all()


@pytest.mark.parametrize("half", [False, True])
def test_large_numbers_stay_finite(half: bool) -> None:
    """Scores of thousands, of which a softmax takes one."""
    case = Case(activation="silu")
    x, weights, grad = case.draw()
    given = weights._replace(qkv=300 * weights.qkv)
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        y = block(x, given, case.spec())
    y.backward(grad)
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_any_layout() -> None:
    """Rows of a larger tensor, turned weights, a gradient without memory of its own."""
    case = Case(bias=True)
    x, weights, _ = case.draw()
    plain = block(x, weights, case.spec())
    wide = torch.randn(2, 33, 50)
    wide[..., 5:37] = x
    turned = weights._replace(qkv=weights.qkv.t().contiguous().t(), down=weights.down.t().contiguous().t())
    assert torch.equal(block(wide[..., 5:37], turned, case.spec()), plain)
    x.requires_grad_()
    block(x, turned, case.spec()).sum().backward()
    ours, x.grad = x.grad, None
    equation(x, weights, case.spec()).sum().backward()
    assert ours is not None and torch.allclose(ours, x.grad, atol=1e-4)  # type: ignore[arg-type]


def several(case: Case, number: int) -> tuple[list[BlockWeights], list[Tensor]]:
    """The weights of blocks, in which others are missing from block to block; and all that want a gradient."""
    made = [replace(case, affine=(case.affine + n) % 2 == 0, bias=(case.bias + n) % 3 != 1) for n in range(number)]
    weights = [each.draw()[1] for each in made]
    for n, each in enumerate(weights):
        weights[n] = BlockWeights(*[None if w is None else (1 + 0.1 * n) * w for w in each[:12]], *each[12:])
    return weights, [w.requires_grad_() for each in weights for w in each[:12] if w is not None]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("number", [2, 5])
def test_several_at_once_are_the_same_as_one_after_the_other(number: int, threads: int, half: bool) -> None:
    """To the last digit: values, every gradient, and what a pass gives that keeps nothing."""
    case = Case(B=5, T=40, pairs=2, gated=True, activation="silu")
    weights, wanted = several(case, number)
    x, _, grad = case.draw()
    x.requires_grad_()
    torch.set_num_threads(threads)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            apart = x
            for each in weights:
                apart = block(apart, each, case.spec())
            together = forward_blocks(x, weights, case.spec())
            with torch.no_grad():
                unkept = forward_blocks(x, weights, case.spec())
        ours, true = (torch.autograd.grad(y, [x, *wanted], grad) for y in (together, apart))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(together, apart) and torch.equal(unkept, apart)
    assert all(torch.equal(one, other) for one, other in zip(ours, true, strict=True))


def test_blocks_in_several_calls_where_gradients_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = Case(), list[int]()
    weights, wanted = several(case, 5)
    x, _, grad = case.draw()
    real = kernels.run_forward
    monkeypatch.setattr(kernels, "run_forward", lambda *given, **more: (calls.append(1), real(*given, **more))[1])
    torch.set_num_threads(2)
    found, made = [], []
    for room in (2**26, 40_000, 1):
        monkeypatch.setattr(kernels, "MAX_GRADIENT_ELEMENTS", room)
        calls.clear()
        y = forward_blocks(x, weights, case.spec())
        found.append([y, *torch.autograd.grad(y, wanted, grad)])
        made.append(len(calls))
    torch.set_num_threads(1)
    assert made == [1, 3, 5]
    assert all(torch.equal(one, other) for others in found[1:] for one, other in zip(found[0], others, strict=True))


def test_frozen_weights_change_no_other_gradient() -> None:
    case = Case()
    weights, wanted = several(case, 3)
    x, _, grad = case.draw()
    whole = torch.autograd.grad(forward_blocks(x, weights, case.spec()), wanted, grad)
    for each in wanted[:5]:
        each.requires_grad_(False)
    found = torch.autograd.grad(forward_blocks(x, weights, case.spec()), wanted[5:], grad)
    assert all(torch.equal(one, other) for one, other in zip(found, whole[5:], strict=True))


MACHINES = {"no vectors of bfloat16": "-mno-avx512bf16", "vectors of eight": "-mno-avx512f", "of four": "-mno-avx"}
"""Compilers that are told not to use what a smaller processor lacks."""


@pytest.mark.parametrize("flag", MACHINES.values(), ids=MACHINES)
def test_other_machines_compute_the_same(flag: str, tmp_path: Path) -> None:
    if "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this machine is a smaller one itself")
    source = Path(__file__)
    program = (
        f"import sys; sys.path.insert(0, {str(source.parent)!r})\n"
        "import pytest, test_block_kernel as t, test_cross_entropy as c, test_decoding_kernel as d, test_halves as h\n"
        "for case in (t.Case(pairs=2, kv_heads=2), t.Case(gated=True, bias=True, activation='silu', width=12, T=70)):\n"
        "    t.check(case); t.check_half(case)\n"
        "t.test_several_at_once_are_the_same_as_one_after_the_other(3, 2, True)\n"
        "h.check(*h.draw(2, 40, 4, 2, 12)); h.check_mlp('silu', h.perceptron(61, 32, 96, True, True))\n"
        "c.check_kernel(*c.drawn(37, 65), 0.1)\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    t.test_single_tokens_of_many_rows_pass_at_once('llama', True, patch)\n"
        "d.check_exact(61, 33, 'relu', 7, 3); d.check_exact(20, 7, 'reglu', 29, 1)\n"
    )
    environment = {**os.environ, "CXX": f"g++ {flag}", "PARTWISE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compiling block for this machine" in done.stderr


# ------------------------------------------------------------------------------------------------ which blocks take it

TAKEN = {
    "gpt": [],
    "llama": ["norm=rmsnorm", "ffn=swiglu", "ffn.hidden=64", "positions=rope", "attention.n_kv_heads=2"],
    "partly turned": ["positions=rope", "positions.partial_rotary_factor=0.5"],
    "interleaved": ["positions=rope", "positions.layout=interleaved"],
    "sinusoidal": ["positions=sinusoidal"],
    "no positions": ["positions=none"],
    "biases": ["attention.bias=true", "attention.out_bias=true", "ffn.bias=true", "norm=rmsnorm", "norm.bias=true"],
    "no affine norm": ["norm.affine=false", "ffn=relu2"],
    "dropped embeddings": ["embed_dropout=0.1"],
    "scaled scores": ["attention.scale=0.5", "ffn=geglu", "ffn.hidden=48"],
}
LEFT = {
    "dropout": ["residual.dropout=0.1"],
    "dropped units": ["ffn.hidden_dropout=0.1"],
    "dropped weights": ["attention.dropout=0.1"],
    "window": ["attention.window=4"],
    "softcap": ["attention.softcap=20"],
    "sinks": ["attention.sinks=true"],
    "normed heads": ["attention.qk_norm=head"],
    "gate": ["attention.gate=head"],
    "values of the first layer": ["attention.value_residual=true"],
    "apart": ["attention.fused_qkv=false"],
    "alibi": ["positions=alibi"],
    "post-norm": ["residual=post"],
    "parallel": ["residual=parallel"],
    "shift": ["short_conv=token_shift"],
    "elu": ["ffn=elu"],
    "another norm": ["norm=scalenorm"],
    "odd widths": ["ffn.hidden=50"],
}


def built(words: list[str], path: str) -> partwise.Transformer:
    shape = ("d_model=32", "n_layers=2", "attention.n_heads=4", "context_length=40", "ffn.hidden=64")
    model = partwise.Transformer(partwise.preset("mingpt", *shape, *words, vocab_size=30))
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    model.use_backend("eager", "eager", path)
    return model.train()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every block that passes the kernel."""
    found: list[int] = []

    def counted(real: Any) -> Any:
        return lambda x, weights, *rest: (found.extend([x.shape[0]] * len(weights)), real(x, weights, *rest))[1]

    monkeypatch.setattr("partwise.model.compiled_block.kernel.forward_blocks", counted(forward_blocks))
    monkeypatch.setattr("partwise.model.compiled_block.kernel.prefill", counted(prefill))
    return found


@pytest.mark.parametrize("words", TAKEN.values(), ids=TAKEN)
def test_models_that_take_it_compute_the_same(words: list[str], calls: list[int]) -> None:
    tokens = torch.randint(30, (3, 21), generator=torch.Generator().manual_seed(1))
    found = []
    for path in ("eager", "cpp"):
        model = built(words, path)
        model.seed_dropout(0)
        logits = model(tokens)
        logits.square().mean().backward()
        found.append([logits.detach(), *(each.grad for each in model.parameters() if each.grad is not None)])
    assert calls == [3, 3]
    assert max(errors(found[1], found[0])) <= 2e-5  # both are float32


@pytest.mark.parametrize("words", LEFT.values(), ids=LEFT)
def test_models_that_do_not_take_it(words: list[str], calls: list[int]) -> None:
    built(words, "cpp")(torch.randint(30, (3, 21)))
    assert calls == []


def test_what_dropout_leaves_to_evaluation(calls: list[int]) -> None:
    model = built(["residual.dropout=0.1"], "cpp").eval()
    model(torch.randint(30, (3, 21)))
    assert calls == [3, 3]


def test_neighbours_that_are_alike_pass_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three of one width, two of another, and one that is watched."""
    found: list[int] = []
    monkeypatch.setattr(
        "partwise.model.compiled_block.kernel.forward_blocks",
        lambda x, w, spec: (found.append(len(w)), forward_blocks(x, w, spec))[1],
    )
    words = ["n_layers=6", "ffn=[gelu,gelu,gelu,relu,relu,relu]"]
    model, tokens = built(words, "cpp"), torch.randint(30, (3, 21))
    seen: list[Tensor] = []
    model.blocks[5].register_forward_hook(lambda block, given, output: seen.append(output))
    kernel = model(tokens).detach()
    assert found == [3, 2, 1] and len(seen) == 1
    plain = built(words, "eager")(tokens).detach()
    assert float((kernel - plain).norm() / plain.norm()) <= 2e-5


def test_passes_that_do_not_take_it(calls: list[int]) -> None:
    model, tokens = built([], "cpp"), torch.randint(30, (3, 21))
    model(tokens, model.new_cache(3))  # what is remembered must be filled
    model(tokens, segments=torch.zeros_like(tokens))
    ffn: Any = model.blocks[0].ffn
    for watch in (ffn.register_forward_hook, ffn.register_full_backward_hook):
        handle = watch(lambda *_: None)
        model(tokens)
        assert calls == [3]  # the second block, of which nobody watches the layers
        handle.remove()
        calls.clear()
    model(tokens)
    model.double()(tokens)
    assert calls == [3, 3]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["gpt", "llama", "interleaved", "partly turned"])
def test_a_question_passes_at_once_and_its_keys_are_remembered(name: str, half: bool, calls: list[int]) -> None:
    """Logits of a question, and of what is then asked token by token, are those of the whole row at once."""
    model, tokens = built(TAKEN[name], "cpp").eval(), torch.randint(30, (3, 21))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        whole = model(tokens)
        states = model.new_cache(3)
        parts = [model(tokens[:, :15], states)]
        parts += [model(tokens[:, i : i + 1], states) for i in range(15, 21)]
    assert calls == [3, 3, 3, 3]  # single tokens pass their layers one after the other
    gap = float((torch.cat(parts, 1) - whole).norm() / whole.norm())
    assert gap <= (2e-2 if half else 1e-5)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_single_tokens_of_many_rows_pass_at_once(name: str, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of tokens one by one, and of three at a time, are those of the whole rows; so is what is remembered of them."""
    calls: list[tuple[int, int]] = []

    def counted(x: Tensor, weights: Any, spec: BlockSpec, kept: Any, past: int) -> Tensor:
        calls.append((len(weights), past))
        return decode(x, weights, spec, kept, past)

    monkeypatch.setattr("partwise.model.compiled_block.kernel.decode", counted)
    model, tokens = built(TAKEN[name], "cpp").eval(), torch.randint(30, (37, 21))
    found = []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        whole = model(tokens)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            states = model.new_cache(37, 30)
            parts = [model(tokens[:, :7], states)]
            parts += [model(tokens[:, i : i + 1], states) for i in range(7, 15)]
            parts += [model(tokens[:, i : i + 3], states) for i in range(15, 21, 3)]
            found.append(torch.cat(parts, 1))
    torch.set_num_threads(1)
    assert calls == 3 * [(2, past) for past in (*range(7, 15), 15, 18)]
    assert states.length == 21 and all(layer.length == 21 for layer in states.layers)  # type: ignore[attr-defined]
    assert all(torch.equal(each, found[0]) for each in found)
    gap = float((found[0] - whole).norm() / whole.norm())
    assert gap <= (2e-2 if half else 1e-5)


def test_tokens_that_pass_their_layers_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, many tokens behind others, keys that are not float32, keys after rows were left out by a view, a window."""
    calls: list[int] = []
    monkeypatch.setattr("partwise.model.compiled_block.kernel.decode", lambda *x: (calls.append(x[-1]), decode(*x))[1])
    model, tokens = built([], "cpp").eval(), torch.randint(30, (40, 21))
    windowed = built(["attention.window=4"], "cpp").eval()

    def after(rows: int, count: int, asked: partwise.Transformer = model, change: Any = None) -> None:
        states = asked.new_cache(rows)
        asked(tokens[:rows, :5], states)
        if change:
            for layer in states.layers:
                layer.buffers = [change(buffer) for buffer in layer.buffers]  # type: ignore[attr-defined]
        asked(tokens[:rows, 5 : 5 + count], states)

    with torch.inference_mode():
        after(3, 1)
        after(40, 8)
        after(40, 1, windowed)
        after(40, 1, model.double())
        model.float()
        after(40, 1, change=lambda buffer: buffer.transpose(1, 2).contiguous().transpose(1, 2))
        assert calls == []
        after(40, 1)
        assert calls == [5]


def test_states_of_other_rows_are_refused_as_by_layers() -> None:
    """Nothing is written behind the end of what was made for fewer rows."""
    model, tokens = built([], "cpp").eval(), torch.randint(30, (64, 6))
    with torch.inference_mode():
        states = model.new_cache(40)
        model(tokens[:40, :5], states)
        with pytest.raises(RuntimeError):
            model(tokens[:, 5:], states)


def test_what_stands_in_the_place_of_a_layer_is_called(calls: list[int]) -> None:
    """A wrapped block, another perceptron, weights of another precision."""
    model, tokens = built([], "cpp"), torch.randint(30, (3, 21))
    block: Any = model.blocks[0]
    real, seen = block.forward, list[int]()
    block.forward = lambda *given: (seen.append(1), real(*given))[1]
    model(tokens)
    assert seen == [1] and calls == [3, 3]  # by the kernel, but alone
    del block.forward
    calls.clear()
    block.ffn = torch.nn.Identity()
    block.ffn.forward = lambda x, ctx=None: torch.zeros_like(x)
    with torch.no_grad():
        other = model(tokens)
        assert calls == [3]
        block.ffn = built([], "cpp").blocks[0].ffn  # type: ignore[union-attr]
    assert not torch.equal(other, model(tokens))
    model.blocks[1].ffn.bfloat16()  # type: ignore[union-attr, operator]
    calls.clear()
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens)
    assert calls == []


def test_chosen_rows_are_remembered() -> None:
    """Rows that are left out, doubled and gone back in, as a search has it."""
    model, tokens = built(TAKEN["llama"], "cpp").eval(), torch.randint(30, (40, 12))
    rows = torch.arange(40).flip(0) // 2
    with torch.inference_mode():
        states = model.new_cache(40)
        model(tokens[:, :6], states)
        model(tokens[:, 6:7], states)
        states.select(rows)
        states.truncate(6)
        parts = [model(tokens[rows, i : i + 1], states) for i in range(6, 12)]
        whole = model(tokens[rows])[:, 6:]
    assert float((torch.cat(parts, 1) - whole).norm() / whole.norm()) <= 1e-5


def test_a_question_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = built([], "cpp").eval(), torch.randint(30, (7, 21))
    with torch.inference_mode():
        states = model.new_cache(7)
        at_once = model(tokens, states)
        monkeypatch.setattr("partwise.kernels.block.PREFILL_TOKENS", 50)
        again = model.new_cache(7)
        assert torch.equal(model(tokens, again), at_once)
        nexts = [model(tokens[:, :1], kept) for kept in (states, again)]
    assert torch.equal(*nexts)


def test_tables_made_for_inference_serve_training(calls: list[int]) -> None:
    model, tokens = built(TAKEN["llama"], "cpp"), torch.randint(30, (3, 21))
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
    assert calls == [3] * 4 and all(each.grad is not None for each in model.blocks.parameters())


def test_no_tokens_at_all(calls: list[int]) -> None:
    model = built([], "cpp")
    model.use_backend("sdpa", "eager", "cpp")
    assert model(torch.zeros(4, 0, dtype=torch.long)).shape == (4, 0, 30)
    assert model(torch.zeros(0, 4, dtype=torch.long)).shape == (0, 4, 30)
    assert calls == []


def test_other_autocasts_are_torchs(calls: list[int]) -> None:
    with torch.autocast("cpu", torch.float16):
        built([], "cpp")(torch.randint(30, (3, 21)))
    assert calls == []


def test_rows_that_would_leave_threads_idle() -> None:
    torch.set_num_threads(4)
    try:
        assert [rows for rows in range(13) if supports_batch_size(rows)] == [3, 4, 6, 7, 8, 9, 10, 11, 12]
    finally:
        torch.set_num_threads(1)


def test_the_choice_is_the_users() -> None:
    assert choose_runtime(TrainConfig(device="cpu")).block_backend == "cpp"
    assert choose_runtime(TrainConfig(device="cpu", block_backend="eager")).block_backend == "eager"
    runtime = choose_runtime(TrainConfig(device="cpu", precision="bfloat16", block_backend="cpp"))
    assert (runtime.block_backend, runtime.precision) == ("cpp", "bfloat16")


def test_a_forced_path_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.compute.runtime.kernels_available", lambda: False)
    with pytest.raises(partwise.ConfigError, match=r"train.block_backend=cpp requires a CPU and a C\+\+ compiler"):
        choose_runtime(TrainConfig(device="cpu", block_backend="cpp"))
    assert choose_runtime(TrainConfig(device="cpu")).block_backend == "eager"


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("block_backend", "residual.dropout=0.1"),
        ("block_backend", "attention.fused_qkv=false"),
        ("ffn_backend", "ffn=elu"),
        ("ffn_backend", "ffn.hidden_dropout=0.1"),
        ("attention_backend", "attention.softcap=20"),
    ],
)
def test_a_forced_path_without_anything_to_do(path: str, word: str) -> None:
    """Said, rather than to train by another; where one of two layers has something to do, it is done."""
    words = ["d_model=32", "n_layers=2", "attention.n_heads=2", "train.device=cpu", f"train.{path}=kernel"]
    data = ["data=arithmetic", "data.validation=10", "data.test=10"]
    with pytest.raises(partwise.ConfigError, match=rf"train.{path}=cpp supports no layer of this model.*auto"):
        Run(run_config("mingpt", *words, *data, word))
    Run(run_config("mingpt", *words, *data, "ffn=[relu,elu]"))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_goes_the_same_way(precision: str) -> None:
    """Some updates by the kernel and by the layers: the same losses but for rounding."""
    words = ["d_model=32", "n_layers=2", "attention.n_heads=2", "ffn=swiglu", "ffn.hidden=64", "train.device=cpu"]
    data = ["data=arithmetic", "data.validation=10", "data.test=10", "train.steps=30", "train.lr=3e-3"]
    losses = []
    for path in ("eager", "cpp"):
        config = run_config("mingpt", *words, *data, f"train.precision={precision}", f"train.block_backend={path}")
        losses.append([step.loss for step in Run(config).steps()])
    gaps = [abs(x - y) for x, y in zip(*losses, strict=True)]
    assert max(gaps) <= (2e-4 if precision == "float32" else 3e-2)
    assert losses[1][-1] < losses[1][0] - 0.5


def test_bfloat16_where_it_has_hardware() -> None:
    expected = "bfloat16" if has_fast_bfloat16("cpu") else "float32"
    assert choose_runtime(TrainConfig(device="cpu")).precision == expected
