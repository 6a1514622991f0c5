"""Every option of multi-head attention against its equation, one head and one query at a time, in float64."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import partwise
from attention_layers import (
    BACKENDS,
    EXACT,
    WIDTH,
    build,
    chunkings,
    each_backend,
    forward_context,
    normal,
    rms_normalized,
)
from backends import use_backends, use_layer_backend
from partwise.config import REGISTRY
from partwise.parts.attention.core import EAGER_MAX_QUERIES, AttentionCore
from partwise.parts.caches import SlidingWindowCache
from partwise.parts.contracts import ForwardContext, HeadLayout, LayerContext
from recipes import VOCAB, error, perturbed, tokens


def visible_keys(t: int, length: int, window: int | None, causal: bool) -> list[int]:
    return [s for s in range(length) if (s <= t or not causal) and (window is None or abs(t - s) < window)]


def reference(
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
            rms_normalized(t, E if qk_norm == "head" else t.shape[-1], w.get(f"{name}_norm.weight"), qk_norm_eps)
            for name, t in (("q", q), ("k", k))
        )
    assert ("q_norm.weight" in w) == (qk_norm != "none" and qk_norm_affine)
    if value_residual and first is not None:
        v = w["value_residual.own"] * v + w["value_residual.first"] * first
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            keys = visible_keys(t, x.shape[1], window, causal) if source is None else [*range(source.shape[1])]
            keys = [s for s in keys if padding is None or not padding[b, s]]
            for head in range(n_heads):
                q_slice, kv_slice = slice(head * E, (head + 1) * E), slice(head // groups * E, (head // groups + 1) * E)
                scores = torch.stack([q[b, t, q_slice] @ k[b, s, kv_slice] for s in keys]) / math.sqrt(E)
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                total = scores.exp().sum() + (w["scores.sinks"][head].exp() if sinks else 0)
                y = sum(weight * v[b, s, kv_slice] for weight, s in zip(scores.exp() / total, keys, strict=True))
                if gate != "none":
                    y = y * torch.sigmoid(w["gate.weight"][head if gate == "head" else q_slice] @ x[b, t])
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


@each_backend
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@each_option
def test_each_option_equals_its_equation(options: dict[str, Any], n_kv_heads: int, backend: str) -> None:
    if options.get("qk_norm") == "head":
        options = {**options, "head_dim": 3}
    options = {"n_heads": 4, "n_kv_heads": n_kv_heads, **options}
    layer, _ = build("multihead", **options)
    use_layer_backend(layer, backend)
    x = normal(2, 5, WIDTH)
    assert error(layer(x, forward_context(5)), reference(layer.state_dict(), x, **options)) <= EXACT


@each_backend
@pytest.mark.parametrize("n_kv_heads", [4, 1])
@pytest.mark.parametrize("more", [{}, {"window": 2, "gate": "head", "qk_norm": "full", "sinks": True}], ids=str)
def test_value_residual_mixes_the_first_layers_values(more: dict[str, Any], n_kv_heads: int, backend: str) -> None:
    options = {"n_heads": 4, "n_kv_heads": n_kv_heads, "value_residual": True, **more}
    layers = [build("multihead", layer, **options)[0] for layer in (0, 1, 2)]
    x, ctx = normal(2, 5, WIDTH), forward_context(5)
    first = x @ layers[0].state_dict()["v.weight"].T  # not the second layer's mixed values
    expected = x
    for number, layer in enumerate(layers):
        use_layer_backend(layer, backend)
        expected = reference(layer.state_dict(), expected, first=first if number else None, **options)
        x = layer(x, ctx)
    assert error(x, expected) <= EXACT
    assert not [name for name in layers[0].state_dict() if "residual" in name]  # the first layer has no value residual


def test_value_residual_is_initialized_to_one_half() -> None:
    recipe = REGISTRY["attention"]["multihead"].from_dict({"value_residual": True})
    heads = recipe.heads(WIDTH)
    state = recipe.build(LayerContext(WIDTH, 2, 8, heads, 1, first_layer_heads=heads)).state_dict()
    assert state["value_residual.own"] == state["value_residual.first"] == 0.5


@pytest.mark.parametrize("first", [{"part": "multihead", "n_kv_heads": 2}, "mla"], ids=str)
def test_value_residual_requires_values_of_equal_shape(first: Any) -> None:
    later = {"part": "multihead", "value_residual": True}
    settings = {"d_model": 8, "n_layers": 2, "context_length": 6, "positions": "none", "attention": [first, later]}
    with pytest.raises(partwise.ConfigError, match="value_residual=true needs values of the same shape"):
        partwise.ModelConfig.from_dict(settings)


def test_sinks_are_an_additional_softmax_column() -> None:
    layer = AttentionCore(6, 0.5, sinks=2).double()
    assert not layer.sinks.any()
    layer.sinks.data = torch.tensor([0.3, -1.0], dtype=torch.float64)
    q, k = normal(3, 2, 4, 6), normal(3, 2, 5, 6, seed=2)
    full_mask = forward_context(4, causal=False).mask(q[:, 0], 5)
    weights = layer(q, k, torch.eye(5, dtype=torch.float64).expand(3, 2, 5, 5), full_mask)
    wider = torch.cat([q @ k.transpose(2, 3) * 0.5, layer.sinks[:, None, None].expand(3, 2, 4, 1)], dim=-1)
    assert error(weights, wider.softmax(-1)[..., :5]) <= EXACT
    assert (weights.sum(-1) < 1).all() and (weights.sum(-1) > 0).all()


@each_backend
@pytest.mark.parametrize("window", range(2, 8))
def test_every_chunking_with_every_window_equals_uncached(window: int, backend: str) -> None:
    options = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "window": window}
    layer, positions = build("multihead", positions="rope", **options)
    use_layer_backend(layer, backend)
    x = normal(2, 7, WIDTH)
    with torch.no_grad():
        full = layer(x, forward_context(7, positions))
        for chunks in chunkings(7):
            cache = layer.new_cache(2, 8, x)
            found = [
                layer(x[:, a:b], ForwardContext(positions, torch.arange(a, b), a, caches=[cache])) for a, b in chunks
            ]
            assert error(torch.cat(found, 1), full) <= EXACT, chunks


@each_backend
def test_a_long_continuation_of_a_cache_equals_uncached(backend: str) -> None:
    """More than 64 queries over a cache use torch's kernel: its `is_causal` aligns the triangle to the upper left."""
    layer, positions = build("multihead", context_length=96, positions="rope", n_heads=2, head_dim=4)
    use_layer_backend(layer, backend)
    n_cached, n_new = 9, EAGER_MAX_QUERIES + 7
    x = normal(1, n_cached + n_new, WIDTH)
    assert n_cached + n_new <= positions.context_length
    with torch.no_grad():
        full, cache = layer(x, forward_context(n_cached + n_new, positions)), layer.new_cache(1, n_cached + n_new, x)
        ends = (0, n_cached, n_cached + n_new)
        found = [
            layer(x[:, a:b], ForwardContext(positions, torch.arange(a, b), a, caches=[cache]))
            for a, b in itertools.pairwise(ends)
        ]
    assert error(torch.cat(found, 1), full) <= EXACT


@pytest.mark.parametrize("window", [2, 5, 8])
def test_sliding_window_cache_holds_only_the_window(window: int) -> None:
    layer, _ = build("multihead", context_length=100, n_heads=4, n_kv_heads=2, window=window)
    x, past = normal(3, 40, WIDTH), 0
    cache = layer.new_cache(3, 100, x)
    for length in (1, 3, 20, 1, 1, 14):
        layer(x[:, past : past + length], forward_context(length, past_length=past, caches=[cache]))
        past += length
        cached = min(past, window - 1)
        assert cache.buffer.shape == (2, 3, 2, cached, 2)
        assert cache.buffer.untyped_storage().nbytes() == 2 * 3 * 2 * cached * 2 * 8  # not a view of a larger tensor
    other_cache = build("multihead", n_heads=4, window=9)[0].new_cache(3, 8, x)
    assert not isinstance(other_cache, SlidingWindowCache)  # the window covers all positions


@pytest.mark.parametrize("window", [2, 4, 6])
def test_sliding_window_cache_truncates_or_raises(window: int) -> None:
    layer, positions = build("multihead", positions="rope", n_heads=2, window=window)
    x = normal(2, 8, WIDTH)
    with torch.no_grad():
        full = layer(x, forward_context(8, positions))
        for seen_before in range(1, 8):
            for length in range(seen_before + 1):
                cache = layer.new_cache(2, 8, x)
                for a, b in itertools.pairwise(
                    sorted({0, seen_before // 2, seen_before})
                ):  # the cache must add them up
                    layer(x[:, a:b], ForwardContext(positions, torch.arange(a, b), a, caches=[cache]))
                first_cached = max(0, seen_before - window + 1)
                if 0 < length < seen_before and max(0, length - window + 1) < first_cached:
                    with pytest.raises(partwise.ConfigError, match="start with a new cache"):
                        cache.truncate(length)
                    continue
                cache.truncate(length)
                rest = layer(x[:, length:], ForwardContext(positions, torch.arange(length, 8), length, caches=[cache]))
                assert error(rest, full[:, length:]) <= EXACT


@pytest.mark.parametrize("document_ids", [False, True], ids=["one", "packed"])
@pytest.mark.parametrize("positions", ["none", "rope", "alibi", "t5"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("multihead", {"n_heads": 2, "n_kv_heads": 1, "scale": 0.9}),
        ("multihead", {"n_heads": 4, "n_kv_heads": 2, "window": 5, "qk_norm": "full", "gate": "element"}),
        ("multihead", {"n_heads": 2, "sinks": True, "softcap": 2.0}),
        ("mla", {"n_heads": 2}),
        ("differential", {"n_heads": 2}),
    ],
    ids=str,
)
def test_sdpa_and_eager_agree_in_values_and_gradients(
    kind: str, options: dict[str, Any], positions: str, document_ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more queries than `sdpa` computes eagerly, so that torch's kernel is tested."""
    length, calls, kernel = EAGER_MAX_QUERIES + 6, [], functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(args)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    layer, position_layer = build(kind, context_length=length, positions=positions, **{"head_dim": 4, **options})
    x = normal(2, length, WIDTH).requires_grad_()
    documents = (torch.arange(length) // 30).expand(2, -1) if document_ids else None
    found = []
    for backend in BACKENDS:
        use_layer_backend(layer, backend)
        y = layer(x, forward_context(length, position_layer, document_ids=documents))
        leaves = [x, *(parameter for module in (layer, position_layer) for parameter in module.parameters())]
        found.append([y, *torch.autograd.grad((y * normal(*y.shape, seed=3)).sum(), leaves)])
    assert bool(calls) == ("sinks" not in options)
    largest = max(gradient.abs().max() for gradient in found[0][1:])
    assert error(found[1][0], found[0][0]) <= EXACT
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert (one - other).abs().max() <= EXACT * largest


REQUIRED = {"factor": 2.0, "original_context_length": 4}
ATTENTIONS: list[dict[str, Any]] = [
    {"part": "multihead", "n_heads": 2, "n_kv_heads": 1},
    {"part": "multihead", "n_heads": 2, "window": 3, "sinks": True},
    {"part": "mla", "n_heads": 2, "rope_head_dim": 4},
    {"part": "differential", "n_heads": 2, "head_dim": 4},
]
each_attention = pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda options: options["part"])
OTHER_POSITIONS = sorted(REGISTRY["positions"].keys() - {"rope"})


def model_of(attention: Any, positions: str = "rope", **settings: Any) -> partwise.Transformer:
    fields = REGISTRY["positions"][positions].model_fields
    required = {name: REQUIRED[name] for name, field in fields.items() if field.is_required()}
    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layers": 2, "context_length": 10}
    parts = {"attention": attention, "positions": {"part": positions, **required}}
    return perturbed(partwise.ModelConfig.from_dict({**sizes, **parts, **settings}))


def test_every_attention_is_tested() -> None:
    own = {name for name, kind in REGISTRY["attention"].items() if kind.__module__.startswith("partwise.")}
    assert {attention["part"] for attention in ATTENTIONS} == own


@each_backend
@each_attention
def test_packed_documents_do_not_leak(attention: dict[str, Any], backend: str) -> None:
    model = model_of(attention)
    use_backends(model, backend)
    inputs, document_ids = tokens(2, 8), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [4, 4, 4, 4, 4, 7, 7, 7]])
    with torch.no_grad():
        before = model(inputs, document_ids=document_ids)
        for row, cut in ((0, 3), (1, 5)):
            other = inputs.clone()
            other[row, :cut] = (other[row, :cut] + 2) % VOCAB
            after = model(other, document_ids=document_ids)
            assert torch.equal(after[row, cut:], before[row, cut:])
            assert not torch.equal(after[row, :cut], before[row, :cut])
            assert error(before[row : row + 1, cut:], model(inputs[row : row + 1, cut:])) <= EXACT


@each_backend
@pytest.mark.parametrize(
    ("attention", "positions"),
    [*((each, "rope") for each in ATTENTIONS), *((ATTENTIONS[0], name) for name in OTHER_POSITIONS)],
    ids=lambda value: value if isinstance(value, str) else value["part"],
)
def test_left_padding_has_no_effect(positions: str, attention: dict[str, Any], backend: str) -> None:
    model = model_of(attention, positions)
    use_backends(model, backend)
    pads, inputs = [0, 1, 4], tokens(3, 8)
    document_ids = -(torch.arange(8) < torch.tensor(pads)[:, None]).long()
    with torch.no_grad():
        full = model(inputs, document_ids=document_ids)
        found = [full]
        for chunks in ([(0, 8)], [(0, 2), (2, 3), (3, 8)], [(i, i + 1) for i in range(8)]):
            cache = model.new_cache(3)
            found.append(
                torch.cat([model(inputs[:, a:b], cache, document_ids=document_ids[:, a:b]) for a, b in chunks], 1)
            )
        for row, pad in enumerate(pads):
            alone = model(inputs[row : row + 1, pad:])
            for logits in found:
                assert error(logits[row : row + 1, pad:], alone) <= EXACT


@each_backend
@pytest.mark.parametrize("window", [2, 3])
def test_windows_are_bidirectional_in_encoders(window: int, backend: str) -> None:
    attention = {"part": "multihead", "n_heads": 2, "window": window}
    layer, _ = build("multihead", n_heads=2, window=window)
    use_layer_backend(layer, backend)
    x = normal(2, 6, WIDTH)
    expected = reference(layer.state_dict(), x, causal=False, n_heads=2, window=window)
    assert error(layer(x, forward_context(6, causal=False)), expected) <= EXACT
    model = model_of(attention, n_layers=1, encoder_layers=1)
    with torch.no_grad():
        before = model.encoder(tokens(1, 7), None, [])
        for position in range(7):
            changed = tokens(1, 7)
            changed[0, position] = (changed[0, position] + 4) % VOCAB
            moved = (model.encoder(changed, None, []) != before).any(-1)[0]
            assert moved.tolist() == [abs(position - other) < window for other in range(7)]


CROSS = [{**options, "head_dim": 3, "window": None} for options in OPTIONS[1:]]


@each_backend
@pytest.mark.parametrize("options", CROSS, ids=str)
def test_cross_attention_equals_its_equation(options: dict[str, Any], backend: str) -> None:
    options = {"n_heads": 4, "n_kv_heads": 2, **options}
    recipe = REGISTRY["attention"]["multihead"].from_dict(options)
    layer = recipe.build_cross(LayerContext(WIDTH, 1, 8, HeadLayout(4, 2, 3))).double().eval()
    for number, parameter in enumerate(layer.parameters()):
        parameter.data = 0.4 * normal(*parameter.shape, seed=number)
    use_layer_backend(layer, backend)
    x, memory = normal(2, 4, WIDTH), normal(2, 5, WIDTH, seed=2)
    padding = torch.tensor([[False] * 5, [False, True, False, True, True]])
    found = layer(x, forward_context(4, memory=memory, memory_padding=padding))
    expected = reference(layer.state_dict(), x, source=memory, padding=padding, **options)
    assert error(found, expected) <= EXACT
    elsewhere = torch.where(padding[..., None], 7 - 3 * memory, memory)
    assert torch.equal(layer(x, forward_context(4, memory=elsewhere, memory_padding=padding)), found)


@each_backend
def test_source_is_encoded_once_and_its_padding_has_no_effect(backend: str) -> None:
    attention = {"part": "multihead", "n_heads": 2, "sinks": True}
    model = model_of(attention, "learned", encoder_layers=1, padding_idx=0)
    use_backends(model, backend)
    source, target = torch.tensor([[3, 5, 7, 0], [4, 1, 0, 0]]), tokens(2, 6)
    calls = []
    for block in model.blocks:
        block.cross.kv.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        full = model(target, source=source)
        assert len(calls) == 2
        cache = model.new_cache(2, source=source)
        cached = [model(target[:, position : position + 1], cache) for position in range(6)]
        assert len(calls) == 4  # once per layer, not once per token
        assert error(torch.cat(cached, 1), full) <= EXACT
        longer = nn.functional.pad(source, (0, 3))
        assert error(model(target, source=longer), full) <= EXACT
        rows = torch.tensor([1, 1, 0])
        cache.select(rows)
        cache.truncate(2)
        assert error(model(target[rows, 2:], cache), full[rows, 2:]) <= EXACT
        assert len(calls) == 6
