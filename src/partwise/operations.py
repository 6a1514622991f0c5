"""Floating-point operations of a forward pass, counted as its matrix products are called."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

SUMMED = {"linear": 0, "matmul": 0, "__matmul__": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products of two matrices, and which argument's last axis is summed over."""

OTHERS = frozenset(
    {
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("addbmm", "bilinear", "chain_matmul", "inner", "multi_dot", "tensordot"),
        *("multi_head_attention_forward", "scaled_dot_product_attention"),
    }
)
"""Products that no part here calls; torch counts them where a user's own does."""

SMALL = 2**25
"""Numbers, of a model or of what a layer of it makes, that are rather computed with than only shaped: 128 MiB."""


def fill_if_small(model: nn.Module, made: int) -> torch.device:
    """Take a model off the meta device, as zeros, where it, and the `made` numbers of a layer, are few; where it lies then.

    Operations are then counted in milliseconds: to work out shapes alone torch imports its compiler, already at x + 1.
    """
    if max(made, sum(parameter.numel() for parameter in model.parameters())) > SMALL:
        return torch.device("meta")
    # not `to_empty`: empty_like of a tensor on the meta device imports half a second's worth of torch
    model._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    return torch.device("cpu")


def operations_over(model: nn.Module, context: int, made: int, *, source: bool, **given: Any) -> int:
    """Of a forward pass of a model on the meta device over `context` tokens, and a source as long where it reads one."""
    device = fill_if_small(model, made)
    tokens = torch.zeros(1, context, dtype=torch.long, device=device)
    return count_operations(lambda: model(tokens, source=tokens if source else None, **given))


def count_operations(run: Callable[[], Any]) -> int:
    """Two for each multiplication in a matrix product of what `run` does, all else being free.

    As torch.utils.flop_counter counts, which imports torch's compiler first, for seconds; it is asked only where
    something is called that is not known here.
    """
    with torch.no_grad(), ProductCounter() as products:
        run()
    if products.complete:
        return products.total
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


class ProductCounter(TorchFunctionMode):
    """Within it `total` grows with every product; `complete` says whether all could be counted."""

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
        if isinstance(func, OpOverload):  # one of our own, which says itself what it takes
            formula = flop_registry.get(func.overloadpacket)
            self.total += formula(*args, out_val=out) if formula else 0
        elif name in SUMMED:
            self.total += 2 * out.numel() * args[SUMMED[name]].shape[-1]
        elif name == "einsum":
            self.total += 2 * einsum_products(*args)
        self.complete &= name not in OTHERS
        return out


def einsum_products(equation: str, *operands: torch.Tensor) -> int:
    """Multiplications of a product of tensors: one for every combination of all indices."""
    sizes: dict[str, int] = {}
    batch: tuple[int, ...] = ()
    for letters, operand in zip(equation.partition("->")[0].split(","), operands, strict=True):
        named = letters.strip().removeprefix("...")
        sizes |= dict(zip(named, operand.shape[operand.ndim - len(named) :], strict=True))
        batch = max(batch, tuple(operand.shape[: operand.ndim - len(named)]), key=len)
    return math.prod(sizes.values()) * math.prod(batch)
