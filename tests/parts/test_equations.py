"""Each part against a direct implementation of its equation, in float64 if the identity is exact."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partwise
from backends import use_backends, use_layer_backend
from partwise.config import REGISTRY
from partwise.parts.contracts import ForwardContext, HeadLayout, LayerContext, PositionLayer
from partwise.parts.dropout import Dropout
from partwise.parts.layers import FusedLinear, stream_seed
from partwise.parts.roles import TensorSpec
from recipes import error, perturbed, rounding_effect, tokens

EXACT = 1e-12
WIDTH, HIDDEN = 8, 10


def recipe(family: str, name: str, **options: Any) -> Any:
    return REGISTRY[family][name].from_dict(options, prefix=family)


def randomized(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module.eval()


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def phi(u: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(u / math.sqrt(2)))


def tanh_phi(u: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))


def logistic(u: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-u))


UNGATED = [
    ("relu", {}, lambda u: torch.where(u > 0, u, 0 * u)),
    ("relu2", {}, lambda u: torch.where(u > 0, u * u, 0 * u)),
    ("gelu", {}, lambda u: u * phi(u)),
    ("gelu", {"approximate": "tanh"}, lambda u: u * tanh_phi(u)),
    ("tanh", {}, lambda u: (torch.exp(u) - torch.exp(-u)) / (torch.exp(u) + torch.exp(-u))),
    ("elu", {}, lambda u: torch.where(u > 0, u, torch.exp(u) - 1)),
    ("elu", {"alpha": 0.3}, lambda u: torch.where(u > 0, u, 0.3 * (torch.exp(u) - 1))),
    ("swish", {}, lambda u: u * logistic(u)),
    ("swish", {"beta": 1.7}, lambda u: u * logistic(1.7 * u)),
]
GATED = [
    ("glu", {}, logistic),
    ("bilinear", {}, lambda g: g),
    ("reglu", {}, lambda g: torch.where(g > 0, g, 0 * g)),
    ("geglu", {}, lambda g: g * phi(g)),
    ("geglu", {"approximate": "tanh"}, lambda g: g * tanh_phi(g)),
    ("swiglu", {}, lambda g: g * logistic(g)),
    ("swiglu", {"beta": -0.5}, lambda g: g * logistic(-0.5 * g)),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("name", "options", "activation"), UNGATED)
def test_ungated_feed_forward(name: str, options: dict[str, Any], activation: Any, bias: bool) -> None:
    layer = randomized(recipe("ffn", name, hidden=HIDDEN, bias=bias, **options).build(LayerContext(WIDTH, 1, 4)))
    w, x = layer.state_dict(), normal(2, 3, WIDTH)
    u = x @ w["up.weight"].T + (w["up.bias"] if bias else 0)
    expected = activation(u) @ w["down.weight"].T + (w["down.bias"] if bias else 0)
    assert error(layer(x), expected) <= EXACT


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("name", "options", "activation"), GATED)
def test_gated_feed_forward(name: str, options: dict[str, Any], activation: Any, bias: bool) -> None:
    layer = randomized(recipe("ffn", name, hidden=HIDDEN, bias=bias, **options).build(LayerContext(WIDTH, 1, 4)))
    w, x = layer.state_dict(), normal(2, 3, WIDTH)
    gate = x @ w["gate.weight"].T + (w["gate.bias"] if bias else 0)
    up = x @ w["up.weight"].T + (w["up.bias"] if bias else 0)
    expected = (activation(gate) * up) @ w["down.weight"].T + (w["down.bias"] if bias else 0)
    assert error(layer(x), expected) <= EXACT


@pytest.mark.parametrize("name", ["swish", "swiglu"])
def test_trainable_beta_is_a_scalar_parameter(name: str) -> None:
    layer = recipe("ffn", name, hidden=HIDDEN, beta=1.5, trainable_beta=True).build(LayerContext(WIDTH, 1, 4)).double()
    fixed = recipe("ffn", name, hidden=HIDDEN, beta=1.5).build(LayerContext(WIDTH, 1, 4)).double()
    own = dict(layer.named_parameters())
    beta = own["activation.beta"]
    assert beta.shape == () and beta.item() == 1.5
    assert "activation.beta" not in dict(fixed.named_parameters())
    x = normal(2, 3, WIDTH)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                parameter.copy_(normal(*parameter.shape))
    fixed.load_state_dict({key: value for key, value in layer.state_dict().items() if "beta" not in key})
    assert error(layer(x), fixed(x)) <= EXACT
    layer(x).sum().backward()
    step = 1e-6
    with torch.no_grad():
        high, low = [beta.fill_(1.5 + sign * step) is not None and layer(x).sum().item() for sign in (1, -1)]
    assert beta.grad is not None
    assert beta.grad.item() == pytest.approx((high - low) / (2 * step), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "width"),
    [({"hidden": 7}, 7), ({"hidden": 7, "expansion": 3.0}, 7), ({"expansion": 1.5}, 12), ({}, 32)],
)
def test_the_hidden_width(options: dict[str, Any], width: int) -> None:
    assert recipe("ffn", "relu", **options).build(LayerContext(WIDTH, 1, 4)).up.weight.shape == (width, WIDTH)


def test_gated_and_ungated_layers_have_equally_many_parameters() -> None:
    counts = {
        name: sum(p.numel() for p in recipe("ffn", name).build(LayerContext(96, 1, 4)).parameters())
        for name in ("relu", "swiglu", "geglu", "glu")
    }
    assert counts == dict.fromkeys(counts, 2 * 4 * 96 * 96)


@pytest.mark.parametrize("eps", [1e-6, 0.5])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_norms(name: str, bias: bool, affine: bool, eps: float) -> None:
    layer = randomized(recipe("norm", name, eps=eps, affine=affine, bias=bias).build(WIDTH))
    w, x = layer.state_dict(), 0.3 * normal(2, 3, WIDTH)
    assert set(w) == ({"weight"} if affine else set()) | ({"bias"} if affine and bias else set())
    centered = x - x.mean(-1, keepdim=True) if name == "layernorm" else x
    expected = centered / torch.sqrt((centered**2).mean(-1, keepdim=True) + eps)
    expected = expected * w.get("weight", torch.ones(())) + w.get("bias", torch.zeros(()))
    assert error(layer(x), expected) <= EXACT
    assert all(parameter.shape == (WIDTH,) for parameter in layer.parameters())


def test_norms_are_initialized_without_effect_and_none_is_the_identity() -> None:
    x = normal(3, WIDTH)
    for name in ("layernorm", "rmsnorm"):
        start = recipe("norm", name, bias=True).build(WIDTH).double()
        plain = recipe("norm", name, affine=False).build(WIDTH).double()
        assert error(start(x), plain(x)) <= EXACT
    assert recipe("norm", "none").build(WIDTH)(x) is x


class Doubling(nn.Module):
    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        return 2 * x + 1


@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("name", ["pre", "post"])
def test_residual_wiring(name: str, final_norm: bool) -> None:
    part, norm = recipe("residual", name, final_norm=final_norm), recipe("norm", "layernorm")
    layers = [randomized(norm.build(WIDTH), seed) for seed in range(3)]
    norms = iter(layers)
    layer_ctx = LayerContext(WIDTH, 1, 4)
    wiring = part.build(layer_ctx, ["attention", "ffn"], lambda: next(norms))
    ends = part.build_ends(layer_ctx, lambda: next(norms))
    x, ctx = normal(2, 3, WIDTH), ForwardContext(PositionLayer(), torch.arange(3))
    branches = [Doubling(), Doubling()]
    expected = x
    for own in layers[:2]:
        expected = expected + 2 * own(expected) + 1 if name == "pre" else own(expected + 2 * expected + 1)
    assert error(wiring(ends.enter(x), ctx, branches), expected) <= EXACT
    assert error(ends.leave(expected), layers[2](expected) if final_norm else expected) <= EXACT


def angles(base: float, width: int, length: int) -> Tensor:
    return torch.tensor(
        [[t / base ** (2 * i / width) for i in range(width // 2)] for t in range(length)], dtype=torch.float64
    )


def test_sinusoidal_positions() -> None:
    layer = recipe("positions", "sinusoidal", base=500.0).build(LayerContext(WIDTH, 1, 300))
    x, ids = normal(2, 4, WIDTH), torch.tensor([0, 1, 7, 299])
    expected = x.clone()
    for index, t in enumerate(ids.tolist()):
        for i in range(WIDTH // 2):
            expected[:, index, 2 * i] += math.sin(t * 500 ** (-2 * i / WIDTH))
            expected[:, index, 2 * i + 1] += math.cos(t * 500 ** (-2 * i / WIDTH))
    assert error(layer.at_input(x, ids), expected) <= EXACT
    assert layer.on_heads(x, ids) is x and not list(layer.parameters())


def test_rope_rotates_each_pair_by_its_angle() -> None:
    layer = recipe("positions", "rope", theta=500.0).build(LayerContext(WIDTH, 1, 300, HeadLayout(1, 1, 6)))
    heads, ids = normal(2, 4, 5, 6), torch.tensor([0, 1, 7, 256, 299])
    first, second = heads[..., :3], heads[..., 3:]
    rotated = torch.complex(first, second) * torch.exp(1j * angles(500.0, 6, 300)[ids])
    assert error(layer.on_heads(heads, ids), torch.cat([rotated.real, rotated.imag], -1)) <= EXACT
    assert layer.at_input(heads, ids) is heads


def test_rope_scores_depend_only_on_the_distance() -> None:
    layer = recipe("positions", "rope").build(LayerContext(WIDTH, 1, 2000, HeadLayout(1, 1, 16)))
    q, k = normal(1, 1, 1, 16), normal(1, 1, 1, 16, seed=2)

    def score(i: int, j: int) -> float:
        at = [layer.on_heads(heads, torch.tensor([t])) for heads, t in ((q, i), (k, j))]
        return float((at[0] * at[1]).sum())

    for distance in (0, 1, 5, 300):
        scores = [score(start + distance, start) for start in (0, 3, 255, 256, 1000, 1699)]
        assert max(scores) - min(scores) <= EXACT * q.norm() * k.norm()
    assert score(0, 0) == pytest.approx(float((q * k).sum()), rel=1e-14)
    assert abs(score(1, 0) - score(0, 1)) > 1e-3  # the order matters


@pytest.mark.parametrize("name", ["rope", "sinusoidal"])
def test_tables_are_exact_above_256_in_every_precision(name: str) -> None:
    """bfloat16 cannot distinguish the positions 256 and 257, so angles must not be computed in it."""
    layer = recipe("positions", name).build(LayerContext(16, 1, 1024, HeadLayout(1, 1, 16)))
    exact = angles(10000.0, 16, 1024)
    assert torch.tensor(257.0).bfloat16() == 256
    for dtype, table_dtype in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        moved = layer.to(dtype)
        cos, sin = moved.cos_sin(torch.zeros(1, dtype=dtype))
        assert cos.dtype == sin.dtype == table_dtype
        rounding = torch.finfo(table_dtype).eps / 2 if table_dtype == torch.float32 else EXACT
        assert (cos.double() - exact.cos()).abs().max() <= rounding
        assert (sin.double() - exact.sin()).abs().max() <= rounding
    assert not list(layer.state_dict()), "tables are computed, not saved"


def test_bfloat16_models_distinguish_distant_positions() -> None:
    layer = recipe("positions", "rope").build(LayerContext(16, 1, 1024, HeadLayout(1, 1, 16))).bfloat16()
    heads, ids = normal(1, 1, 1024, 16), torch.arange(1024)
    found = layer.on_heads(heads.bfloat16(), ids)
    assert found.dtype == torch.bfloat16
    exact = layer.on_heads(heads.bfloat16().double(), ids)
    assert (found.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned", "none"])
def test_model_precisions(positions: str) -> None:
    config = partwise.ModelConfig.from_dict(
        {"vocab_size": 11, "d_model": 8, "context_length": 8, "positions": positions}
    )
    model, inputs = perturbed(config), tokens()
    exact = model(inputs)
    for dtype, near in ((torch.float32, 1e-5), (torch.bfloat16, 0.02 + 4 * rounding_effect(model, 2**-8))):
        for backend in ("eager", "sdpa"):
            other = perturbed(config).to(dtype)
            use_backends(other, backend)
            found = other(inputs)
            assert error(found.double(), exact) < near
            assert next(other.parameters()).dtype == dtype


@pytest.mark.parametrize("positions", ["rope", "sinusoidal"])
def test_training_can_use_tables_computed_in_inference_mode(positions: str) -> None:
    config = partwise.ModelConfig.from_dict(
        {"vocab_size": 11, "d_model": 8, "context_length": 8, "positions": positions}
    )
    model = perturbed(config)
    with torch.inference_mode():
        model(tokens())
    model(tokens()).sum().backward()
    assert model.embed.weight.grad is not None


def test_learned_positions() -> None:
    layer = randomized(recipe("positions", "learned").build(LayerContext(WIDTH, 1, 5)))
    x, ids = normal(2, 2, WIDTH), torch.tensor([1, 4])
    assert error(layer.at_input(x, ids), x + layer.state_dict()["weight"][ids]) <= EXACT


ATTENTIONS: list[dict[str, Any]] = [
    {"n_heads": 4},
    {"n_heads": 4, "n_kv_heads": 2},
    {"n_heads": 4, "n_kv_heads": 1, "bias": True},
    {"n_heads": 3, "head_dim": 5, "out_bias": True},
    {"n_heads": 2, "scale": 0.05, "bias": True, "fused_qkv": False},
    {"n_heads": 6, "n_kv_heads": 3, "head_dim": 2, "fused_qkv": False, "bias": True, "out_bias": True},
    {"n_heads": 1, "head_dim": 11},
]


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("options", ATTENTIONS, ids=str)
def test_multihead_attention(options: dict[str, Any], backend: str) -> None:
    """The equation, one head and one query at a time."""
    layer = randomized(recipe("attention", "multihead", **options).build(LayerContext(WIDTH, 1, 6)))
    use_layer_backend(layer, backend)
    n_heads = options["n_heads"]
    groups = n_heads // options.get("n_kv_heads", n_heads)
    width = options.get("head_dim", WIDTH // n_heads)
    scale = options.get("scale", width**-0.5)
    w, x = layer.state_dict(), normal(2, 5, WIDTH)
    q, k, v = (x @ w[f"{role}.weight"].T + w.get(f"{role}.bias", torch.zeros(())) for role in "qkv")
    heads = []
    for head in range(n_heads):
        own, shared = slice(head * width, (head + 1) * width), head // groups
        its = slice(shared * width, (shared + 1) * width)
        rows = []
        for t in range(5):
            scores = (k[:, : t + 1, its] @ q[:, t, own, None])[..., 0] * scale
            weights = torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)
            rows.append((weights[..., None] * v[:, : t + 1, its]).sum(1))
        heads.append(torch.stack(rows, 1))
    expected = torch.cat(heads, -1) @ w["out.weight"].T + w.get("out.bias", torch.zeros(()))
    ctx = ForwardContext(PositionLayer(), torch.arange(5))
    assert error(layer(x, ctx), expected) <= EXACT


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_fewer_queries_than_keys_align_to_the_last_keys(n_kv_heads: int, backend: str) -> None:
    """torch's is_causal aligns to the upper left (pytorch 108108): the last queries would only attend to the first keys."""
    layer = randomized(
        recipe("attention", "multihead", n_heads=4, n_kv_heads=n_kv_heads).build(LayerContext(WIDTH, 1, 6))
    )
    use_layer_backend(layer, backend)
    x = normal(2, 6, WIDTH)
    full = layer(x, ForwardContext(PositionLayer(), torch.arange(6)))
    for past in range(1, 6):
        cache = layer.new_cache(2, 6, x)
        layer(x[:, :past], ForwardContext(PositionLayer(), torch.arange(past), caches=[cache]))
        last = layer(x[:, past:], ForwardContext(PositionLayer(), torch.arange(past, 6), past, caches=[cache]))
        assert error(last, full[:, past:]) <= EXACT


def test_roles_and_fan_in_of_every_tensor() -> None:
    config = partwise.ModelConfig.from_dict(
        {
            "vocab_size": 11,
            "d_model": 8,
            "n_layers": 1,
            "context_length": 6,
            "positions": "learned",
            "attention": {"part": "multihead", "n_kv_heads": 2, "bias": True, "out_bias": True},
            "ffn": {"part": "swiglu", "hidden": 12, "bias": True, "trainable_beta": True},
            "head_bias": True,
        }
    )
    found = {tensor.name: (tensor.role, tensor.fan_in) for tensor in partwise.Transformer(config).logical_tensors()}
    block = {
        **{f"attention.{role}.weight": ("score", 8) for role in "qk"},
        "attention.v.weight": ("hidden", 8),
        **{f"attention.{role}.bias": ("bias", 8) for role in "qkv"},
        "attention.out.weight": ("output", 8),
        "attention.out.bias": ("bias", 8),
        **{f"ffn.{role}.weight": ("hidden", 8) for role in ("gate", "up")},
        **{f"ffn.{role}.bias": ("bias", 8) for role in ("gate", "up")},
        "ffn.down.weight": ("output", 12),
        "ffn.down.bias": ("bias", 12),
        "ffn.activation.beta": ("vector", 1),
        **{f"residual.norms.{branch}.weight": ("vector", 1) for branch in ("attention", "ffn")},
    }
    ends = {"embed.weight": ("table", 1), "positions.weight": ("table", 1), "residual.norm.weight": ("vector", 1)}
    head = {"head.weight": ("head", 8), "head.bias": ("bias", 8)}
    assert found == {**{f"blocks.0.{name}": entry for name, entry in block.items()}, **ends, **head}


BOUND = 1 / math.sqrt(50)
INITS = [
    ("torch", {}, {"hidden": BOUND, "output": BOUND, "head": BOUND, "bias": BOUND, "table": "1"}),
    ("torch_scaled", {}, {"hidden": BOUND, "output": BOUND / math.sqrt(6), "head": BOUND, "bias": BOUND, "table": "1"}),
    ("normal", {"std": 0.05}, {"hidden": "0.05", "output": "0.05", "head": "0.05", "bias": 0.0, "table": "0.05"}),
    ("dead_units", {}, {"hidden": "0.02", "output": "0.02", "head": "0.02", "bias": 0.0, "table": "0.02"}),
    ("gpt2", {}, {"hidden": "0.02", "output": str(0.02 / 6**0.5), "head": "0.02", "bias": 0.0, "table": "0.02"}),
]


@pytest.mark.parametrize("role", ["score", "hidden", "output", "head", "bias", "table"])
@pytest.mark.parametrize(("name", "options", "expected"), INITS, ids=[name for name, *_ in INITS])
def test_init_distributions(name: str, options: dict[str, Any], expected: dict[str, Any], role: Any) -> None:
    """Uniform within a bound (a number), or normal with a std (a string), for 50 inputs and 3 layers."""
    values, spec = torch.full((400, 50), math.nan), TensorSpec(role, 50, 400, 50, (3, 0))
    recipe("init", name, **options).draw(values, spec, torch.Generator().manual_seed(0))
    wanted = expected["hidden" if role == "score" else role]
    if wanted == 0:
        assert not values.any()
        return
    std = float(wanted) if isinstance(wanted, str) else wanted / math.sqrt(3)
    # 20,000 samples: the sample std is within 2%, the mean within 4 standard errors
    assert values.std().item() == pytest.approx(std, rel=0.02)
    assert abs(values.mean().item()) < 4 * std / math.sqrt(20_000)
    largest = values.abs().max().item()
    if isinstance(wanted, float):
        assert 0.999 * wanted < largest <= wanted
    else:
        assert largest > 3 * std
    again = torch.empty(400, 50)
    recipe("init", name, **options).draw(again, spec, torch.Generator().manual_seed(0))
    assert torch.equal(again, values)


def test_fused_linear_equals_separate_layers() -> None:
    layer = randomized(FusedLinear(4, {"a": 3, "b": 1, "c": 5}, bias=True))
    x = normal(2, 4)
    pieces = {name: piece for name, _, piece in layer.pieces()}
    for name, found in zip("abc", layer(x), strict=True):
        assert error(found, x @ pieces[f"{name}.weight"].T + pieces[f"{name}.bias"]) <= EXACT
    assert {name: tuple(piece.shape) for name, piece in layer.state_dict().items()} == {
        "a.weight": (3, 4),
        "b.weight": (1, 4),
        "c.weight": (5, 4),
        "a.bias": (3,),
        "b.bias": (1,),
        "c.bias": (5,),
    }


def test_dropout_keeps_the_mean_and_has_its_own_random_stream() -> None:
    layer, x = Dropout(0.25), torch.ones(200, 500)
    layer.site = "blocks.0.dropout"
    first, second = layer(x), layer(x)  # not seeded
    assert not torch.equal(first, second)
    layer.seed(0, 7)
    first = layer(x)
    assert set(first.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 100_000))
    layer.seed(0, 7)
    assert torch.equal(layer(x), first)
    layer.seed(0, 8)
    assert not torch.equal(layer(x), first)
    other = Dropout(0.25)
    other.site = "blocks.1.dropout"
    other.seed(0, 7)
    assert not torch.equal(other(x), first)
    assert layer.eval()(x) is x


def test_another_dropout_site_does_not_change_the_noise() -> None:
    sizes = {"vocab_size": 11, "d_model": 8, "context_length": 8, "n_layers": 1, "embed_dropout": 0.5}
    wanted: list[Tensor] = []
    for residual in (0.0, 0.5):
        parts = {"residual": {"part": "pre", "dropout": residual}}
        model = partwise.Transformer(partwise.ModelConfig.from_dict({**sizes, **parts})).train()
        model.dropout.register_forward_hook(lambda *event: wanted.append(event[-1].detach().clone()))
        model.seed_dropout(3, 14)
        model(tokens())
    assert torch.equal(wanted[0], wanted[1])


def test_different_keys_have_different_seeds() -> None:
    keys: list[tuple[str | int, ...]] = [("a",), ("a", 0), ("a", 0, 0), ("a0",), ("a", 1), (1, 2), (12,), (2, 1), ("",)]
    seeds = [stream_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stream_seed("a", 1) == stream_seed("a", 1)


def test_embeddings_are_scaled_and_tied() -> None:
    words = {"vocab_size": 11, "d_model": 9, "n_layers": 1, "context_length": 6, "positions": "none", "norm": "none"}
    parts = {
        "attention": {"part": "multihead", "n_heads": 3},
        "scale_embeddings": True,
        "tie_embeddings": True,
        "head_bias": True,
    }
    model = perturbed(partwise.ModelConfig.from_dict({**words, **parts}))
    with torch.no_grad():
        for block in model.blocks:
            block.attention.out.weight.zero_()
            block.ffn.down.weight.zero_()
    table, inputs = model.embed.weight, tokens()
    assert error(model(inputs), 3 * table[inputs] @ table.T + model.head.bias) <= EXACT
