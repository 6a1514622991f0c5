"""Each wiring of the residual stream against its equation, and what it starts from."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partwise
from partwise.config import REGISTRY
from partwise.parts.families import Flow, PositionLayer, Site
from partwise.parts.layers import Dropout
from partwise.parts.residual import constants_by_depth
from partwise.parts.roles import TensorSpec
from recipes import error, perturbed, tokens

EXACT = 1e-12
WIDTH, BRANCHES = 8, ["attention", "cross", "ffn"]
SIZES = {"vocab_size": 11, "max_len": 6, "d_model": WIDTH, "n_layers": 3}


def recipe(name: str, **options: Any) -> Any:
    return REGISTRY["residual"][name].from_dict(options, prefix="residual")


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(module.double().parameters()):
            parameter.copy_(normal(*parameter.shape, seed=100 * seed + number))
    return module.eval()


def branches() -> list[Callable[..., Tensor]]:
    """Three different functions, none of them linear or odd."""
    matrices = [normal(WIDTH, WIDTH, seed=seed) for seed in (7, 8, 9)]
    return [lambda x, flow, m=m, c=c: torch.tanh(x @ m) + c * x**2 for c, m in enumerate(matrices)]


class Triple(nn.Module):
    """Stands in for dropout, to show where it is."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


def sandwich(x: Tensor, f: Any, norm: Any, own: nn.Module) -> Tensor:
    for name, branch in f.items():
        x = x + own.post_norms[name](3 * branch(norm[name](x)))
    return x


def parallel(x: Tensor, f: Any, norm: Any, own: nn.Module) -> Tensor:
    return x + sum(3 * branch(norm["shared" if len(norm) == 1 else name](x)) for name, branch in f.items())


def one_by_one(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def through(x: Tensor, f: Any, norm: Any, own: nn.Module) -> Tensor:
        for name, branch in f.items():
            x = step(x, lambda y, branch=branch: 3 * branch(y), norm.get(name), own, name)
        return x

    return through


DEEP = 24**0.25  # decoder of 8 layers over a source: (3 * 8)^(1/4)
EQUATIONS: list[tuple[str, dict[str, Any], Callable[..., Tensor]]] = [
    ("pre", {}, one_by_one(lambda x, f, norm, own, name: x + f(norm(x)))),
    ("post", {}, one_by_one(lambda x, f, norm, own, name: norm(x + f(x)))),
    ("reordered", {}, one_by_one(lambda x, f, norm, own, name: x + norm(f(x)))),
    ("sandwich", {}, sandwich),
    ("parallel", {}, parallel),
    ("parallel", {"shared_norm": False}, parallel),
    ("rezero", {}, one_by_one(lambda x, f, norm, own, name: x + own.a * f(x))),
    ("layerscale", {}, one_by_one(lambda x, f, norm, own, name: x + own.gammas[name] * f(norm(x)))),
    ("deepnorm", {}, one_by_one(lambda x, f, norm, own, name: norm(DEEP * x + f(x)))),
]


def wired(name: str, options: dict[str, Any], norm: str = "layernorm", layer: int = 0) -> tuple[Any, Any]:
    site = Site(WIDTH, 8, 4, layer=layer, other_layers=2)

    def new_norm() -> nn.Module:
        return REGISTRY["norm"][norm]().build(WIDTH)

    part = recipe(name, dropout=0.3, **options)
    wiring, ends = part.build(site, BRANCHES, new_norm), part.build_ends(site, new_norm)
    places = [module for module in wiring.modules() if isinstance(module, Dropout)]
    assert [place.p for place in places] == [0.3] * 3
    for branch in BRANCHES:
        wiring.dropouts[branch] = Triple()
    return randomised(wiring), randomised(ends, 1)


def through(wiring: Any, x: Tensor) -> Tensor:
    return wiring(x, Flow(PositionLayer(), torch.arange(x.shape[1])), branches())


@pytest.mark.parametrize(("name", "options", "equation"), EQUATIONS, ids=lambda value: str(value)[:24])
def test_wiring(name: str, options: dict[str, Any], equation: Callable[..., Tensor]) -> None:
    wiring, ends = wired(name, options)
    x = normal(2, 3, WIDTH)
    f = {key: lambda y, branch=branch: branch(y, None) for key, branch in zip(BRANCHES, branches(), strict=True)}
    norms = dict(wiring.norms.items()) if hasattr(wiring, "norms") else {}
    assert len(norms) == (0 if name == "rezero" else 1 if options == {} and name == "parallel" else 3)
    assert error(through(wiring, ends.enter(x)), equation(x, f, norms, wiring)) <= EXACT


def test_every_wiring_has_its_equation_here() -> None:
    written = {name for name, *_ in EQUATIONS} | {"hyper"}
    assert {name for name, kind in REGISTRY["residual"].items() if kind.__module__.startswith("partwise.")} == written


@pytest.mark.parametrize("name", sorted(REGISTRY["residual"]))
def test_a_norm_ends_the_stack_where_the_family_has_one(name: str) -> None:
    x = normal(2, 3, WIDTH)
    for options in ({}, {"final_norm": True}, {"final_norm": False}):
        _, ends = wired(name, options)
        expected = options.get("final_norm", name not in ("post", "rezero", "deepnorm"))
        norms = [module for module in ends.modules() if isinstance(module, nn.LayerNorm)]
        assert len(norms) == int(expected)
        assert error(ends.leave(ends.enter(x)), norms[0](x) if norms else x) <= EXACT


def hyper_by_the_paper(H: Tensor, wiring: Any, dynamic: bool, rms: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """H (B, T, n, D), one token at a time: HC = [[0, B], [A_m, A_r]], h_0 = A_m^T H, H' = A_r^T H, H' + B^T T(h_0)."""
    B, T, n, D = H.shape
    for name, branch in zip(BRANCHES, branches(), strict=True):
        own = wiring.connections[name]
        read, later, gives = torch.zeros(B, T, D).double(), torch.zeros(B, T, n, D).double(), torch.zeros(B, T, n)
        gives = gives.double()
        for b in range(B):
            for t in range(T):
                A, beta = own.alpha.detach().clone(), own.beta.detach().clone()
                if dynamic:
                    seen = rms(H[b, t], own.dynamic.norm.weight)
                    A += own.dynamic.alpha_scale * torch.tanh(seen @ own.dynamic.weight[:-1].T)
                    beta += own.dynamic.beta_scale * torch.tanh(seen @ own.dynamic.weight[-1])
                for i in range(n):
                    read[b, t] += A[i, 0] * H[b, t, i]
                    for j in range(n):
                        later[b, t, j] += A[i, 1 + j] * H[b, t, i]
                gives[b, t] = beta
        y = 3 * branch(rms(read, wiring.norms[name].weight), None)
        H = later + torch.stack([gives[:, :, j, None] * y for j in range(n)], dim=2)
    return H


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_hyper_connections(copies: int, dynamic: bool) -> None:
    wiring, ends = wired("hyper", {"copies": copies, "dynamic": dynamic}, "rmsnorm", layer=1)

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * weight

    x = normal(2, 3, WIDTH)
    H = ends.enter(x)
    assert H.shape == (2, 3, copies, WIDTH) and all(torch.equal(H[:, :, i], x) for i in range(copies))
    H = normal(2, 3, copies, WIDTH)
    expected = hyper_by_the_paper(H, wiring, dynamic, rms)
    assert error(through(wiring, H), expected) <= EXACT
    # the paper's sum over the copies, but for the factor that the norm takes out again
    total = sum(expected[:, :, i] for i in range(copies)) / copies
    assert error(ends.leave(expected), rms(total, ends.norm.weight)) <= EXACT


def test_hyper_connections_start_as_the_paper_says() -> None:
    part = recipe("hyper", copies=4, dynamic=True)
    for layer in range(3):
        wiring = part.build(Site(WIDTH, 3, 4, layer=layer), BRANCHES[::2], lambda: nn.LayerNorm(WIDTH))
        for place, connection in enumerate(wiring.connections.values()):
            k = 2 * layer + place
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
def test_hyper_connections_start_as_pre_norm(options: dict[str, Any], final_norm: bool, encoder_layers: int) -> None:
    """Outputs and the gradients of what both have; eps is large, so that a stream n times as long would show."""
    shared = {"norm": {"part": "rmsnorm", "eps": 0.01}, "encoder_layers": encoder_layers}
    plain = model({"part": "pre", "final_norm": final_norm}, **shared)
    hyper = model({"part": "hyper", "final_norm": final_norm, **options}, **shared)
    assert error(logits(hyper), logits(plain)) <= EXACT
    for one in (plain, hyper):
        one(tokens(), source=tokens(shift=2) if encoder_layers else None).square().sum().backward()
    found = dict(hyper.named_parameters())
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None and found[name].grad is not None
        assert error(found[name].grad, parameter.grad) <= EXACT, name


def test_autocast_leaves_the_copies_of_the_stream_as_they_are() -> None:
    """As in every other wiring: bfloat16 has 8 bits, and the stream is the sum of all branches."""
    part = recipe("hyper", copies=2)
    wiring = part.build(Site(WIDTH, 1, 4), BRANCHES, lambda: nn.LayerNorm(WIDTH))
    x = normal(2, 3, 2, WIDTH).float()
    nothing = [lambda x, flow: torch.zeros_like(x).bfloat16()] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = wiring(x, Flow(PositionLayer(), torch.arange(3)), nothing)
    assert found.dtype == torch.float32 and torch.equal(found, x)


@pytest.mark.parametrize("name", ["sandwich", "reordered"])
def test_autocast_leaves_the_norm_of_a_branch_in_the_precision_of_the_stream(name: str) -> None:
    seen = []

    class Watching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.dtype)
            return x

    wiring = recipe(name).build(Site(WIDTH, 1, 4), BRANCHES, Watching)
    coarse = [lambda x, flow: x.bfloat16()] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wiring(normal(2, 3, WIDTH).float(), Flow(PositionLayer(), torch.arange(3)), coarse)
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("dynamic", [False, True])
def test_hyper_connections_count_their_work_without_memory(dynamic: bool) -> None:
    """Two copies to three of D numbers per branch, and 3 + 1 sums over D for each copy where they depend on it."""
    counts = [
        partwise.ModelConfig.from_dict({**SIZES, "residual": residual}).flops_per_token()
        for residual in ("pre", {"part": "hyper", "copies": 2, "dynamic": dynamic})
    ]
    per_branch = 2 * WIDTH * 2 * 3 + (2 * WIDTH * 2 * 4 if dynamic else 0)
    assert counts[1] - counts[0] == 3 * 2 * SIZES["n_layers"] * per_branch


def test_rezero_starts_as_the_identity_and_learns_by_its_scalars() -> None:
    one = model("rezero")
    assert torch.equal(logits(one), one.head(one.embed(tokens())))
    one(tokens()).square().sum().backward()
    for name, parameter in one.blocks.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.any() == name.endswith("residual.a")
        assert parameter.shape == () or not name.startswith("residual")
    assert sum(name.endswith(".a") for name, _ in one.named_parameters()) == SIZES["n_layers"]
    assert not [name for name, _ in one.named_parameters() if "norm" in name]


@pytest.mark.parametrize(("n_layers", "start"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_layer_scale_starts_by_depth(n_layers: int, start: float) -> None:
    for given, expected in ((None, start), (0.3, 0.3), (0.0, 0.0)):
        wiring = recipe("layerscale", start=given).build(Site(WIDTH, n_layers, 4), BRANCHES, nn.Identity)
        assert list(wiring.gammas) == BRANCHES
        assert all(torch.equal(gamma, torch.full((WIDTH,), expected)) for gamma in wiring.gammas.values())


def test_what_is_pre_norm_in_disguise() -> None:
    plain = logits(model("pre"))
    assert torch.equal(logits(model({"part": "layerscale", "start": 1.0})), plain)
    bare = logits(model("pre", norm="none"))
    assert torch.equal(logits(model("sandwich", norm="none")), bare)
    assert torch.equal(logits(model("reordered", norm="none")), bare)


def test_parallel_branches_read_the_same() -> None:
    """The feed-forward does not see what attention made: without it, attention's part is what it was."""
    one = perturbed(model({"part": "parallel", "final_norm": False}, n_layers=1).config)
    both = logits(one)
    parts = []
    for silent in ("attention.out", "ffn.down"):
        other = copy.deepcopy(one)
        nn.init.zeros_(other.get_submodule(f"blocks.0.{silent}").weight)
        parts.append(logits(other))
    neither = one.head(one.embed(tokens()))
    assert error(parts[0] + parts[1] - neither, both) <= EXACT


@pytest.mark.parametrize(
    ("layers", "other", "causal", "alpha", "beta"),
    [
        # a decoder, or an encoder, alone: (2 L)^(1/4), (8 L)^(-1/4)
        (2, 0, True, math.sqrt(2), 0.5),
        (8, 0, True, 2.0, 8**-0.5),
        (8, 0, False, 2.0, 8**-0.5),
        (128, 0, True, 4.0, 32**-0.5),
        # a decoder over an encoder: (3 M)^(1/4), (12 M)^(-1/4)
        (27, 5, True, 3.0, 18**-0.5),
        (6, 6, True, 2.0597671439071177, 0.3432945239845196),
        # its encoder: 0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16)
        (16, 1, False, 1.62, 0.435),
        (1, 2**16, False, 1.62, 0.435),
        (6, 6, False, 1.4179381406855227, 0.4969892407713235),
        (100, 100, False, 3.4157416777715162, 0.2063095123925640),
    ],
)
def test_deepnorm_constants(layers: int, other: int, causal: bool, alpha: float, beta: float) -> None:
    assert constants_by_depth(layers, other, causal) == pytest.approx((alpha, beta), rel=1e-14)
    part = recipe("deepnorm")
    site = Site(WIDTH, layers, 4, causal=causal, other_layers=other)
    assert part.build(site, BRANCHES, nn.Identity).alpha == pytest.approx(alpha, rel=1e-14)
    gains = {
        role: part.gain(TensorSpec(role, 8, 8, 8, (layers, other), causal))
        for role in ("table", "score", "hidden", "output", "head", "bias")
    }
    assert gains == {role: pytest.approx(beta) if role in ("hidden", "output") else 1.0 for role in gains}


def test_deepnorm_scales_initial_values_by_stack() -> None:
    values = {"encoder_layers": 5, "init": "xavier", "ffn": "relu", "attention": {"part": "multihead", "bias": True}}
    plain, deep = (model(name, **values) for name in ("post", "deepnorm"))
    state, scaled = {}, []
    for tensor in plain.logical_tensors():
        state[tensor.name] = tensor
    for tensor in deep.logical_tensors():
        beta = 0.87 * (5**4 * 3) ** (-1 / 16) if tensor.name.startswith("encoder.") else 36**-0.25
        own = tensor.name.split(".")[-2] in ("v", "out", "up", "down") and tensor.name.endswith("weight")
        scaled += [tensor.name] if own else []
        torch.testing.assert_close(tensor.data, state[tensor.name].data * (beta if own else 1), rtol=1e-6, atol=0)
    assert len(scaled) == 5 * 4 + 3 * 6
    alphas = [block.residual.alpha for stack in (deep.encoder, deep) for block in stack.blocks]
    assert alphas == [pytest.approx(0.81 * (5**4 * 3) ** (1 / 16))] * 5 + [pytest.approx(9**0.25)] * 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"part": "layerscale", "start": 2.0}, "residual.start=2.0"),
        ({"part": "hyper", "copies": 0}, "residual.copies=0"),
        ({"part": "rezero", "dropout": 1.0}, "residual.dropout=1.0"),
        ({"part": "deepnorm", "alpha": 2.0}, "residual.alpha"),
    ],
)
def test_nonsense_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(partwise.ConfigError, match=named.replace(".", r"\.")) as caught:
        partwise.ModelConfig.from_dict({**SIZES, "residual": options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(REGISTRY["residual"]))
@pytest.mark.parametrize("final_norm", [False, True])
def test_a_number_that_the_next_norm_takes_out_is_refused(name: str, final_norm: bool) -> None:
    values = {**SIZES, "norm": "scalenorm", "residual": {"part": name, "final_norm": final_norm}}
    if name == "sandwich" or (name in ("post", "deepnorm") and final_norm):
        with pytest.raises(partwise.ConfigError, match=f"residual={name} .* one weight of a norm such as scalenorm"):
            partwise.ModelConfig.from_dict(values)
        return
    one = perturbed(partwise.ModelConfig.from_dict(values))
    one(tokens()).square().sum().backward()
    weights = [p for key, p in one.named_parameters() if "norm" in key and p.dim() == 0]
    assert all(p.grad is not None and abs(p.grad.item()) > 1e-6 for p in weights)
    assert bool(weights) == (name != "rezero" or final_norm)
