"""MLA and differential attention against their equations and against transformers."""

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import partwise
from attention_layers import EXACT, WIDTH, build, chunkings, each_backend, forward_context, normal, rms_normalized
from backends import use_layer_backend
from partwise.config import REGISTRY
from partwise.parts.contracts import ForwardContext, PositionLayer
from recipes import error

NEAR = 1e-10  # to transformers


def rotated(x: Tensor, positions: PositionLayer, t: int) -> Tensor:
    return positions.on_heads(x[None, None, None], torch.tensor([t]))[0, 0, 0]


def softmax(scores: list[Tensor]) -> Tensor:
    exponents = torch.stack(scores).exp()
    return exponents / exponents.sum()


def mla_reference(
    w: dict[str, Tensor], x: Tensor, positions: PositionLayer, n_heads: int, widths: tuple[int, int]
) -> Tensor:
    """One head, one query and one key at a time; `widths`: head dimensions without and with RoPE."""
    c = rms_normalized(x @ w["kv_down.weight"].T, len(w["kv_down.weight"]), w["kv_norm.weight"], 1e-6)
    q_input = x
    if "q_down.weight" in w:
        q_input = rms_normalized(x @ w["q_down.weight"].T, len(w["q_down.weight"]), w["q_norm.weight"], 1e-6)
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            for head in range(n_heads):
                wq, wk, wv = (w[f"{name}.weight"].chunk(n_heads)[head] for name in "qkv")
                q, q_rope = (wq @ q_input[b, t]).split(widths)
                bias = positions.on_scores(torch.tensor([t]), torch.arange(t + 1), x)  # (H, 1, t + 1)
                scores = []
                for s in range(t + 1):
                    k_rope = rotated(w["k_rope.weight"] @ x[b, s], positions, s)
                    score = (q @ (wk @ c[b, s]) + rotated(q_rope, positions, t) @ k_rope) / math.sqrt(sum(widths))
                    scores.append(score if bias is None else score + bias[head, 0, s])
                heads.append(sum(weight * (wv @ c[b, s]) for s, weight in enumerate(softmax(scores))))
            rows.append(w["out.weight"] @ torch.cat(heads))
    return torch.stack(rows).view(*x.shape[:2], -1)


@each_backend
@pytest.mark.parametrize("q_lora_rank", [None, 5])
@pytest.mark.parametrize("positions", ["none", "rope", "alibi"])
def test_mla_equals_its_equation(positions: str, q_lora_rank: int | None, backend: str) -> None:
    sizes = {"head_dim": 3, "rope_head_dim": 4, "v_head_dim": 5, "kv_lora_rank": 6, "q_lora_rank": q_lora_rank}
    layer, position_layer = build("mla", positions=positions, n_heads=2, **sizes)
    use_layer_backend(layer, backend)
    x = normal(2, 5, WIDTH)
    assert (
        error(
            layer(x, forward_context(5, position_layer)),
            mla_reference(layer.state_dict(), x, position_layer, 2, (3, 4)),
        )
        <= EXACT
    )


LAYOUTS = [  # n_heads; head dimensions without RoPE, with RoPE, of the values; kv_lora_rank, q_lora_rank
    (2, (6, 4, 5), 7, None),
    (4, (4, 2, 4), 16, 6),
    (3, (2, 8, 10), 3, 4),
]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def options_of(layout: Any) -> dict[str, Any]:
    n_heads, (nope, rope, value), rank, q_lora_rank = layout
    widths = {"head_dim": nope, "rope_head_dim": rope, "v_head_dim": value}
    return {"n_heads": n_heads, "kv_lora_rank": rank, "q_lora_rank": q_lora_rank, **widths}


@each_backend
@each_layout
def test_every_chunking_equals_uncached(layout: Any, backend: str) -> None:
    layer, positions = build("mla", positions="rope", **options_of(layout))
    use_layer_backend(layer, backend)
    x = normal(2, 6, WIDTH)
    with torch.no_grad():
        full = layer(x, forward_context(6, positions))
        for chunks in chunkings(6):
            cache = layer.new_cache(2, 8, x)
            found = [
                layer(x[:, a:b], ForwardContext(positions, torch.arange(a, b), a, caches=[cache])) for a, b in chunks
            ]
            assert error(torch.cat(found, 1), full) <= EXACT, chunks


@each_layout
def test_mla_cache_holds_only_latents_and_rope_keys(layout: Any) -> None:
    layer, _ = build("mla", **options_of(layout))
    numbers = sum(buffer.untyped_storage().nbytes() for buffer in layer.new_cache(3, 50, normal(1)).buffers) // 8
    assert numbers == 3 * 50 * (layout[2] + layout[1][1])


def test_cache_size_of_the_paper() -> None:
    """DeepSeek-V2: 4.5 head_dim elements per position and layer, compared to 2 n_heads head_dim for multihead attention."""
    recipe = REGISTRY["attention"]["mla"].from_dict({"n_heads": 128, "head_dim": 128, "q_lora_rank": 1536})
    with torch.device("meta"):
        layer = recipe.build(partwise.parts.contracts.LayerContext(5120, 60, 4096, recipe.heads(5120)))
        cache = layer.new_cache(1, 1, torch.zeros(1))
    assert sum(buffer.numel() for buffer in cache.buffers) == 4.5 * 128 == 576
    d, heads, nope, rope, value, rank, q_lora_rank = 5120, 128, 128, 64, 128, 512, 1536
    maps = d * q_lora_rank + q_lora_rank * heads * (nope + rope) + d * (rank + rope) + rank * heads * (nope + value)
    assert sum(p.numel() for p in layer.parameters()) == maps + heads * value * d + rank + q_lora_rank


@each_backend
@each_layout
def test_absorbed_and_expanded_agree_in_values_and_gradients(layout: Any, backend: str) -> None:
    layer, positions = build("mla", positions="rope", **options_of(layout))
    use_layer_backend(layer, backend)
    n_heads, (nope, rope, _), rank, _ = layout
    latents, leaves = normal(2, 1, 6, rank + rope).requires_grad_(), [layer.up.weight]
    for queries in (1, 3, 6):
        q = normal(2, n_heads, queries, nope, seed=2).requires_grad_()
        q_rope = normal(2, n_heads, queries, rope, seed=3).requires_grad_()
        mask = forward_context(queries, positions, past_length=6 - queries).mask(normal(2, queries, WIDTH), 6)
        found = []
        for form in (layer.expanded, layer.absorbed):
            y = form(q, q_rope, latents, mask)
            found.append([y, *torch.autograd.grad((y * normal(*y.shape)).sum(), [q, q_rope, latents, *leaves])])
        for one, other in zip(*found, strict=True):
            assert error(one, other) <= EXACT


@each_layout
def test_the_form_with_fewer_flops_is_used(layout: Any) -> None:
    layer, positions = build("mla", **options_of(layout))
    use_layer_backend(layer, "eager")
    n_heads, (nope, rope, value), rank, _ = layout
    outcomes = set()
    for queries, keys in ((1, 1), (1, 2), (1, 9), (2, 9), (4, 9), (6, 9), (9, 9)):
        mask = forward_context(queries, positions, past_length=keys - queries).mask(normal(1, queries, WIDTH), keys)
        counts = []
        for form in (layer.absorbed, layer.expanded):
            with FlopCounterMode(display=False) as counter:
                q, q_rope = normal(1, n_heads, queries, nope), normal(1, n_heads, queries, rope)
                form(q, q_rope, normal(1, 1, keys, rank + rope), mask)
            counts.append(counter.get_total_flops())
        assert layer.absorbing_is_cheaper(queries, keys) == (counts[0] < counts[1])
        outcomes.add(counts[0] < counts[1])
    assert outcomes == ({True} if 2 * rank < nope + value else {True, False})  # always cheaper with a small rank


def test_errors_of_invalid_options() -> None:
    sizes = {"d_model": 8, "context_length": 6}
    for attention, message in (
        ({"part": "mla", "rope_head_dim": 3}, "rope_head_dim=3 is odd"),
        ({"part": "mla", "n_heads": 3}, "n_heads=3 does not divide d_model=8"),
        ({"part": "mla", "kv_lora_rank": 1}, "kv_lora_rank"),
        ({"part": "differential", "n_heads": 8}, "n_heads=8, with two queries per head, does not divide d_model=8"),
        ({"part": "differential", "n_heads": 2, "n_kv_heads": 4}, "n_kv_heads=4 does not divide"),
    ):
        with pytest.raises(partwise.ConfigError, match=message):
            partwise.ModelConfig.from_dict({**sizes, "attention": attention})
    for part in ("mla", "differential"):
        with pytest.raises(partwise.ConfigError, match=f"attention={part} has no cross-attention"):
            partwise.ModelConfig.from_dict({**sizes, "attention": part, "encoder_layers": 1})


def test_rope_requires_equal_head_dims_in_all_layers() -> None:
    latent = {"part": "mla", "rope_head_dim": 4}
    sizes = {"d_model": 16, "n_layers": 2, "context_length": 6}
    partwise.ModelConfig.from_dict({**sizes, "attention": [latent, {"part": "multihead", "n_kv_heads": 2}]})
    with pytest.raises(partwise.ConfigError, match=r"same attention\.head_dim"):
        partwise.ModelConfig.from_dict({**sizes, "attention": [latent, {"part": "multihead", "n_heads": 2}]})
    with pytest.raises(partwise.ConfigError, match=r"same attention\.n_heads"):
        attention = [latent, {"part": "multihead", "n_heads": 2}]
        partwise.ModelConfig.from_dict({**sizes, "attention": attention, "positions": "alibi"})


def published(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A model of transformers, with its float32 casts replaced by float64 casts."""
    module = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    monkeypatch.setattr(module, "torch", SimpleNamespace(**{**vars(torch), "float32": torch.float64}))
    fresh = {"dtype": torch.float64, "copy": True, "memory_format": torch.contiguous_format}  # like a cast
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: tensor.to(**fresh))
    return module


def their_mask(length: int) -> Tensor:
    return torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)[None, None]


def their_angles(width: int, length: int) -> Tensor:
    """(T, E/2)"""
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(length, dtype=torch.float64), frequencies)


def load(other: nn.Module, weights: dict[str, Tensor]) -> None:
    other.double().eval().load_state_dict(weights)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "deepseek_v3 half"])
@each_layout
def test_mla_equals_deepseek(layout: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = published(monkeypatch, name.split()[0])
    kind = module.DeepseekV2Attention if name == "deepseek_v2" else module.DeepseekV3Attention
    n_heads, (nope, rope, value), rank, q_lora_rank = layout
    config = SimpleNamespace(
        attention_dropout=0.0,
        hidden_size=WIDTH,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=nope,
        v_head_dim=value,
        attention_bias=False,
        rope_parameters={"rope_type": "default"},
        rope_interleave="half" not in name,
        _attn_implementation="eager",
    )
    other, (layer, _) = kind(config, 0), build("mla", **options_of(layout))
    rotary = {"layout": "half" if "half" in name else "interleaved"}
    heads = REGISTRY["attention"]["mla"].from_dict(options_of(layout)).heads(WIDTH)
    layer_ctx = partwise.parts.contracts.LayerContext(WIDTH, 1, 8, heads)
    positions = REGISTRY["positions"]["rope"].from_dict(rotary).build(layer_ctx)
    w = layer.state_dict()
    k, v = (w[f"{key}.weight"].unflatten(0, (n_heads, -1)) for key in "kv")
    theirs = {
        "kv_a_proj_with_mqa.weight": torch.cat([w["kv_down.weight"], w["k_rope.weight"]]),
        "kv_a_layernorm.weight": w["kv_norm.weight"],
        "kv_b_proj.weight": torch.cat([k, v], dim=1).flatten(0, 1),
        "o_proj.weight": w["out.weight"],
    }
    if q_lora_rank is None:
        theirs["q_proj.weight"] = w["q.weight"]
    else:
        names = {"q_a_proj": "q_down", "q_a_layernorm": "q_norm", "q_b_proj": "q"}
        theirs |= {f"{key}.weight": w[f"{own}.weight"] for key, own in names.items()}
    load(other, theirs)
    x, angles = normal(2, 7, WIDTH), their_angles(rope, 7)
    complex_angles = torch.polar(torch.ones_like(angles), angles)[None]
    cos_sin = [torch.cat([wave, wave], dim=-1)[None] for wave in (angles.cos(), angles.sin())]
    with torch.no_grad():
        tables = complex_angles if name == "deepseek_v2" else cos_sin
        expected = other(x, position_embeddings=tables, attention_mask=their_mask(7))[0]
        assert error(layer(x, forward_context(7, positions)), expected) <= NEAR


def differential_reference(
    w: dict[str, Tensor], x: Tensor, positions: PositionLayer, n_heads: int, n_kv_heads: int, layer: int
) -> Tensor:
    start = 0.8 - 0.6 * math.exp(-0.3 * layer)
    a1, b1, a2, b2 = (w[f"weighing.{name}"] for name in ("q1", "k1", "q2", "k2"))
    lambda_ = math.exp(a1 @ b1) - math.exp(a2 @ b2) + start
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            for head in range(n_heads):
                kv_head = head // (n_heads // n_kv_heads)
                wq = w["q.weight"].chunk(n_heads)[head].chunk(2)
                wk, wv = w["k.weight"].chunk(n_kv_heads)[kv_head].chunk(2), w["v.weight"].chunk(n_kv_heads)[kv_head]
                bias = positions.on_scores(torch.tensor([t]), torch.arange(t + 1), x)
                maps = []
                for i in (0, 1):
                    q = rotated(wq[i] @ x[b, t], positions, t) / math.sqrt(len(wq[i]))
                    scores = [q @ rotated(wk[i] @ x[b, s], positions, s) for s in range(t + 1)]
                    maps.append(softmax(scores if bias is None else [*(torch.stack(scores) + bias[head, 0])]))
                weights = maps[0] - lambda_ * maps[1]
                y = sum(weight * (wv @ x[b, s]) for s, weight in enumerate(weights))
                heads.append((1 - start) * rms_normalized(y, len(y), w.get("norm.weight"), 1e-5))
            rows.append(w["out.weight"] @ torch.cat(heads))
    return torch.stack(rows).view(*x.shape[:2], -1)


@each_backend
@pytest.mark.parametrize(("n_kv_heads", "layer", "affine"), [(4, 0, True), (2, 1, True), (1, 5, False)])
@pytest.mark.parametrize("positions", ["none", "rope", "alibi"])
def test_differential_attention_equals_its_equation(
    positions: str, n_kv_heads: int, layer: int, affine: bool, backend: str
) -> None:
    options = {"n_heads": 4, "n_kv_heads": n_kv_heads, "head_dim": 2, "norm_affine": affine}
    attention_layer, position_layer = build("differential", layer, positions=positions, **options)
    use_layer_backend(attention_layer, backend)
    x = normal(2, 5, WIDTH)
    expected = differential_reference(attention_layer.state_dict(), x, position_layer, 4, n_kv_heads, layer)
    assert error(attention_layer(x, forward_context(5, position_layer)), expected) <= EXACT


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("layer", [0, 3])
def test_differential_attention_equals_diffllama(layer: int, n_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = published(monkeypatch, "diffllama")
    config = SimpleNamespace(
        hidden_size=16,
        num_attention_heads=8,
        num_key_value_heads=2 * n_kv_heads,
        head_dim=2,
        attention_bias=False,
        attention_dropout=0.0,
        lambda_std_dev=0.1,
        rms_norm_eps=1e-5,
        _attn_implementation="eager",
    )
    other = module.DiffLlamaAttention(config, layer)
    options = {"n_heads": 4, "n_kv_heads": n_kv_heads, "head_dim": 2, "norm_affine": False}
    attention_layer, position_layer = build("differential", layer, positions="rope", **options)
    width = {"q": 8, "k": 2 * n_kv_heads, "v": 2 * n_kv_heads}
    w = attention_layer.state_dict()
    pairs = {name: w[f"{name}.weight"].view(-1, 2, 2, WIDTH) for name in width}  # (H, map or half, E, D)
    theirs = {f"{name}_proj.weight": piece.transpose(0, 1).reshape(-1, WIDTH) for name, piece in pairs.items()}
    theirs |= {f"lambda_{name}": w[f"weighing.{name}"] for name in ("q1", "k1", "q2", "k2")}
    other.q_proj, other.k_proj, other.v_proj = (nn.Linear(WIDTH, 2 * n, bias=False) for n in width.values())
    other.o_proj = nn.Linear(16, WIDTH, bias=False)
    load(other, {**theirs, "o_proj.weight": w["out.weight"]})
    x, angles = normal(2, 6, WIDTH), their_angles(2, 6)
    cos_sin = [torch.cat([wave, wave], dim=-1)[None] for wave in (angles.cos(), angles.sin())]
    with torch.no_grad():
        assert (
            error(attention_layer(x, forward_context(6, position_layer)), other(x, cos_sin, their_mask(6))[0]) <= NEAR
        )


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_lambda_initialization(width: int) -> None:
    """The paper counts layers from 1. Zero vectors would not train, and equal vectors would stay equal."""
    recipe = REGISTRY["attention"]["differential"].from_dict({"n_heads": 2, "head_dim": width})
    for layer, start in ((0, 0.2), (1, 0.8 - 0.6 * math.exp(-0.3)), (200, 0.8)):
        weighing = recipe.build(
            partwise.parts.contracts.LayerContext(WIDTH, 201, 8, recipe.heads(WIDTH), layer)
        ).weighing
        found = weighing.double()()
        assert found.item() == pytest.approx(start, rel=1e-14)
        found.backward()
        for q, k in ((weighing.q1, weighing.k1), (weighing.q2, weighing.k2)):
            assert (q @ k).item() == pytest.approx(0.01 * (width % 2), rel=1e-6)  # as random vectors would be
        for parameter in weighing.parameters():
            assert parameter.square().mean().sqrt().item() == pytest.approx(0.1, rel=1e-6)
            assert parameter.grad.abs().min() > 0.05


def test_differential_cache_size() -> None:
    layer, _ = build("differential", n_heads=4, n_kv_heads=2, head_dim=3)
    cache = layer.new_cache(3, 50, normal(1))
    assert sum(buffer.untyped_storage().nbytes() for buffer in cache.buffers) // 8 == 3 * 50 * 2 * (2 * 3 + 2 * 3)


def test_half_as_many_heads_have_as_many_parameters() -> None:
    """The layer has as many parameters as a multihead layer, plus the four vectors and the norm."""
    counts = [
        sum(parameter.numel() for parameter in build(kind, n_heads=n_heads)[0].parameters())
        for kind, n_heads in (("differential", 2), ("multihead", 4))
    ]
    assert counts[0] - counts[1] == 4 * 2 + 4
