"""Dropout whose noise is a function of a key and the indices of an element, the same on every device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partwise.kernels.dropout import DropoutKey, noise_shape, supports_dropout
from partwise.kernels.dropout import dropout as cpp_dropout
from partwise.parts.layers import stream_seed


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
        self.held_key: Tensor | None = None  # seed and first row as int64, which a compiled model reads
        self.held_seed_keys: Tensor | None = None  # the same, one row per seed

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active or x.is_meta:
            return x
        if self.seed_keys:
            return x * VmappedMask.apply(x, self.seed_masks) / (1 - self.p)
        if self.held_key is not None and torch.compiler.is_compiling():
            seed, first_row = self.held_key.unbind()
            return x * keep_mask(x, DropoutKey(self.p, seed, first_row)) / (1 - self.p)  # type: ignore[arg-type]
        return dropout(x, self.key())

    def hold_key(self, device: torch.device) -> None:
        """Keep the key as a tensor from now on: a number would be part of what is compiled, anew in every step."""
        self.held_key = torch.zeros(2, dtype=torch.long, device=device)

    def seed(self, seed: int, step: int, first_row: int = 0) -> None:
        """Seed the noise of forward passes from now on; their rows start at `first_row` in the batch of the step."""
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
            held = torch.tensor([signed(key) for key in self.seed_keys], device=self.held_key.device)
            if self.held_seed_keys is None or self.held_seed_keys.shape != held.shape:
                self.held_seed_keys = held
            self.held_seed_keys.copy_(held)

    def seed_masks(self, x: Tensor) -> Tensor:
        """(B, ..., T, D) of one seed -> (S, B, ..., T, D) the masks of all seeds."""
        keys = self.seed_keys
        if self.held_seed_keys is not None:
            keys = tuple(DropoutKey(self.p, *key.unbind()) for key in self.held_seed_keys)
        return torch.stack([keep_mask(x, key) for key in keys])

    def key(self) -> DropoutKey:
        """The key of this forward pass; without a seed, a new one from torch's global generator."""
        return self.seeded or DropoutKey(self.p, int(torch.randint(2**63 - 1, ())), 0)


def signed(key: DropoutKey) -> list[int]:
    """The seed and the first row of a key, as int64 has them."""
    return [key.seed - (key.seed >> 63 << 64), key.first_row]


def dropout(x: Tensor, key: DropoutKey) -> Tensor:
    """(B, ..., T, D) -> x keep / (1 - p). The kernel and torch give the same bits."""
    return cpp_dropout(x, key) if supports_dropout(x) else x * keep_mask(x, key) / (1 - key.p)


def keep_mask(x: Tensor, key: DropoutKey) -> Tensor:
    """1 for the elements to keep, else 0, in the shape and dtype of x."""
    rows, heads, positions, elements = noise_shape(x.shape)
    sizes = (rows, heads, positions, -(-elements // 4))
    row, head, position, block = torch.meshgrid(*(torch.arange(n, device=x.device) for n in sizes), indexing="ij")
    words = torch.stack(philox((block, position, head, key.first_row + row), key.seed), dim=-1).flatten(-2)
    return (words[..., :elements] >= int(key.p * 2**32)).to(x.dtype).reshape(x.shape)


def philox(counter: Sequence[Tensor], seed: int) -> tuple[Tensor, ...]:
    """Philox4x32-10: four random 32-bit words per counter, as int64 like its four words; Salmon et al. 2011."""
    key_0, key_1, mask = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, 0xFFFFFFFF
    x0, x1, x2, x3 = counter
    for _ in range(10):
        product_0, product_2 = x0 * 0xD2511F53, x2 * 0xCD9E8D57  # wraps around as unsigned products do
        high_0, high_2 = (product_0 >> 32) & mask, (product_2 >> 32) & mask
        x0, x1, x2, x3 = high_2 ^ x1 ^ key_0, product_2 & mask, high_0 ^ x3 ^ key_1, product_0 & mask
        key_0, key_1 = (key_0 + 0x9E3779B9) & mask, (key_1 + 0xBB67AE85) & mask
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
