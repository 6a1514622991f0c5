"""Whether an accelerator computes what the CPU does: pieces of `accelerator.py`."""

from collections.abc import Callable
from typing import Any

import torch
from accelerator import Place
from accelerator_shapes import DATA, WITHOUT_KERNELS
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from partwise.compute.backends.flex import Flex
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import AttentionMask, self_attention_mask
from partwise.parts.positions.bias import BucketBias, LinearBias, alibi_slopes, distance_buckets
from partwise.train.config import run_config
from partwise.train.loop import Run

STEPS = 20
Values = dict[str, float | None]


def losses(place: Place, notes: list[str]) -> Values:
    """The first losses of a small run with dropout on the CPU, on the accelerator, compiled, and in bfloat16."""
    words = [
        *DATA.split(),
        "n_layers=2",
        "d_model=64",
        "attention.n_heads=2",
        "context_length=32",
        "residual.dropout=0.1",
    ]

    def run(device: str, precision: str, compiled: bool) -> Run:
        settings = (
            *WITHOUT_KERNELS,
            f"train.device={device}",
            f"train.precision={precision}",
            f"train.compile={str(compiled).lower()}",
        )
        return Run(run_config("gpt2", *words, *settings, "train.steps=100"))

    def first_losses(run: Run) -> list[float]:
        return [run.update().loss for _ in range(2 if place.small else STEPS)]

    expected = first_losses(run("cpu", "float32", False))
    plain, compiled, low = (
        run(place.device, *setting) for setting in (("float32", False), ("float32", True), ("bfloat16", True))
    )
    seconds = compiled.compile()
    return {
        "float32": largest_difference(first_losses(plain), expected),
        "compiled": largest_difference(first_losses(compiled), expected),
        "bfloat16": largest_difference(first_losses(low), expected),
        "warm-up": seconds,
    }


def largest_difference(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def attention(place: Place, notes: list[str]) -> Values:
    """torch's attention kernels in bfloat16 against our equation in float64."""
    shape = (2, 2, 16, 16) if place.small else (2, 12, 1024, 64)
    inputs = [x.bfloat16() for x in torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)).to(place.device)]
    expected = eager_gradients(inputs)
    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    values: Values = {}
    for name, kernel in kernels.items():
        try:
            with sdpa_kernel(kernel):
                found = gradients(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), inputs)
        except RuntimeError as error:
            notes.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        values |= relative_errors(name, found, expected)
    return values


def flex(place: Place, notes: list[str]) -> Values:
    """FlexAttention in bfloat16 against our equation in float64; on a CPU it has no gradients."""
    B, H, T, E = (2, 2, 32, 16) if place.small else (2, 12, 1024, 64)
    inputs = [
        x.bfloat16() for x in torch.randn(4, B, H, T, E, generator=torch.Generator().manual_seed(0)).to(place.device)
    ]
    documents = (torch.arange(T, device=place.device) // (T // 3)).expand(B, T)
    biases = LinearBias(alibi_slopes(H))
    table = BucketBias(H, 32, [0] * 128 + distance_buckets(32, 128)).to(place.device)
    torch.nn.init.normal_(table.weight)
    cases: dict[str, dict[str, Any]] = {
        "window": {"window": T // 4},
        "soft-cap": {"softcap": 2.0},
        "ALiBi": {"on_scores": biases.on_scores},
        "T5": {"on_scores": table.on_scores},
        "documents": {"documents": documents},
        "all": {"window": T // 4, "softcap": 2.0, "on_scores": biases.on_scores, "documents": documents},
    }
    outputs, largest = [], []
    for name, options in cases.items():
        expected = eager_gradients(inputs, **options)
        backend = Flex(E**-0.5, options.get("softcap"))

        def attend(q: Tensor, k: Tensor, v: Tensor, backend: Flex = backend, options: Any = options) -> Tensor:
            return backend(q, k, v, attention_mask(q, **options))

        if place.device == "cpu":
            with torch.no_grad():
                outputs.append(relative_error(attend(*inputs[:3]), expected[0]))
            continue
        try:
            each = [relative_error(a, b) for a, b in zip(gradients(attend, inputs), expected, strict=True)]
        except Exception as error:  # the compiler's errors are of many kinds; the other cases continue
            notes.append(f"{name}: {' '.join(str(error).split())[:200]}")
            continue
        notes.append(f"{name}: output {each[0]:.2g}, gradients {max(each[1:]):.2g}")
        outputs.append(each[0])
        largest.append(max(each[1:]))
    complete = place.device == "cpu" or len(outputs) == len(cases)
    return {
        "flex output": max(outputs) if outputs and complete else None,
        "flex gradients": max(largest) if largest and complete else None,
    }


def attention_mask(
    q: Tensor,
    window: int | None = None,
    softcap: float | None = None,
    on_scores: Any = None,
    documents: Tensor | None = None,
) -> AttentionMask:
    """The causal mask of whole rows, for queries (B, H, T, E)."""
    return self_attention_mask(q[:, 0], q.shape[2], window, 0, True, documents, on_scores)


def eager_gradients(inputs: list[Tensor], softcap: float | None = None, **mask_options: Any) -> list[Tensor]:
    """The output and the gradients of q, k and v in float64, of causal attention by our equation."""
    q = inputs[0].double()
    core = AttentionCore(q.shape[-1], q.shape[-1] ** -0.5, softcap)
    mask = attention_mask(q, **mask_options)
    return gradients(lambda q, k, v: core.eager(q, k, v, mask), [each.double() for each in inputs])


def gradients(attend: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of q, k and v from the fourth input, that of the output."""
    q, k, v = (each.clone().requires_grad_() for each in inputs[:3])
    output = attend(q, k, v)
    return [output.detach(), *torch.autograd.grad(output, (q, k, v), inputs[3])]


def relative_errors(name: str, found: list[Tensor], expected: list[Tensor]) -> Values:
    each = [relative_error(a, b) for a, b in zip(found, expected, strict=True)]
    return {f"{name} output": each[0], f"{name} gradients": max(each[1:])}


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())
