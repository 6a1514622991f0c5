"""The compiled attention against a plain one in float64, and how it is built, cached and done without."""

import ctypes
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from partwise.config import ConfigError
from partwise.kernels import build
from partwise.kernels.attention import attention, decode_attention, library, packed_attention
from partwise.kernels.library import kernels_available

FLOAT_UNITS = 2e-6  # of the largest number of a tensor: what some hundred roundings in float32 come to


@pytest.fixture(scope="session")
def kernel(shared_cache: Path) -> ctypes.CDLL:
    if not kernels_available():
        pytest.skip("no C++ compiler here")
    loaded = library()
    assert loaded is not None
    return loaded


def reference(q: Tensor, k: Tensor, v: Tensor, scale: float, grad: Tensor) -> list[Tensor]:
    """The equation as it stands, row by row of heads, with autograd's gradients, in float64."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    (T, H), (S, K) = q.shape[1:3], k.shape[1:3]
    hidden = torch.tensor([[j > S - T + i for j in range(S)] for i in range(T)])
    heads = []
    for h in range(H):
        g = h // (H // K)
        scores = (q[:, :, h] @ k[:, :, g].transpose(1, 2) * scale).masked_fill(hidden, -math.inf)
        heads.append(scores.softmax(-1) @ v[:, :, g])
    out = torch.stack(heads, dim=2)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad.double())]


def measured(q: Tensor, k: Tensor, v: Tensor, scale: float, grad: Tensor) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, scale)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def draw(B: int, T: int, S: int, H: int, K: int, E: int, V: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    random = torch.Generator().manual_seed(B + 3 * T + 5 * S + 7 * H + 11 * K + 13 * E + 17 * V)
    shapes = ((B, T, H, E), (B, S, K, E), (B, S, K, V), (B, T, H, V))
    return [torch.randn(shape, generator=random, dtype=dtype) for shape in shapes]


def check(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, tolerance: float = FLOAT_UNITS) -> None:
    scale = q.shape[-1] ** -0.5
    # one key: its weight is 1 whatever q and k are, so that their gradients are the rounding of a difference to zero
    size = max(1.0, float(grad.abs().max()))
    for name, ours, true in zip(
        ("out", "dq", "dk", "dv"),
        measured(q, k, v, scale, grad),
        reference(q, k, v, scale, grad),
        strict=True,
    ):
        assert ours.shape == true.shape
        error = float((ours - true).abs().max()) / max(float(true.abs().max()), size)
        assert error <= tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("T", range(1, 71))
def test_every_length(kernel: ctypes.CDLL, T: int) -> None:
    q, k, v, grad = draw(2, T, T, 2, 1, 12, 12)
    check(q, k, v, grad)


@pytest.mark.parametrize("E", [1, 2, 3, 4, 7, 8, 12, 16, 20, 32, 33, 64, 128])
def test_every_width(kernel: ctypes.CDLL, E: int) -> None:
    check(*draw(2, 37, 37, 3, 3, E, E))
    check(*draw(1, 65, 65, 2, 1, E, 5))
    check(*draw(1, 19, 50, 1, 1, 6, E))


@pytest.mark.parametrize(("T", "S"), [(300, 300), (129, 400), (1, 257), (2, 128), (255, 256), (33, 161)])
def test_longer_than_a_block(kernel: ctypes.CDLL, T: int, S: int) -> None:
    check(*draw(1, T, S, 2, 2, 8, 8))


sizes = st.integers(1, 50)


@settings(max_examples=40)
@given(
    B=st.integers(1, 3), T=sizes, more=sizes, K=st.integers(1, 3), group=st.integers(1, 3), E=sizes, layout=st.data()
)
def test_any_shape_and_layout(
    kernel: ctypes.CDLL, B: int, T: int, more: int, K: int, group: int, E: int, layout: st.DataObject
) -> None:
    def laid_out(x: Tensor) -> Tensor:
        order = layout.draw(st.permutations([0, 1, 2]))
        room = x.new_full([x.shape[i] for i in order] + [x.shape[3] + layout.draw(st.integers(0, 3))], math.nan)
        view = room.permute(*(order.index(i) for i in range(3)), 3)[..., : x.shape[3]]
        view.copy_(x)
        return view

    q, k, v, grad = (laid_out(x) for x in draw(B, T, T + more - 1, K * group, K, E, E))
    check(q, k, v, grad)


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
def test_a_few_queries(
    kernel: ctypes.CDLL, T: int, more: int, K: int, group: int, E: int, V: int, causal: bool, threads: int
) -> None:
    """As generation has them, over a longer buffer of keys, each query on its own."""
    torch.set_num_threads(threads)
    q, k, v, _ = draw(2, T, T + more, K * group, K, E, V)
    room = torch.full((2, K, T + more + 5, E), math.nan)  # heads before places, and more places than are filled
    room[:, :, : T + more] = k.transpose(1, 2)
    ours = decode_attention(q, room[:, :, : T + more].transpose(1, 2), v, E**-0.5, causal)
    if causal:
        true = reference(q, k, v, E**-0.5, torch.ones_like(ours))[0]
    else:
        heads = [x.double().repeat_interleave(group, dim=2) for x in (k, v)]
        weights = (torch.einsum("bthe,bshe->bhts", q.double(), heads[0]) * E**-0.5).softmax(-1)
        true = torch.einsum("bhts,bshv->bthv", weights, heads[1])
    assert ours.shape == true.shape
    assert (ours - true).abs().max() <= FLOAT_UNITS * max(1.0, float(true.abs().max()))


def test_a_few_queries_see_what_is_not_a_number(kernel: ctypes.CDLL) -> None:
    for column in (0, 20, 36):  # in a whole vector of scores, and in what is left
        q, k, v, _ = draw(1, 3, 37, 2, 1, 12, 12)
        k[0, column, 0, 3] = math.nan
        assert decode_attention(q, k, v, 1.0, True).isnan().any(-1)[0, :, 0].tolist() == [
            column <= 34 + i for i in range(3)
        ]
    q, k, v, _ = draw(1, 1, 9, 1, 1, 4, 4)
    x = 100 * q.sign()
    assert (decode_attention(x, 100 * k, v, 1.0, True) - v[:, (100 * k * x).sum(-1).argmax()]).abs().max() < 1e-6


@pytest.mark.parametrize(("H", "K", "E"), [(8, 8, 12), (4, 2, 5), (3, 1, 16)])
def test_packed(kernel: ctypes.CDLL, H: int, K: int, E: int) -> None:
    q, k, v, grad = draw(2, 45, 45, H, K, E, E)
    qkv = torch.cat([x.flatten(2) for x in (q, k, v)], dim=2).requires_grad_()
    out = packed_attention(qkv, H, K, 0.3)
    (gradient,) = torch.autograd.grad(out, qkv, grad.flatten(2))
    expected = measured(q, k, v, 0.3, grad)
    assert torch.equal(out, expected[0].flatten(2))
    assert torch.equal(gradient, torch.cat([x.flatten(2) for x in expected[1:]], dim=2))


@pytest.mark.parametrize("shape", [(3, 40, 40, 4, 2, 12, 12), (1, 300, 300, 1, 1, 12, 12), (1, 70, 600, 2, 1, 3, 3)])
def test_bitwise_equal_for_any_number_of_threads(kernel: ctypes.CDLL, shape: tuple[int, ...]) -> None:
    q, k, v, grad = draw(*shape)
    first = measured(q, k, v, 0.5, grad)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for ours, expected in zip(measured(q, k, v, 0.5, grad), first, strict=True):
            assert torch.equal(ours, expected)


def test_huge_scores(kernel: ctypes.CDLL) -> None:
    """Scores from -10,000 to 10,000: one key takes all of the weight, or those that tie share it."""
    q, k, v, grad = draw(1, 50, 50, 1, 1, 1, 4)
    q = torch.where(q > 0, 100.0, -100.0)
    k = (100 * torch.linspace(-1, 1, 50)).round().view(1, 50, 1, 1)
    k[:, 10:20] = k[:, 10:11]
    ours, true = measured(q, k, v, 1.0, grad), reference(q, k, v, 1.0, grad)
    assert all(x.isfinite().all() for x in ours)
    assert float((ours[0] - true[0]).abs().max()) <= FLOAT_UNITS
    assert float((ours[3] - true[3]).abs().max() / true[3].abs().max()) <= 1e-3  # lse has its units at 10,000


def test_not_a_number_is_seen(kernel: ctypes.CDLL) -> None:
    q, k, v, _ = draw(1, 64, 64, 1, 1, 4, 4)
    q[0, 40] = math.nan
    assert attention(q, k, v, 1.0).isnan().any(-1).nonzero()[:, 1].tolist() == [40]
    q, k, v, grad = draw(1, 64, 64, 1, 1, 4, 4)
    k[0, 20] = math.nan
    assert torch.equal(attention(q, k, v, 1.0).isnan().any(-1)[0, :, 0], torch.arange(64) >= 20)
    k[0, 20], q[0, :, 0, 0], k[0, 20, 0, 0] = 0, 1, math.inf
    assert torch.equal(attention(q, k, v, 1.0).isnan().any(-1)[0, :, 0], torch.arange(64) >= 20)
    grad[0, 63], k[0, 20] = math.nan, 0
    assert all(x.isnan().any() for x in measured(q, k, v, 1.0, grad)[1:])


def test_no_later_key_matters(kernel: ctypes.CDLL) -> None:
    q, k, v, _ = draw(1, 40, 60, 2, 2, 12, 12)
    before = attention(q, k, v, 0.3)
    k[:, 45:], v[:, 45:] = 1e4, 1e4
    assert torch.equal(attention(q, k, v, 0.3)[:, :25], before[:, :25])


def test_exponential(kernel: ctypes.CDLL) -> None:
    """One unit in the last place at most; exactly 1 at 0; 0 where a float32 would lose digits; NaN stays."""
    x = np.concatenate(
        [np.linspace(-126, 1, 400_001), -np.geomspace(1e-9, 126, 10_001), [0, -126.01, -1e30, -np.inf, np.nan]]
    )
    x = x.astype(np.float32)
    out = np.empty_like(x)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, out)]
    kernel.attention_exp2(*pointers, ctypes.c_int64(len(x)))
    true = np.exp2(x[:-5].astype(np.float64))
    assert np.max(np.abs(out[:-5] - true) / np.spacing(true.astype(np.float32))) < 1
    assert out[-5:-1].tolist() == [1, 0, 0, 0]
    assert np.isnan(out[-1])


def test_gradient_of_some_inputs_only(kernel: ctypes.CDLL) -> None:
    q, k, v, grad = draw(1, 9, 9, 2, 2, 4, 4)
    expected = measured(q, k, v, 0.5, grad)[1]
    q.requires_grad_()
    attention(q, k, v, 0.5).backward(grad)
    assert q.grad is not None and torch.equal(q.grad, expected)
    q.grad = None
    attention(q, k, v, 0.5).sum().backward()  # a gradient without memory of its own: all strides are 0
    assert torch.equal(q.grad, measured(q, k, v, 0.5, torch.ones(9, 2, 4)[None])[1])  # type: ignore[arg-type]


def test_without_rows(kernel: ctypes.CDLL) -> None:
    check_empty = draw(0, 5, 5, 2, 2, 4, 4)
    assert [x.shape for x in measured(*check_empty[:3], 0.5, check_empty[3])] == [(0, 5, 2, 4)] * 4
    q, k, v, grad = draw(1, 0, 5, 2, 2, 4, 4)
    assert not any(x.any() for x in measured(q, k, v, 0.5, grad))


def test_other_numbers_take_the_plain_path() -> None:
    q, k, v, grad = draw(2, 11, 13, 4, 2, 5, 3, torch.float64)
    check(q, k, v, grad, 1e-14)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: attention(*x, 0.4), inputs)
    qkv = torch.randn(1, 5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: packed_attention(x, 4, 1, 0.4), [qkv])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ops_keep_their_promises(kernel: ctypes.CDLL, dtype: torch.dtype) -> None:
    q, k, v, _ = (x.requires_grad_() for x in draw(2, 5, 7, 4, 2, 3, 3, dtype))
    torch.library.opcheck(torch.ops.partwise.attention.default, (q, k, v, 0.5))
    if dtype == torch.float32:
        torch.library.opcheck(
            torch.ops.partwise.decode_attention.default, (q.detach(), *(x.detach() for x in (k, v)), 0.5, True)
        )
    torch.library.opcheck(
        torch.ops.partwise.packed_attention.default, (q.detach().flatten(2).requires_grad_(), 2, 1, 0.5)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_by_torch(kernel: ctypes.CDLL, dtype: torch.dtype) -> None:
    q, k, v, grad = draw(2, 5, 7, 4, 2, 3, 3, dtype)
    fast = torch.compile(lambda q, k, v: attention(q, k, v, 0.5) * 2, backend="aot_eager", fullgraph=True)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    got = torch.autograd.grad(fast(*inputs), inputs, grad)
    assert all(torch.equal(x, y) for x, y in zip(got, measured(q, k, v, 0.5, 2 * grad)[1:], strict=True))


def test_refuses_what_does_not_fit() -> None:
    q, k, v, _ = draw(1, 5, 5, 4, 4, 3, 3)
    with pytest.raises(ConfigError, match="5 queries over 4 keys"):
        attention(q, k[:, :4], v[:, :4], 1.0)
    for bad in ((q[:, :, :3], k[:, :, :2], v[:, :, :2]), (q, k, v[:, :, :1]), (q, k[..., :2], v), (q, k[:0], v[:0])):
        with pytest.raises(ConfigError, match="make the shapes match"):
            attention(*bad, 1.0)
    with pytest.raises(ConfigError, match="qkv width 7 does not split"):
        packed_attention(torch.randn(1, 2, 7), 2, 1, 1.0)


# ---------------------------------------------------------------------------------------------------------- building


def test_compiled_once(kernel: ctypes.CDLL, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build.load("attention", tmp_path / "a")
    assert capfd.readouterr().err == "compiling attention for this machine, once (a few seconds)\n"
    (made,) = (tmp_path / "a").iterdir()
    build.load.cache_clear()
    build.load("attention", tmp_path / "a")
    assert capfd.readouterr().err == ""
    assert [made] == list((tmp_path / "a").iterdir())


def test_the_name_follows_what_it_depends_on(
    kernel: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.load("attention", tmp_path)
    monkeypatch.setattr(build, "cpu_features", lambda: ["another one"])
    build.load.cache_clear()
    build.load("attention", tmp_path)
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-g0"])
    build.load.cache_clear()
    build.load("attention", tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_two_processes_at_once(kernel: ctypes.CDLL, tmp_path: Path) -> None:
    code = f"from pathlib import Path; from partwise.kernels import build; build.load('attention', Path({str(tmp_path)!r}))"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/bin/false", "/bin/false failed with exit status 1: no reason given"),
        ("no-such-compiler -O2", "no C++ compiler: CXX=no-such-compiler not found"),
        ("c++ -DC=%", "error"),
    ],
)
def test_a_compiler_that_fails(
    compiler: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: ctypes.CDLL
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(build.BuildError) as caught:
        build.load("attention", tmp_path)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_damaged_library_or_folder(kernel: ctypes.CDLL, tmp_path: Path) -> None:
    build.load("attention", tmp_path / "a")
    (made,) = (tmp_path / "a").iterdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / made.name).write_bytes(b"not a library")
    (tmp_path / "c").write_text("a file where the folder should be")
    for folder in ("b", "c"):
        with pytest.raises(build.BuildError, match=f"{tmp_path / folder}"):
            build.load("attention", tmp_path / folder)


def test_slow_compilers_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build, "TIMEOUT", 0.2)
    with pytest.raises(build.BuildError, match="took more than"):
        build.load("attention", tmp_path / "cache")


def test_signals_to_our_group_leave_the_compiler_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Ctrl-C in the first seconds would look like a compiler that fails, and the run take another path."""
    fake = tmp_path / "fake"
    code = "import os, sys; sys.exit('apart' if os.getsid(0) == os.getpid() else 'together')"
    fake.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(build.BuildError, match="apart"):
        build.load("attention", tmp_path / "cache")


def test_works_without_a_compiler(tmp_path: Path) -> None:
    """One line on stderr, and the same numbers to rounding."""
    code = """
import torch
from partwise.kernels.attention import attention, packed_attention
from partwise.kernels.library import kernels_available
torch.manual_seed(0)
qkv = torch.randn(2, 9, 24, requires_grad=True)
out = packed_attention(qkv, 2, 2, 0.5)
q, k, v = (x.unflatten(2, (2, 4)).transpose(1, 2) for x in qkv.split(8, dim=2))
true = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5).transpose(1, 2).flatten(2)
grad = torch.randn(2, 9, 16)[..., 8:].repeat(1, 1, 1)
torch.testing.assert_close(out, true)
for x, y in zip(torch.autograd.grad(out, qkv, grad), torch.autograd.grad(true, qkv, grad)):
    torch.testing.assert_close(x, y)
assert not kernels_available() and not kernels_available()
"""
    environment = {**os.environ, "CXX": "/bin/false", "PARTWISE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr
        == "C++ kernel attention is unavailable, torch computes instead: /bin/false failed with exit status 1: no reason given\n"
    )
