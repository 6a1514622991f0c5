"""The model: a stack of blocks over a table of embeddings, and where wanted an encoder beside it, from recipes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from partwise import parts as _register
from partwise.block import Block, through_blocks
from partwise.config import ByLayer, Config, ConfigError, recipes_by_layer
from partwise.operations import operations_over
from partwise.parts.ahead import NextAlone
from partwise.parts.attention import MultiHead, ValueResidual
from partwise.parts.counts import NoCounts
from partwise.parts.families import (
    Ahead,
    Attention,
    AttentionLayer,
    Counts,
    FeedForward,
    Flow,
    Init,
    Lookup,
    Mixing,
    Norm,
    PositionLayer,
    Positions,
    Remembering,
    Residual,
    Site,
    Trained,
)
from partwise.parts.feed_forward import SwiGLU
from partwise.parts.init import GPT2
from partwise.parts.layers import Dropout, linear, stream, table
from partwise.parts.lookup import NoLookup
from partwise.parts.mixing import NoMixing
from partwise.parts.mlp import Perceptron
from partwise.parts.norms import RMSNorm
from partwise.parts.positions import Rope
from partwise.parts.residual import PreNorm
from partwise.parts.roles import TensorSpec
from partwise.states import States, place_in_document
from partwise.tensors import LogicalTensor, SavedOnce, logical_tensors, of_family

__all__ = ["ModelConfig", "States", "Transformer"]
assert _register


class ModelConfig(Config):
    """The sizes and the parts of one model. A ModelConfig that exists can be built."""

    # upper ends: what no machine holds ends in a line that names the value, not in an overflow inside torch
    vocab_size: int = Field(65, gt=0, le=2**24)
    d_model: int = Field(256, gt=0, le=2**20)
    n_layers: int = Field(4, gt=0, le=1000)
    encoder_layers: int = Field(0, ge=0, le=1000)  # above 0 the model reads a source, over which its blocks attend
    max_len: int = Field(512, gt=0, le=2**24)
    positions: Positions = Rope()
    lookup: Lookup = NoLookup()
    attention: ByLayer[Attention] = MultiHead()
    mixing: ByLayer[Mixing] = NoMixing()
    ffn: ByLayer[FeedForward] = SwiGLU()
    norm: Norm = RMSNorm()
    residual: Residual = PreNorm()
    ahead: Ahead = NextAlone()
    init: Init = GPT2()
    counts: Counts = NoCounts()
    tied: bool = False  # the head shares the table of embeddings
    shared_table: bool = True  # encoder and decoder share theirs
    padding_idx: int | None = Field(
        None, ge=0
    )  # an id whose embedding stays zero, and that a source may be filled with
    head_bias: bool = False
    head_softcap: float | None = Field(None, gt=0)  # c: logits become c tanh(logits / c)
    embed_scale: bool = False  # embeddings times sqrt(d_model)
    embed_norm: bool = False  # a norm on the sum of embeddings and positions
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

        Counted on the forward pass over `context` tokens (and a source as long, where there is an encoder), the whole
        square of scores included.
        """
        context = context or self.max_len
        with torch.device("meta"):
            model = Transformer(self)
        model.use_path("products")
        made = context * max(16 * context, self.vocab_size)
        total = operations_over(model, context, made, source=self.encoder_layers > 0, ahead=[])
        return round(3 * total / context)


class Stack(nn.Module):
    """What an encoder and a decoder share: positions, blocks, and the ends of the residual stream."""

    embed: nn.Embedding

    def assemble(self, config: ModelConfig, site: Site) -> None:
        width = config.d_model
        recipes = [recipes_by_layer(field, site.n_layers) for field in (config.mixing, config.attention, config.ffn)]
        layouts = [recipe.heads(width) for recipe in recipes[1]]
        first = layouts[0] if recipes[1][0].hands_values_on else None
        site = replace(site, heads=layouts[0], first=first)
        self.scale = width**0.5 if config.embed_scale else 1.0
        self.positions = config.positions.build(site)
        self.lookup = config.lookup.build(site, config.vocab_size)
        self.embed_norm = config.norm.build(width) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.embed_dropout)
        hooked = type(self.positions)
        turned = hooked.on_heads is not PositionLayer.on_heads and len({heads.width for heads in layouts}) > 1
        biased = hooked.on_scores is not PositionLayer.on_scores and len({heads.n_heads for heads in layouts}) > 1
        if turned or biased:
            what = "width" if turned else "number"
            raise ConfigError(
                f"positions={config.positions.name} works on heads, and attention differs in their {what} by layer: "
                f"give every layer heads of the same {what}"
            )

        def new_norm() -> nn.Module:
            return config.norm.build(width)

        self.blocks = nn.ModuleList()
        for layer, (mixing, attention, ffn) in enumerate(zip(*recipes, strict=True)):
            scale = config.init.score_scale(attention.score_width(width), width)
            here = replace(site, layer=layer, heads=layouts[layer], score_scale=scale)
            layers = {"mixing": mixing.build(here), "attention": attention.build(here)}
            if site.causal and site.other_layers:
                layers["cross"] = attention.build_cross(here)
            layers["ffn"] = ffn.build(here)
            branches = [name for name in layers if name != "mixing"]
            self.blocks.append(Block(layers, config.residual.build(here, branches, new_norm)))
        self.residual = config.residual.build_ends(site, new_norm)

    def through(self, tokens: Tensor, flow: Flow) -> Tensor:
        """(B, T) ids -> (B, T, D) what the last block leaves."""
        x = self.embed(tokens)
        x = self.lookup(x * self.scale if self.scale != 1.0 else x, tokens, flow)
        x = self.residual.enter(self.dropout(self.embed_norm(self.positions.at_input(x, flow.ids))))
        return self.residual.leave(through_blocks(self.blocks, x, flow))


class Encoder(Stack):
    """Reads a source both ways: ids (B, M) -> (B, M, D)."""

    def __init__(self, config: ModelConfig, embed: nn.Embedding | None) -> None:
        super().__init__()
        self.embed = embed or new_table(config)
        site = Site(config.d_model, config.encoder_layers, config.max_len, causal=False, other_layers=config.n_layers)
        self.assemble(config, site)

    def forward(self, source: Tensor, padding: Tensor | None, losses: list[Tensor]) -> Tensor:
        ids = torch.arange(source.shape[1], device=source.device)
        segments = None if padding is None else -padding.long()  # padding sees padding, and nothing else sees it
        flow = Flow(self.positions, ids, causal=False, segments=segments, losses=losses)
        return self.through(source, flow)


class Transformer(Stack, SavedOnce):
    """A decoder: tokens (B, T) int64 -> logits (B, T, V) of the token that follows each.

    With `encoder_layers` it also reads a source (B, M) int64. The same config and seed give the same initial values on
    every machine; see `draw`.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, redraw: str | None = None) -> None:
        super().__init__()
        self.config = config
        if config.tied and config.init.scales_tables_apart:
            raise ConfigError(f"init={config.init.name} scales the table and the head apart: set tied=false")
        with torch.random.fork_rng(devices=[]):  # constructors draw values that `draw` replaces: leave no trace
            self.embed = new_table(config)
            site = Site(config.d_model, config.n_layers, config.max_len, other_layers=config.encoder_layers)
            self.assemble(config, site)
            self.counts = config.counts.build(config.vocab_size)
            self.remembering = [module for module in self.modules() if isinstance(module, Remembering)]
            for number, module in enumerate(self.remembering):
                module.number = number
            self.encoder = (
                Encoder(config, self.embed if config.shared_table else None) if config.encoder_layers else None
            )
            self.head = linear(config.d_model, config.vocab_size, config.head_bias, "head")
            self.ahead = config.ahead.build(site, config.vocab_size)
            self.tie()
        self.trained = [module for module in self.modules() if isinstance(module, Trained)]
        self.dropouts = {name: module for name, module in self.named_modules() if isinstance(module, Dropout)}
        for name, dropout in self.dropouts.items():
            dropout.site = name
        if self.embed.weight.device.type != "meta":
            self.draw(seed, redraw)

    def forward(
        self,
        tokens: Tensor,
        states: States | None = None,
        *,
        source: Tensor | None = None,
        segments: Tensor | None = None,
        losses: list[Tensor] | None = None,
        ahead: list[Tensor] | None = None,
    ) -> Tensor:
        """(B, T) ids -> (B, T, V) logits.

        `states` (from `start`) continue a row and hold its source. `segments` (B, T) number the documents of packed
        rows, or mark padding before a prompt: a token sees its own document alone, and counts its positions from its
        start. `losses` receives what layers add to the training loss, `ahead` logits (B, T, V) of each token
        beyond the next that training predicts. Raises ConfigError for a row that is too long.
        """
        past, T = states.length if states else 0, tokens.shape[1]
        limit = states.limit if states else self.config.max_len
        if past + T > limit:
            raise ConfigError(f"{past + T} tokens do not fit max_len={limit}: shorten the text or raise max_len")
        losses = [] if losses is None else losses
        if states:
            memory, padding, segments = states.memory, states.memory_padding, states.extend(tokens, segments)
        else:
            memory, padding = self.read(source, losses)
        ids = place_in_document(segments, past + T, tokens.device)[..., past:]
        layers = states.layers if states else None
        flow = Flow(self.positions, ids, past, True, segments, memory, padding, layers, losses=losses)
        x = self.through(tokens, flow)
        if states:
            states.length += T
        if ahead is not None:
            ahead.extend(self.ahead(x))
        logits = self.head(x)  # (B, T, V)
        cap = self.config.head_softcap
        return self.counts(logits if cap is None else cap * torch.tanh(logits / cap), tokens, flow)

    def read(self, source: Tensor | None, losses: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """A source (B, M) as (B, M, D), and which of it is padding. Raises ConfigError."""
        if (source is None) == (self.encoder is not None):
            raise ConfigError(
                "the model has an encoder: give it a source"
                if source is None
                else "the model has no encoder to read a source: set encoder_layers"
            )
        if source is None or self.encoder is None:
            return None, None
        if source.shape[1] > self.config.max_len:
            raise ConfigError(f"{source.shape[1]} source tokens do not fit max_len={self.config.max_len}: shorten it")
        padding = None if self.config.padding_idx is None else source == self.config.padding_idx
        return self.encoder(source, padding, losses), padding

    def start(self, batch: int, length: int | None = None, source: Tensor | None = None) -> States:
        """Empty states for cached generation of up to `length` positions (max_len where not given), over a source."""
        limit = min(length or self.config.max_len, self.config.max_len)
        like = self.embed.weight.detach()
        if not like.is_meta and like.device.type != "cpu" and torch.is_autocast_enabled(like.device.type):
            like = like.to(torch.get_autocast_dtype(like.device.type))
        states = States([layer.new_state(batch, limit, like) for layer in self.remembering], limit)
        states.memory, states.memory_padding = self.read(source, [])
        return states

    def logical_tensors(self) -> Iterator[LogicalTensor]:
        """Every tensor under the name by which it is saved, with the factor of its learning rate."""
        for tensor in logical_tensors(self):
            yield replace(tensor, lr_factor=self.config.init.lr_factor(self.spec(tensor)))

    def spec(self, tensor: LogicalTensor) -> TensorSpec:
        causal = not tensor.name.startswith("encoder.")
        own, other = self.config.n_layers, self.config.encoder_layers
        layers = (own, other) if causal else (other, own)
        return TensorSpec(tensor.role, tensor.fan_in, tensor.fan_out, self.config.d_model, layers, causal)

    @torch.no_grad()
    def draw(self, seed: int, redraw: str | None = None) -> None:
        """Draw every initial value on the CPU in float32, each tensor from a stream keyed by (seed, its name).

        A variant that adds or reshapes one tensor leaves every other's start equal; `redraw` names those of a second stream.
        """
        drawn = [tensor for tensor in self.logical_tensors() if tensor.role != "vector"]
        again = of_family([tensor.name for tensor in drawn], redraw)
        for tensor in drawn:
            values = torch.empty(tensor.data.shape, dtype=torch.float32, device="cpu")
            generator = torch.Generator("cpu").manual_seed(
                stream(seed, tensor.name, *("again",) * (tensor.name in again))
            )
            self.config.init.fill(values, self.spec(tensor), generator)
            values.mul_(self.config.residual.gain(self.spec(tensor)))
            if self.config.padding_idx is not None and tensor.name.endswith("embed.weight"):
                values[self.config.padding_idx] = 0
            tensor.data.copy_(values)

    def set_noise(self, *key: int) -> None:
        """Key the dropout noise of the next forward pass, by (seed, step, micro-batch, rank)."""
        for dropout in self.dropouts.values():
            if dropout.p > 0:
                dropout.set_noise(self.embed.weight.device, *key)

    def use_path(self, attention: str, ffn: str = "torch", block: str = "layers") -> None:
        """Choose how attention layers compute their scores ('products', 'fused' or 'kernel'), perceptrons their units
        ('torch' or 'kernel') and blocks their 'layers', or all at once ('kernel'): the same numbers but for rounding."""
        mixed = any(isinstance(module, ValueResidual) for module in self.modules())  # they ask for the first values
        for module in self.modules():
            if isinstance(module, AttentionLayer):
                module.use_path(attention)
            elif isinstance(module, Perceptron):
                module.path = ffn
            elif isinstance(module, Block):
                module.use_path("layers" if mixed else block)

    def after_step(self) -> None:
        """Let layers update what training changes beside parameters; called once per update."""
        for module in self.trained:
            module.after_step()

    def nulls(self) -> set[str]:
        """The names of parameters that no output can depend on, by the equations of the parts."""
        found = set()
        for path, module in self.named_modules():
            if isinstance(module, AttentionLayer):
                positions = self.encoder.positions if self.encoder and path.startswith("encoder.") else self.positions
                found |= {f"{path}.{name}" for name in module.nulls(positions)}
        return found

    def shared(self) -> dict[str, str]:
        """Names of matrices that are another one -> that one."""
        names = {
            "head.weight": self.config.tied,
            "encoder.embed.weight": self.encoder is not None and self.config.shared_table,
        }
        return dict.fromkeys((name for name, is_shared in names.items() if is_shared), "embed.weight")


def new_table(config: ModelConfig) -> nn.Embedding:
    if config.padding_idx is not None and config.padding_idx >= config.vocab_size:
        raise ConfigError(f"padding_idx={config.padding_idx} is not among vocab_size={config.vocab_size} ids: lower it")
    return table(config.vocab_size, config.d_model, config.padding_idx)
