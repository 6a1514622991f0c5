"""Layers that several families share: linear layers with a role, fused projections, RMSNorm."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from partwise.config import ConfigError
from partwise.parts.operations import NormSpec
from partwise.parts.roles import Role

# torch says so once, about RMSNorm under autocast: it then computes in float32, as we want, only not in its fused kernel
warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")


def linear(d_in: int, d_out: int, bias: bool, role: Role) -> nn.Linear:
    """A linear layer whose weight has the given role."""
    layer = nn.Linear(d_in, d_out, bias=bias)
    layer.role = role  # type: ignore[assignment]
    return layer


def embedding_table(n_embeddings: int, width: int, padding_idx: int | None = None) -> nn.Embedding:
    """An uninitialized embedding table, which the model initializes; the vector at `padding_idx` is not trained.

    torch's own initialization, on the meta device, would spend a second importing its compiler. Raises ConfigError for a
    `padding_idx` beyond the table.
    """
    if padding_idx is not None and padding_idx >= n_embeddings:
        raise ConfigError(f"padding_idx={padding_idx} is not below vocab_size={n_embeddings}: lower it")
    layer = nn.Embedding.from_pretrained(torch.empty(n_embeddings, width), freeze=False, padding_idx=padding_idx)
    layer.role = "table"
    return layer


class FusedLinear(nn.Module):
    """Several linear layers with one input, computed as one matmul.

    A `state_dict` lists each layer under its own name in the parent (`attention.q.weight`), so checkpoints, initial
    weights and exports do not depend on fusing. The parent must call `register_load_hook` once.
    """

    def __init__(
        self,
        d_in: int,
        sizes: dict[str, int],
        bias: bool,
        roles: dict[str, Role] | None = None,
        activated: str | None = None,  # the layer whose output an activation function takes
    ) -> None:
        super().__init__()
        self.sizes, self.activated = sizes, activated
        self.roles: dict[str, Role] = roles or dict.fromkeys(sizes, "hidden")
        self.weight = nn.Parameter(torch.empty(sum(sizes.values()), d_in))
        self.bias = nn.Parameter(torch.empty(sum(sizes.values()))) if bias else None
        self.register_state_dict_post_hook(_split_on_save)

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"in_features={self.weight.shape[1]}, {sizes}, bias={self.bias is not None}"

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(..., d_in) -> one (..., size) per layer."""
        return nn.functional.linear(x, self.weight, self.bias).split(list(self.sizes.values()), dim=-1)

    def pieces(self) -> Iterator[tuple[str, Role, Tensor]]:
        """The logical tensors, as (name, role, view): ('q.weight', ...), ...."""
        for kind, tensor in (("weight", self.weight), ("bias", self.bias)):
            if tensor is not None:
                for name, piece in zip(self.sizes, tensor.split(list(self.sizes.values())), strict=True):
                    yield f"{name}.{kind}", "bias" if kind == "bias" else self.roles[name], piece

    def register_load_hook(self, parent: nn.Module, name: str) -> None:
        """Let `parent`, which holds this module as `name`, load a state dict with separate tensors."""

        parent.register_load_state_dict_pre_hook(partial(_concatenate_on_load, name, tuple(self.sizes)))


def _concatenate_on_load(
    name: str, pieces: tuple[str, ...], module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any
) -> None:
    if not isinstance(getattr(module, name), FusedLinear):  # `separate_projections` has replaced it
        return
    for kind in ("weight", "bias"):
        keys = [f"{prefix}{piece}.{kind}" for piece in pieces]
        if all(key in state for key in keys):
            state[f"{prefix}{name}.{kind}"] = torch.cat([state.pop(key) for key in keys])


def _split_on_save(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    assert isinstance(module, FusedLinear)
    parent = prefix.removesuffix(".").rpartition(".")[0]
    for kind in ("weight", "bias"):
        fused = state.pop(f"{prefix}{kind}", None)
        if fused is not None:
            for name, piece in zip(module.sizes, fused.split(list(module.sizes.values())), strict=True):
                state[f"{parent}.{name}.{kind}" if parent else f"{name}.{kind}"] = piece


class SeparateLinears:
    """The linear layers of a module with one input, called as the `FusedLinear` that they replace."""

    def __init__(self, parent: nn.Module, names: Iterable[str]) -> None:
        self.parent, self.names = parent, tuple(names)

    @property
    def layers(self) -> list[Any]:
        return [getattr(self.parent, name) for name in self.names]  # looked up, since adapters replace layers

    @property
    def sizes(self) -> dict[str, int]:
        return {name: layer.out_features for name, layer in zip(self.names, self.layers, strict=True)}

    @property
    def weight(self) -> Tensor:
        """The matrices, one below the other. The matrix of an adapter includes its change."""
        identity = torch.eye(self.layers[0].in_features).to(self.layers[0].weight)
        weights = [layer.weight if type(layer) is nn.Linear else layer(identity).T for layer in self.layers]
        return torch.cat(weights)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


def separate_projections(model: nn.Module) -> None:
    """Replace every `FusedLinear` in a model by linear layers whose parameters have the names of the state dict."""
    for parent in list(model.modules()):
        for attribute, fused in list(parent.named_children()):
            if not isinstance(fused, FusedLinear):
                continue
            delattr(parent, attribute)
            for name, size in fused.sizes.items():
                with torch.device("meta"):
                    layer = linear(fused.weight.shape[1], size, fused.bias is not None, fused.roles[name])
                setattr(parent, name, layer)
            for path, _, piece in fused.pieces():
                name, kind = path.split(".")
                setattr(getattr(parent, name), kind, nn.Parameter(piece.detach().clone()))
            setattr(parent, attribute, SeparateLinears(parent, fused.sizes))


class GroupRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over groups of `width` elements in the last dimension."""

    def __init__(self, width: int, eps: float, affine: bool) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        upcast = x if self.weight is None else x.to(self.weight.dtype)  # under autocast, x has a lower precision
        heads = upcast.unflatten(-1, (-1, self.width))
        return rms_norm(heads, self.weight, self.eps).flatten(-2).to(x.dtype)

    def spec(self) -> NormSpec:
        return NormSpec(kind="rmsnorm", width=self.width, eps=self.eps, weight=self.weight is not None)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """(..., D) -> x / sqrt(mean(x^2) + eps) * weight, with a faster gradient than torch's in CPU training."""
    training = torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()
    same_dtype = x.dtype in (torch.float32, torch.float64) and (weight is None or weight.dtype == x.dtype)
    if training and same_dtype and x.is_cpu:
        with torch.autocast("cpu", enabled=False):  # which would round the operands of dot products
            return RMSNormFunction.apply(x, weight, eps)
    return nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


class RMSNormFunction(torch.autograd.Function):
    """torch's rms_norm with a closed-form gradient: s (g - n mean(g n)) for n = s x and the gradient g of n."""

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
        grad_normed = grad if weight is None else grad * weight
        mean = torch.linalg.vecdot(grad_normed, normed).unsqueeze(-1) / normed.shape[-1]
        grad_x = torch.addcmul(grad_normed, normed, mean, value=-1).mul_(scale)
        return grad_x, None if weight is None else (grad * normed).reshape(-1, normed.shape[-1]).sum(0), None


def stream_seed(*key: str | int) -> int:
    """A 63-bit seed for the random stream of a key."""
    text = "\0".join(map(str, key)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1
