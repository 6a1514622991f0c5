"""FLOPs of training, counted from the matmul calls of a forward pass."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

MATMULS = {"linear": 0, "matmul": 0, "__matmul__": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Matmul functions, with the index of the argument whose last dimension is summed over."""

UNCOUNTED = frozenset(
    {
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("addbmm", "bilinear", "chain_matmul", "inner", "multi_dot", "tensordot"),
        *("multi_head_attention_forward", "scaled_dot_product_attention"),
    }
)
"""Matmul functions that no built-in part calls; torch's FlopCounterMode counts them in custom parts."""

MAX_MATERIALIZED = 2**25
"""Largest number of parameters, or of elements in a layer's output, to run on the CPU instead of meta: 128 MiB."""


def materialize_if_small(model: nn.Module, activation_numel: int) -> torch.device:
    """Move a model from the meta device to the CPU, as zeros, if it and `activation_numel` are small; return its device.

    Counting then takes milliseconds: on the meta device, even x + 1 makes torch import its compiler.
    """
    if max(activation_numel, sum(parameter.numel() for parameter in model.parameters())) > MAX_MATERIALIZED:
        return torch.device("meta")
    # not `to_empty`: on the meta device, empty_like makes torch import modules for half a second
    model._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    return torch.device("cpu")


def training_flops_per_token(model: nn.Module, seq_len: int, vocab_size: int, with_source: bool) -> int:
    """The FLOPs of one training step per token of a meta model: the forward pass, and twice that for the backward pass.

    With frozen parameters, the backward pass multiplies only for the gradients that it needs: those of the trained weights,
    and of the activations above the first of them. Counted over `seq_len` tokens, and a source of that length with an
    encoder.
    """
    device = materialize_if_small(model, seq_len * max(16 * seq_len, vocab_size))
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device=device)
    source = tokens if with_source else None

    def forward() -> None:
        model(tokens, source=source, mtp_logits=[])

    if all(parameter.requires_grad for parameter in model.parameters()):
        return round(3 * count_flops(forward) / seq_len)
    with torch.enable_grad(), MatmulCounter() as counter:
        forward()
    return round((counter.total + counter.backward) / seq_len)


def count_flops(run: Callable[[], Any]) -> int:
    """The FLOPs of the matmuls in `run`: two per multiplication, other operations are free.

    Equal to torch.utils.flop_counter, which spends seconds importing torch's compiler; it is only used if `run` calls a
    matmul function that this module does not count.
    """
    with torch.no_grad(), MatmulCounter() as counter:
        run()
    if counter.complete:
        return counter.total
    with FlopCounterMode(display=False) as torch_counter:
        run()
    return int(torch_counter.get_total_flops())


class MatmulCounter(TorchFunctionMode):
    """Counts the FLOPs of matmuls in `total`, and in `backward` those of the gradients that their operands need.

    `complete` is False if a matmul could not be counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.backward = 0
        self.complete = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        out = func(*args, **(kwargs or {}))
        if isinstance(func, OpOverload):  # a custom operator with a registered formula
            formula = flop_registry.get(func.overloadpacket)
            trained = any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
            self._count(formula(*args, out_val=out) if formula else 0, 2 * trained)
        elif name in MATMULS:
            first = MATMULS[name]
            named = (value for key, value in (kwargs or {}).items() if key != "bias")
            operands = (*args[first:], *named)[:2]
            self._count(2 * out.numel() * args[first].shape[-1], sum(each.requires_grad for each in operands))
        elif name == "einsum":
            self._count(2 * einsum_multiplications(*args), sum(operand.requires_grad for operand in args[1:]))
        self.complete &= name not in UNCOUNTED
        return out

    def _count(self, flops: int, gradients: int) -> None:
        """Count a product, and one of the same size for the gradient of each operand that needs one."""
        self.total += flops
        self.backward += flops * gradients


def einsum_multiplications(equation: str, *operands: torch.Tensor) -> int:
    """The number of multiplications: one for every combination of all indices."""
    sizes: dict[str, int] = {}
    batch: tuple[int, ...] = ()
    for letters, operand in zip(equation.partition("->")[0].split(","), operands, strict=True):
        indices = letters.strip().removeprefix("...")
        sizes |= dict(zip(indices, operand.shape[operand.ndim - len(indices) :], strict=True))
        batch = max(batch, tuple(operand.shape[: operand.ndim - len(indices)]), key=len)
    return math.prod(sizes.values()) * math.prod(batch)
