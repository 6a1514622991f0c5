"""The Triton kernel of dropout has torch's masks in Triton's interpreter, compiles for GPUs, and is used only if it works."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from partwise.kernels.dropout import DropoutKey
from partwise.parts import dropout as parts_dropout
from partwise.parts.dropout import checked_triton_masks, dropout, keep_mask, triton_masks

INTERPRETED = """
import random, torch
from partwise.kernels.dropout import DropoutKey
from partwise.kernels.dropout_triton import keep_masks
from partwise.parts.dropout import checked_triton_masks, keep_mask
draw = random.Random(0)
for trial in range(40):
    shape = (300, 5) if trial == 0 else tuple(draw.randint(0, 9) for _ in range(draw.randint(1, 5)))
    rates = (1e-9, 0.1, 0.5, 0.9, 1 - 1e-12, draw.random())
    seeds = (draw.getrandbits(64), draw.getrandbits(63), 2**63, 2**64 - 5, 1)
    keys = [DropoutKey(draw.choice(rates), seed, draw.choice((0, 1, draw.randrange(2**30)))) for seed in seeds]
    x = torch.ones(shape, dtype=draw.choice((torch.float64, torch.float32, torch.float16, torch.bfloat16)))
    assert torch.equal(keep_masks(x, keys), torch.stack([keep_mask(x, key) for key in keys])), (shape, x.dtype, keys)
for dtype in (torch.float32, torch.bfloat16):
    assert checked_triton_masks(x.device, dtype) is keep_masks
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from partwise.kernels.dropout_triton import BLOCK, fill_mask
for dtype in ("fp64", "fp32", "fp16", "bf16"):
    names = ("heads", "positions", "elements", "blocks", "counters", "first_row", "threshold")
    types = {"mask": f"*{dtype}", **dict.fromkeys(names, "i32"), "seed": "i64", "BLOCK": "constexpr"}
    kernel = ASTSource(fill_mask, {name: types[name] for name in fill_mask.arg_names}, {"BLOCK": BLOCK})
    assert triton.compile(kernel, target=GPUTarget("cuda", 80, 32)).asm["cubin"]
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("program", "interpret"), [(INTERPRETED, "1"), (COMPILED, "0")], ids=["interpreted", "compiled"]
)
def test_the_kernel_is_that_of_torch(program: str, interpret: str, tmp_path: Any) -> None:
    """The interpreter accepts more than the compiler, which needs no GPU to refuse a kernel."""
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def masks(x: Tensor, keys: Any) -> Tensor:
    return torch.stack([keep_mask(x, key) for key in keys])


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(parts_dropout, "_reported", set())
    checked_triton_masks.cache_clear()
    yield
    checked_triton_masks.cache_clear()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (masks, None),
        (lambda x, keys: 1 - masks(x, keys), "its masks differ from torch's"),
        (lambda x, keys: torch.ones(2) @ torch.ones(3), "inconsistent tensor size"),
    ],
)
def test_a_kernel_that_fails_its_check_is_not_used(
    kernel: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "partwise.kernels.dropout_triton", SimpleNamespace(keep_masks=kernel))
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        assert checked_triton_masks(torch.device("cpu"), dtype) is (None if reason else kernel)
    printed = capsys.readouterr().err
    assert printed.count("falling back to torch") == (1 if reason else 0) and (reason or "") in printed


def test_the_kernel_computes_masks_of_one_seed_and_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tuple(DropoutKey(0.3, seed, 0) for seed in (3, 2**63))
    layer, x, calls = parts_dropout.Dropout(0.3), torch.randn(2, 3, 4), []
    expected = masks(x, keys)

    def kernel(x: Tensor, keys: Any) -> Tensor:
        calls.append(len(keys))
        return masks(x, keys)

    monkeypatch.setattr(parts_dropout, "supports_dropout", lambda x: False)
    monkeypatch.setattr(parts_dropout, "triton_masks", lambda x: kernel)
    layer.seed_keys = keys
    assert torch.equal(layer.seed_masks(x), expected)
    assert torch.equal(dropout(x, keys[1]), x * expected[1] / (1 - 0.3))
    assert calls == [2, 1]


def test_the_kernel_is_not_used_where_operations_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    monkeypatch.setattr(parts_dropout, "checked_triton_masks", lambda device, dtype: masks)
    cuda: Any = SimpleNamespace(is_cuda=True, numel=lambda: 12, device="cuda", dtype=torch.float32)
    found: list[Any] = []

    def ask(x: Tensor) -> Tensor:
        found.append(triton_masks(cuda))
        return x + 1

    ask(torch.ones(2))
    make_fx(ask)(torch.ones(2))
    torch.func.vmap(ask)(torch.ones(2))
    torch.func.grad(lambda x: ask(x).sum())(torch.ones(2))
    with FakeTensorMode():
        ask(torch.ones(2))
    assert found == [masks, None, None, None, None]
    assert triton_masks(torch.ones(2)) is None
