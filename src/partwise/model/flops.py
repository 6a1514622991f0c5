"""FLOPs of a forward pass, counted from its matmul calls."""

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


def count_model_flops(model: nn.Module, seq_len: int, activation_numel: int, *, source: bool, **kwargs: Any) -> int:
    """The FLOPs of a meta model's forward pass over `seq_len` tokens, and a source of that length if `source`."""
    device = materialize_if_small(model, activation_numel)
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device=device)
    return count_flops(lambda: model(tokens, source=tokens if source else None, **kwargs))


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
    """Counts the FLOPs of matmuls in `total`; `complete` is False if a matmul could not be counted."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
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
            self.total += formula(*args, out_val=out) if formula else 0
        elif name in MATMULS:
            self.total += 2 * out.numel() * args[MATMULS[name]].shape[-1]
        elif name == "einsum":
            self.total += 2 * einsum_multiplications(*args)
        self.complete &= name not in UNCOUNTED
        return out


def einsum_multiplications(equation: str, *operands: torch.Tensor) -> int:
    """The number of multiplications: one for every combination of all indices."""
    sizes: dict[str, int] = {}
    batch: tuple[int, ...] = ()
    for letters, operand in zip(equation.partition("->")[0].split(","), operands, strict=True):
        indices = letters.strip().removeprefix("...")
        sizes |= dict(zip(indices, operand.shape[operand.ndim - len(indices) :], strict=True))
        batch = max(batch, tuple(operand.shape[: operand.ndim - len(indices)]), key=len)
    return math.prod(sizes.values()) * math.prod(batch)
