"""Decoding over caches of fixed size, in which every token is the same computation: on CUDA, one graph that is replayed.

A prompt is computed as usual. Its caches are then copied into buffers of full length, where a token is written at its
position and attends to all positions before it through a mask.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.compute import compilation
from partwise.config import ConfigError
from partwise.model import Transformer
from partwise.model.cache import Cache
from partwise.parts.attention.mask import AttentionMask
from partwise.parts.caches import ConvCache, CrossAttentionCache, KVCache, SlidingWindowCache
from partwise.parts.contracts import ForwardContext, PositionLayer
from partwise.parts.feed_forward.router import Router

WARMUPS = 2
"""Calls before a graph is captured, in which libraries choose their kernels."""


def unsupported_reason(model: Transformer) -> str | None:
    """Why single tokens of this model are not one computation of fixed shapes, as a clause, or None if they are."""
    if any(len(list(layer.buffers())) for layer in model.fitted_layers.values()):
        return "an n-gram language model reads tables of any size"
    if any(isinstance(module, Router) for module in model.modules()):
        return "experts compute different numbers of tokens"
    return None


class StaticDecoder:
    """A model in generation, with the interface of a `Transformer`. Raises ConfigError if the model is not supported.

    With `compiled`, torch.compile also makes fewer and faster kernels of a token, which takes a minute or more.
    """

    def __init__(self, model: Transformer, compiled: bool = False) -> None:
        if reason := unsupported_reason(model):
            raise ConfigError(f"a static cache does not support this model: {reason}")
        self.model, self.config, self.embed, self.compiled = model, model.config, model.embed, compiled

    def new_cache(self, batch: int, max_length: int | None = None, source: Any = None) -> "StaticDecodingCache":
        return StaticDecodingCache(self.model, self.model.new_cache(batch, max_length, source), self.compiled)

    def __call__(
        self, tokens: Tensor, cache: "StaticDecodingCache | None" = None, source: Tensor | None = None
    ) -> Tensor:
        return self.model(tokens, source=source) if cache is None else cache.extend(tokens)


class StaticDecodingCache:
    """The cache of a prompt, and from the first single token on its copy of fixed size."""

    def __init__(self, model: Transformer, prompt: Cache, compiled: bool) -> None:
        self.model, self.prompt, self.compiled = model, prompt, compiled
        self.max_length, self.length = prompt.max_length, 0
        self.step: StaticStep | None = None

    def extend(self, tokens: Tensor) -> Tensor:
        """(B, T) ids that continue the rows -> (B, T, V) logits. Raises ConfigError if a row becomes too long."""
        if self.step is None and (tokens.shape[1] != 1 or not self.length):
            logits: Tensor = self.model(tokens, self.prompt)
            self.length = self.prompt.length
            return logits
        if self.length + tokens.shape[1] > self.max_length:
            raise ConfigError(
                f"{self.length + tokens.shape[1]} tokens do not fit context_length={self.max_length}: shorten the text or "
                "raise context_length"
            )
        if self.step is None:
            self.step = prompt_step(self.model, self.prompt, tokens.shape[0], self.compiled)
        outputs = [self.step(column) for column in tokens.split(1, dim=1)]
        self.length += tokens.shape[1]
        return torch.cat(outputs, dim=1)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.step is None:
            self.prompt.select(rows)
        else:
            self.step = self.step.select(rows)

    def truncate(self, length: int) -> None:
        """Drop every position from `length` on. Raises ConfigError if single tokens have been added."""
        if self.step is not None and length < self.length:
            raise ConfigError("cannot truncate a static cache after prefill: start with a new cache")
        self.prompt.truncate(length)
        self.length = min(self.length, length)


def prompt_step(model: Transformer, prompt: Cache, batch: int, compiled: bool) -> "StaticStep":
    """The step after a prompt of `batch` rows, over copies of its caches in buffers of fixed size."""
    position = torch.tensor([prompt.length], device=model.embed.weight.device)
    layers = [static_cache(layer, prompt, position) for layer in prompt.layers]
    memory = None if prompt.memory is None else prompt.memory.detach()
    return StaticStep(model, position, layers, (memory, prompt.memory_padding), batch, compiled)


def static_cache(layer: Any, prompt: Cache, position: Tensor) -> Any:
    """A copy of a layer's cache in buffers of fixed size."""
    if isinstance(layer, KVCache):
        return StaticKVCache([buffer.clone() for buffer in layer.buffers], position)
    if isinstance(layer, SlidingWindowCache):
        kept = layer.buffer.shape[3]
        buffers = layer.buffer.new_zeros(*layer.buffer.shape[:3], prompt.max_length, layer.buffer.shape[4])
        buffers[:, :, :, prompt.length - kept : prompt.length] = layer.buffer
        return StaticKVCache(list(buffers.unbind()), position)
    if isinstance(layer, ConvCache):
        return StaticConvCache(F.pad(layer.buffer, (0, 0, layer.size - layer.buffer.shape[1], 0)).clone())
    assert isinstance(layer, CrossAttentionCache), f"{type(layer).__name__} has no static form"
    return layer


class StaticStep:
    """The computation of one more token for every row: a CUDA graph if the model is on such a device."""

    def __init__(
        self,
        model: Transformer,
        position: Tensor,
        layers: list[Any],
        memory: tuple[Tensor | None, Tensor | None],  # of an encoder-decoder, and its padding
        batch: int,
        compiled: bool,
    ) -> None:
        self.model, self.position, self.layers, self.memory, self.compiled = model, position, layers, memory, compiled
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device=position.device)
        self.run: Callable[[], Tensor] = self.compute
        if compiled:
            self.run = torch.compile(self.compute, backend=compilation.COMPILER, fullgraph=True, dynamic=False)
        if position.device.type == "cuda":
            self.run = capture(self) or self.run

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """(B, 1) ids -> (B, 1, V) logits of the next token."""
        self.tokens.copy_(tokens)
        return self.run()

    def compute(self) -> Tensor:
        memory, padding = self.memory
        ctx = StaticContext(
            self.model.positions, self.position.clone(), memory=memory, memory_padding=padding, caches=self.layers
        )
        logits = self.model.logits(self.model.run_stack(self.tokens, ctx), self.tokens, ctx)
        self.position += 1
        return logits

    def row_tensors(self) -> list[Tensor]:
        """The tensors whose first dimension is the batch."""
        own = [tensor for layer in self.layers for tensor in layer.tensors()]
        return [*own, *(tensor for tensor in self.memory if tensor is not None)]

    def select(self, rows: Tensor) -> "StaticStep":
        """The step of these rows, in this order: this object if their number is unchanged, as a graph reads its memory."""
        if len(rows) == len(self.tokens):
            for tensor in self.row_tensors():
                tensor.copy_(tensor[rows])
            return self
        layers = [layer.selected(rows) for layer in self.layers]
        memory, padding = (None if tensor is None else tensor[rows] for tensor in self.memory)
        return StaticStep(self.model, self.position, layers, (memory, padding), len(rows), self.compiled)


def capture(step: StaticStep) -> Callable[[], Tensor] | None:
    """The CUDA graph of a step, without its effects; None if it cannot be captured, and each call runs eagerly."""
    changed = [step.position, *step.row_tensors()]
    before = [tensor.clone() for tensor in changed]
    compute = step.run

    def undo() -> None:
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)

    try:
        with torch.no_grad():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARMUPS):
                    compute()
                    undo()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = compute()
    except RuntimeError:  # an operation that waits for the device, such as one of the user's own
        torch.cuda.synchronize()
        undo()
        return None
    undo()

    def replay() -> Tensor:
        graph.replay()
        return logits.clone()

    return replay


@dataclass
class StaticContext(ForwardContext):
    """The inputs of a pass over one token per row; its position, `position_ids` (1,), is a tensor."""

    own_masks: dict[Any, AttentionMask] = field(default_factory=dict)

    def mask(self, x: Tensor, n_keys: int, window: int | None = None) -> AttentionMask:
        """The mask of one token over all `n_keys` positions of a buffer; later positions are empty."""
        key = n_keys, window
        if key not in self.own_masks:
            self.own_masks[key] = AttentionMask(lambda: self.bias(x, n_keys, window))
        return self.own_masks[key]

    def bias(self, x: Tensor, n_keys: int, window: int | None) -> Tensor:
        keys, position = torch.arange(n_keys, device=x.device), self.position_ids
        hidden = keys > position  # (S,)
        if window is not None:
            hidden = hidden | (position - keys >= window)
        has_bias = type(self.positions).on_scores is not PositionLayer.on_scores
        bias = self.positions.on_scores(position, keys, x) if has_bias else None  # (H, 1, S)
        if bias is None:
            bias = torch.zeros(1, n_keys, device=x.device)
        return bias.to(x.dtype).masked_fill(hidden, float("-inf"))


class StaticKVCache:
    """Keys, values or latents of all positions, in buffers of full length."""

    def __init__(self, buffers: list[Tensor], position: Tensor) -> None:
        for buffer in buffers:
            buffer[:, :, int(position) :] = 0.0  # hidden, but a product with NaN would be NaN
        self.buffers, self.position = buffers, position

    def selected(self, rows: Tensor) -> "StaticKVCache":
        return StaticKVCache([buffer[rows] for buffer in self.buffers], self.position)

    def append(self, *new: Tensor) -> list[Tensor]:
        """(B, K, 1, E) of the new position, one per buffer -> (B, K, S, E) of all positions."""
        for buffer, values in zip(self.buffers, new, strict=True):
            buffer.index_copy_(2, self.position, values.to(buffer.dtype))
        return self.buffers

    def tensors(self) -> list[Tensor]:
        return self.buffers


class StaticConvCache:
    """The last inputs of a LookbackLayer, zeros before the start of a row."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer

    def append(self, x: Tensor) -> Tensor:
        """(B, 1, D) new input -> (B, lookback + 1, D), cached ones first."""
        inputs = torch.cat([self.buffer.to(x.dtype), x], dim=1)
        self.buffer.copy_(inputs[:, 1:])
        return inputs

    def selected(self, rows: Tensor) -> "StaticConvCache":
        return StaticConvCache(self.buffer[rows])

    def tensors(self) -> list[Tensor]:
        return [self.buffer]
