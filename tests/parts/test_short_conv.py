"""Token shift and convolution: their equations, initialization and receptive fields."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import partwise
from backends import use_backends
from partwise.config import REGISTRY, ConfigError
from partwise.parts.contracts import ForwardContext, LayerContext, PositionLayer
from recipes import error, perturbed, tokens

EXACT = 1e-12
WIDTH, LENGTH = 5, 9
SIZES = {"vocab_size": 11, "context_length": 10, "d_model": 8, "n_layers": 2}
PARTS: list[dict[str, Any]] = [
    {"part": "token_shift"},
    {"part": "conv"},
    {"part": "conv", "kernel_size": 2, "residual": False},
    {"part": "conv", "kernel_size": 3, "activation": "silu"},
    {"part": "conv", "kernel_size": 12, "activation": "silu", "residual": False},
]
each_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: " ".join(map(str, part.values())))


def build(part: dict[str, Any], layer: int = 0) -> Any:
    options = {key: value for key, value in part.items() if key != "part"}
    return (
        REGISTRY["short_conv"][part["part"]]
        .from_dict(options, prefix="short_conv")
        .build(LayerContext(WIDTH, 3, 20, layer_index=layer))
    )


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomized(layer: nn.Module) -> Any:
    with torch.no_grad():
        for number, parameter in enumerate(layer.double().parameters()):
            parameter.copy_(normal(*parameter.shape, seed=number + 5))
    return layer.eval()


def silu(u: Tensor) -> Tensor:
    return u / (1 + torch.exp(-u))


def reference(part: dict[str, Any], layer: Any, x: Tensor, document_ids: Tensor | None) -> Tensor:
    """One token and one previous position at a time."""
    y = torch.zeros_like(x)
    taps = torch.stack([layer.mu, 1 - layer.mu]) if part["part"] == "token_shift" else layer.taps
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for k, tap in enumerate(taps):
                if t - k >= 0 and (document_ids is None or document_ids[b, t - k] == document_ids[b, t]):
                    y[b, t] += tap * x[b, t - k]
    y = silu(y) if part.get("activation") == "silu" else y
    return x + y if part["part"] == "conv" and part.get("residual", True) else y


def cached(layer: Any, x: Tensor, document_ids: Tensor | None, cuts: list[int]) -> Tensor:
    cache, found = layer.new_cache(x.shape[0], x.shape[1], x), []
    for a, b in pairwise([0, *cuts, x.shape[1]]):
        so_far = None if document_ids is None else document_ids[:, :b]
        ctx = ForwardContext(PositionLayer(), torch.arange(a, b), past_length=a, document_ids=so_far, caches=[cache])
        found.append(layer(x[:, a:b], ctx))
    return torch.cat(found, dim=1)


@torch.no_grad()
@each_part
@settings(max_examples=25)
@given(
    documents=st.none() | st.lists(st.lists(st.integers(1, LENGTH), min_size=1), min_size=2, max_size=2),
    padding=st.integers(0, 4),
    cuts=st.sets(st.integers(1, LENGTH - 1)),
)
def test_equations(part: dict[str, Any], documents: list[list[int]] | None, padding: int, cuts: set[int]) -> None:
    """The equations hold with random documents and start padding, in one call and in random cached chunks."""
    layer, x, document_ids = randomized(build(part)), normal(2, LENGTH, WIDTH), None
    layer.cache_index = 0
    if documents is not None:
        rows = [[-1] * padding + [i for i, size in enumerate(row) for _ in range(size)] for row in documents]
        document_ids = torch.tensor([(row + [row[-1]] * LENGTH)[:LENGTH] for row in rows])
    expected = reference(part, layer, x, document_ids)
    full = layer(x, ForwardContext(PositionLayer(), torch.arange(LENGTH), document_ids=document_ids))
    assert error(full, expected) <= EXACT
    assert error(cached(layer, x, document_ids, sorted(cuts)), full) <= EXACT


def test_every_short_conv_is_tested() -> None:
    tested = {part["part"] for part in PARTS} | {"none"}
    assert {name for name, kind in REGISTRY["short_conv"].items() if kind.__module__.startswith("partwise.")} == tested


def test_none_is_the_identity() -> None:
    x = normal(2, 3, WIDTH)
    assert build({"part": "none"})(x, ForwardContext(PositionLayer(), torch.arange(3))) is x


@torch.no_grad()
@pytest.mark.parametrize("kernel_size", [2, 3, 6])
def test_receptive_field_of_a_convolution(kernel_size: int) -> None:
    layer, x = randomized(build({"part": "conv", "kernel_size": kernel_size})), normal(1, LENGTH, WIDTH)
    ctx, changed = ForwardContext(PositionLayer(), torch.arange(LENGTH)), x.clone()
    changed[:, 2] += 1
    moved = (layer(changed, ctx) != layer(x, ctx)).any(-1)[0]
    assert moved.tolist() == [2 <= t < 2 + kernel_size for t in range(LENGTH)]


def test_token_shift_initialization() -> None:
    for layer in range(3):
        mu = build({"part": "token_shift"}, layer).mu
        assert mu.tolist() == pytest.approx([(i / WIDTH) ** (1 - layer / 3) for i in range(WIDTH)], rel=1e-6)
        assert mu.dtype == torch.float32


@torch.no_grad()
@each_part
def test_convolution_is_initially_the_identity(part: dict[str, Any]) -> None:
    if part["part"] != "conv":
        return
    x, ctx = normal(2, LENGTH, WIDTH), ForwardContext(PositionLayer(), torch.arange(LENGTH))
    found, plain = build(part).double()(x, ctx), part.get("residual", True) or part.get("activation") != "silu"
    assert torch.equal(found, x) if plain else error(found, silu(x)) <= EXACT
    config = {**SIZES, "encoder_layers": 1}
    models = [partwise.Transformer(partwise.ModelConfig.from_dict({**config, "short_conv": m})) for m in ("none", part)]
    logits = [one(tokens(), source=tokens(shift=1)) for one in models]
    assert torch.equal(*logits) == plain


@torch.no_grad()
@each_part
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_packed_documents_and_padding_do_not_leak(part: dict[str, Any], backend: str) -> None:
    """Changing document A does not change B bitwise, cached or not; and B equals a separate row."""
    model = perturbed(partwise.ModelConfig.from_dict({**SIZES, "short_conv": part}))
    use_backends(model, backend)
    inputs = tokens(length=10)
    for first in (-1, 0):  # padding before a prompt, or a document
        document_ids = torch.tensor([[first] * 3 + [1] * 7, [first] * 5 + [1] * 5])
        full = model(inputs, document_ids=document_ids)
        changed = torch.where(document_ids == first, (inputs + 4) % 11, inputs)
        again = model(changed, document_ids=document_ids)
        assert torch.equal(again[document_ids == 1], full[document_ids == 1])
        assert not torch.equal(again[document_ids == first], full[document_ids == first])
        for row, start in enumerate((3, 5)):
            alone = model(inputs[row : row + 1, start:])
            assert error(full[row : row + 1, start:], alone) <= EXACT
        for cuts in ([4], [2, 6], list(range(1, 10))):
            found = []
            for text in (inputs, changed):
                cache = model.new_cache(2)
                calls = [
                    model(text[:, a:b], cache, document_ids=document_ids[:, a:b]) for a, b in pairwise([0, *cuts, 10])
                ]
                found.append(torch.cat(calls, dim=1))
            assert error(found[0], full) <= EXACT
            assert torch.equal(found[0][document_ids == 1], found[1][document_ids == 1])


@torch.no_grad()
@each_part
def test_source_padding_has_no_effect(part: dict[str, Any]) -> None:
    values = {**SIZES, "short_conv": part, "encoder_layers": 2, "padding_idx": 0}
    model = perturbed(partwise.ModelConfig.from_dict(values))
    source = 1 + tokens(length=5) % 10
    for before, after in ((0, 3), (2, 0), (2, 3)):
        padded = nn.functional.pad(source, (before, after))
        if before and type(model.encoder.positions).rotates_heads:  # a source's positions include start padding
            continue
        assert error(model(tokens(), source=padded), model(tokens(), source=source)) <= EXACT


def cache_after(part: dict[str, Any], length: int) -> tuple[Any, Any, Tensor]:
    layer, x = randomized(build(part)), normal(3, LENGTH, WIDTH)
    layer.cache_index = 0
    cache = layer.new_cache(3, LENGTH, x)
    layer(x[:, :length], ForwardContext(PositionLayer(), torch.arange(length), caches=[cache]))
    return layer, cache, x


@torch.no_grad()
@each_part
def test_cache_truncates_or_raises(part: dict[str, Any]) -> None:
    for length in range(1, LENGTH):
        for target in range(LENGTH):
            layer, cache, x = cache_after(part, length)
            rows, start = torch.tensor([2, 0, 0]), min(target, length)
            try:
                cache.truncate(target)
            except ConfigError as error_:
                assert f"length {target}" in str(error_) and "start with a new cache" in str(error_)
                assert 0 < target < length and length > layer.lookback  # only dropped inputs cannot be restored
                continue
            cache.select(rows)
            new = normal(3, 2, WIDTH, seed=4)
            ctx = ForwardContext(PositionLayer(), torch.arange(start, start + 2), past_length=start, caches=[cache])
            full = torch.cat([x[rows, :start], new], dim=1)
            expected = layer(full, ForwardContext(PositionLayer(), torch.arange(start + 2)))[:, start:]
            assert error(layer(new, ctx), expected) <= EXACT


@torch.no_grad()
def test_cache_holds_only_the_lookback() -> None:
    for length in (1, 3, 8):
        _, cache, _ = cache_after({"part": "conv", "kernel_size": 4}, length)
        assert cache.buffer.shape == (3, min(3, length), WIDTH)
        assert cache.buffer.untyped_storage().nbytes() == cache.buffer.numel() * 8


@pytest.mark.parametrize("kernel_size", [0, 1, 1000])
def test_invalid_kernel_sizes(kernel_size: int) -> None:
    with pytest.raises(ConfigError, match=rf"short_conv\.kernel_size={kernel_size}"):
        partwise.ModelConfig.from_dict({**SIZES, "short_conv": {"part": "conv", "kernel_size": kernel_size}})
