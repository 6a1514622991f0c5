"""ModelConfig, and the Transformer it builds: a decoder, optionally with an encoder."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor, nn

from partwise import parts as _register
from partwise.config import NAME_WIDTH, ConfigError, once_per_value
from partwise.config.own_parts import explain_own
from partwise.model.cache import Cache, position_ids_from_document_ids
from partwise.model.flops import training_flops_per_token
from partwise.model.initialization import check_init, constructing, initialize
from partwise.model.options import ModelOptions, check_encoder_only
from partwise.model.parameters import LogicalTensor, TiedModule, logical_tensors
from partwise.model.stack import Encoder, Stack
from partwise.parts.contracts import (
    AfterStepHook,
    AttentionLayer,
    CachedLayer,
    FittedLayer,
    ForwardContext,
    LayerContext,
)
from partwise.parts.dropout import Dropout
from partwise.parts.layers import embedding_table, linear
from partwise.parts.operations import Operation
from partwise.parts.roles import TensorSpec

__all__ = ["ModelConfig", "Transformer", "meta_model"]
assert _register


def meta_model(config: "ModelConfig") -> "Transformer":
    """A model on the meta device, without memory for its tensors."""
    with torch.device("meta"):
        return Transformer(config)


check_options = explain_own(once_per_value(meta_model))
"""Each part checks its options where it uses them."""


class ModelConfig(ModelOptions):
    """The sizes and parts of a model. Every valid ModelConfig can be built."""

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
        return training_flops_per_token(model, seq_len or self.context_length, self.vocab_size, self.takes_source)


class Transformer(Stack, TiedModule):
    """A decoder: tokens (B, T) int64 -> next-token logits (B, T, V).

    With `encoder_layers`, its input also includes a source (B, M) int64. With `n_layers=0` it is an encoder alone, with
    logits for every position's own token. The same config and seed give the same initial
    weights on every machine; see `initialize`.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, reinitialize: str | None = None) -> None:
        super().__init__()
        self.config = config
        with constructing(seed):
            self.embed = embedding_table(config.vocab_size, config.d_model, config.padding_idx)
            sizes = (config.d_model, config.n_layers, config.context_length)
            layer_ctx = LayerContext(*sizes, other_layers=config.encoder_layers)
            if config.encoder_only:
                check_encoder_only(config)
                self.blocks = nn.ModuleList()
            else:
                self.build_stack(config, layer_ctx)
            self.counts = config.ngram_lm.build(config.vocab_size)
            self.cached_layers = [module for module in self.modules() if isinstance(module, CachedLayer)]
            for index, module in enumerate(self.cached_layers):
                module.cache_index = index
            shared = self.embed if self.shares_embeddings else None
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
        if self.config.encoder_only:
            if source is not None or document_ids is not None:
                raise ConfigError("n_layers=0: an encoder alone takes one text per row, without source or document_ids")
            return self.capped(self.head(self.encode(tokens, aux_losses)[0]))
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
        return self.counts(self.capped(self.head(x)), tokens, ctx)

    def capped(self, logits: Tensor) -> Tensor:
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

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
        self.check_generates()
        limit = min(max_length or self.config.context_length, self.config.context_length)
        like = self.embed.weight.detach()
        if not like.is_meta and like.device.type != "cpu" and torch.is_autocast_enabled(like.device.type):
            like = like.to(torch.get_autocast_dtype(like.device.type))
        cache = Cache([layer.new_cache(batch, limit, like) for layer in self.cached_layers], limit)
        cache.memory, cache.memory_padding = source if isinstance(source, tuple) else self.encode(source, [])
        return cache

    def check_generates(self) -> None:
        """Raise ConfigError for an encoder alone, which has no next token."""
        if self.config.encoder_only:
            raise ConfigError(
                "n_layers=0 is an encoder alone, which predicts masked tokens: to generate, score or export text, train a "
                "model with n_layers above 0"
            )

    def logical_tensors(self) -> Iterator[LogicalTensor]:
        """All tensors under their names in the state dict, with their learning-rate factors."""
        for tensor in logical_tensors(self):
            yield replace(tensor, lr_factor=self.config.init.lr_factor(self.spec(tensor)))

    def spec(self, tensor: LogicalTensor) -> TensorSpec:
        causal = not (tensor.name.startswith("encoder.") or self.config.encoder_only)
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

    @property
    def shares_embeddings(self) -> bool:
        """Whether the encoder has the embedding table of the model: without a decoder, there is one table."""
        return self.config.share_encoder_embeddings or self.config.encoder_only

    def tied_parameters(self) -> dict[str, str]:
        """Names of tied matrices -> the name of the matrix they are tied to."""
        shared = self.encoder is not None and self.shares_embeddings
        is_tied = {"head.weight": self.config.tie_embeddings, "encoder.embed.weight": shared}
        return dict.fromkeys((name for name, tied in is_tied.items() if tied), "embed.weight")
