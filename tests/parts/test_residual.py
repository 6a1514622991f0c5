"""Each wiring of the residual stream against its equation, and its initialization."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partwise
from partwise.config import REGISTRY
from partwise.parts.contracts import ForwardContext, LayerContext, PositionLayer
from partwise.parts.dropout import Dropout
from partwise.parts.residual.wirings import deepnorm_constants
from partwise.parts.roles import TensorSpec
from recipes import error, perturbed, tokens

EXACT = 1e-12
WIDTH, BRANCHES = 8, ["attention", "cross", "ffn"]
SIZES = {"vocab_size": 11, "context_length": 6, "d_model": WIDTH, "n_layers": 3}


def recipe(name: str, **options: Any) -> Any:
    return REGISTRY["residual"][name].from_dict(options, prefix="residual")


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomized(module: nn.Module, seed: int = 0) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(module.double().parameters()):
            parameter.copy_(normal(*parameter.shape, seed=100 * seed + number))
    return module.eval()


def branches() -> list[Callable[..., Tensor]]:
    """Three different functions, neither linear nor odd."""
    matrices = [normal(WIDTH, WIDTH, seed=seed) for seed in (7, 8, 9)]
    return [lambda x, ctx, m=m, c=c: torch.tanh(x @ m) + c * x**2 for c, m in enumerate(matrices)]


class Triple(nn.Module):
    """Replaces dropout, to test where it is applied."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


def sandwich(x: Tensor, f: Any, norm: Any, wiring: nn.Module) -> Tensor:
    for name, branch in f.items():
        x = x + wiring.post_norms[name](3 * branch(norm[name](x)))
    return x


def parallel(x: Tensor, f: Any, norm: Any, wiring: nn.Module) -> Tensor:
    return x + sum(3 * branch(norm["shared" if len(norm) == 1 else name](x)) for name, branch in f.items())


def sequential(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor, f: Any, norm: Any, wiring: nn.Module) -> Tensor:
        for name, branch in f.items():
            x = step(x, lambda y, branch=branch: 3 * branch(y), norm.get(name), wiring, name)
        return x

    return apply


DEEPNORM_ALPHA = 24**0.25  # 8 decoder layers with an encoder: (3 * 8)^(1/4)
EQUATIONS: list[tuple[str, dict[str, Any], Callable[..., Tensor]]] = [
    ("pre", {}, sequential(lambda x, f, norm, wiring, name: x + f(norm(x)))),
    ("none", {}, sequential(lambda x, f, norm, wiring, name: f(norm(x)))),
    ("post", {}, sequential(lambda x, f, norm, wiring, name: norm(x + f(x)))),
    ("reordered", {}, sequential(lambda x, f, norm, wiring, name: x + norm(f(x)))),
    ("sandwich", {}, sandwich),
    ("parallel", {}, parallel),
    ("parallel", {"shared_norm": False}, parallel),
    ("rezero", {}, sequential(lambda x, f, norm, wiring, name: x + wiring.a * f(x))),
    ("layerscale", {}, sequential(lambda x, f, norm, wiring, name: x + wiring.gammas[name] * f(norm(x)))),
    ("deepnorm", {}, sequential(lambda x, f, norm, wiring, name: norm(DEEPNORM_ALPHA * x + f(x)))),
]


def build_wiring(name: str, options: dict[str, Any], norm: str = "layernorm", layer: int = 0) -> tuple[Any, Any]:
    layer_ctx = LayerContext(WIDTH, 8, 4, layer_index=layer, other_layers=2)

    def new_norm() -> nn.Module:
        return REGISTRY["norm"][norm]().build(WIDTH)

    part = recipe(name, dropout=0.3, **options)
    wiring, ends = part.build(layer_ctx, BRANCHES, new_norm), part.build_ends(layer_ctx, new_norm)
    dropouts = [module for module in wiring.modules() if isinstance(module, Dropout)]
    assert [dropout.p for dropout in dropouts] == [0.3] * 3
    for branch in BRANCHES:
        wiring.dropouts[branch] = Triple()
    return randomized(wiring), randomized(ends, 1)


def run_wiring(wiring: Any, x: Tensor) -> Tensor:
    return wiring(x, ForwardContext(PositionLayer(), torch.arange(x.shape[1])), branches())


@pytest.mark.parametrize(("name", "options", "equation"), EQUATIONS, ids=lambda value: str(value)[:24])
def test_wiring(name: str, options: dict[str, Any], equation: Callable[..., Tensor]) -> None:
    wiring, ends = build_wiring(name, options)
    x = normal(2, 3, WIDTH)
    f = {key: lambda y, branch=branch: branch(y, None) for key, branch in zip(BRANCHES, branches(), strict=True)}
    norms = dict(wiring.norms.items()) if hasattr(wiring, "norms") else {}
    assert len(norms) == (0 if name == "rezero" else 1 if options == {} and name == "parallel" else 3)
    assert error(run_wiring(wiring, ends.enter(x)), equation(x, f, norms, wiring)) <= EXACT


def test_every_wiring_is_tested() -> None:
    tested = {name for name, *_ in EQUATIONS} | {"hyper_connections"}
    assert {name for name, kind in REGISTRY["residual"].items() if kind.__module__.startswith("partwise.")} == tested


@pytest.mark.parametrize("name", sorted(REGISTRY["residual"]))
def test_final_norm(name: str) -> None:
    x = normal(2, 3, WIDTH)
    for options in ({}, {"final_norm": True}, {"final_norm": False}):
        _, ends = build_wiring(name, options)
        expected = options.get("final_norm", name not in ("post", "rezero", "deepnorm"))
        norms = [module for module in ends.modules() if isinstance(module, nn.LayerNorm)]
        assert len(norms) == int(expected)
        assert error(ends.leave(ends.enter(x)), norms[0](x) if norms else x) <= EXACT


def hyper_connections_reference(
    H: Tensor, wiring: Any, dynamic: bool, rms: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """H (B, T, n, D), one token at a time: HC = [[0, B], [A_m, A_r]], h_0 = A_m^T H, H' = A_r^T H, H' + B^T T(h_0)."""
    B, T, n, D = H.shape
    for name, branch in zip(BRANCHES, branches(), strict=True):
        own = wiring.connections[name]
        branch_input, mixed, betas = (
            torch.zeros(B, T, D).double(),
            torch.zeros(B, T, n, D).double(),
            torch.zeros(B, T, n),
        )
        betas = betas.double()
        for b in range(B):
            for t in range(T):
                A, beta = own.alpha.detach().clone(), own.beta.detach().clone()
                if dynamic:
                    normed = rms(H[b, t], own.dynamic.norm.weight)
                    A += own.dynamic.alpha_scale * torch.tanh(normed @ own.dynamic.weight[:-1].T)
                    beta += own.dynamic.beta_scale * torch.tanh(normed @ own.dynamic.weight[-1])
                for i in range(n):
                    branch_input[b, t] += A[i, 0] * H[b, t, i]
                    for j in range(n):
                        mixed[b, t, j] += A[i, 1 + j] * H[b, t, i]
                betas[b, t] = beta
        y = 3 * branch(rms(branch_input, wiring.norms[name].weight), None)
        H = mixed + torch.stack([betas[:, :, j, None] * y for j in range(n)], dim=2)
    return H


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_hyper_connections(copies: int, dynamic: bool) -> None:
    wiring, ends = build_wiring("hyper_connections", {"copies": copies, "dynamic": dynamic}, "rmsnorm", layer=1)

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * weight

    x = normal(2, 3, WIDTH)
    H = ends.enter(x)
    assert H.shape == (2, 3, copies, WIDTH) and all(torch.equal(H[:, :, i], x) for i in range(copies))
    H = normal(2, 3, copies, WIDTH)
    expected = hyper_connections_reference(H, wiring, dynamic, rms)
    assert error(run_wiring(wiring, H), expected) <= EXACT
    # the paper's sum over the streams, up to a factor that the norm cancels
    total = sum(expected[:, :, i] for i in range(copies)) / copies
    assert error(ends.leave(expected), rms(total, ends.norm.weight)) <= EXACT


def test_hyper_connections_initialization() -> None:
    part = recipe("hyper_connections", copies=4, dynamic=True)
    for layer in range(3):
        wiring = part.build(LayerContext(WIDTH, 3, 4, layer_index=layer), BRANCHES[::2], lambda: nn.LayerNorm(WIDTH))
        for index, connection in enumerate(wiring.connections.values()):
            k = 2 * layer + index
            assert torch.equal(connection.alpha[:, 0], torch.eye(4)[k % 4])
            assert torch.equal(connection.alpha[:, 1:], torch.eye(4)) and torch.equal(connection.beta, torch.ones(4))
            assert not connection.dynamic.weight.any()
            assert connection.dynamic.alpha_scale.item() == connection.dynamic.beta_scale.item() == pytest.approx(0.01)


def model(residual: Any, **values: Any) -> partwise.Transformer:
    config = partwise.ModelConfig.from_dict({**SIZES, **values, "residual": residual})
    return partwise.Transformer(config, seed=3).double().eval()


def logits(one: partwise.Transformer) -> Tensor:
    with torch.no_grad():
        return one(tokens(), source=tokens(shift=2) if one.encoder else None)


@pytest.mark.parametrize("encoder_layers", [0, 2])
@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize(
    "options", [{"copies": 1}, {"copies": 3}, {"copies": 4}, {"copies": 4, "dynamic": True}], ids=str
)
def test_hyper_connections_initially_equal_pre_norm(
    options: dict[str, Any], final_norm: bool, encoder_layers: int
) -> None:
    """Outputs and gradients of shared parameters are equal; a large eps makes the norm sensitive to the stream's scale."""
    shared = {"norm": {"part": "rmsnorm", "eps": 0.01}, "encoder_layers": encoder_layers}
    plain = model({"part": "pre", "final_norm": final_norm}, **shared)
    hyper = model({"part": "hyper_connections", "final_norm": final_norm, **options}, **shared)
    assert error(logits(hyper), logits(plain)) <= EXACT
    for one in (plain, hyper):
        one(tokens(), source=tokens(shift=2) if encoder_layers else None).square().sum().backward()
    found = dict(hyper.named_parameters())
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None and found[name].grad is not None
        assert error(found[name].grad, parameter.grad) <= EXACT, name


def test_autocast_does_not_round_the_residual_streams() -> None:
    """No other wiring rounds it: bfloat16 has 8 bits of precision, and the stream sums all branches."""
    part = recipe("hyper_connections", copies=2)
    wiring = part.build(LayerContext(WIDTH, 1, 4), BRANCHES, lambda: nn.LayerNorm(WIDTH))
    x = normal(2, 3, 2, WIDTH).float()
    zero_branches = [lambda x, ctx: torch.zeros_like(x).bfloat16()] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = wiring(x, ForwardContext(PositionLayer(), torch.arange(3)), zero_branches)
    assert found.dtype == torch.float32 and torch.equal(found, x)


@pytest.mark.parametrize("name", ["sandwich", "reordered"])
def test_branch_output_norm_keeps_the_precision_of_the_stream(name: str) -> None:
    dtypes = []

    class RecordDtype(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            dtypes.append(x.dtype)
            return x

    wiring = recipe(name).build(LayerContext(WIDTH, 1, 4), BRANCHES, RecordDtype)
    bf16_branches = [lambda x, ctx: x.bfloat16()] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wiring(normal(2, 3, WIDTH).float(), ForwardContext(PositionLayer(), torch.arange(3)), bf16_branches)
    assert set(dtypes) == {torch.float32}


@pytest.mark.parametrize("dynamic", [False, True])
def test_hyper_connections_flops(dynamic: bool) -> None:
    """Per branch, 2 streams mix into 3 of dimension D; `dynamic` adds 3 + 1 dot products over D per stream."""
    counts = [
        partwise.ModelConfig.from_dict({**SIZES, "residual": residual}).flops_per_token()
        for residual in ("pre", {"part": "hyper_connections", "copies": 2, "dynamic": dynamic})
    ]
    per_branch = 2 * WIDTH * 2 * 3 + (2 * WIDTH * 2 * 4 if dynamic else 0)
    assert counts[1] - counts[0] == 3 * 2 * SIZES["n_layers"] * per_branch


def test_rezero_is_initially_the_identity_and_trains_its_scalars() -> None:
    one = model("rezero")
    assert torch.equal(logits(one), one.head(one.embed(tokens())))
    one(tokens()).square().sum().backward()
    for name, parameter in one.blocks.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.any() == name.endswith("residual.a")
        assert parameter.shape == () or not name.startswith("residual")
    assert sum(name.endswith(".a") for name, _ in one.named_parameters()) == SIZES["n_layers"]
    assert not [name for name, _ in one.named_parameters() if "norm" in name]


@pytest.mark.parametrize(("n_layers", "default"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_layerscale_init_value_by_depth(n_layers: int, default: float) -> None:
    for init_value, expected in ((None, default), (0.3, 0.3), (0.0, 0.0)):
        wiring = recipe("layerscale", init_value=init_value).build(
            LayerContext(WIDTH, n_layers, 4), BRANCHES, nn.Identity
        )
        assert list(wiring.gammas) == BRANCHES
        assert all(torch.equal(gamma, torch.full((WIDTH,), expected)) for gamma in wiring.gammas.values())


def test_special_cases_equal_pre_norm() -> None:
    plain = logits(model("pre"))
    assert torch.equal(logits(model({"part": "layerscale", "init_value": 1.0})), plain)
    bare = logits(model("pre", norm="none"))
    assert torch.equal(logits(model("sandwich", norm="none")), bare)
    assert torch.equal(logits(model("reordered", norm="none")), bare)


def test_without_residual_stream_tokens_reach_the_logits_only_through_every_branch() -> None:
    """A branch that returns zero erases all tokens before it; in `pre` they pass around it."""
    for name, erased in (("none", True), ("pre", False)):
        one = perturbed(model(name).config)
        nn.init.zeros_(one.blocks[1].ffn.down.weight)  # type: ignore[union-attr]
        found = logits(one)
        assert torch.equal(found, found[:1, :1].expand_as(found)) == erased


def test_parallel_branches_have_the_same_input() -> None:
    """Neither branch depends on the other, so their contributions add up."""
    one = perturbed(model({"part": "parallel", "final_norm": False}, n_layers=1).config)
    both = logits(one)
    parts = []
    for zeroed in ("attention.out", "ffn.down"):
        other = copy.deepcopy(one)
        nn.init.zeros_(other.get_submodule(f"blocks.0.{zeroed}").weight)
        parts.append(logits(other))
    neither = one.head(one.embed(tokens()))
    assert error(parts[0] + parts[1] - neither, both) <= EXACT


@pytest.mark.parametrize(
    ("layers", "other", "causal", "alpha", "beta"),
    [
        # decoder-only or encoder-only: (2 L)^(1/4), (8 L)^(-1/4)
        (2, 0, True, math.sqrt(2), 0.5),
        (8, 0, True, 2.0, 8**-0.5),
        (8, 0, False, 2.0, 8**-0.5),
        (128, 0, True, 4.0, 32**-0.5),
        # the decoder of an encoder-decoder: (3 M)^(1/4), (12 M)^(-1/4)
        (27, 5, True, 3.0, 18**-0.5),
        (6, 6, True, 2.0597671439071177, 0.3432945239845196),
        # the encoder of an encoder-decoder: 0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16)
        (16, 1, False, 1.62, 0.435),
        (1, 2**16, False, 1.62, 0.435),
        (6, 6, False, 1.4179381406855227, 0.4969892407713235),
        (100, 100, False, 3.4157416777715162, 0.2063095123925640),
    ],
)
def test_deepnorm_constants(layers: int, other: int, causal: bool, alpha: float, beta: float) -> None:
    assert deepnorm_constants(layers, other, causal) == pytest.approx((alpha, beta), rel=1e-14)
    part = recipe("deepnorm")
    layer_ctx = LayerContext(WIDTH, layers, 4, causal=causal, other_layers=other)
    assert part.build(layer_ctx, BRANCHES, nn.Identity).alpha == pytest.approx(alpha, rel=1e-14)
    gains = {
        role: part.gain(TensorSpec(role, 8, 8, 8, (layers, other), causal))
        for role in ("table", "score", "hidden", "output", "head", "bias")
    }
    assert gains == {role: pytest.approx(beta) if role in ("hidden", "output") else 1.0 for role in gains}


def test_deepnorm_scales_initial_weights_by_stack() -> None:
    values = {"encoder_layers": 5, "init": "xavier", "ffn": "relu", "attention": {"part": "multihead", "bias": True}}
    plain, deep = (model(name, **values) for name in ("post", "deepnorm"))
    state, scaled = {}, []
    for tensor in plain.logical_tensors():
        state[tensor.name] = tensor
    for tensor in deep.logical_tensors():
        beta = 0.87 * (5**4 * 3) ** (-1 / 16) if tensor.name.startswith("encoder.") else 36**-0.25
        has_gain = tensor.name.split(".")[-2] in ("v", "out", "up", "down") and tensor.name.endswith("weight")
        scaled += [tensor.name] if has_gain else []
        torch.testing.assert_close(tensor.data, state[tensor.name].data * (beta if has_gain else 1), rtol=1e-6, atol=0)
    assert len(scaled) == 5 * 4 + 3 * 6
    alphas = [block.residual.alpha for stack in (deep.encoder, deep) for block in stack.blocks]
    assert alphas == [pytest.approx(0.81 * (5**4 * 3) ** (1 / 16))] * 5 + [pytest.approx(9**0.25)] * 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"part": "layerscale", "init_value": 2.0}, "residual.init_value=2.0"),
        ({"part": "hyper_connections", "copies": 0}, "residual.copies=0"),
        ({"part": "rezero", "dropout": 1.0}, "residual.dropout=1.0"),
        ({"part": "deepnorm", "alpha": 2.0}, "residual.alpha"),
    ],
)
def test_invalid_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(partwise.ConfigError, match=named.replace(".", r"\.")) as caught:
        partwise.ModelConfig.from_dict({**SIZES, "residual": options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(REGISTRY["residual"]))
@pytest.mark.parametrize("final_norm", [False, True])
def test_scalar_norm_weights_canceled_by_the_next_norm_are_rejected(name: str, final_norm: bool) -> None:
    values = {**SIZES, "norm": "scalenorm", "residual": {"part": name, "final_norm": final_norm}}
    if name == "sandwich" or (name in ("post", "deepnorm") and final_norm):
        with pytest.raises(partwise.ConfigError, match=f"residual={name} .* scalar weight of norms like scalenorm"):
            partwise.ModelConfig.from_dict(values)
        return
    one = perturbed(partwise.ModelConfig.from_dict(values))
    one(tokens()).square().sum().backward()
    weights = [p for key, p in one.named_parameters() if "norm" in key and p.dim() == 0]
    assert all(p.grad is not None and abs(p.grad.item()) > 1e-6 for p in weights)
    assert bool(weights) == (name != "rezero" or final_norm)
