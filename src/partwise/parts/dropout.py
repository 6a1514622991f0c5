"""Dropout whose noise is a function of a key and the indices of an element, the same on every device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from partwise.kernels.dropout import DropoutKey, noise_shape, supports_dropout
from partwise.kernels.dropout import dropout as cpp_dropout
from partwise.parts.layers import stream_seed

WORD = 0xFFFFFFFF
"""Of 32 bits."""


class Dropout(nn.Module):
    """Zero elements with probability p and scale the rest by 1 / (1 - p); Srivastava et al. 2014.

    Noise is a function of (site, seed, step) and of an element's row in the batch of the step, head, position and index.
    So a resumed run repeats it, two variants see the same noise in the layers they share, and it depends on neither
    micro-batches, processes, padding nor the device.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.site = ""
        self.seeded: DropoutKey | None = None
        self.seed_keys: tuple[DropoutKey, ...] = ()  # one per seed in multi-seed training
        self.held_key: Tensor | None = None  # seed, first row and 0 as int64, which a compiled model reads
        self.held_seed_keys: Tensor | None = None  # the same, one row per seed

    def extra_repr(self) -> str:
        return f"p={self.p:g}" if self.p else ""

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active or x.is_meta:
            return x
        if self.seed_keys:
            return x * VmappedMask.apply(x, self.seed_masks) / (1 - self.p)
        if self.held_key is not None and torch.compiler.is_compiling():
            return x * held_mask(x, self.p, self.held_key) / (1 - self.p)
        return dropout(x, self.key())

    def hold_key(self, device: torch.device) -> None:
        """From now on, keep the key as a tensor: torch.compile would recompile for each new number."""
        self.held_key = torch.zeros(3, dtype=torch.long, device=device)

    def seed(self, seed: int, step: int, first_row: int = 0) -> None:
        """Seed the noise of all later forward passes; their rows start at `first_row` in the batch of the step."""
        key = self.seeded = DropoutKey(self.p, stream_seed(self.site, seed, step), first_row)
        self.seed_keys = ()
        if self.held_key is not None:
            self.held_key.copy_(torch.tensor(signed(key)))

    def seed_vmapped(self, keys: Sequence[tuple[int, int, int]]) -> None:
        """Seed the noise of forward passes of several seeds under `torch.func.vmap`."""
        self.seed_keys = tuple(
            DropoutKey(self.p, stream_seed(self.site, seed, step), first_row) for seed, step, first_row in keys
        )
        if self.held_key is not None:
            held = self.signed_keys(self.held_key.device)
            if self.held_seed_keys is None or self.held_seed_keys.shape != held.shape:
                self.held_seed_keys = held
            self.held_seed_keys.copy_(held)

    def seed_masks(self, x: Tensor) -> Tensor:
        """(B, ..., T, D) of one seed -> (S, B, ..., T, D) the masks of all seeds."""
        if x.is_cpu and not is_traced():  # separate masks are faster: a cache holds one of them sooner than all
            return torch.stack([keep_mask(x, key) for key in self.seed_keys])
        held = self.held_seed_keys
        return held_mask(x, self.p, self.signed_keys(x.device) if held is None else held)

    def signed_keys(self, device: torch.device) -> Tensor:
        """The keys of all seeds as `held_seed_keys` has them (S, 3)."""
        return torch.tensor([signed(key) for key in self.seed_keys], device=device)

    def key(self) -> DropoutKey:
        """The key of this forward pass; without a seed, a new one from torch's global generator."""
        return self.seeded or DropoutKey(self.p, int(torch.randint(2**63 - 1, ())), 0)


def signed(key: DropoutKey) -> list[int]:
    """The seed and the first row of a key as int64 has them, and the zero of `keep_mask`."""
    return [key.seed - (key.seed >> 63 << 64), key.first_row, 0]


def dropout(x: Tensor, key: DropoutKey) -> Tensor:
    """(B, ..., T, D) -> x keep / (1 - p). The kernels and torch give the same bits."""
    if supports_dropout(x):
        return cpp_dropout(x, key)
    return x * keep_mask(x, key) / (1 - key.p)


def is_traced() -> bool:
    """Whether operations are recorded for a compiler or have no content, so that the mask must consist of them."""
    return torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None


def held_mask(x: Tensor, p: float, held_key: Tensor) -> Tensor:
    """The mask with a key that is a tensor (3,), or with the keys (S, 3) of several seeds their masks (S, B, ..., T, D).

    One computation for all seeds: torch's compiler would take minutes for one each.
    """
    seed, first_row = (held_key[..., i].view(*held_key.shape[:-1], 1, 1, 1, 1) for i in range(2))
    zero = held_key.flatten()[2]
    return keep_mask(x, DropoutKey(p, seed, first_row), zero)  # type: ignore[arg-type]


def keep_mask(x: Tensor, key: DropoutKey, zero: Tensor | int = 0) -> Tensor:
    """1 for the elements to keep, else 0, in the shape and dtype of x; of S seeds if the key is of tensors (S, 1, 1, 1, 1).

    Compiled, `zero` has to be a tensor: torch's compiler takes a plain arange for an index into memory, and computes products
    of indices in 32 bits. The overflow of an int64 is undefined in its C++, so products are then computed in two parts.
    """
    rows, heads, positions, elements = noise_shape(x.shape)
    sizes = (rows, heads, positions, -(-elements // 4))
    indices = (torch.arange(n, device=x.device) + zero for n in sizes)
    row, head, position, block = (
        index.view(-1, *(1,) * after) for index, after in zip(indices, (3, 2, 1, 0), strict=True)
    )
    product = wrapped_product if isinstance(zero, int) else exact_product
    words = torch.stack(philox((block, position, head, key.first_row + row), key.seed, product), dim=-1).flatten(-2)
    mask = (words[..., :elements] >= int(key.p * 2**32)).to(x.dtype)
    return mask.reshape(*mask.shape[:-4], *x.shape)


def wrapped_product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product of 32-bit words, which wraps around in int64 as unsigned products do."""
    product = x * factor
    return (product >> 32) & WORD, product & WORD


def exact_product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The same with twice the operations, each within 49 bits."""
    low, high = x * (factor & 0xFFFF), x * (factor >> 16)
    low = low + ((high & 0xFFFF) << 16)
    return (low >> 32) + (high >> 16), low & WORD


def philox(
    counter: Sequence[Tensor], seed: int, product: Callable[[Tensor, int], tuple[Tensor, Tensor]] = wrapped_product
) -> tuple[Tensor, ...]:
    """Philox4x32-10: four random 32-bit words per counter, as int64 like its four words; Salmon et al. 2011."""
    key_0, key_1 = seed & WORD, (seed >> 32) & WORD
    x0, x1, x2, x3 = counter
    for _ in range(10):
        (high_0, low_0), (high_2, low_2) = product(x0, 0xD2511F53), product(x2, 0xCD9E8D57)
        x0, x1, x2, x3 = high_2 ^ x1 ^ key_0, low_2, high_0 ^ x3 ^ key_1, low_0
        key_0, key_1 = (key_0 + 0x9E3779B9) & WORD, (key_1 + 0xBB67AE85) & WORD
    return x0, x1, x2, x3


class VmappedMask(torch.autograd.Function):
    """The mask of each seed in multi-seed training: that of a separate run."""

    @staticmethod
    def forward(x: Tensor, masks: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError("multi-seed training requires torch.func.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, masks: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, int]:
        return masks(x if in_dims[0] is None else x.select(in_dims[0], 0)), 0
