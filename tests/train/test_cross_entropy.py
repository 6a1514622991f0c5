"""Cross-entropy in chunks equals torch's, in value and gradient, and makes no float32 copy of all logits."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from kernel_inputs import logits_and_targets, require_kernels
from partwise.data import IGNORE_INDEX
from partwise.kernels.cross_entropy import bf16_cross_entropy
from partwise.train import cross_entropy
from partwise.train.cross_entropy import summed_cross_entropy, summed_loss
from partwise.train.loop import Run


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_compiled_it_equals_torchs(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.compute.compilation.COMPILER", "aot_eager")
    check_compiled_loss(smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_what_is_compiled_equals_torchs(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions without a compiler, whose start takes seconds."""
    monkeypatch.setattr(cross_entropy, "_compiled", lambda function, backend: function)
    check_compiled_loss(smoothing)


def check_compiled_loss(smoothing: float) -> None:
    logits, targets = logits_and_targets(40, 30)
    logits = logits.detach().double().requires_grad_()
    targets = targets.where(torch.arange(40) % 3 > 0, IGNORE_INDEX)
    ours = summed_loss(logits.view(4, 10, 30), targets.view(4, 10), smoothing, cpp=False, compiled=True)
    reference = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    (gradient,), (expected,) = (torch.autograd.grad(3 * loss, logits) for loss in (ours, reference))
    assert abs(ours - reference) <= 1e-12 * abs(reference.item())
    assert (gradient - expected).abs().max() <= 1e-12 * expected.abs().max().item()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # in torch's own code
def test_compiled_by_inductor_it_allocates_no_float32_logits() -> None:
    """The tensors that inductor's kernels write: the gradient has the logits' dtype, and all others are a row's or less."""
    from torch._inductor.utils import run_and_get_code

    logits = torch.randn(512, 4096, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    targets = torch.arange(512)

    def loss_and_gradient() -> Tensor:
        loss = summed_loss(logits.view(2, 256, -1), targets.view(2, 256), 0.0, cpp=False, compiled=True)
        return torch.autograd.grad(loss, logits)[0]

    gradient, code = run_and_get_code(loss_and_gradient)
    (expected,) = torch.autograd.grad(F.cross_entropy(logits.float(), targets, reduction="sum"), logits)
    assert (gradient - expected).abs().max() <= 2**-8
    shapes = re.findall(r"empty_strided_cpu\(\(([^)]*)\), \([^)]*\), torch\.(\w+)\)", "\n".join(code))
    large = [dtype for shape, dtype in shapes if math.prod(int(n) for n in shape.split(",") if n.strip()) > 512]
    assert large == ["bfloat16"]


@given(
    st.integers(1, 40),
    st.integers(2, 30),
    st.sampled_from([0.0, 0.1, 0.9]),
    st.sampled_from([1, 7, 64, 10**6]),
    st.integers(0, 10**6),
)
def test_it_equals_torchs(rows: int, vocab_size: int, smoothing: float, chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab_size, generator=generator, dtype=torch.float64).mul(3).requires_grad_()
    targets = torch.randint(vocab_size, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORE_INDEX
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "CHUNK_LOGITS", chunk)
        ours = summed_cross_entropy(logits, targets, smoothing)
        (gradient,) = torch.autograd.grad(3 * ours, logits)
    reference = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    (expected,) = torch.autograd.grad(3 * reference, logits)
    assert abs(ours - reference) <= 1e-12 * max(1.0, abs(reference.item()))
    assert (gradient - expected).abs().max() <= 1e-12 * max(1.0, expected.abs().max().item())


def test_bf16_logits_are_computed_in_float32() -> None:
    logits = torch.randn(50, 200, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    targets = torch.arange(50)
    ours, reference = summed_cross_entropy(logits, targets), F.cross_entropy(logits.float(), targets, reduction="sum")
    assert ours.dtype == torch.float32 and torch.isclose(ours, reference, rtol=1e-6)
    (gradient,), (expected,) = (torch.autograd.grad(loss, logits) for loss in (ours, reference))
    assert gradient.dtype == torch.bfloat16 and torch.allclose(gradient.float(), expected.float(), atol=2**-9)


def test_the_largest_float32_tensor_is_a_chunk() -> None:
    """Neither the forward nor the backward pass allocates a larger one."""
    rows, vocab_size = 4096, 8192
    logits = torch.zeros(rows, vocab_size, dtype=torch.bfloat16, requires_grad=True)
    sizes: list[int] = []

    class RecordSizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                    sizes.append(tensor.numel())
            return out

    with RecordSizes():
        summed_cross_entropy(logits, torch.zeros(rows, dtype=torch.long)).backward()
    assert logits.grad is not None and max(sizes) <= cross_entropy.CHUNK_LOGITS < logits.numel()


def test_the_kernel_is_used_for_contiguous_bf16_rows(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernels()
    logits, targets = logits_and_targets(5, 65)
    calls: list[int] = []
    monkeypatch.setattr(cross_entropy, "bf16_cross_entropy", lambda *x: (calls.append(1), bf16_cross_entropy(*x))[1])
    summed_cross_entropy(logits, targets)
    for other in (logits.half(), logits.float(), logits.t().contiguous().t()):
        summed_cross_entropy(other, targets, cpp=True)
    assert not calls
    summed_cross_entropy(logits, targets, cpp=True)
    assert calls == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_smooths_no_padding(dtype: torch.dtype) -> None:
    run = SimpleNamespace(
        config=SimpleNamespace(train=SimpleNamespace(label_smoothing=0.3)),
        runtime=SimpleNamespace(kernels=False, compile=False),
    )
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = torch.tensor([[1, IGNORE_INDEX, 4], [IGNORE_INDEX, IGNORE_INDEX, 0]])
    kept = targets != IGNORE_INDEX
    log_p = logits[kept].double().log_softmax(-1)
    expected = -(0.7 * log_p.gather(1, targets[kept][:, None]).sum() + 0.3 * log_p.mean(-1).sum())
    assert Run.cross_entropy(run, logits, targets).item() == pytest.approx(expected.item(), rel=1e-5)  # type: ignore[arg-type]
