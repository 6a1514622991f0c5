"""The few layers that several families share: linear maps that know their role, fused projections, keyed dropout."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from partwise.parts.roles import Role


def linear(d_in: int, d_out: int, bias: bool, role: Role) -> nn.Linear:
    """A linear map whose weight has the given role."""
    layer = nn.Linear(d_in, d_out, bias=bias)
    layer.role = role  # type: ignore[assignment]
    return layer


def table(rows: int, width: int, padding_idx: int | None = None) -> nn.Embedding:
    """A vector for each id; the one at `padding_idx` stays as it is.

    Its values are the model's to draw: torch's own draw would, on the meta device, import a compiler for a second.
    """
    layer = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False, padding_idx=padding_idx)
    layer.role = "table"
    return layer


class FusedLinear(nn.Module):
    """Several linear maps of one input as a single matrix product: faster, and saved as if they stood apart.

    In a `state_dict` the maps appear under their own names at the parent (`attention.q.weight`), so that checkpoints,
    initial values and exports do not depend on whether a layer fuses. `join` must be called once by the parent.
    """

    def __init__(self, d_in: int, sizes: dict[str, int], bias: bool, roles: dict[str, Role] | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.roles: dict[str, Role] = roles or dict.fromkeys(sizes, "hidden")
        self.weight = nn.Parameter(torch.empty(sum(sizes.values()), d_in))
        self.bias = nn.Parameter(torch.empty(sum(sizes.values()))) if bias else None
        self.register_state_dict_post_hook(_split_on_save)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(..., d_in) -> one (..., size) per map."""
        return nn.functional.linear(x, self.weight, self.bias).split(list(self.sizes.values()), dim=-1)

    def pieces(self) -> Iterator[tuple[str, Role, Tensor]]:
        """('q.weight', its role, view), ...: the logical tensors."""
        for kind, tensor in (("weight", self.weight), ("bias", self.bias)):
            if tensor is not None:
                for name, piece in zip(self.sizes, tensor.split(list(self.sizes.values())), strict=True):
                    yield f"{name}.{kind}", "bias" if kind == "bias" else self.roles[name], piece

    def join(self, parent: nn.Module, name: str) -> None:
        """Teach the parent, in which this module stands as `name`, to load the maps under their own names."""

        def join_on_load(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
            for kind in ("weight", "bias"):
                keys = [f"{prefix}{piece}.{kind}" for piece in self.sizes]
                if all(key in state for key in keys):
                    state[f"{prefix}{name}.{kind}"] = torch.cat([state.pop(key) for key in keys])

        parent.register_load_state_dict_pre_hook(join_on_load)


def _split_on_save(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    assert isinstance(module, FusedLinear)
    parent = prefix.removesuffix(".").rpartition(".")[0]
    for kind in ("weight", "bias"):
        whole = state.pop(f"{prefix}{kind}", None)
        if whole is not None:
            for name, piece in zip(module.sizes, whole.split(list(module.sizes.values())), strict=True):
                state[f"{parent}.{name}.{kind}" if parent else f"{name}.{kind}"] = piece


class GroupRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over each `width` of the last dimension."""

    def __init__(self, width: int, eps: float, affine: bool) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        finer = x if self.weight is None else x.to(self.weight.dtype)  # under autocast x is coarser than the weight
        heads = finer.unflatten(-1, (-1, self.width))
        return rms_norm(heads, self.weight, self.eps).flatten(-2).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """(..., D) -> x / sqrt(mean(x^2) + eps) * weight, as torch has it; trained on a CPU, where torch's is slow, by hand."""
    trained = torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()
    exact = x.dtype in (torch.float32, torch.float64) and (weight is None or weight.dtype == x.dtype)
    if trained and exact and x.is_cpu and not torch.is_autocast_enabled("cpu"):
        return RMSNormByHand.apply(x, weight, eps)
    return nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


class RMSNormByHand(torch.autograd.Function):
    """torch's rms_norm with its gradient in closed form: for n = s x, s the scale and g the gradient of n,
    s (g - n mean(g n))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        scale = torch.rsqrt(torch.linalg.vecdot(x, x).unsqueeze(-1) / x.shape[-1] + eps)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed if weight is None else normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        normed, scale, weight = ctx.saved_tensors
        (grad,) = grads
        inner = grad if weight is None else grad * weight
        mean = torch.linalg.vecdot(inner, normed).unsqueeze(-1) / normed.shape[-1]
        found = torch.addcmul(inner, normed, mean, value=-1).mul_(scale)
        return found, None if weight is None else (grad * normed).reshape(-1, normed.shape[-1]).sum(0), None


class Dropout(nn.Module):
    """Zero with probability p and scale the rest by 1 / (1 - p); Srivastava et al. 2014.

    The noise comes from a stream of this site's own, keyed by (seed, step, rank, site): it does not depend on which
    other sites draw, so two variants see the same noise where they are alike, and a resumed run sees its own again.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.site = ""
        self.generator: torch.Generator | None = None
        self.generators: list[torch.Generator] = []  # of several seeds at once

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.generators:
            noise = NoiseOfEach.apply(x, self.generators)
        else:
            noise = torch.rand(x.shape, device=x.device, generator=self.generator)
        return x * (noise >= self.p).to(x.dtype) / (1 - self.p)

    def set_noise(self, device: torch.device, *key: int) -> None:
        """Start this site's stream for one forward pass."""
        if self.generator is None or self.generator.device != device:
            self.generator = torch.Generator(device)
        self.generator.manual_seed(stream(self.site, *key))
        self.generators = []

    def set_noise_of_each(self, device: torch.device, keys: Sequence[tuple[int, ...]]) -> None:
        """Start this site's streams for one forward pass of several seeds at once, under `torch.func.vmap`."""
        self.generators = [torch.Generator(device).manual_seed(stream(self.site, *key)) for key in keys]


class NoiseOfEach(torch.autograd.Function):
    """Uniform numbers of x's shape, of each seed from its own generator: what it would draw alone."""

    @staticmethod
    def forward(x: Tensor, generators: list[torch.Generator]) -> Tensor:
        raise NotImplementedError("several seeds at once exist under torch.func.vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, generators: list[torch.Generator]
    ) -> tuple[Tensor, int]:
        shape = list(x.shape)
        if in_dims[0] is not None:
            del shape[in_dims[0]]
        return torch.stack([torch.rand(shape, device=x.device, generator=each) for each in generators]), 0


def stream(*key: str | int) -> int:
    """A 63-bit seed from a key: equal keys, equal streams; different keys, independent ones."""
    text = "\0".join(map(str, key)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1
