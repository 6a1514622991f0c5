"""Token shift and convolution: their equations, their starts, and where they must not look."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import partwise
from partwise.config import REGISTRY, ConfigError
from partwise.parts.families import Flow, PositionLayer, Site
from recipes import error, perturbed, tokens

EXACT = 1e-12
WIDTH, LENGTH = 5, 9
SIZES = {"vocab_size": 11, "max_len": 10, "d_model": 8, "n_layers": 2}
PARTS: list[dict[str, Any]] = [
    {"part": "shift"},
    {"part": "conv"},
    {"part": "conv", "width": 2, "residual": False},
    {"part": "conv", "width": 3, "activation": "silu"},
    {"part": "conv", "width": 12, "activation": "silu", "residual": False},
]
each_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: " ".join(map(str, part.values())))


def build(part: dict[str, Any], layer: int = 0) -> Any:
    options = {key: value for key, value in part.items() if key != "part"}
    return REGISTRY["mixing"][part["part"]].from_dict(options, prefix="mixing").build(Site(WIDTH, 3, 20, layer=layer))


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(layer: nn.Module) -> Any:
    with torch.no_grad():
        for number, parameter in enumerate(layer.double().parameters()):
            parameter.copy_(normal(*parameter.shape, seed=number + 5))
    return layer.eval()


def silu(u: Tensor) -> Tensor:
    return u / (1 + torch.exp(-u))


def by_the_equation(part: dict[str, Any], layer: Any, x: Tensor, segments: Tensor | None) -> Tensor:
    """One token and one place before it at a time."""
    y = torch.zeros_like(x)
    taps = torch.stack([layer.mu, 1 - layer.mu]) if part["part"] == "shift" else layer.taps
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for k, tap in enumerate(taps):
                if t - k >= 0 and (segments is None or segments[b, t - k] == segments[b, t]):
                    y[b, t] += tap * x[b, t - k]
    y = silu(y) if part.get("activation") == "silu" else y
    return x + y if part["part"] == "conv" and part.get("residual", True) else y


def cached(layer: Any, x: Tensor, segments: Tensor | None, cuts: list[int]) -> Tensor:
    state, found = layer.new_state(x.shape[0], x.shape[1], x), []
    for a, b in pairwise([0, *cuts, x.shape[1]]):
        known = None if segments is None else segments[:, :b]
        flow = Flow(PositionLayer(), torch.arange(a, b), past=a, segments=known, states=[state])
        found.append(layer(x[:, a:b], flow))
    return torch.cat(found, dim=1)


@torch.no_grad()
@each_part
@settings(max_examples=25)
@given(
    documents=st.none() | st.lists(st.lists(st.integers(1, LENGTH), min_size=1), min_size=2, max_size=2),
    padding=st.integers(0, 4),
    cuts=st.sets(st.integers(1, LENGTH - 1)),
)
def test_mixing(part: dict[str, Any], documents: list[list[int]] | None, padding: int, cuts: set[int]) -> None:
    """Over random documents and padding before them, at once and over random chunkings."""
    layer, x, segments = randomised(build(part)), normal(2, LENGTH, WIDTH), None
    layer.number = 0
    if documents is not None:
        rows = [[-1] * padding + [i for i, size in enumerate(row) for _ in range(size)] for row in documents]
        segments = torch.tensor([(row + [row[-1]] * LENGTH)[:LENGTH] for row in rows])
    expected = by_the_equation(part, layer, x, segments)
    whole = layer(x, Flow(PositionLayer(), torch.arange(LENGTH), segments=segments))
    assert error(whole, expected) <= EXACT
    assert error(cached(layer, x, segments, sorted(cuts)), whole) <= EXACT


def test_every_mixing_has_its_equation_here() -> None:
    written = {part["part"] for part in PARTS} | {"none"}
    assert {name for name, kind in REGISTRY["mixing"].items() if kind.__module__.startswith("partwise.")} == written


def test_no_mixing_is_the_identity() -> None:
    x = normal(2, 3, WIDTH)
    assert build({"part": "none"})(x, Flow(PositionLayer(), torch.arange(3))) is x


@torch.no_grad()
@pytest.mark.parametrize("width", [2, 3, 6])
def test_a_convolution_sees_its_width_and_nothing_else(width: int) -> None:
    layer, x = randomised(build({"part": "conv", "width": width})), normal(1, LENGTH, WIDTH)
    flow, changed = Flow(PositionLayer(), torch.arange(LENGTH)), x.clone()
    changed[:, 2] += 1
    moved = (layer(changed, flow) != layer(x, flow)).any(-1)[0]
    assert moved.tolist() == [2 <= t < 2 + width for t in range(LENGTH)]


def test_token_shift_starts_as_the_paper_says() -> None:
    for layer in range(3):
        mu = build({"part": "shift"}, layer).mu
        assert mu.tolist() == pytest.approx([(i / WIDTH) ** (1 - layer / 3) for i in range(WIDTH)], rel=1e-6)
        assert mu.dtype == torch.float32


@torch.no_grad()
@each_part
def test_a_convolution_starts_as_the_identity(part: dict[str, Any]) -> None:
    if part["part"] != "conv":
        return
    x, flow = normal(2, LENGTH, WIDTH), Flow(PositionLayer(), torch.arange(LENGTH))
    found, plain = build(part).double()(x, flow), part.get("residual", True) or part.get("activation") != "silu"
    assert torch.equal(found, x) if plain else error(found, silu(x)) <= EXACT
    config = {**SIZES, "encoder_layers": 1}
    models = [partwise.Transformer(partwise.ModelConfig.from_dict({**config, "mixing": m})) for m in ("none", part)]
    logits = [one(tokens(), source=tokens(shift=1)) for one in models]
    assert torch.equal(*logits) == plain


@torch.no_grad()
@each_part
@pytest.mark.parametrize("path", ["products", "fused"])
def test_packed_documents_and_padding_do_not_leak(part: dict[str, Any], path: str) -> None:
    """Change document A, and B stays bitwise equal, cached or not; and B is what it is alone."""
    model = perturbed(partwise.ModelConfig.from_dict({**SIZES, "mixing": part}))
    model.use_path(path)
    inputs = tokens(length=10)
    for first in (-1, 0):  # padding before a prompt, or a document
        segments = torch.tensor([[first] * 3 + [1] * 7, [first] * 5 + [1] * 5])
        whole = model(inputs, segments=segments)
        changed = torch.where(segments == first, (inputs + 4) % 11, inputs)
        again = model(changed, segments=segments)
        assert torch.equal(again[segments == 1], whole[segments == 1])
        assert not torch.equal(again[segments == first], whole[segments == first])
        for row, start in enumerate((3, 5)):
            alone = model(inputs[row : row + 1, start:])
            assert error(whole[row : row + 1, start:], alone) <= EXACT
        for cuts in ([4], [2, 6], list(range(1, 10))):
            found = []
            for text in (inputs, changed):
                states = model.start(2)
                calls = [model(text[:, a:b], states, segments=segments[:, a:b]) for a, b in pairwise([0, *cuts, 10])]
                found.append(torch.cat(calls, dim=1))
            assert error(found[0], whole) <= EXACT
            assert torch.equal(found[0][segments == 1], found[1][segments == 1])


@torch.no_grad()
@each_part
def test_a_padded_source_reads_as_the_source_alone(part: dict[str, Any]) -> None:
    values = {**SIZES, "mixing": part, "encoder_layers": 2, "padding_idx": 0}
    model = perturbed(partwise.ModelConfig.from_dict(values))
    source = 1 + tokens(length=5) % 10
    for before, after in ((0, 3), (2, 0), (2, 3)):
        padded = nn.functional.pad(source, (before, after))
        if before and type(model.encoder.positions).turns_heads:  # positions of a source count from its first place
            continue
        assert error(model(tokens(), source=padded), model(tokens(), source=source)) <= EXACT


def states_after(part: dict[str, Any], length: int) -> tuple[Any, Any, Tensor]:
    layer, x = randomised(build(part)), normal(3, LENGTH, WIDTH)
    layer.number = 0
    state = layer.new_state(3, LENGTH, x)
    layer(x[:, :length], Flow(PositionLayer(), torch.arange(length), states=[state]))
    return layer, state, x


@torch.no_grad()
@each_part
def test_states_go_back_or_say_that_they_cannot(part: dict[str, Any]) -> None:
    for length in range(1, LENGTH):
        for back in range(LENGTH):
            layer, state, x = states_after(part, length)
            rows, left = torch.tensor([2, 0, 0]), min(back, length)
            try:
                state.truncate(back)
            except ConfigError as refusal:
                assert f"length {back}" in str(refusal) and "start anew" in str(refusal)
                assert 0 < back < length and length > layer.reach  # only what was dropped cannot be had again
                continue
            state.select(rows)
            fresh = normal(3, 2, WIDTH, seed=4)
            flow = Flow(PositionLayer(), torch.arange(left, left + 2), past=left, states=[state])
            whole = torch.cat([x[rows, :left], fresh], dim=1)
            expected = layer(whole, Flow(PositionLayer(), torch.arange(left + 2)))[:, left:]
            assert error(layer(fresh, flow), expected) <= EXACT


@torch.no_grad()
def test_states_keep_only_what_a_later_place_may_see() -> None:
    for length in (1, 3, 8):
        _, state, _ = states_after({"part": "conv", "width": 4}, length)
        assert state.kept.shape == (3, min(3, length), WIDTH)
        assert state.kept.untyped_storage().nbytes() == state.kept.numel() * 8


@pytest.mark.parametrize("width", [0, 1, 1000])
def test_a_width_that_mixes_nothing_is_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=rf"mixing\.width={width}"):
        partwise.ModelConfig.from_dict({**SIZES, "mixing": {"part": "conv", "width": width}})
