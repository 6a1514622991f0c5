"""Latent and differential attention against their equations, written out, and against the models that have them."""

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import partwise
from partwise.config import REGISTRY
from partwise.parts.families import Flow, PositionLayer
from recipes import error
from test_attention import EXACT, WIDTH, build, chunkings, each_path, flow_of, normal, normalised

NEAR = 1e-10  # to the models of another library


def turned(x: Tensor, positions: PositionLayer, t: int) -> Tensor:
    return positions.on_heads(x[None, None, None], torch.tensor([t]))[0, 0, 0]


def softmax(scores: list[Tensor]) -> Tensor:
    exponents = torch.stack(scores).exp()
    return exponents / exponents.sum()


def latent(w: dict[str, Tensor], x: Tensor, positions: PositionLayer, n_heads: int, widths: tuple[int, int]) -> Tensor:
    """One head, one query and one key at a time; `widths` of a head's plain and turned part."""
    c = normalised(x @ w["kv_down.weight"].T, len(w["kv_down.weight"]), w["kv_norm.weight"], 1e-6)
    inner = x
    if "q_down.weight" in w:
        inner = normalised(x @ w["q_down.weight"].T, len(w["q_down.weight"]), w["q_norm.weight"], 1e-6)
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            for head in range(n_heads):
                wq, wk, wv = (w[f"{name}.weight"].chunk(n_heads)[head] for name in "qkv")
                q, q_rope = (wq @ inner[b, t]).split(widths)
                bias = positions.on_scores(torch.tensor([t]), torch.arange(t + 1), x)  # (H, 1, t + 1)
                scores = []
                for s in range(t + 1):
                    k_rope = turned(w["k_rope.weight"] @ x[b, s], positions, s)
                    score = (q @ (wk @ c[b, s]) + turned(q_rope, positions, t) @ k_rope) / math.sqrt(sum(widths))
                    scores.append(score if bias is None else score + bias[head, 0, s])
                heads.append(sum(weight * (wv @ c[b, s]) for s, weight in enumerate(softmax(scores))))
            rows.append(w["out.weight"] @ torch.cat(heads))
    return torch.stack(rows).view(*x.shape[:2], -1)


@each_path
@pytest.mark.parametrize("q_rank", [None, 5])
@pytest.mark.parametrize("positions", ["none", "rope", "alibi"])
def test_latent_attention_is_its_equation(positions: str, q_rank: int | None, path: str) -> None:
    sizes = {"head_dim": 3, "rope_dim": 4, "value_dim": 5, "kv_rank": 6, "q_rank": q_rank}
    layer, places = build("latent", positions=positions, n_heads=2, **sizes)
    layer.use_path(path)
    x = normal(2, 5, WIDTH)
    assert error(layer(x, flow_of(5, places)), latent(layer.state_dict(), x, places, 2, (3, 4))) <= EXACT


LAYOUTS = [  # heads; widths of a head's plain part, its turned part, its values; ranks of keys and values, of queries
    (2, (6, 4, 5), 7, None),
    (4, (4, 2, 4), 16, 6),
    (3, (2, 8, 10), 3, 4),
]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def options_of(layout: Any) -> dict[str, Any]:
    n_heads, (plain, turned, value), rank, q_rank = layout
    widths = {"head_dim": plain, "rope_dim": turned, "value_dim": value}
    return {"n_heads": n_heads, "kv_rank": rank, "q_rank": q_rank, **widths}


@each_path
@each_layout
def test_every_chunking_of_latents_is_the_whole(layout: Any, path: str) -> None:
    layer, positions = build("latent", positions="rope", **options_of(layout))
    layer.use_path(path)
    x = normal(2, 6, WIDTH)
    with torch.no_grad():
        whole = layer(x, flow_of(6, positions))
        for chunks in chunkings(6):
            state = layer.new_state(2, 8, x)
            found = [layer(x[:, a:b], Flow(positions, torch.arange(a, b), a, states=[state])) for a, b in chunks]
            assert error(torch.cat(found, 1), whole) <= EXACT, chunks


@each_layout
def test_a_latent_cache_holds_latents_and_turned_keys_only(layout: Any) -> None:
    layer, _ = build("latent", **options_of(layout))
    numbers = sum(buffer.untyped_storage().nbytes() for buffer in layer.new_state(3, 50, normal(1)).buffers) // 8
    assert numbers == 3 * 50 * (layout[2] + layout[1][1])


def test_the_published_cache_is_as_small_as_the_paper_says() -> None:
    """DeepSeek-V2: 4.5 head_dim numbers per place and layer, where multihead attention has 2 n_heads head_dim."""
    recipe = REGISTRY["attention"]["latent"].from_dict({"n_heads": 128, "head_dim": 128, "q_rank": 1536})
    with torch.device("meta"):
        layer = recipe.build(partwise.parts.families.Site(5120, 60, 4096, recipe.heads(5120)))
        state = layer.new_state(1, 1, torch.zeros(1))
    assert sum(buffer.numel() for buffer in state.buffers) == 4.5 * 128 == 576
    d, heads, plain, rope, value, rank, q_rank = 5120, 128, 128, 64, 128, 512, 1536
    maps = d * q_rank + q_rank * heads * (plain + rope) + d * (rank + rope) + rank * heads * (plain + value)
    assert sum(p.numel() for p in layer.parameters()) == maps + heads * value * d + rank + q_rank


@each_path
@each_layout
def test_folded_and_unfolded_forms_agree_in_values_and_gradients(layout: Any, path: str) -> None:
    layer, positions = build("latent", positions="rope", **options_of(layout))
    layer.use_path(path)
    n_heads, (plain, turned, _), rank, _ = layout
    latents, leaves = normal(2, 1, 6, rank + turned).requires_grad_(), [layer.up.weight]
    for queries in (1, 3, 6):
        q = normal(2, n_heads, queries, plain, seed=2).requires_grad_()
        q_rope = normal(2, n_heads, queries, turned, seed=3).requires_grad_()
        sight = flow_of(queries, positions, past=6 - queries).sight(normal(2, queries, WIDTH), 6)
        found = []
        for form in (layer.unfolded, layer.folded):
            y = form(q, q_rope, latents, sight)
            found.append([y, *torch.autograd.grad((y * normal(*y.shape)).sum(), [q, q_rope, latents, *leaves])])
        for one, other in zip(*found, strict=True):
            assert error(one, other) <= EXACT


@each_layout
def test_the_form_with_fewer_operations_is_taken(layout: Any) -> None:
    layer, positions = build("latent", **options_of(layout))
    layer.use_path("products")
    n_heads, (plain, turned, value), rank, _ = layout
    taken = set()
    for queries, keys in ((1, 1), (1, 2), (1, 9), (2, 9), (4, 9), (6, 9), (9, 9)):
        sight = flow_of(queries, positions, past=keys - queries).sight(normal(1, queries, WIDTH), keys)
        counts = []
        for form in (layer.folded, layer.unfolded):
            with FlopCounterMode(display=False) as counter:
                q, q_rope = normal(1, n_heads, queries, plain), normal(1, n_heads, queries, turned)
                form(q, q_rope, normal(1, 1, keys, rank + turned), sight)
            counts.append(counter.get_total_flops())
        assert layer.folding_is_less(queries, keys) == (counts[0] < counts[1])
        taken.add(counts[0] < counts[1])
    assert taken == ({True} if 2 * rank < plain + value else {True, False})  # a narrow latent is always less


def test_latent_attention_refuses_what_does_not_fit() -> None:
    sizes = {"d_model": 8, "max_len": 6}
    for attention, message in (
        ({"part": "latent", "rope_dim": 3}, "rope_dim=3 is odd"),
        ({"part": "latent", "n_heads": 3}, "n_heads=3 does not divide d_model=8"),
        ({"part": "latent", "kv_rank": 1}, "kv_rank"),
        ({"part": "differential", "n_heads": 8}, "n_heads=8 of two queries each do not divide d_model=8"),
        ({"part": "differential", "n_heads": 2, "n_kv_heads": 4}, "n_kv_heads=4 does not divide"),
    ):
        with pytest.raises(partwise.ConfigError, match=message):
            partwise.ModelConfig.from_dict({**sizes, "attention": attention})
    for part in ("latent", "differential"):
        with pytest.raises(partwise.ConfigError, match=f"attention={part} has no form that reads a source"):
            partwise.ModelConfig.from_dict({**sizes, "attention": part, "encoder_layers": 1})


def test_layers_of_several_kinds_share_rotary_positions_of_one_width() -> None:
    latent = {"part": "latent", "rope_dim": 4}
    sizes = {"d_model": 16, "n_layers": 2, "max_len": 6}
    partwise.ModelConfig.from_dict({**sizes, "attention": [latent, {"part": "multihead", "n_kv_heads": 2}]})
    with pytest.raises(partwise.ConfigError, match="heads of the same width"):
        partwise.ModelConfig.from_dict({**sizes, "attention": [latent, {"part": "multihead", "n_heads": 2}]})
    with pytest.raises(partwise.ConfigError, match="heads of the same number"):
        attention = [latent, {"part": "multihead", "n_heads": 2}]
        partwise.ModelConfig.from_dict({**sizes, "attention": attention, "positions": "alibi"})


def published(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A model's code in transformers, its casts to float32 made casts to float64."""
    module = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    monkeypatch.setattr(module, "torch", SimpleNamespace(**{**vars(torch), "float32": torch.float64}))
    fresh = {"dtype": torch.float64, "copy": True, "memory_format": torch.contiguous_format}  # as a cast would be
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


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "deepseek_v3 halves"])
@each_layout
def test_latent_attention_equals_deepseeks(layout: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = published(monkeypatch, name.split()[0])
    kind = module.DeepseekV2Attention if name == "deepseek_v2" else module.DeepseekV3Attention
    n_heads, (plain, rope, value), rank, q_rank = layout
    config = SimpleNamespace(
        attention_dropout=0.0,
        hidden_size=WIDTH,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads,
        q_lora_rank=q_rank,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=plain,
        v_head_dim=value,
        attention_bias=False,
        rope_parameters={"rope_type": "default"},
        rope_interleave="halves" not in name,
        _attn_implementation="eager",
    )
    other, (layer, _) = kind(config, 0), build("latent", **options_of(layout))
    rotary = {"layout": "half" if "halves" in name else "interleaved"}
    heads = REGISTRY["attention"]["latent"].from_dict(options_of(layout)).heads(WIDTH)
    site = partwise.parts.families.Site(WIDTH, 1, 8, heads)
    positions = REGISTRY["positions"]["rope"].from_dict(rotary).build(site)
    w = layer.state_dict()
    k, v = (w[f"{key}.weight"].unflatten(0, (n_heads, -1)) for key in "kv")
    theirs = {
        "kv_a_proj_with_mqa.weight": torch.cat([w["kv_down.weight"], w["k_rope.weight"]]),
        "kv_a_layernorm.weight": w["kv_norm.weight"],
        "kv_b_proj.weight": torch.cat([k, v], dim=1).flatten(0, 1),
        "o_proj.weight": w["out.weight"],
    }
    if q_rank is None:
        theirs["q_proj.weight"] = w["q.weight"]
    else:
        names = {"q_a_proj": "q_down", "q_a_layernorm": "q_norm", "q_b_proj": "q"}
        theirs |= {f"{key}.weight": w[f"{own}.weight"] for key, own in names.items()}
    load(other, theirs)
    x, angles = normal(2, 7, WIDTH), their_angles(rope, 7)
    turns = torch.polar(torch.ones_like(angles), angles)[None]
    cos_sin = [torch.cat([wave, wave], dim=-1)[None] for wave in (angles.cos(), angles.sin())]
    with torch.no_grad():
        tables = turns if name == "deepseek_v2" else cos_sin
        expected = other(x, position_embeddings=tables, attention_mask=their_mask(7))[0]
        assert error(layer(x, flow_of(7, positions)), expected) <= NEAR


def differential(
    w: dict[str, Tensor], x: Tensor, positions: PositionLayer, n_heads: int, n_kv_heads: int, layer: int
) -> Tensor:
    start = 0.8 - 0.6 * math.exp(-0.3 * layer)
    a1, b1, a2, b2 = (w[f"weighing.{name}"] for name in ("q1", "k1", "q2", "k2"))
    taken = math.exp(a1 @ b1) - math.exp(a2 @ b2) + start
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            for head in range(n_heads):
                its = head // (n_heads // n_kv_heads)
                wq = w["q.weight"].chunk(n_heads)[head].chunk(2)
                wk, wv = w["k.weight"].chunk(n_kv_heads)[its].chunk(2), w["v.weight"].chunk(n_kv_heads)[its]
                bias = positions.on_scores(torch.tensor([t]), torch.arange(t + 1), x)
                maps = []
                for i in (0, 1):
                    q = turned(wq[i] @ x[b, t], positions, t) / math.sqrt(len(wq[i]))
                    scores = [q @ turned(wk[i] @ x[b, s], positions, s) for s in range(t + 1)]
                    maps.append(softmax(scores if bias is None else [*(torch.stack(scores) + bias[head, 0])]))
                weights = maps[0] - taken * maps[1]
                y = sum(weight * (wv @ x[b, s]) for s, weight in enumerate(weights))
                heads.append((1 - start) * normalised(y, len(y), w.get("norm.weight"), 1e-5))
            rows.append(w["out.weight"] @ torch.cat(heads))
    return torch.stack(rows).view(*x.shape[:2], -1)


@each_path
@pytest.mark.parametrize(("n_kv_heads", "layer", "affine"), [(4, 0, True), (2, 1, True), (1, 5, False)])
@pytest.mark.parametrize("positions", ["none", "rope", "alibi"])
def test_differential_attention_is_its_equation(
    positions: str, n_kv_heads: int, layer: int, affine: bool, path: str
) -> None:
    options = {"n_heads": 4, "n_kv_heads": n_kv_heads, "head_dim": 2, "norm_affine": affine}
    made, places = build("differential", layer, positions=positions, **options)
    made.use_path(path)
    x = normal(2, 5, WIDTH)
    expected = differential(made.state_dict(), x, places, 4, n_kv_heads, layer)
    assert error(made(x, flow_of(5, places)), expected) <= EXACT


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("layer", [0, 3])
def test_differential_attention_equals_difflamas(layer: int, n_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    made, places = build("differential", layer, positions="rope", **options)
    width = {"q": 8, "k": 2 * n_kv_heads, "v": 2 * n_kv_heads}
    w = made.state_dict()
    pairs = {name: w[f"{name}.weight"].view(-1, 2, 2, WIDTH) for name in width}  # (H, map or half, E, D)
    theirs = {f"{name}_proj.weight": piece.transpose(0, 1).reshape(-1, WIDTH) for name, piece in pairs.items()}
    theirs |= {f"lambda_{name}": w[f"weighing.{name}"] for name in ("q1", "k1", "q2", "k2")}
    other.q_proj, other.k_proj, other.v_proj = (nn.Linear(WIDTH, 2 * n, bias=False) for n in width.values())
    other.o_proj = nn.Linear(16, WIDTH, bias=False)
    load(other, {**theirs, "o_proj.weight": w["out.weight"]})
    x, angles = normal(2, 6, WIDTH), their_angles(2, 6)
    cos_sin = [torch.cat([wave, wave], dim=-1)[None] for wave in (angles.cos(), angles.sin())]
    with torch.no_grad():
        assert error(made(x, flow_of(6, places)), other(x, cos_sin, their_mask(6))[0]) <= NEAR


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_lambda_starts_at_its_published_value_and_can_move(width: int) -> None:
    """Layer l of the paper's 1 ... L is our l - 1; a start of zeros would never learn, one of equals never part."""
    recipe = REGISTRY["attention"]["differential"].from_dict({"n_heads": 2, "head_dim": width})
    for layer, start in ((0, 0.2), (1, 0.8 - 0.6 * math.exp(-0.3)), (200, 0.8)):
        weighing = recipe.build(partwise.parts.families.Site(WIDTH, 201, 8, recipe.heads(WIDTH), layer)).weighing
        found = weighing.double()()
        assert found.item() == pytest.approx(start, rel=1e-14)
        found.backward()
        for q, k in ((weighing.q1, weighing.k1), (weighing.q2, weighing.k2)):
            assert (q @ k).item() == pytest.approx(0.01 * (width % 2), rel=1e-6)  # as far apart as random ones
        for parameter in weighing.parameters():
            assert parameter.square().mean().sqrt().item() == pytest.approx(0.1, rel=1e-6)
            assert parameter.grad.abs().min() > 0.05


def test_a_differential_cache_holds_two_keys_and_a_double_value() -> None:
    layer, _ = build("differential", n_heads=4, n_kv_heads=2, head_dim=3)
    state = layer.new_state(3, 50, normal(1))
    assert sum(buffer.untyped_storage().nbytes() for buffer in state.buffers) // 8 == 3 * 50 * 2 * (2 * 3 + 2 * 3)


def test_half_as_many_heads_make_as_many_parameters() -> None:
    """As a multihead layer, but for the four vectors and the norm: what makes the two comparable."""
    counts = [
        sum(parameter.numel() for parameter in build(kind, n_heads=n_heads)[0].parameters())
        for kind, n_heads in (("differential", 2), ("multihead", 4))
    ]
    assert counts[0] - counts[1] == 4 * 2 + 4
