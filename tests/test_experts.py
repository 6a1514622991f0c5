"""The mixture of experts: its equation token by token, other implementations, its balance, and what it costs."""

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import partwise
from partwise.checkpoint import load_tensors, load_weights, tensor_writer
from partwise.config import REGISTRY, ConfigError
from partwise.parts.experts import grouped_linear
from partwise.parts.families import Flow, PositionLayer, Site
from partwise.parts.routing import Groups, highest
from recipes import error, perturbed, tokens

EXACT = 1e-12
WIDTH, HIDDEN, LENGTH = 8, 5, 7
KINDS = get_args(REGISTRY["ffn"]["moe"].model_fields["kind"].annotation)


def build(**options: Any) -> nn.Module:
    return REGISTRY["ffn"]["moe"].from_dict(options, prefix="ffn").build(Site(WIDTH, 1, LENGTH))


def layer(seed: int = 0, **options: Any) -> Any:
    """A mixture in float64 and in evaluation, its weights random."""
    made = build(**{"n_experts": 4, "hidden": HIDDEN, **options}).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flow(segments: Tensor | None = None) -> Flow:
    return Flow(PositionLayer(), torch.arange(LENGTH), segments=segments)


def dense(kind: str, hidden: int, weights: dict[str, Tensor]) -> nn.Module:
    """A feed-forward on its own, with the given weights."""
    made = REGISTRY["ffn"][kind].from_dict({"hidden": hidden}, prefix="ffn").build(Site(WIDTH, 1, LENGTH)).double()
    made.load_state_dict(weights)
    return made


def by_the_equation(mixture: nn.Module, x: Tensor, options: dict[str, Any]) -> Tensor:
    """(N, D) -> (N, D), one token and one expert at a time."""
    state, kind = mixture.state_dict(), options.get("kind", "swiglu")
    stacked = {name.removeprefix("experts."): w for name, w in state.items() if name.startswith("experts.")}
    experts = [
        dense(kind, HIDDEN, {name: w[e] for name, w in stacked.items()}) for e in range(len(stacked["up.weight"]))
    ]
    rows = []
    for token in x:
        logits = [float(router @ token) for router in state["router.weight"]]
        scores = torch.tensor(logits, dtype=torch.float64).exp()
        scores = scores / (1 + scores) if options.get("score") == "sigmoid" else scores / scores.sum()
        offsets = state.get("router.balance.bias", torch.zeros(len(scores)))
        chosen = sorted(range(len(scores)), key=lambda e: -float(scores[e] + offsets[e]))[: options.get("k", 2)]
        whole = sum(float(scores[e]) for e in chosen) if options.get("normalise", True) else 1.0
        row = sum(options.get("routed_scale", 1.0) * float(scores[e]) / whole * experts[e](token) for e in chosen)
        rows.append(row)
    if shared := {name.removeprefix("shared."): w for name, w in state.items() if name.startswith("shared.")}:
        always = dense(kind, options["n_shared"] * HIDDEN, shared)
        rows = [row + always(token) for row, token in zip(rows, x, strict=True)]
    return torch.stack(rows)


VARIANTS: list[dict[str, Any]] = [
    *({"kind": kind, "n_shared": place % 3} for place, kind in enumerate(KINDS)),
    {"k": 1, "normalise": False},
    {"k": 4, "normalise": False, "score": "sigmoid"},
    {"k": 3, "score": "sigmoid", "routed_scale": 2.5, "n_shared": 2},
    {"n_experts": 9, "k": 5, "balance": "bias"},
    {"n_experts": 2, "k": 2, "balance": "loss"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_the_equation(options: dict[str, Any]) -> None:
    mixture, x = layer(**options), normal(3, LENGTH, WIDTH)
    if options.get("balance") == "bias":
        mixture.router.balance.bias.copy_(normal(9, seed=3))
        unbiased = layer(**{**options, "balance": "none"})
        assert error(unbiased(x), mixture(x)) > 0.01  # it changes who is chosen
    expected = by_the_equation(mixture, x.flatten(0, 1), options).view(x.shape)
    assert error(mixture(x, flow()), expected) <= EXACT


def test_the_kinds_are_the_dense_feed_forwards() -> None:
    built_in = {name for name, kind in REGISTRY["ffn"].items() if kind.__module__ == "partwise.parts.feed_forward"}
    assert set(KINDS) == built_in


@pytest.mark.parametrize("options", [{}, {"kind": "gelu", "score": "sigmoid", "n_shared": 1}], ids=str)
def test_gradients_are_those_of_all_experts_weighted(options: dict[str, Any]) -> None:
    """Every expert on every token, those that are not chosen times zero."""
    mixture, x = layer(**options), normal(2, LENGTH, WIDTH).requires_grad_()
    weights, chosen = mixture.router(x.flatten(0, 1), None)
    spread = torch.zeros(2 * LENGTH, 4, dtype=torch.float64).scatter(1, chosen, weights)
    up = torch.einsum("btd,efd->btef", x, mixture.experts.up.weight)
    if "kind" in options:
        hidden = nn.functional.gelu(up)
    else:
        gate = torch.einsum("btd,efd->btef", x, mixture.experts.gate.weight)
        hidden = gate * torch.sigmoid(gate) * up
    y = torch.einsum("btef,edf,bte->btd", hidden, mixture.experts.down.weight, spread.view(2, LENGTH, 4))
    y = y if mixture.shared is None else y + mixture.shared(x)
    probe, inputs = normal(2, LENGTH, WIDTH, seed=2), [x, *mixture.parameters()]
    expected = torch.autograd.grad((y * probe).sum(), inputs)
    found = torch.autograd.grad((mixture(x) * probe).sum(), inputs)
    for own, other in zip(found, expected, strict=True):
        assert error(own, other) <= EXACT


def test_the_grouped_product() -> None:
    x, weight, ends = normal(6, 3), normal(4, 2, 3, seed=2), torch.tensor([2, 2, 5, 6])  # the second expert idles
    for row, expert in enumerate([0, 0, 2, 2, 2, 3]):
        assert error(grouped_linear(x, weight, ends)[row], weight[expert] @ x[row]) <= EXACT
    inputs = x.requires_grad_(), weight.requires_grad_(), ends
    assert torch.autograd.gradcheck(grouped_linear, inputs)
    torch.library.opcheck(grouped_linear, inputs)


def mixtral(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, dict[str, Any]]:
    modeling = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral", reason="transformers is a development dependency"
    )
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_local_experts": 6, "num_experts_per_tok": 3}
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # the reference's cast
    return modeling.MixtralSparseMoeBlock(modeling.MixtralConfig(**sizes)), {"n_experts": 6, "k": 3}


def deepseek(monkeypatch: pytest.MonkeyPatch, n_groups: int = 1, k_groups: int = 1) -> tuple[nn.Module, dict[str, Any]]:
    modeling = pytest.importorskip(
        "transformers.models.deepseek_v3.modeling_deepseek_v3", reason="transformers is a development dependency"
    )
    sizes = {"hidden_size": WIDTH, "moe_intermediate_size": HIDDEN, "n_routed_experts": 6, "num_experts_per_tok": 3}
    groups = {"n_group": n_groups, "topk_group": k_groups, "n_shared_experts": 2, "routed_scaling_factor": 2.5}
    monkeypatch.setattr(torch.Tensor, "type", lambda self, dtype: self)  # the reference's cast
    options = {"n_experts": 6, "k": 3, "score": "sigmoid", "n_shared": 2, "routed_scale": 2.5, "balance": "bias"}
    return modeling.DeepseekV3MoE(modeling.DeepseekV3Config(**sizes, **groups)), options


def deepseek_in_groups(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, dict[str, Any]]:
    block, options = deepseek(monkeypatch, 3, 2)
    return block, options | {"n_groups": 3, "k_groups": 2}


@pytest.mark.parametrize("reference", [mixtral, deepseek, deepseek_in_groups])
def test_equal_to_transformers(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        block, options = reference(patch)
        block.double().eval()
        with torch.no_grad():
            for place, tensor in enumerate(block.state_dict().values()):
                tensor.copy_(normal(*tensor.shape, seed=place))
        x = normal(2, LENGTH, WIDTH)
        expected = block(x)
    state = block.state_dict()
    gate, up = state["experts.gate_up_proj"].chunk(2, dim=1)
    own = {"router.weight": state["gate.weight"], "experts.gate.weight": gate, "experts.up.weight": up}
    own["experts.down.weight"] = state["experts.down_proj"]
    if reference is not mixtral:
        own["router.balance.bias"] = state["gate.e_score_correction_bias"]
        own |= {f"shared.{name}.weight": state[f"shared_experts.{name}_proj.weight"] for name in ("gate", "up", "down")}
    mixture = layer(**options)
    mixture.load_state_dict(own)
    assert error(mixture(x), expected) <= 1e-10


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_balance_loss(score: str) -> None:
    mixture, x = layer(balance="loss", loss_coefficient=0.25, score=score), normal(2, LENGTH, WIDTH)
    here = flow()
    mixture(x, here)
    assert not here.losses  # in evaluation nothing is added
    mixture.train()(x, here)
    (loss,) = here.losses
    logits = x.flatten(0, 1) @ mixture.router.weight.T
    chosen = logits.topk(2).indices.flatten().tolist()
    scores = logits.softmax(-1) if score == "softmax" else torch.sigmoid(logits)
    shares = [scores[:, e] / scores.sum(-1) for e in range(4)]
    expected = sum(0.25 * 4 * chosen.count(e) / len(chosen) * shares[e].mean() for e in range(4))
    assert error(loss, expected) <= EXACT
    (found,) = torch.autograd.grad(loss, mixture.router.weight)
    (gradient,) = torch.autograd.grad(expected, mixture.router.weight)
    assert error(found, gradient) <= EXACT


def test_the_balance_loss_of_transformers() -> None:
    modeling = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral", reason="transformers is a development dependency"
    )
    mixture, x, here = layer(balance="loss", loss_coefficient=1.0).train(), normal(2, LENGTH, WIDTH), flow()
    mixture(x, here)
    logits = x.flatten(0, 1) @ mixture.router.weight.T
    # it counts a token's k choices as k, and is k where all experts are equal
    expected = modeling.load_balancing_loss_func((logits,), 4, 2).item() / 2
    assert here.losses[0].item() == pytest.approx(expected, rel=1e-6)  # its sums are float32


def test_an_even_router_costs_the_coefficient_and_a_collapsed_one_more() -> None:
    mixture, x = layer(balance="loss", loss_coefficient=0.01).train(), normal(2, LENGTH, WIDTH).abs()
    found = []
    for size in (0.0, 100.0):
        with torch.no_grad():
            mixture.router.weight.zero_()[0] = size  # all tokens prefer the first expert
        here = flow()
        mixture(x, here)
        found.append(here.losses[0].item())
    assert found == pytest.approx([0.01, 0.01 * 4 / 2], rel=1e-12)


def test_descent_on_the_balance_loss_evens_the_loads() -> None:
    mixture, x = layer(balance="loss", loss_coefficient=1.0).train(), normal(40, LENGTH, WIDTH)
    with torch.no_grad():
        mixture.router.weight.mul_(0.3)[0] += 1
    before, optimizer = uneven(mixture, x), torch.optim.Adam([mixture.router.weight], 0.01)
    for _ in range(200):
        here = flow()
        mixture(x, here)
        optimizer.zero_grad()
        here.losses[0].backward()
        optimizer.step()
    assert uneven(mixture, x) < before / 2


def uneven(mixture: Any, x: Tensor) -> float:
    """How far the busiest expert's load is above the mean one, relative to it."""
    _, chosen = mixture.router(x.flatten(0, 1), None)
    loads = torch.bincount(chosen.flatten(), minlength=4).double()
    return float(loads.max() / loads.mean() - 1)


def test_the_bias_evens_the_loads_without_a_gradient() -> None:
    mixture, x = layer(balance="bias", bias_rate=0.003, score="sigmoid").train(), normal(40, LENGTH, WIDTH)
    x = x + 0.5 * mixture.router.weight[0].detach()  # all tokens lean to the first expert
    before = uneven(mixture, x)
    here = flow()
    for _ in range(300):
        mixture(x, here)
        mixture.router.balance.after_step()
    assert before > 0.5 and uneven(mixture, x) < 0.05
    assert not here.losses and not mixture.router.balance.bias.requires_grad


def test_one_update_of_the_bias() -> None:
    mixture = layer(balance="bias", bias_rate=0.1, k=1, normalise=False).train()
    with torch.no_grad():
        mixture.router.weight.copy_(torch.eye(WIDTH)[:4])
    rows = torch.eye(WIDTH, dtype=torch.float64)[[0, 0, 0, 1, 1, 2, 2, 3]]
    for micro in rows.view(4, 1, 2, WIDTH):  # loads add up over the forward passes of an update
        mixture(micro)
    mixture.eval()(rows)  # and evaluation leaves them alone
    balance = mixture.router.balance
    assert balance.load.tolist() == [3, 2, 2, 1]
    balance.after_step()
    assert balance.bias.tolist() == [-0.1, 0.0, 0.0, 0.1]
    balance.after_step()  # no tokens, no change
    assert balance.bias.tolist() == [-0.1, 0.0, 0.0, 0.1]


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_padding_does_not_count(balance: str) -> None:
    mixture, x = layer(balance=balance).train(), normal(2, LENGTH, WIDTH)
    segments = torch.zeros(2, LENGTH, dtype=torch.long)
    segments[0, :3] = segments[1, :2] = -1
    here, alone = flow(segments), flow()
    loads = []
    for inputs, where in ((x, here), (torch.cat([x[0, 3:], x[1, 2:]])[None], alone)):
        mixture(inputs, where)
        if balance == "bias":
            loads.append(mixture.router.balance.load.tolist())
            mixture.router.balance.after_step()
            mixture.router.balance.bias.zero_()
    if balance == "loss":
        assert error(here.losses[0], alone.losses[0]) <= EXACT
    else:
        assert loads[0] == loads[1] and sum(loads[0]) == 2 * (2 * LENGTH - 5)


SIZES = {"vocab_size": 11, "d_model": WIDTH, "n_layers": 2, "max_len": 6}


def config(**options: Any) -> partwise.ModelConfig:
    return partwise.ModelConfig.from_dict({**SIZES, "ffn": {"part": "moe", "hidden": HIDDEN, **options}})


def test_the_bias_is_saved_and_updated_by_the_model(tmp_path: Path) -> None:
    model = partwise.Transformer(config(balance="bias", bias_rate=0.5)).train()
    model(tokens())
    model.after_step()
    names = [name for name in model.state_dict() if name.endswith("balance.bias")]
    assert names == [f"blocks.{number}.ffn.router.balance.bias" for number in range(2)]
    assert not [name for name in model.state_dict() if name.endswith("load")]
    assert all(model.state_dict()[name].abs().max() == 0.5 for name in names)
    tensor_writer(model.state_dict())(tmp_path / "model.safetensors")
    loaded = partwise.Transformer(config(balance="bias", bias_rate=0.5), seed=1)
    load_weights(loaded, load_tensors(tmp_path / "model.safetensors"))
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(loaded.eval()(tokens()), model.eval()(tokens()))


@pytest.mark.parametrize("balance", ["none", "loss", "bias"])
def test_what_a_token_gets_depends_on_that_token_alone(balance: str) -> None:
    """No capacity: in training too, neither other rows nor other places take an expert away."""
    mixture, x = layer(balance=balance).train(), normal(4, LENGTH, WIDTH)
    x[1:] = x[0, 0] + 0.01 * x[1:]  # a crowd at the same experts
    whole = mixture(x, flow())
    for row in range(4):
        assert error(mixture(x[row : row + 1], flow()), whole[row : row + 1]) <= EXACT
        for place in range(LENGTH):
            alone = mixture(x[row : row + 1, place : place + 1])
            assert error(alone, whole[row : row + 1, place : place + 1]) <= EXACT


def test_equal_scores_take_the_first_experts() -> None:
    mixture = layer(n_experts=6, k=3)
    _, chosen = mixture.router(torch.zeros(5, WIDTH, dtype=torch.float64), None)
    assert chosen.tolist() == [[0, 1, 2]] * 5


def test_sigmoids_that_all_round_to_zero_leave_no_hole() -> None:
    mixture, here = layer(score="sigmoid", balance="loss").train(), flow()
    with torch.no_grad():
        mixture.router.weight.fill_(-1e4)
    x = torch.ones(1, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    y = mixture(x, here)
    assert not y.any()
    (y.sum() + here.losses[0]).backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_the_router_is_float32_under_autocast_and_in_a_bfloat16_model() -> None:
    mixture, x = layer(n_experts=16).float(), normal(500, WIDTH).float()
    exact, chosen = mixture.router(x, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights, same = mixture.router(x, None)
        assert mixture(x[None]).dtype == torch.bfloat16
    assert weights.dtype == torch.float32 and torch.equal(weights, exact) and torch.equal(chosen, same)
    low = copy.deepcopy(mixture).bfloat16()
    weights, chosen = low.router(x.bfloat16(), None)
    twin = copy.deepcopy(low).float()
    exact, same = twin.router(x.bfloat16().float(), None)
    assert weights.dtype == torch.float32 and torch.equal(weights, exact) and torch.equal(chosen, same)
    assert low(x.bfloat16()[None]).dtype == torch.bfloat16


@pytest.mark.parametrize("options", [{}, {"balance": "loss", "n_shared": 1}, {"balance": "bias"}], ids=str)
def test_compiled_in_training(options: dict[str, Any]) -> None:
    """One graph, though the number of tokens of an expert is known only when it runs."""
    torch._dynamo.reset()
    plain, twin = layer(**options).train(), layer(**options).train()
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    for seed in range(2):
        x, results = normal(2, LENGTH, WIDTH, seed=seed), []
        for run in (plain, compiled):
            here = flow()
            y = run(x, here)
            ((y * normal(*x.shape, seed=9)).sum() + sum(here.losses)).backward()
            results.append(y)
        assert error(results[1], results[0]) <= EXACT
    for own, other in zip(plain.parameters(), twin.parameters(), strict=True):
        assert error(other.grad, own.grad) <= EXACT
    for own, other in zip(plain.buffers(), twin.buffers(), strict=True):
        assert torch.equal(own, other)


def test_the_cost_is_that_of_the_chosen_experts() -> None:
    moe = config(n_experts=6, k=2, n_shared=1)
    wide = partwise.ModelConfig.from_dict({**SIZES, "ffn": {"part": "swiglu", "hidden": 3 * HIDDEN}})
    router = 2 * 6 * WIDTH * 2  # two layers
    assert moe.flops_per_token() == wide.flops_per_token() + 3 * router
    assert config(n_experts=12, k=2, n_shared=1).flops_per_token() == moe.flops_per_token() + 3 * router
    model = partwise.Transformer(moe)
    layers = [block.ffn for block in model.blocks]
    experts = [sum(p.numel() for p in layer.experts.parameters()) / layer.router.n_experts for layer in layers]
    idle = sum(size * (layer.router.n_experts - layer.router.k) for size, layer in zip(experts, layers, strict=True))
    assert idle == 2 * 4 * 3 * WIDTH * HIDDEN
    assert moe.parameters() - idle == wide.parameters() + 2 * 6 * WIDTH
    with FlopCounterMode(display=False) as counter:  # the same of real tensors, and twice that going back
        y = layers[0](torch.randn(3, 4, WIDTH, requires_grad=True))
        forward = counter.get_total_flops()
        y.sum().backward()
    assert forward == 12 * (2 * 3 * 3 * WIDTH * HIDDEN + router // 2)
    assert counter.get_total_flops() == 3 * forward


def test_tensors_are_drawn_as_the_matrices_they_stack() -> None:
    model = partwise.Transformer(config(n_experts=3))
    found = {tensor.name: tensor for tensor in model.logical_tensors()}
    for name, role, fan_in, fan_out in [
        ("experts.gate", "hidden", WIDTH, HIDDEN),
        ("experts.up", "hidden", WIDTH, HIDDEN),
        ("experts.down", "output", HIDDEN, WIDTH),
        ("router", "hidden", WIDTH, 3),
    ]:
        tensor = found[f"blocks.1.ffn.{name}.weight"]
        assert (tensor.role, tensor.fan_in, tensor.fan_out) == (role, fan_in, fan_out)
        assert tensor.data.shape == ((3,) if name != "router" else ()) + (fan_out, fan_in)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_experts": 4, "k": 5}, r"ffn\.n_experts=4: experts fewer than k=5"),
        ({"k": 1}, r"ffn\.k=1 with ffn\.normalise=true .* set ffn\.normalise=false"),
        ({"expansion": 0.01}, r"ffn\.expansion=0\.01 leaves no hidden unit at d_model=8"),
        ({"n_experts": 1}, r"n_experts.*=1: .*greater than or equal to 2"),
        ({"kind": "moe"}, r"kind"),
    ],
    ids=str,
)
def test_what_cannot_work_is_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        partwise.ModelConfig.from_dict({**SIZES, "ffn": {"part": "moe", **options}})
    assert "\n" not in str(caught.value)


def test_a_generation_chooses_as_the_whole_text_does() -> None:
    model = perturbed(config(n_experts=4, balance="bias"))
    with torch.no_grad():
        for block in model.blocks:
            block.ffn.router.balance.bias.copy_(0.3 * normal(4))
        whole, states = model(tokens()), model.start(2)
        found = torch.cat([model(tokens()[:, place : place + 1], states) for place in range(6)], dim=1)
    assert error(found, whole) <= EXACT


def test_groups_narrow_the_choice() -> None:
    """By hand: of three groups of two the one with the highest single score loses to two better pairs."""
    preference = torch.tensor([[0.9, 0.0, 0.5, 0.5, 0.6, 0.35]])
    limited = Groups(3, 2).limit(preference)
    assert limited.isinf().tolist() == [[True, True, False, False, False, False]]
    assert highest(limited, 2).tolist() == [[4, 2]]
    single = Groups(6, 2).limit(preference)
    assert torch.nonzero(single.isfinite())[:, 1].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("n_experts=6 n_groups=4", "n_groups=4 does not divide ffn.n_experts=6"),
        ("n_experts=6 n_groups=3 k_groups=4", "k_groups=4 exceeds ffn.n_groups=3"),
        ("n_experts=6 k=3 n_groups=3 k_groups=1", "k=3 experts are not found among the 2"),
    ],
)
def test_groups_that_do_not_fit(words: str, message: str) -> None:
    overrides = [f"ffn.{word}" for word in words.split()]
    with pytest.raises(partwise.ConfigError, match=message):
        partwise.preset("mingpt", "ffn=moe", *overrides)
