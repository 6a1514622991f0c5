"""Mixture of experts: its equation token by token, other implementations, load balancing, and costs."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import partwise
from partwise.checkpoint import load_weights, tensor_writer
from partwise.config import REGISTRY, ConfigError, part
from partwise.config.own_parts import own_names
from partwise.parts.contracts import ForwardContext, LayerContext, PositionLayer
from partwise.parts.feed_forward.dense import Activation, F, Ungated
from partwise.parts.feed_forward.moe import dense_recipes, grouped_linear, grouped_outer, padded_number
from partwise.parts.feed_forward.router import ExpertGroups, top_k_indices
from partwise.tensor_files import TensorFiles
from recipes import error, perturbed, tokens

EXACT = 1e-12
WIDTH, HIDDEN, LENGTH = 8, 5, 7
EXPERTS = [name for name, recipe in dense_recipes().items() if recipe.__module__.startswith("partwise.")]


def build(**options: Any) -> nn.Module:
    return REGISTRY["ffn"]["moe"].from_dict(options, prefix="ffn").build(LayerContext(WIDTH, 1, LENGTH))


def layer(seed: int = 0, **options: Any) -> Any:
    """A mixture in float64 and eval mode, with random weights."""
    mixture = build(**{"n_experts": 4, "hidden": HIDDEN, **options}).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return mixture


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ctx(document_ids: Tensor | None = None) -> ForwardContext:
    return ForwardContext(PositionLayer(), torch.arange(LENGTH), document_ids=document_ids)


def dense(kind: str, hidden: int, weights: dict[str, Tensor]) -> nn.Module:
    """A dense feed-forward layer with the given weights."""
    dense_layer = (
        REGISTRY["ffn"][kind].from_dict({"hidden": hidden}, prefix="ffn").build(LayerContext(WIDTH, 1, LENGTH)).double()
    )
    dense_layer.load_state_dict(weights)
    return dense_layer


def reference_output(mixture: nn.Module, x: Tensor, options: dict[str, Any]) -> Tensor:
    """(N, D) -> (N, D), one token and one expert at a time."""
    state, kind = mixture.state_dict(), options.get("expert", "swiglu")
    stacked = {name.removeprefix("experts."): w for name, w in state.items() if name.startswith("experts.")}
    experts = [
        dense(kind, HIDDEN, {name: w[e] for name, w in stacked.items()}) for e in range(len(stacked["up.weight"]))
    ]
    rows = []
    for token in x:
        logits = [float(router @ token) for router in state["router.weight"]]
        scores = torch.tensor(logits, dtype=torch.float64).exp()
        scores = scores / (1 + scores) if options.get("scoring_func") == "sigmoid" else scores / scores.sum()
        offsets = state.get("router.balance.bias", torch.zeros(len(scores)))
        selected = sorted(range(len(scores)), key=lambda e: -float(scores[e] + offsets[e]))[: options.get("top_k", 2)]
        total = sum(float(scores[e]) for e in selected) if options.get("norm_topk_prob", True) else 1.0
        row = sum(
            options.get("routed_scaling_factor", 1.0) * float(scores[e]) / total * experts[e](token) for e in selected
        )
        rows.append(row)
    if shared := {name.removeprefix("shared."): w for name, w in state.items() if name.startswith("shared.")}:
        shared_experts = dense(kind, options["n_shared_experts"] * HIDDEN, shared)
        rows = [row + shared_experts(token) for row, token in zip(rows, x, strict=True)]
    return torch.stack(rows)


VARIANTS: list[dict[str, Any]] = [
    *({"expert": kind, "n_shared_experts": index % 3} for index, kind in enumerate(EXPERTS)),
    {"top_k": 1, "norm_topk_prob": False},
    {"top_k": 4, "norm_topk_prob": False, "scoring_func": "sigmoid"},
    {"top_k": 3, "scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "n_shared_experts": 2},
    {"n_experts": 9, "top_k": 5, "load_balancing": "bias"},
    {"n_experts": 2, "top_k": 2, "load_balancing": "aux_loss"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_the_equation(options: dict[str, Any]) -> None:
    mixture, x = layer(**options), normal(3, LENGTH, WIDTH)
    if options.get("load_balancing") == "bias":
        mixture.router.balance.bias.copy_(normal(9, seed=3))
        unbiased = layer(**{**options, "load_balancing": "none"})
        assert error(unbiased(x), mixture(x)) > 0.01  # the bias changes the selection
    expected = reference_output(mixture, x.flatten(0, 1), options).view(x.shape)
    assert error(mixture(x, ctx()), expected) <= EXACT


@pytest.mark.parametrize("options", [{}, {"expert": "gelu", "scoring_func": "sigmoid", "n_shared_experts": 1}], ids=str)
def test_gradients_equal_those_of_all_experts(options: dict[str, Any]) -> None:
    """All experts on all tokens, with zero weights for those not selected."""
    mixture, x = layer(**options), normal(2, LENGTH, WIDTH).requires_grad_()
    weights, selected = mixture.router(x.flatten(0, 1), None)
    all_weights = torch.zeros(2 * LENGTH, 4, dtype=torch.float64).scatter(1, selected, weights)
    up = torch.einsum("btd,efd->btef", x, mixture.experts.up.weight)
    if "expert" in options:
        hidden = nn.functional.gelu(up)
    else:
        gate = torch.einsum("btd,efd->btef", x, mixture.experts.gate.weight)
        hidden = gate * torch.sigmoid(gate) * up
    y = torch.einsum("btef,edf,bte->btd", hidden, mixture.experts.down.weight, all_weights.view(2, LENGTH, 4))
    y = y if mixture.shared is None else y + mixture.shared(x)
    probe, inputs = normal(2, LENGTH, WIDTH, seed=2), [x, *mixture.parameters()]
    expected = torch.autograd.grad((y * probe).sum(), inputs)
    found = torch.autograd.grad((mixture(x) * probe).sum(), inputs)
    for own, other in zip(found, expected, strict=True):
        assert error(own, other) <= EXACT


def test_grouped_linear() -> None:
    x, weight, ends = normal(6, 3), normal(4, 2, 3, seed=2), torch.tensor([2, 2, 5, 6])  # the second expert has no rows
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
    return modeling.MixtralSparseMoeBlock(modeling.MixtralConfig(**sizes)), {"n_experts": 6, "top_k": 3}


def deepseek(
    monkeypatch: pytest.MonkeyPatch, n_groups: int = 1, top_k_groups: int = 1
) -> tuple[nn.Module, dict[str, Any]]:
    modeling = pytest.importorskip(
        "transformers.models.deepseek_v3.modeling_deepseek_v3", reason="transformers is a development dependency"
    )
    sizes = {"hidden_size": WIDTH, "moe_intermediate_size": HIDDEN, "n_routed_experts": 6, "num_experts_per_tok": 3}
    groups = {"n_group": n_groups, "topk_group": top_k_groups, "n_shared_experts": 2, "routed_scaling_factor": 2.5}
    monkeypatch.setattr(torch.Tensor, "type", lambda self, dtype: self)  # the reference's cast
    options = {
        "n_experts": 6,
        "top_k": 3,
        "scoring_func": "sigmoid",
        "n_shared_experts": 2,
        "routed_scaling_factor": 2.5,
        "load_balancing": "bias",
    }
    return modeling.DeepseekV3MoE(modeling.DeepseekV3Config(**sizes, **groups)), options


def deepseek_with_groups(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, dict[str, Any]]:
    block, options = deepseek(monkeypatch, 3, 2)
    return block, options | {"n_groups": 3, "top_k_groups": 2}


@pytest.mark.parametrize("reference", [mixtral, deepseek, deepseek_with_groups])
def test_equal_to_transformers(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        block, options = reference(patch)
        block.double().eval()
        with torch.no_grad():
            for index, tensor in enumerate(block.state_dict().values()):
                tensor.copy_(normal(*tensor.shape, seed=index))
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


@pytest.mark.parametrize("scoring_func", ["softmax", "sigmoid"])
def test_aux_loss(scoring_func: str) -> None:
    mixture, x = (
        layer(load_balancing="aux_loss", aux_loss_coef=0.25, scoring_func=scoring_func),
        normal(2, LENGTH, WIDTH),
    )
    context = ctx()
    mixture(x, context)
    assert not context.aux_losses  # not in eval mode
    mixture.train()(x, context)
    (loss,) = context.aux_losses
    logits = x.flatten(0, 1) @ mixture.router.weight.T
    selected = logits.topk(2).indices.flatten().tolist()
    scores = logits.softmax(-1) if scoring_func == "softmax" else torch.sigmoid(logits)
    shares = [scores[:, e] / scores.sum(-1) for e in range(4)]
    expected = sum(0.25 * 4 * selected.count(e) / len(selected) * shares[e].mean() for e in range(4))
    assert error(loss, expected) <= EXACT
    (found,) = torch.autograd.grad(loss, mixture.router.weight)
    (gradient,) = torch.autograd.grad(expected, mixture.router.weight)
    assert error(found, gradient) <= EXACT


def test_aux_loss_equals_transformers() -> None:
    modeling = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral", reason="transformers is a development dependency"
    )
    mixture, x, context = layer(load_balancing="aux_loss", aux_loss_coef=1.0).train(), normal(2, LENGTH, WIDTH), ctx()
    mixture(x, context)
    logits = x.flatten(0, 1) @ mixture.router.weight.T
    # theirs counts each of the k selections of a token, so a uniform router gives k
    expected = modeling.load_balancing_loss_func((logits,), 4, 2).item() / 2
    assert context.aux_losses[0].item() == pytest.approx(expected, rel=1e-6)  # theirs sums in float32


def test_aux_loss_of_uniform_and_collapsed_routers() -> None:
    mixture, x = layer(load_balancing="aux_loss", aux_loss_coef=0.01).train(), normal(2, LENGTH, WIDTH).abs()
    found = []
    for size in (0.0, 100.0):
        with torch.no_grad():
            mixture.router.weight.zero_()[0] = size  # all tokens prefer the first expert
        context = ctx()
        mixture(x, context)
        found.append(context.aux_losses[0].item())
    assert found == pytest.approx([0.01, 0.01 * 4 / 2], rel=1e-12)


def test_minimizing_the_aux_loss_balances_loads() -> None:
    mixture, x = layer(load_balancing="aux_loss", aux_loss_coef=1.0).train(), normal(40, LENGTH, WIDTH)
    with torch.no_grad():
        mixture.router.weight.mul_(0.3)[0] += 1
    before, optimizer = imbalance(mixture, x), torch.optim.Adam([mixture.router.weight], 0.01)
    for _ in range(200):
        context = ctx()
        mixture(x, context)
        optimizer.zero_grad()
        context.aux_losses[0].backward()
        optimizer.step()
    assert imbalance(mixture, x) < before / 2


def imbalance(mixture: Any, x: Tensor) -> float:
    """The excess of the highest expert load over the mean load, relative to the mean."""
    _, selected = mixture.router(x.flatten(0, 1), None)
    loads = torch.bincount(selected.flatten(), minlength=4).double()
    return float(loads.max() / loads.mean() - 1)


def test_bias_balances_loads_without_a_gradient() -> None:
    mixture, x = (
        layer(load_balancing="bias", bias_update_rate=0.003, scoring_func="sigmoid").train(),
        normal(40, LENGTH, WIDTH),
    )
    x = x + 0.5 * mixture.router.weight[0].detach()  # all tokens prefer the first expert
    before = imbalance(mixture, x)
    context = ctx()
    for _ in range(300):
        mixture(x, context)
        mixture.router.balance.after_step()
    assert before > 0.5 and imbalance(mixture, x) < 0.05
    assert not context.aux_losses and not mixture.router.balance.bias.requires_grad


def test_one_bias_update() -> None:
    mixture = layer(load_balancing="bias", bias_update_rate=0.1, top_k=1, norm_topk_prob=False).train()
    with torch.no_grad():
        mixture.router.weight.copy_(torch.eye(WIDTH)[:4])
    rows = torch.eye(WIDTH, dtype=torch.float64)[[0, 0, 0, 1, 1, 2, 2, 3]]
    for micro in rows.view(4, 1, 2, WIDTH):  # loads accumulate over the micro-batches of a step
        mixture(micro)
    mixture.eval()(rows)  # eval mode does not count
    balance = mixture.router.balance
    assert balance.load.tolist() == [3, 2, 2, 1]
    balance.after_step()
    assert balance.bias.tolist() == [-0.1, 0.0, 0.0, 0.1]
    balance.after_step()  # no tokens, no change
    assert balance.bias.tolist() == [-0.1, 0.0, 0.0, 0.1]


@pytest.mark.parametrize("load_balancing", ["aux_loss", "bias"])
def test_padding_has_no_load(load_balancing: str) -> None:
    mixture, x = layer(load_balancing=load_balancing).train(), normal(2, LENGTH, WIDTH)
    document_ids = torch.zeros(2, LENGTH, dtype=torch.long)
    document_ids[0, :3] = document_ids[1, :2] = -1
    context, alone = ctx(document_ids), ctx()
    loads = []
    for inputs, where in ((x, context), (torch.cat([x[0, 3:], x[1, 2:]])[None], alone)):
        mixture(inputs, where)
        if load_balancing == "bias":
            loads.append(mixture.router.balance.load.tolist())
            mixture.router.balance.after_step()
            mixture.router.balance.bias.zero_()
    if load_balancing == "aux_loss":
        assert error(context.aux_losses[0], alone.aux_losses[0]) <= EXACT
    else:
        assert loads[0] == loads[1] and sum(loads[0]) == 2 * (2 * LENGTH - 5)


SIZES = {"vocab_size": 11, "d_model": WIDTH, "n_layers": 2, "context_length": 6}


def config(**options: Any) -> partwise.ModelConfig:
    return partwise.ModelConfig.from_dict({**SIZES, "ffn": {"part": "moe", "hidden": HIDDEN, **options}})


def test_model_updates_and_saves_the_bias(tmp_path: Path) -> None:
    model = partwise.Transformer(config(load_balancing="bias", bias_update_rate=0.5)).train()
    model(tokens())
    model.after_step()
    names = [name for name in model.state_dict() if name.endswith("balance.bias")]
    assert names == [f"blocks.{number}.ffn.router.balance.bias" for number in range(2)]
    assert not [name for name in model.state_dict() if name.endswith("load")]
    assert all(model.state_dict()[name].abs().max() == 0.5 for name in names)
    tensor_writer(model.state_dict())(tmp_path / "model.safetensors")
    loaded = partwise.Transformer(config(load_balancing="bias", bias_update_rate=0.5), seed=1)
    load_weights(loaded, TensorFiles([tmp_path / "model.safetensors"]))
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(loaded.eval()(tokens()), model.eval()(tokens()))


@pytest.mark.parametrize("load_balancing", ["none", "aux_loss", "bias"])
def test_output_of_a_token_depends_only_on_that_token(load_balancing: str) -> None:
    """No capacity limit, even in training: other rows and positions do not take an expert away."""
    mixture, x = layer(load_balancing=load_balancing).train(), normal(4, LENGTH, WIDTH)
    x[1:] = x[0, 0] + 0.01 * x[1:]  # most tokens prefer the same experts
    full = mixture(x, ctx())
    for row in range(4):
        assert error(mixture(x[row : row + 1], ctx()), full[row : row + 1]) <= EXACT
        for position in range(LENGTH):
            alone = mixture(x[row : row + 1, position : position + 1])
            assert error(alone, full[row : row + 1, position : position + 1]) <= EXACT


def test_equal_scores_select_the_first_experts() -> None:
    mixture = layer(n_experts=6, top_k=3)
    _, selected = mixture.router(torch.zeros(5, WIDTH, dtype=torch.float64), None)
    assert selected.tolist() == [[0, 1, 2]] * 5


def test_sigmoids_that_all_round_to_zero_are_finite() -> None:
    mixture, context = layer(scoring_func="sigmoid", load_balancing="aux_loss").train(), ctx()
    with torch.no_grad():
        mixture.router.weight.fill_(-1e4)
    x = torch.ones(1, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    y = mixture(x, context)
    assert not y.any()
    (y.sum() + context.aux_losses[0]).backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_the_router_is_float32_under_autocast_and_in_a_bfloat16_model() -> None:
    mixture, x = layer(n_experts=16).float(), normal(500, WIDTH).float()
    exact, selected = mixture.router(x, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights, same = mixture.router(x, None)
        assert mixture(x[None]).dtype == torch.bfloat16
    assert weights.dtype == torch.float32 and torch.equal(weights, exact) and torch.equal(selected, same)
    low = copy.deepcopy(mixture).bfloat16()
    weights, selected = low.router(x.bfloat16(), None)
    twin = copy.deepcopy(low).float()
    exact, same = twin.router(x.bfloat16().float(), None)
    assert weights.dtype == torch.float32 and torch.equal(weights, exact) and torch.equal(selected, same)
    assert low(x.bfloat16()[None]).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "options", [{}, {"load_balancing": "aux_loss", "n_shared_experts": 1}, {"load_balancing": "bias"}], ids=str
)
def test_compiled_in_training(options: dict[str, Any]) -> None:
    """One graph, although the number of tokens per expert depends on the data."""
    torch._dynamo.reset()
    plain, twin = layer(**options).train(), layer(**options).train()
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    for seed in range(2):
        x, results = normal(2, LENGTH, WIDTH, seed=seed), []
        for run in (plain, compiled):
            context = ctx()
            y = run(x, context)
            ((y * normal(*x.shape, seed=9)).sum() + sum(context.aux_losses)).backward()
            results.append(y)
        assert error(results[1], results[0]) <= EXACT
    for own, other in zip(plain.parameters(), twin.parameters(), strict=True):
        assert error(other.grad, own.grad) <= EXACT
    for own, other in zip(plain.buffers(), twin.buffers(), strict=True):
        assert torch.equal(own, other)


def test_flops_are_those_of_the_selected_experts() -> None:
    moe = config(n_experts=6, top_k=2, n_shared_experts=1)
    wide = partwise.ModelConfig.from_dict({**SIZES, "ffn": {"part": "swiglu", "hidden": 3 * HIDDEN}})
    router = 2 * 6 * WIDTH * 2  # two layers
    assert moe.flops_per_token() == wide.flops_per_token() + 3 * router
    assert config(n_experts=12, top_k=2, n_shared_experts=1).flops_per_token() == moe.flops_per_token() + 3 * router
    model = partwise.Transformer(moe)
    layers = [block.ffn for block in model.blocks]
    experts = [sum(p.numel() for p in layer.experts.parameters()) / layer.router.n_experts for layer in layers]
    idle = sum(
        size * (layer.router.n_experts - layer.router.top_k) for size, layer in zip(experts, layers, strict=True)
    )
    assert idle == 2 * 4 * 3 * WIDTH * HIDDEN
    assert moe.parameters() - idle == wide.parameters() + 2 * 6 * WIDTH
    with FlopCounterMode(
        display=False
    ) as counter:  # the same with real tensors, and twice as many in the backward pass
        y = layers[0](torch.randn(3, 4, WIDTH, requires_grad=True))
        forward = counter.get_total_flops()
        y.sum().backward()
    assert forward == 12 * (2 * 3 * 3 * WIDTH * HIDDEN + router // 2)
    assert counter.get_total_flops() == 3 * forward


def test_stacked_tensors_are_initialized_as_separate_matrices() -> None:
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
        ({"n_experts": 4, "top_k": 5}, r"ffn\.n_experts=4 is less than ffn\.top_k=5"),
        ({"top_k": 1}, r"ffn\.top_k=1 with ffn\.norm_topk_prob=true .* set ffn\.norm_topk_prob=false"),
        ({"expansion": 0.01}, r"ffn\.expansion=0\.01 rounds to no hidden unit at d_model=8"),
        ({"n_experts": 1}, r"n_experts.*=1: .*greater than or equal to 2"),
        ({"expert": "moe"}, r"ffn\.expert=moe: expected a dense feed-forward layer \(known: bilinear, "),
        ({"expert": "swigl"}, r"ffn\.expert=swigl: .* did you mean 'swiglu'\?"),
    ],
    ids=str,
)
def test_errors_of_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        partwise.ModelConfig.from_dict({**SIZES, "ffn": {"part": "moe", **options}})
    assert "\n" not in str(caught.value)


def test_an_activation_of_ones_own_is_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is checked before a run, as a part that is not of the package."""
    for family, known in REGISTRY.items():
        monkeypatch.setitem(REGISTRY, family, dict(known))

    @part("mish")
    class Mish(Ungated):
        """down(u tanh(softplus(u))), u = up(x)."""

        def activation(self) -> Activation:
            return Activation("mish", F.mish)

    x = normal(2, LENGTH, WIDTH)
    mixture = layer(expert="mish", n_experts=2, top_k=2, hidden=HIDDEN)
    assert mixture.experts.activation is F.mish and mixture(x, ctx()).shape == x.shape
    for expert, named in (("mish", "ffn=mish"), ("swiglu", "")):
        config = partwise.ModelConfig.from_dict({**SIZES, "ffn": {"part": "moe", "expert": expert}})
        assert own_names(config).partition(" ")[0] == named


def test_cached_equals_uncached() -> None:
    model = perturbed(config(n_experts=4, load_balancing="bias"))
    with torch.no_grad():
        for block in model.blocks:
            block.ffn.router.balance.bias.copy_(0.3 * normal(4))
        full, cache = model(tokens()), model.new_cache(2)
        found = torch.cat([model(tokens()[:, position : position + 1], cache) for position in range(6)], dim=1)
    assert error(found, full) <= EXACT


def test_expert_groups() -> None:
    """Of three groups of two, the group with the highest single score loses to two groups with higher sums."""
    preference = torch.tensor([[0.9, 0.0, 0.5, 0.5, 0.6, 0.35]])
    limited = ExpertGroups(3, 2).mask_groups(preference)
    assert limited.isinf().tolist() == [[True, True, False, False, False, False]]
    assert top_k_indices(limited, 2).tolist() == [[4, 2]]
    single = ExpertGroups(6, 2).mask_groups(preference)
    assert torch.nonzero(single.isfinite())[:, 1].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("n_experts=6 n_groups=4", "n_groups=4 does not divide ffn.n_experts=6"),
        ("n_experts=6 n_groups=3 top_k_groups=4", "top_k_groups=4 exceeds ffn.n_groups=3"),
        ("n_experts=6 top_k=3 n_groups=3 top_k_groups=1", "top_k=3 exceeds the 2 experts"),
    ],
)
def test_errors_of_invalid_groups(words: str, message: str) -> None:
    overrides = [f"ffn.{word}" for word in words.split()]
    with pytest.raises(partwise.ConfigError, match=message):
        partwise.preset("mingpt", "ffn=moe", *overrides)


@pytest.mark.parametrize("ends", [[0, 1, 1, 70], [3, 3, 70, 70], [64, 65, 66, 70]])
def test_grouped_linear_in_bfloat16_is_the_matmul_of_each_expert(ends: list[int]) -> None:
    """Rows of zeros, which make few shapes of many, are no part of the result."""
    x, y = torch.randn(70, 16).bfloat16(), torch.randn(70, 12).bfloat16()
    weight = torch.randn(4, 12, 16).bfloat16()
    out, outer = grouped_linear(x, weight, torch.tensor(ends)), grouped_outer(y, x, torch.tensor(ends))
    for expert, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        exact = x[start:end].double() @ weight[expert].double().T
        torch.testing.assert_close(out[start:end].double(), exact, rtol=2**-8, atol=1e-3)
        exact = y[start:end].double().T @ x[start:end].double()
        torch.testing.assert_close(outer[expert].double(), exact, rtol=2**-8, atol=1e-3)


def test_padded_numbers_of_rows_are_few() -> None:
    numbers = [padded_number(rows) for rows in range(1025)]
    assert all(padded >= rows for rows, padded in enumerate(numbers)) and numbers[0] == 0 and numbers[1] == 1
    assert len(set(numbers)) == 23 and max(numbers) == 1024
