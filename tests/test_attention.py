"""Every option of attention against its equation, written out one head and one query at a time, in float64."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import partwise
from partwise.config import REGISTRY
from partwise.parts.families import Flow, Heads, PositionLayer, Site
from partwise.parts.memories import Window
from partwise.parts.scores import FEW_QUERIES, Scores
from recipes import VOCAB, error, perturbed, tokens

EXACT = 1e-12
WIDTH = 8
PATHS = ["products", "fused"]
each_path = pytest.mark.parametrize("path", PATHS)


def build(
    kind: str, layer: int = 0, max_len: int = 8, positions: str = "none", **options: Any
) -> tuple[nn.Module, Any]:
    """A layer and positions with random values in float64, the layer after a first one like itself."""
    recipe = REGISTRY["attention"][kind].from_dict(options)
    heads = recipe.heads(WIDTH)
    site = Site(WIDTH, 2, max_len, heads, layer, first=heads)
    made = recipe.build(site), REGISTRY["positions"][positions].from_dict({}).build(site)
    generator = torch.Generator().manual_seed(layer)
    for module in made:
        for parameter in module.double().eval().parameters():
            parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return made


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flow_of(length: int, positions: PositionLayer | None = None, **options: Any) -> Flow:
    return Flow(positions or PositionLayer(), torch.arange(length), **options)


def normalised(x: Tensor, width: int, weight: Tensor | None, eps: float) -> Tensor:
    pieces = [piece / torch.sqrt((piece**2).mean(-1, keepdim=True) + eps) for piece in x.split(width, dim=-1)]
    return torch.cat(pieces if weight is None else [weight * piece for piece in pieces], dim=-1)


def seen(t: int, length: int, window: int | None, causal: bool) -> list[int]:
    return [s for s in range(length) if (s <= t or not causal) and (window is None or abs(t - s) < window)]


def written_out(
    w: dict[str, Tensor],
    x: Tensor,
    *,
    source: Tensor | None = None,
    first: Tensor | None = None,
    causal: bool = True,
    padding: Tensor | None = None,
    n_heads: int,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    qk_norm: str = "none",
    qk_norm_affine: bool = True,
    qk_norm_eps: float = 1e-6,
    gate: str = "none",
    value_residual: bool = False,
) -> Tensor:
    """The equation of `multihead`; `first` holds the first layer's values (B, T, K * E)."""
    E, groups = head_dim or WIDTH // n_heads, n_heads // (n_kv_heads or n_heads)
    kv_source = x if source is None else source
    q, k, v = x @ w["q.weight"].T, kv_source @ w["k.weight"].T, kv_source @ w["v.weight"].T
    if qk_norm != "none":
        q, k = (
            normalised(t, E if qk_norm == "head" else t.shape[-1], w.get(f"{name}_norm.weight"), qk_norm_eps)
            for name, t in (("q", q), ("k", k))
        )
    assert ("q_norm.weight" in w) == (qk_norm != "none" and qk_norm_affine)
    if value_residual and first is not None:
        v = w["value_residual.own"] * v + w["value_residual.first"] * first
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            places = seen(t, x.shape[1], window, causal) if source is None else [*range(source.shape[1])]
            places = [s for s in places if padding is None or not padding[b, s]]
            for head in range(n_heads):
                own, its = slice(head * E, (head + 1) * E), slice(head // groups * E, (head // groups + 1) * E)
                scores = torch.stack([q[b, t, own] @ k[b, s, its] for s in places]) / math.sqrt(E)
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                total = scores.exp().sum() + (w["scores.sinks"][head].exp() if sinks else 0)
                y = sum(weight * v[b, s, its] for weight, s in zip(scores.exp() / total, places, strict=True))
                if gate != "none":
                    y = y * torch.sigmoid(w["gate.weight"][head if gate == "head" else own] @ x[b, t])
                heads.append(y)
            rows.append(w["out.weight"] @ torch.cat(heads))
    return torch.stack(rows).view(*x.shape[:2], -1)


OPTIONS: list[dict[str, Any]] = [
    {"window": 3},
    {"softcap": 0.7},
    {"sinks": True},
    {"qk_norm": "head"},
    {"qk_norm": "full", "qk_norm_eps": 0.3},
    {"qk_norm": "head", "qk_norm_affine": False},
    {"gate": "head"},
    {"gate": "element"},
    {"window": 2, "softcap": 1.5, "sinks": True, "qk_norm": "full", "gate": "element", "head_dim": 3},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


@each_path
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@each_option
def test_each_option_is_its_equation(options: dict[str, Any], n_kv_heads: int, path: str) -> None:
    if options.get("qk_norm") == "head":
        options = {**options, "head_dim": 3}
    options = {"n_heads": 4, "n_kv_heads": n_kv_heads, **options}
    layer, _ = build("multihead", **options)
    layer.use_path(path)
    x = normal(2, 5, WIDTH)
    assert error(layer(x, flow_of(5)), written_out(layer.state_dict(), x, **options)) <= EXACT


@each_path
@pytest.mark.parametrize("n_kv_heads", [4, 1])
@pytest.mark.parametrize("more", [{}, {"window": 2, "gate": "head", "qk_norm": "full", "sinks": True}], ids=str)
def test_value_residual_mixes_the_first_layers_values(more: dict[str, Any], n_kv_heads: int, path: str) -> None:
    options = {"n_heads": 4, "n_kv_heads": n_kv_heads, "value_residual": True, **more}
    layers = [build("multihead", layer, **options)[0] for layer in (0, 1, 2)]
    x, flow = normal(2, 5, WIDTH), flow_of(5)
    first = x @ layers[0].state_dict()["v.weight"].T  # not what the second layer mixes, either
    expected = x
    for number, layer in enumerate(layers):
        layer.use_path(path)
        expected = written_out(layer.state_dict(), expected, first=first if number else None, **options)
        x = layer(x, flow)
    assert error(x, expected) <= EXACT
    assert not [name for name in layers[0].state_dict() if "residual" in name]  # the first layer has nothing to mix


def test_value_residual_starts_half_and_half() -> None:
    recipe = REGISTRY["attention"]["multihead"].from_dict({"value_residual": True})
    heads = recipe.heads(WIDTH)
    state = recipe.build(Site(WIDTH, 2, 8, heads, 1, first=heads)).state_dict()
    assert state["value_residual.own"] == state["value_residual.first"] == 0.5


@pytest.mark.parametrize("first", [{"part": "multihead", "n_kv_heads": 2}, "latent"], ids=str)
def test_value_residual_needs_values_of_its_form(first: Any) -> None:
    later = {"part": "multihead", "value_residual": True}
    settings = {"d_model": 8, "n_layers": 2, "max_len": 6, "positions": "none", "attention": [first, later]}
    with pytest.raises(partwise.ConfigError, match="value_residual=true needs the first layer's values"):
        partwise.ModelConfig.from_dict(settings)


def test_sinks_are_one_more_column_of_the_softmax() -> None:
    layer = Scores(0.5, None, 2, 0.0).double()
    assert not layer.sinks.any()
    layer.sinks.data = torch.tensor([0.3, -1.0], dtype=torch.float64)
    q, k = normal(3, 2, 4, 6), normal(3, 2, 5, 6, seed=2)
    everything = flow_of(4, causal=False).sight(q[:, 0], 5)
    weights = layer(q, k, torch.eye(5, dtype=torch.float64).expand(3, 2, 5, 5), everything)
    wider = torch.cat([q @ k.transpose(2, 3) * 0.5, layer.sinks[:, None, None].expand(3, 2, 4, 1)], dim=-1)
    assert error(weights, wider.softmax(-1)[..., :5]) <= EXACT
    assert (weights.sum(-1) < 1).all() and (weights.sum(-1) > 0).all()


def chunkings(length: int) -> Iterator[list[tuple[int, int]]]:
    for bits in range(2 ** (length - 1)):
        yield [*pairwise([0, *(i + 1 for i in range(length - 1) if bits >> i & 1), length])]


@each_path
@pytest.mark.parametrize("window", range(2, 8))
def test_every_chunking_with_every_window_is_the_whole(window: int, path: str) -> None:
    options = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "window": window}
    layer, positions = build("multihead", positions="rope", **options)
    layer.use_path(path)
    x = normal(2, 7, WIDTH)
    with torch.no_grad():
        whole = layer(x, flow_of(7, positions))
        for chunks in chunkings(7):
            state = layer.new_state(2, 8, x)
            found = [layer(x[:, a:b], Flow(positions, torch.arange(a, b), a, states=[state])) for a, b in chunks]
            assert error(torch.cat(found, 1), whole) <= EXACT, chunks


@pytest.mark.parametrize("window", [2, 5, 8])
def test_a_windows_cache_holds_only_the_window(window: int) -> None:
    layer, _ = build("multihead", max_len=100, n_heads=4, n_kv_heads=2, window=window)
    x, past = normal(3, 40, WIDTH), 0
    state = layer.new_state(3, 100, x)
    for length in (1, 3, 20, 1, 1, 14):
        layer(x[:, past : past + length], flow_of(length, past=past, states=[state]))
        past += length
        kept = min(past, window - 1)
        assert state.buffer.shape == (2, 3, 2, kept, 2)
        assert state.buffer.untyped_storage().nbytes() == 2 * 3 * 2 * kept * 2 * 8  # no view of something larger
    assert not isinstance(build("multihead", n_heads=4, window=9)[0].new_state(3, 8, x), Window)  # all fits


@pytest.mark.parametrize("window", [2, 4, 6])
def test_a_window_goes_back_as_far_as_it_knows(window: int) -> None:
    layer, positions = build("multihead", positions="rope", n_heads=2, window=window)
    x = normal(2, 8, WIDTH)
    with torch.no_grad():
        whole = layer(x, flow_of(8, positions))
        for seen_before in range(1, 8):
            for length in range(seen_before + 1):
                state = layer.new_state(2, 8, x)
                layer(x[:, :seen_before], Flow(positions, torch.arange(seen_before), states=[state]))
                kept_from = max(0, seen_before - window + 1)
                if 0 < length < seen_before and max(0, length - window + 1) < kept_from:
                    with pytest.raises(partwise.ConfigError, match="start anew"):
                        state.truncate(length)
                    continue
                state.truncate(length)
                rest = layer(x[:, length:], Flow(positions, torch.arange(length, 8), length, states=[state]))
                assert error(rest, whole[:, length:]) <= EXACT


@pytest.mark.parametrize("segments", [False, True], ids=["one", "packed"])
@pytest.mark.parametrize("positions", ["none", "rope", "alibi", "t5"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("multihead", {"n_heads": 2, "n_kv_heads": 1}),
        ("multihead", {"n_heads": 4, "n_kv_heads": 2, "window": 5, "qk_norm": "full", "gate": "element"}),
        ("multihead", {"n_heads": 2, "sinks": True, "softcap": 2.0}),
        ("latent", {"n_heads": 2}),
        ("differential", {"n_heads": 2}),
    ],
    ids=str,
)
def test_fused_and_products_agree_in_values_and_gradients(
    kind: str, options: dict[str, Any], positions: str, segments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over more queries than the fused path leaves to products, so that torch's kernel is what is compared."""
    length, called, kernel = FEW_QUERIES + 6, [], functional.scaled_dot_product_attention

    def counted(*args: Any, **named: Any) -> Tensor:
        called.append(args)
        return kernel(*args, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    layer, places = build(kind, max_len=length, positions=positions, **{"head_dim": 4, **options})
    x = normal(2, length, WIDTH).requires_grad_()
    documents = (torch.arange(length) // 30).expand(2, -1) if segments else None
    found = []
    for path in PATHS:
        layer.use_path(path)
        y = layer(x, flow_of(length, places, segments=documents))
        leaves = [x, *(parameter for module in (layer, places) for parameter in module.parameters())]
        found.append([y, *torch.autograd.grad((y * normal(*y.shape, seed=3)).sum(), leaves)])
    assert bool(called) == ("sinks" not in options)
    largest = max(gradient.abs().max() for gradient in found[0][1:])
    assert error(found[1][0], found[0][0]) <= EXACT
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert (one - other).abs().max() <= EXACT * largest


NEEDED = {"factor": 2.0, "original_length": 4}
ATTENTIONS: list[dict[str, Any]] = [
    {"part": "multihead", "n_heads": 2, "n_kv_heads": 1},
    {"part": "multihead", "n_heads": 2, "window": 3, "sinks": True},
    {"part": "latent", "n_heads": 2, "rope_dim": 4},
    {"part": "differential", "n_heads": 2, "head_dim": 4},
]
each_attention = pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda options: options["part"])
each_position = pytest.mark.parametrize("positions", sorted(REGISTRY["positions"]))


def model_of(attention: Any, positions: str = "rope", **settings: Any) -> partwise.Transformer:
    fields = REGISTRY["positions"][positions].model_fields
    needed = {name: NEEDED[name] for name, field in fields.items() if field.is_required()}
    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layers": 2, "max_len": 10}
    parts = {"attention": attention, "positions": {"part": positions, **needed}}
    return perturbed(partwise.ModelConfig.from_dict({**sizes, **parts, **settings}))


def test_every_kind_of_attention_stands_in_the_list() -> None:
    own = {name for name, kind in REGISTRY["attention"].items() if kind.__module__.startswith("partwise.")}
    assert {attention["part"] for attention in ATTENTIONS} == own


@each_path
@each_attention
def test_packed_documents_do_not_leak(attention: dict[str, Any], path: str) -> None:
    model = model_of(attention)
    model.use_path(path)
    inputs, segments = tokens(2, 8), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [4, 4, 4, 4, 4, 7, 7, 7]])
    with torch.no_grad():
        before = model(inputs, segments=segments)
        for row, cut in ((0, 3), (1, 5)):
            other = inputs.clone()
            other[row, :cut] = (other[row, :cut] + 2) % VOCAB
            after = model(other, segments=segments)
            assert torch.equal(after[row, cut:], before[row, cut:])
            assert not torch.equal(after[row, :cut], before[row, :cut])
            assert error(before[row : row + 1, cut:], model(inputs[row : row + 1, cut:])) <= EXACT


@each_path
@each_attention
@each_position
def test_left_padding_changes_nothing(positions: str, attention: dict[str, Any], path: str) -> None:
    model = model_of(attention, positions)
    model.use_path(path)
    pads, inputs = [0, 1, 4], tokens(3, 8)
    segments = -(torch.arange(8) < torch.tensor(pads)[:, None]).long()
    with torch.no_grad():
        whole = model(inputs, segments=segments)
        found = [whole]
        for chunks in ([(0, 8)], [(0, 2), (2, 3), (3, 8)], [(i, i + 1) for i in range(8)]):
            states = model.start(3)
            found.append(torch.cat([model(inputs[:, a:b], states, segments=segments[:, a:b]) for a, b in chunks], 1))
        for row, pad in enumerate(pads):
            alone = model(inputs[row : row + 1, pad:])
            for logits in found:
                assert error(logits[row : row + 1, pad:], alone) <= EXACT


@each_path
@pytest.mark.parametrize("window", [2, 3])
def test_an_encoders_window_looks_both_ways(window: int, path: str) -> None:
    attention = {"part": "multihead", "n_heads": 2, "window": window}
    layer, _ = build("multihead", n_heads=2, window=window)
    layer.use_path(path)
    x = normal(2, 6, WIDTH)
    expected = written_out(layer.state_dict(), x, causal=False, n_heads=2, window=window)
    assert error(layer(x, flow_of(6, causal=False)), expected) <= EXACT
    model = model_of(attention, n_layers=1, encoder_layers=1)
    with torch.no_grad():
        before = model.encoder(tokens(1, 7), None, [])
        for place in range(7):
            changed = tokens(1, 7)
            changed[0, place] = (changed[0, place] + 4) % VOCAB
            moved = (model.encoder(changed, None, []) != before).any(-1)[0]
            assert moved.tolist() == [abs(place - other) < window for other in range(7)]


CROSS = [{**options, "head_dim": 3, "window": None} for options in OPTIONS[1:]]


@each_path
@pytest.mark.parametrize("options", CROSS, ids=str)
def test_cross_attention_is_its_equation_over_the_source(options: dict[str, Any], path: str) -> None:
    options = {"n_heads": 4, "n_kv_heads": 2, **options}
    recipe = REGISTRY["attention"]["multihead"].from_dict(options)
    layer = recipe.build_cross(Site(WIDTH, 1, 8, Heads(4, 2, 3))).double().eval()
    for number, parameter in enumerate(layer.parameters()):
        parameter.data = 0.4 * normal(*parameter.shape, seed=number)
    layer.use_path(path)
    x, memory = normal(2, 4, WIDTH), normal(2, 5, WIDTH, seed=2)
    padding = torch.tensor([[False] * 5, [False, True, False, True, True]])
    found = layer(x, flow_of(4, memory=memory, memory_padding=padding))
    expected = written_out(layer.state_dict(), x, source=memory, padding=padding, **options)
    assert error(found, expected) <= EXACT
    elsewhere = torch.where(padding[..., None], 7 - 3 * memory, memory)
    assert torch.equal(layer(x, flow_of(4, memory=elsewhere, memory_padding=padding)), found)


@each_path
def test_the_source_is_read_once_and_its_padding_never(path: str) -> None:
    attention = {"part": "multihead", "n_heads": 2, "sinks": True}
    model = model_of(attention, "learned", encoder_layers=1, padding_idx=0)
    model.use_path(path)
    source, target = torch.tensor([[3, 5, 7, 0], [4, 1, 0, 0]]), tokens(2, 6)
    calls = []
    for block in model.blocks:
        block.cross.kv.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        whole = model(target, source=source)
        assert len(calls) == 2
        states = model.start(2, source=source)
        cached = [model(target[:, place : place + 1], states) for place in range(6)]
        assert len(calls) == 4  # once per layer, not once per token
        assert error(torch.cat(cached, 1), whole) <= EXACT
        longer = nn.functional.pad(source, (0, 3))
        assert error(model(target, source=longer), whole) <= EXACT
        rows = torch.tensor([1, 1, 0])
        states.select(rows)
        states.truncate(2)
        assert error(model(target[rows, 2:], states), whole[rows, 2:]) <= EXACT
        assert len(calls) == 6
