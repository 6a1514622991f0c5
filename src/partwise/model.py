"""The model: a stack of blocks over a table of embeddings, assembled from recipes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from partwise import parts as _register
from partwise.config import Config, ConfigError
from partwise.parts.attention import MultiHead
from partwise.parts.families import (
    Attention,
    AttentionLayer,
    FeedForward,
    Flow,
    Init,
    Norm,
    Positions,
    Residual,
    Role,
    Site,
    State,
)
from partwise.parts.feed_forward import SwiGLU
from partwise.parts.init import GPT2
from partwise.parts.layers import Dropout, FusedLinear, linear, stream
from partwise.parts.norms import RMSNorm
from partwise.parts.positions import Rope
from partwise.parts.residual import PreNorm

__all__ = ["LogicalTensor", "ModelConfig", "States", "Transformer"]
assert _register


class ModelConfig(Config):
    """The sizes and the parts of one model. A ModelConfig that exists can be built."""

    # upper ends: what no machine holds ends in a line that names the value, not in an overflow inside torch
    vocab_size: int = Field(65, gt=0, le=2**24)
    d_model: int = Field(256, gt=0, le=2**20)
    n_layers: int = Field(4, gt=0, le=1000)
    max_len: int = Field(512, gt=0, le=2**24)
    positions: Positions = Rope()
    attention: Attention = MultiHead()
    ffn: FeedForward = SwiGLU()
    norm: Norm = RMSNorm()
    residual: Residual = PreNorm()
    init: Init = GPT2()
    tied: bool = False  # the head shares the table of embeddings
    head_bias: bool = False
    embed_scale: bool = False  # embeddings times sqrt(d_model)
    embed_dropout: float = Field(0.0, ge=0, lt=1)  # on the sum of embeddings and positions

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        # shapes without memory: each part checks its own fit, written once, where the value is used
        with torch.device("meta"):
            Transformer(self)
        return self

    def parameters(self) -> int:
        """The number of trainable numbers; a shared matrix counts once."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in Transformer(self).parameters())

    def flops_per_token(self, context: int | None = None) -> int:
        """Floating-point operations of one training step per token: forward, and twice that for the backward pass.

        Counted by torch on the forward pass over `context` tokens, the whole square of scores included.
        """
        from torch.utils.flop_counter import FlopCounterMode

        context = context or self.max_len
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            model = Transformer(self)
            model.use_path("products")
            model(torch.zeros(1, context, dtype=torch.long))
        return round(3 * counter.get_total_flops() / context)


@dataclass(frozen=True)
class LogicalTensor:
    """One tensor as it is named, drawn and saved: a view into the parameter that stores it."""

    name: str
    role: Role
    fan_in: int
    data: Tensor


class Block(nn.Module):
    def __init__(self, attention: nn.Module, ffn: nn.Module, residual: nn.Module) -> None:
        super().__init__()
        self.attention, self.ffn, self.residual = attention, ffn, residual

    def forward(self, x: Tensor, flow: Flow) -> Tensor:  # (B, T, D) -> (B, T, D)
        return self.residual(x, flow, [self.attention, self.ffn])


class States:
    """What the layers of a stack remember while generating, and how many positions they have seen."""

    def __init__(self, layers: list[State], limit: int) -> None:
        self.layers, self.limit, self.length = layers, limit, 0

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.select(rows)

    def truncate(self, length: int) -> None:
        for layer in self.layers:
            layer.truncate(length)
        self.length = min(self.length, length)


class Transformer(nn.Module):
    """A decoder: tokens (B, T) int64 -> logits (B, T, V) of the token that follows each.

    The same config and seed give the same initial values on every machine; see `draw`.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        head_dim = config.attention.head_width(width)
        site = Site(width, config.n_layers, config.max_len, head_dim=head_dim)

        def new_norm() -> nn.Module:
            return config.norm.build(width)

        with torch.random.fork_rng(devices=[]):  # constructors draw values that `draw` replaces: leave no trace
            self.embed = nn.Embedding(config.vocab_size, width)
            self.embed.role = "table"  # type: ignore[assignment]
            self.scale = width**0.5 if config.embed_scale else 1.0
            self.positions = config.positions.build(site)
            self.dropout = Dropout(config.embed_dropout)
            self.blocks = nn.ModuleList()
            for layer in range(config.n_layers):
                here = Site(width, config.n_layers, config.max_len, layer, head_dim)
                self.blocks.append(
                    Block(
                        config.attention.build(here),
                        config.ffn.build(here),
                        config.residual.build(["attention", "ffn"], new_norm),
                    )
                )
            self.residual = config.residual.build_ends(new_norm)
            self.head = linear(width, config.vocab_size, config.head_bias, "head")
            if config.tied:
                self.head.weight = self.embed.weight
        for name, module in self.named_modules():
            if isinstance(module, Dropout):
                module.site = name
        if self.embed.weight.device.type != "meta":
            self.draw(seed)

    def forward(self, tokens: Tensor, states: States | None = None) -> Tensor:
        past, T = states.length if states else 0, tokens.shape[1]
        limit = states.limit if states else self.config.max_len
        if past + T > limit:
            raise ConfigError(f"{past + T} tokens do not fit max_len={limit}: shorten the text or raise max_len")
        ids = torch.arange(past, past + T, device=tokens.device)
        x = self.embed(tokens) * self.scale if self.scale != 1.0 else self.embed(tokens)  # (B, T, D)
        x = self.dropout(self.positions.at_input(x, ids))
        flow = Flow(self.positions, ids, causal_mask(ids, past + T, x.dtype), states.layers if states else None)
        x = self.residual.enter(x)
        for block in self.blocks:
            x = block(x, flow)
        if states:
            states.length += T
        return self.head(self.residual.leave(x))  # (B, T, V)

    def start(self, batch: int, length: int | None = None) -> States:
        """Empty states for cached generation of up to `length` positions (max_len where not given)."""
        limit = min(length or self.config.max_len, self.config.max_len)
        like = self.embed.weight.detach()
        if torch.is_autocast_enabled(like.device.type):
            like = like.to(torch.get_autocast_dtype(like.device.type))
        return States([layer.new_state(batch, limit, like) for layer in self.attention_layers()], limit)

    def attention_layers(self) -> Iterator[AttentionLayer]:
        for module in self.modules():
            if isinstance(module, AttentionLayer):
                yield module

    def logical_tensors(self) -> Iterator[LogicalTensor]:
        """Every tensor under the name by which it is saved; queries, keys and values apart even where fused."""
        for path, module in self.named_modules():
            if isinstance(module, FusedLinear):
                parent = path.rpartition(".")[0]
                for name, piece in module.pieces():
                    role: Role = "bias" if name.endswith("bias") else module.role
                    yield LogicalTensor(f"{parent}.{name}", role, module.weight.shape[1], piece)
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if module is self.head and name == "weight" and self.config.tied:
                    continue
                role = getattr(module, "role", "vector")
                if role != "vector" and name == "bias":
                    role = "bias"
                fan_in = module.in_features if isinstance(module, nn.Linear) else 1
                yield LogicalTensor(f"{path}.{name}".lstrip("."), role, fan_in, parameter)

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Draw every initial value on the CPU in float32, each tensor from a stream keyed by (seed, its name).

        A variant that adds or reshapes one tensor leaves every other tensor's start equal.
        """
        for tensor in self.logical_tensors():
            if tensor.role != "vector":
                values = torch.empty(tensor.data.shape, dtype=torch.float32, device="cpu")
                generator = torch.Generator("cpu").manual_seed(stream(seed, tensor.name))
                self.config.init.draw(values, tensor.role, tensor.fan_in, self.config.n_layers, generator)
                tensor.data.copy_(values)

    def set_noise(self, *key: int) -> None:
        """Key the dropout noise of the next forward pass, by (seed, step, micro-batch, rank)."""
        for module in self.modules():
            if isinstance(module, Dropout) and module.p > 0:
                module.set_noise(self.embed.weight.device, *key)

    def use_path(self, path: str) -> None:
        """Choose how every attention layer computes its scores: 'products' or 'fused'."""
        for layer in self.attention_layers():
            layer.use_path(path)

    def state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        state = super().state_dict(*args, **kwargs)
        if self.config.tied:
            state.pop(f"{kwargs.get('prefix', '')}head.weight", None)  # one matrix, saved once
        return state

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:  # type: ignore[no-untyped-def]
        if self.config.tied and f"{prefix}embed.weight" in state_dict:
            table = state_dict[f"{prefix}embed.weight"]
            head = state_dict.setdefault(f"{prefix}head.weight", table)
            if head is not table and not torch.equal(head, table):  # the last of the two would silently win
                args[-1].append(
                    f"head.weight differs from embed.weight, to which tied=true ties it: {prefix or 'model'}"
                )
                state_dict[f"{prefix}head.weight"] = table
        super()._load_from_state_dict(state_dict, prefix, *args)

    def load_state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = super().load_state_dict(*args, **kwargs)
        if self.config.tied:
            self.head.weight = self.embed.weight  # `assign=True` puts two parameters in place of the one
        return result


def causal_mask(ids: Tensor, length: int, dtype: torch.dtype) -> Tensor | None:
    """(T, S) zeros where key s stands no later than the query, -inf elsewhere; None for a single query: it sees all."""
    if ids.shape[0] == 1:
        return None
    keys = torch.arange(length, device=ids.device)
    return torch.zeros(ids.shape[0], length, dtype=dtype, device=ids.device).masked_fill(
        keys > ids[:, None], float("-inf")
    )
