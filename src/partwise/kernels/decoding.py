"""A decoder's step in one compiled call: all layers, for a few rows, over keys and values that stay where they are.

The kernel holds a copy of the weights in its own order; sums are float32. It takes the place of the model in
generation (`Decoder` is called and started as a `Transformer` is) for decoders of pre-norm blocks; `refusal` says what
else it does not serve.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from partwise.block import Block
from partwise.config import ConfigError
from partwise.kernels.library import team
from partwise.kernels.mlp import ACTIVATIONS
from partwise.kernels.packing import (
    LAYER_NORM,
    NO_NORM,
    ROOT_MEAN_SQUARE,
    Layer,
    Linear,
    Model,
    Norm,
    Store,
    library,
    pointers,
    whole,
)
from partwise.model import Transformer
from partwise.parts.attention import MultiHeadAttention
from partwise.parts.counts import NothingCounted
from partwise.parts.families import PositionLayer, StackEnds
from partwise.parts.layers import GroupRMSNorm
from partwise.parts.lookup import NothingLookedUp
from partwise.parts.mixing import Unmixed
from partwise.parts.mlp import MLP, GatedMLP
from partwise.parts.norms import OffsetRootMeanSquare, RootMeanSquare
from partwise.parts.positions import InterleavedRotary, LearnedTable, Rotary, SinusoidalTable
from partwise.parts.residual import FinalNorm, PreNormWiring

NORMS = (nn.LayerNorm, RootMeanSquare, OffsetRootMeanSquare, nn.Identity)
POSITIONS = (PositionLayer, LearnedTable, SinusoidalTable, Rotary, InterleavedRotary)
TOKENS = 48
"""Of a prompt that go through a layer together: enough to make the reading of its weights cheap."""


def refusal(model: Transformer) -> str | None:
    """Why the kernel cannot serve this model here, in words that end a sentence, or None."""
    if not all(each.is_cpu and each.dtype == torch.float32 for each in model.parameters()):
        return "it works in float32 on a CPU"
    if torch.is_autocast_enabled("cpu"):
        return "it has no autocast"
    reason = unlike(model)
    if reason is None and library() is None:
        return "there is no C++ compiler, or it failed (see above)"
    return reason


def unlike(model: Transformer) -> str | None:
    """What of the model the kernel does not know, or None."""
    if model.encoder is not None:
        return "the model reads a source"
    if type(model.lookup) is not NothingLookedUp:
        return f"it does not know lookup={model.config.lookup.name}"
    if type(model.counts) is not NothingCounted:
        return f"it does not know counts={model.config.counts.name}"
    if type(model.positions) not in POSITIONS:
        return f"it does not know positions={model.config.positions.name}"
    if type(model.residual) not in (StackEnds, FinalNorm):
        return f"it does not know residual={model.config.residual.name}"
    norms = [model.residual.norm] if isinstance(model.residual, FinalNorm) else []
    for block in model.blocks:
        assert isinstance(block, Block)
        reason = unlike_block(block)
        if reason is not None:
            return reason
        norms += block.residual.norms.values()  # type: ignore[operator]
    if any(type(norm) not in NORMS for norm in norms):
        return f"it does not know norm={model.config.norm.name}"
    return None


def unlike_block(block: Block) -> str | None:
    attention, ffn = block.attention, block.ffn
    if type(block.residual) is not PreNormWiring:
        return "it knows residual=pre alone"
    if type(block.mixing) is not Unmixed:
        return "it knows mixing=none alone"
    if type(attention) is not MultiHeadAttention:
        return "it knows attention=multihead alone"
    if attention.gate is not None or attention.value_residual is not None:
        return "it knows no attention.gate and no attention.value_residual"
    if not isinstance(ffn, MLP | GatedMLP) or ffn.kernel is None:
        return f"it knows perceptrons of {', '.join(ACTIVATIONS)} alone"
    return None


class Kept:
    """The keys and values of all places so far, and how many there are: a decoder's `States`."""

    def __init__(self, layers: list[Layer], batch: int, limit: int) -> None:
        W = library().W
        self.limit, self.length, self.batch, self.blocks = limit, 0, batch, -(-limit // W)
        shapes = [(batch, layer.kv_heads, self.blocks, W * layer.width) for layer in layers]
        self.keys = [torch.empty(shape) for shape in shapes]
        shapes = [(batch, layer.kv_heads, self.blocks, W * whole(layer.width, W)) for layer in layers]
        self.values = [torch.empty(shape) for shape in shapes]
        self.point()

    def point(self) -> None:
        self.at_keys, self.at_values = pointers(self.keys), pointers(self.values)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        used = -(-self.length // library().W)  # what lies behind has no values yet

        def selected(old: Tensor) -> Tensor:
            new = old.new_empty(len(rows), *old.shape[1:])
            new[:, :, :used] = old[rows, :, :used]
            return new

        self.keys, self.values = [selected(x) for x in self.keys], [selected(x) for x in self.values]
        self.batch = len(rows)
        self.point()

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        self.length = min(self.length, length)


class Decoder:
    """A model in generation, by the compiled kernel: logits of the last token alone, no gradients.

    It keeps the matrices that the model has now; with `half` as bfloat16 numbers, to which it rounds what they multiply
    too. That of the matrices should lose nothing: round the model before.
    Raises ConfigError for what `refusal` names.
    """

    def __init__(self, model: Transformer, half: bool = False) -> None:
        reason = refusal(model)
        if reason is not None:
            raise ConfigError(f"path=kernel cannot serve this model: {reason}; use path=auto")
        self.model, self.config, self.embed = model, model.config, model.embed
        self.store = Store(linears(model), half)
        matrices = iter(self.store.matrices)
        self.layers = [described(self.store, block, [next(matrices) for _ in range(4)]) for block in model.blocks]
        self.array = (Layer * len(self.layers))(*self.layers)
        ends = model.residual.norm if isinstance(model.residual, FinalNorm) else nn.Identity()
        turned = model.positions if isinstance(model.positions, Rotary) else None
        cosines, sines = turned.cos_sin(model.embed.weight) if turned else (None, None)
        self.struct = Model(
            layers=len(self.layers),
            width=model.config.d_model,
            half=half,
            max_in=max(matrix.inputs for matrix in self.store.matrices),
            pairs=0 if cosines is None else cosines.shape[1],
            interleaved=isinstance(model.positions, InterleavedRotary),
            cosines=self.store.address(cosines),
            sines=self.store.address(sines),
            last=norm(self.store, ends),
            head=next(matrices),
            layer=ctypes.addressof(self.array),
        )
        self.room = torch.empty(0)

    def start(self, batch: int, length: int | None = None, source: None = None) -> Kept:
        """Room for up to `length` positions, max_len where not given."""
        limit = min(length or self.config.max_len, self.config.max_len)
        return Kept(self.layers, batch, limit)

    @torch.no_grad()
    def __call__(self, tokens: Tensor, states: Kept | None = None, source: None = None) -> Tensor:
        """(B, T) ids -> (B, 1, V) logits of the last; without states the model's own (B, T, V).

        Raises ConfigError for a row that is too long.
        """
        if states is None:
            return self.model(tokens)
        T, chunk = tokens.shape[1], max(1, TOKENS // tokens.shape[0])
        if states.length + T > states.limit:
            raise ConfigError(
                f"{states.length + T} tokens do not fit max_len={states.limit}: shorten the text or raise max_len"
            )
        for start in range(0, T, chunk):
            logits = self.step(tokens[:, start : start + chunk], states, wanted=start + chunk >= T)
        cap = self.config.head_softcap
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return logits.unsqueeze(1)

    def step(self, tokens: Tensor, states: Kept, wanted: bool) -> Tensor:
        model, kernel, threads = self.model, library(), torch.get_num_threads()
        B, T = tokens.shape
        ids = torch.arange(states.length, states.length + T)
        x = model.embed(tokens)
        x = x * model.scale if model.scale != 1.0 else x
        x = model.embed_norm(model.positions.at_input(x, ids)).contiguous()  # (B, T, D)
        size = kernel.decoding_room(ctypes.byref(self.struct), B * T, states.blocks, threads)
        if len(self.room) < size:
            self.room = torch.empty(size)
        logits = torch.empty(B, self.struct.head.outputs)
        kernel.decoding_run(
            ctypes.byref(self.struct),
            *(B, T, states.length, wanted),
            *(x.data_ptr(), states.at_keys, states.at_values, states.blocks),
            *(self.room.data_ptr(), logits.data_ptr(), threads, team(), *openmp()),
        )
        states.length += T
        return logits[:, : self.config.vocab_size]


def linears(model: Transformer) -> list[Linear]:
    """Four of every block, in the order of their use, and the head."""
    found = list[Linear]()
    blocks: Any = model.blocks
    for block in blocks:
        attention, ffn = block.attention, block.ffn
        found += [
            query_key_value(attention),
            Linear(attention.out.weight, attention.out.bias),
            Linear(ffn.matrix().weight, ffn.matrix().bias, isinstance(ffn, GatedMLP)),
            Linear(ffn.down.weight, ffn.down.bias),
        ]
    return [*found, Linear(model.head.weight, model.head.bias)]


def query_key_value(attention: MultiHeadAttention) -> Linear:
    if attention.fused:
        return Linear(attention.qkv.weight, attention.qkv.bias)
    maps = attention.q, attention.k, attention.v
    bias = None if attention.q.bias is None else torch.cat([each.bias for each in maps])
    return Linear(torch.cat([each.weight for each in maps]), bias)


def described(store: Store, block: Any, matrices: list[Any]) -> Layer:
    attention, ffn = block.attention, block.ffn
    width, kv_heads = attention.width, attention.n_kv_heads
    heads = attention.out.in_features // width
    wholes = [each.width if isinstance(each, GroupRMSNorm) else width for each in (attention.q_norm, attention.k_norm)]
    return Layer(
        norm(store, block.residual.norms["attention"]),
        norm(store, block.residual.norms["ffn"]),
        norm(store, attention.q_norm),
        norm(store, attention.k_norm),
        *matrices,
        heads,
        kv_heads,
        width,
        *wholes,
        attention.window or 2**62,
        ACTIVATIONS.index(ffn.kernel),
        isinstance(ffn, GatedMLP),
        attention.scores.scale,
        attention.scores.softcap or 0.0,
        store.address(attention.scores.sinks),
    )


def norm(store: Store, layer: Any) -> Norm:
    if isinstance(layer, nn.Identity):
        return Norm(NO_NORM, None, None, 0.0)
    kind = LAYER_NORM if isinstance(layer, nn.LayerNorm) else ROOT_MEAN_SQUARE
    weight = 1 + layer.weight if isinstance(layer, OffsetRootMeanSquare) else layer.weight
    return Norm(kind, store.address(weight), store.address(getattr(layer, "bias", None)), layer.eps)


@lru_cache
def openmp() -> tuple[int | None, int | None]:
    """Where torch's own OpenMP tells a thread its number, and how many there are."""
    try:
        loaded = ctypes.CDLL(torch._C.__file__)
        names = loaded.omp_get_thread_num, loaded.omp_get_num_threads
    except (OSError, AttributeError):
        return None, None
    number, members = (ctypes.cast(name, ctypes.c_void_p).value for name in names)
    return number, members
