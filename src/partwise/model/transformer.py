"""ModelConfig, and the Transformer it builds: a decoder, optionally with an encoder."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from partwise import parts as _register
from partwise.config import NAME_WIDTH, ByLayer, Config, ConfigError, once_per_value, recipes_by_layer
from partwise.config.own_parts import explain_own
from partwise.model.block import Block, run_blocks
from partwise.model.cache import Cache, position_ids_from_document_ids
from partwise.model.flops import training_flops_per_token
from partwise.model.heads import check_heads
from partwise.model.initialization import check_init, constructing, initialize
from partwise.model.parameters import LogicalTensor, TiedModule, logical_tensors
from partwise.parts.attention.multihead import MultiHead
from partwise.parts.contracts import (
    AfterStepHook,
    Attention,
    AttentionLayer,
    CachedLayer,
    FeedForward,
    FittedLayer,
    ForwardContext,
    Init,
    LayerContext,
    MultiTokenPrediction,
    NGramEmbeddings,
    NGramLM,
    Norm,
    Positions,
    Residual,
    ShortConv,
)
from partwise.parts.dropout import Dropout
from partwise.parts.feed_forward.dense import SwiGLU
from partwise.parts.init import GPT2Init
from partwise.parts.layers import embedding_table, linear
from partwise.parts.mtp import NoMTP
from partwise.parts.ngram_embeddings import NoNGramEmbeddings
from partwise.parts.ngram_lm import NoNGramLM
from partwise.parts.norms import RMSNorm
from partwise.parts.operations import Operation
from partwise.parts.positions.rotary import Rope
from partwise.parts.residual.wirings import PreNorm
from partwise.parts.roles import TensorSpec
from partwise.parts.short_conv import NoShortConv

__all__ = ["ModelConfig", "Transformer", "meta_model"]
assert _register


def meta_model(config: "ModelConfig") -> "Transformer":
    """A model on the meta device, without memory for its tensors."""
    with torch.device("meta"):
        return Transformer(config)


check_options = explain_own(once_per_value(meta_model))
"""Each part checks its options where it uses them."""


class ModelConfig(Config):
    """The sizes and parts of a model. Every valid ModelConfig can be built."""

    # upper limits: a value beyond any machine gets a clear error, not an overflow in torch
    vocab_size: int = Field(65, gt=0, le=2**24)
    """Rows of the embedding table: the number of different tokens, V. Default: that of the data."""
    d_model: int = Field(256, gt=0, le=2**20)
    """Width of the residual stream, D: the numbers that represent one token."""
    n_layers: int = Field(4, gt=0, le=1000)
    """Blocks of the decoder, one after another."""
    encoder_layers: int = Field(0, ge=0, le=1000)
    """Blocks of the encoder; above 0, the model is an encoder-decoder."""
    context_length: int = Field(512, gt=0, le=2**24)
    """The longest sequence that the model supports, in tokens."""
    positions: Positions = Rope()
    ngram_embeddings: NGramEmbeddings = NoNGramEmbeddings()
    attention: ByLayer[Attention] = MultiHead()
    short_conv: ByLayer[ShortConv] = NoShortConv()
    ffn: ByLayer[FeedForward] = SwiGLU()
    norm: Norm = RMSNorm()
    residual: Residual = PreNorm()
    mtp: MultiTokenPrediction = NoMTP()
    init: Init = GPT2Init()
    ngram_lm: NGramLM = NoNGramLM()
    tie_embeddings: bool = False
    """The head uses the embedding matrix as its own."""
    share_encoder_embeddings: bool = True
    """Encoder and decoder share one embedding table."""
    padding_idx: int | None = Field(None, ge=0)
    """The id of padding in a source; its embedding stays zero unless tied. Default: that of the data."""
    head_bias: bool = False
    """A bias on the logits."""
    logit_softcap: float | None = Field(None, gt=0)
    """c: logits z become c tanh(z / c), so that none exceeds c. Default: no cap."""
    scale_embeddings: bool = False
    """Multiply embeddings by sqrt(d_model) before positions are added."""
    embed_norm: bool = False
    """A norm on the sum of embeddings and positions."""
    embed_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the sum of embeddings and positions."""

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        check_options(self)
        return self

    def __str__(self) -> str:
        return f"{super().__str__()}\n{'parameters':{NAME_WIDTH}}{self.parameters():,}"

    def parameters(self) -> int:
        """The number of parameters; tied matrices count once."""
        return sum(parameter.numel() for parameter in meta_model(self).parameters())

    def flops_per_token(self, seq_len: int | None = None, model: "Transformer | None" = None) -> int:
        """FLOPs of one training step per token: the forward pass, and twice that for the backward pass.

        Counted over `seq_len` tokens (default: context_length), and a source of the same length with an encoder,
        including all T x T attention scores. `model` is this model on the meta device, if some of its parameters are frozen.
        """
        model = model or meta_model(self)
        model.reset_backends()
        return training_flops_per_token(model, seq_len or self.context_length, self.vocab_size, self.encoder_layers > 0)


class Stack(nn.Module):
    """The common part of encoder and decoder: embeddings, positions and blocks."""

    embed: nn.Embedding

    def build_stack(self, config: ModelConfig, layer_ctx: LayerContext) -> None:
        width = config.d_model
        fields = (config.short_conv, config.attention, config.ffn)
        recipes = [recipes_by_layer(field, layer_ctx.n_layers) for field in fields]
        layouts = [recipe.heads(width) for recipe in recipes[1]]
        first_layer_heads = layouts[0] if recipes[1][0].shares_first_values else None
        layer_ctx = replace(layer_ctx, heads=layouts[0], first_layer_heads=first_layer_heads)
        self.embedding_scale = width**0.5 if config.scale_embeddings else 1.0
        self.positions = config.positions.build(layer_ctx)
        self.lookup = config.ngram_embeddings.build(layer_ctx, config.vocab_size)
        self.embed_norm = config.norm.build(width) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.embed_dropout)
        check_heads(config.positions.name, self.positions, layouts)

        def new_norm() -> nn.Module:
            return config.norm.build(width)

        self.blocks = nn.ModuleList()
        for layer, (mixing, attention, ffn) in enumerate(zip(*recipes, strict=True)):
            scale = config.init.score_scale(attention.qk_head_dim(width), width)
            own_ctx = replace(layer_ctx, layer_index=layer, heads=layouts[layer], score_scale=scale)
            layers = {"mixing": mixing.build(own_ctx), "attention": attention.build(own_ctx)}
            if layer_ctx.causal and layer_ctx.other_layers:
                layers["cross"] = attention.build_cross(own_ctx)
            layers["ffn"] = ffn.build(own_ctx)
            branches = [name for name in layers if name != "mixing"]
            self.blocks.append(Block(layers, config.residual.build(own_ctx, branches, new_norm)))
        self.residual = config.residual.build_ends(layer_ctx, new_norm)

    def run_stack(self, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        """(B, T) ids -> (B, T, D) final hidden states."""
        x = self.embed(tokens)
        x = self.lookup(x * self.embedding_scale if self.embedding_scale != 1.0 else x, tokens, ctx)
        x = self.residual.enter(self.dropout(self.embed_norm(self.positions.at_input(x, ctx.position_ids))))
        return self.residual.leave(run_blocks(self.blocks, x, ctx))


class Encoder(Stack):
    """A bidirectional stack: source ids (B, M) -> (B, M, D)."""

    def __init__(self, config: ModelConfig, embed: nn.Embedding | None) -> None:
        super().__init__()
        self.embed = embed or embedding_table(config.vocab_size, config.d_model, config.padding_idx)
        layer_ctx = LayerContext(
            config.d_model, config.encoder_layers, config.context_length, causal=False, other_layers=config.n_layers
        )
        self.build_stack(config, layer_ctx)

    def forward(self, source: Tensor, padding: Tensor | None, aux_losses: list[Tensor]) -> Tensor:
        position_ids = torch.arange(source.shape[1], device=source.device)
        document_ids = None if padding is None else -padding.long()  # padding and tokens do not attend to each other
        ctx = ForwardContext(
            self.positions, position_ids, causal=False, document_ids=document_ids, aux_losses=aux_losses
        )
        return self.run_stack(source, ctx)


class Transformer(Stack, TiedModule):
    """A decoder: tokens (B, T) int64 -> next-token logits (B, T, V).

    With `encoder_layers`, its input also includes a source (B, M) int64. The same config and seed give the same initial
    weights on every machine; see `initialize`.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, reinitialize: str | None = None) -> None:
        super().__init__()
        self.config = config
        with constructing(seed):
            self.embed = embedding_table(config.vocab_size, config.d_model, config.padding_idx)
            sizes = (config.d_model, config.n_layers, config.context_length)
            layer_ctx = LayerContext(*sizes, other_layers=config.encoder_layers)
            self.build_stack(config, layer_ctx)
            self.counts = config.ngram_lm.build(config.vocab_size)
            self.cached_layers = [module for module in self.modules() if isinstance(module, CachedLayer)]
            for index, module in enumerate(self.cached_layers):
                module.cache_index = index
            shared = self.embed if config.share_encoder_embeddings else None
            self.encoder = Encoder(config, shared) if config.encoder_layers else None
            self.head = linear(config.d_model, config.vocab_size, config.head_bias, "head")
            self.ahead = config.mtp.build(layer_ctx, config.vocab_size)
            self.tie_weights()
        self.after_step_hooks = [module for module in self.modules() if isinstance(module, AfterStepHook)]
        self.fitted_layers = {name: module for name, module in self.named_modules() if isinstance(module, FittedLayer)}
        self.dropouts = {name: module for name, module in self.named_modules() if isinstance(module, Dropout)}
        for name, dropout in self.dropouts.items():
            dropout.site = name
        check_init(config.init, config.tie_embeddings, logical_tensors(self))
        if self.embed.weight.device.type != "meta":
            tensors = [(tensor, self.spec(tensor)) for tensor in self.logical_tensors()]
            initialize(tensors, config.init, config.residual, seed, reinitialize, config.padding_idx)

    def forward(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        *,
        source: Tensor | None = None,
        document_ids: Tensor | None = None,
        aux_losses: list[Tensor] | None = None,
        mtp_logits: list[Tensor] | None = None,
    ) -> Tensor:
        """(B, T) ids -> (B, T, V) logits.

        With a `cache`, tokens continue its rows, and it holds the source. `document_ids` (B, T) number the documents of
        packed rows, or mark padding before a prompt: a token attends only to its own document and counts its position from
        the document's start. If given, the lists `aux_losses` and `mtp_logits` are extended by the layers' terms of the
        training loss and by the logits (B, T, V) of each token after the next. Raises ConfigError if a row is too long.
        """
        past, T = cache.length if cache else 0, tokens.shape[1]
        limit = cache.max_length if cache else self.config.context_length
        if past + T > limit:
            raise ConfigError(
                f"{past + T} tokens do not fit context_length={limit}: shorten the text or raise context_length"
            )
        aux_losses = [] if aux_losses is None else aux_losses
        if cache:
            memory, padding = cache.memory, cache.memory_padding
            document_ids = cache.extend_document_ids(tokens, document_ids)
        else:
            memory, padding = self.encode(source, aux_losses)
        position_ids = position_ids_from_document_ids(document_ids, past + T, tokens.device)[..., past:]
        caches = cache.layers if cache else None
        ctx = ForwardContext(
            self.positions, position_ids, past, True, document_ids, memory, padding, caches, aux_losses=aux_losses
        )
        x = self.run_stack(tokens, ctx)
        if cache:
            cache.length += T
        if mtp_logits is not None:
            mtp_logits.extend(self.ahead(x))
        return self.logits(x, tokens, ctx)

    def logits(self, x: Tensor, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        """(B, T, D) final hidden states of (B, T) ids -> (B, T, V) next-token logits."""
        logits, cap = self.head(x), self.config.logit_softcap
        return self.counts(logits if cap is None else cap * torch.tanh(logits / cap), tokens, ctx)

    def encode(self, source: Tensor | None, aux_losses: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """A source (B, M) -> the encoder's output (B, M, D) and its padding (B, M). Raises ConfigError."""
        if (source is None) == (self.encoder is not None):
            raise ConfigError(
                "the model has an encoder: pass a source"
                if source is None
                else "the model has no encoder for the source: set encoder_layers"
            )
        if source is None or self.encoder is None:
            return None, None
        if source.shape[1] > self.config.context_length:
            raise ConfigError(
                f"{source.shape[1]} source tokens do not fit context_length={self.config.context_length}: shorten it"
            )
        padding = None if self.config.padding_idx is None else source == self.config.padding_idx
        return self.encoder(source, padding, aux_losses), padding

    def new_cache(self, batch: int, max_length: int | None = None, source: Tensor | tuple | None = None) -> Cache:
        """An empty cache for up to `max_length` positions (default: context_length), with the source or its encoding."""
        limit = min(max_length or self.config.context_length, self.config.context_length)
        like = self.embed.weight.detach()
        if not like.is_meta and like.device.type != "cpu" and torch.is_autocast_enabled(like.device.type):
            like = like.to(torch.get_autocast_dtype(like.device.type))
        cache = Cache([layer.new_cache(batch, limit, like) for layer in self.cached_layers], limit)
        cache.memory, cache.memory_padding = source if isinstance(source, tuple) else self.encode(source, [])
        return cache

    def logical_tensors(self) -> Iterator[LogicalTensor]:
        """All tensors under their names in the state dict, with their learning-rate factors."""
        for tensor in logical_tensors(self):
            yield replace(tensor, lr_factor=self.config.init.lr_factor(self.spec(tensor)))

    def spec(self, tensor: LogicalTensor) -> TensorSpec:
        causal = not tensor.name.startswith("encoder.")
        own, other = self.config.n_layers, self.config.encoder_layers
        layers = (own, other) if causal else (other, own)
        sizes = (tensor.fan_in, tensor.fan_out, self.config.d_model)
        return TensorSpec(tensor.role, *sizes, layers, causal, tensor.activated)

    def seed_dropout(self, seed: int, step: int, first_row: int = 0) -> None:
        """Seed the dropout noise of all later forward passes; their rows start at `first_row` in the batch of the step."""
        for dropout in self.dropouts.values():
            if dropout.p > 0:
                dropout.seed(seed, step, first_row)

    def reset_backends(self) -> None:
        """Remove all backends: every layer computes its own equation. `partwise.select_backends` chooses faster ones."""
        for module in self.modules():
            if isinstance(module, Operation):
                module.backends = ()

    def fit(self, ids: np.ndarray) -> None:
        """Fit the layers that need it to the ids (N,) of the training text."""
        for layer in self.fitted_layers.values():
            layer.fit(ids)

    def after_step(self) -> None:
        """Let layers update state other than parameters; called after each optimizer step."""
        for module in self.after_step_hooks:
            module.after_step()

    def parameters_without_gradient(self) -> set[str]:
        """The names of parameters that no output depends on, by the equations of the parts."""
        names = set()
        for path, module in self.named_modules():
            if isinstance(module, AttentionLayer):
                positions = self.encoder.positions if self.encoder and path.startswith("encoder.") else self.positions
                names |= {f"{path}.{name}" for name in module.parameters_without_gradient(positions)}
        return names

    def tied_parameters(self) -> dict[str, str]:
        """Names of tied matrices -> the name of the matrix they are tied to."""
        shared = self.encoder is not None and self.config.share_encoder_embeddings
        is_tied = {"head.weight": self.config.tie_embeddings, "encoder.embed.weight": shared}
        return dict.fromkeys((name for name, tied in is_tied.items() if tied), "embed.weight")
