"""Every optimizer equals its paper's equations for each matrix; its state is saved and restored bit for bit."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partwise import preset
from partwise.ablation.run_plan import RunArm, training_budget
from partwise.checkpoint import tensor_writer
from partwise.config import ConfigError
from partwise.model import ModelConfig, Transformer
from partwise.model.parameters import LogicalTensor, tensors_by_parameter
from partwise.tensor_files import TensorFiles
from partwise.train import optimizer_steps
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Diverged, Run, Step
from partwise.train.optimizer_steps import orthogonalize
from partwise.train.optimizers import MATRIX_ROLES, Optimizer
from partwise.train.run_folder import Interrupted, RunFolder
from recipes import configs

Tiny = Callable[..., RunConfig]
EXACT = 1e-12
EVERY = ["adamw", "muon", "lion", "sgd"]
each = pytest.mark.parametrize("kind", EVERY)
SMALL = [
    "d_model=12",
    "n_layers=2",
    "attention.n_heads=2",
    "attention.n_kv_heads=1",
    "attention.bias=true",
    "ffn.hidden=20",
    "context_length=8",
    "head_bias=true",
]
RATES = [1e-2, 3e-2, 0.0, 1e-3, 2e-2, 5e-3, 1e-2, 4e-2, 1e-3, 2e-2, 1e-2, 3e-3]


def close(value: Tensor, reference: Tensor) -> None:
    """Assert equality to 1e-12 of the largest reference value."""
    assert value.shape == reference.shape and value.dtype == torch.float64
    assert (value - reference).abs().max() <= EXACT * reference.abs().max()


def small(*words: str) -> Transformer:
    return Transformer(preset("llama", *SMALL, "tie_embeddings=false", *words)).double()


def build(words: dict[str, Any] | str, model: nn.Module, lr: float = 1.0) -> torch.optim.Optimizer:
    recipe: Any = Optimizer.resolve(words)
    return recipe.build(model, lr)


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rates as the training loop does."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def set_random_gradients(model: Transformer, step: int) -> dict[str, Tensor]:
    """Set and return a random gradient of every logical tensor, that of a linear function, so that autograd stores it."""
    generator = torch.Generator().manual_seed(step)
    grads = {
        tensor.name: torch.randn(tensor.data.shape, generator=generator, dtype=torch.float64) * 10.0 ** -(step % 3)
        for tensor in model.logical_tensors()
    }
    model.zero_grad()
    torch.stack([(grads[tensor.name] * tensor.data).sum() for tensor in model.logical_tensors()]).sum().backward()
    return grads


def tensors(model: Transformer) -> dict[str, Tensor]:
    return {tensor.name: tensor.data.detach().clone() for tensor in model.logical_tensors()}


# textbooks: the papers' equations, for one logical tensor w and its gradient g


def textbook_adamw(o: dict[str, Any]) -> Callable[[Tensor, Tensor, float], Tensor]:
    m = v = torch.zeros(())
    t = 0

    def step(w: Tensor, g: Tensor, lr: float) -> Tensor:
        nonlocal m, v, t
        t += 1
        m = o["beta1"] * m + (1 - o["beta1"]) * g
        v = o["beta2"] * v + (1 - o["beta2"]) * g**2
        change = (m / (1 - o["beta1"] ** t)) / ((v / (1 - o["beta2"] ** t)).sqrt() + o["eps"])
        return w - lr * (change + o["weight_decay"] * w)

    return step


def newton_schulz(x: Tensor, steps: int) -> Tensor:
    x = x / x.norm()
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def textbook_muon(o: dict[str, Any]) -> Callable[[Tensor, Tensor, float], Tensor]:
    """Muon with a sum of gradients, as in its author's post; ours keeps an exponential average."""
    momentum = torch.zeros(())

    def step(w: Tensor, g: Tensor, lr: float) -> Tensor:
        nonlocal momentum
        momentum = o["momentum"] * momentum + g
        update = newton_schulz(g + o["momentum"] * momentum if o["nesterov"] else momentum, o["ns_steps"])
        rows, columns = w.shape
        scale = 0.2 * math.sqrt(max(rows, columns)) if o["scale"] == "rms" else math.sqrt(max(1, rows / columns))
        return w - lr * (scale * update + o["weight_decay"] * w)

    return step


def textbook_lion(o: dict[str, Any]) -> Callable[[Tensor, Tensor, float], Tensor]:
    m = torch.zeros(())

    def step(w: Tensor, g: Tensor, lr: float) -> Tensor:
        nonlocal m
        change = torch.sign(o["beta1"] * m + (1 - o["beta1"]) * g)
        m = o["beta2"] * m + (1 - o["beta2"]) * g
        return w - lr * (change + o["weight_decay"] * w)

    return step


def textbook_sgd(o: dict[str, Any]) -> Callable[[Tensor, Tensor, float], Tensor]:
    velocity = torch.zeros(())

    def step(w: Tensor, g: Tensor, lr: float) -> Tensor:
        nonlocal velocity
        g = g + o["weight_decay"] * w
        velocity = o["momentum"] * velocity + g
        return w - lr * (g + o["momentum"] * velocity if o["nesterov"] else velocity)

    return step


TEXTBOOKS = {"adamw": textbook_adamw, "muon": textbook_muon, "lion": textbook_lion, "sgd": textbook_sgd}
CASES: list[dict[str, Any]] = [
    {"part": "adamw"},
    {"part": "adamw", "beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "decay_vectors": False},
    {"part": "muon"},
    {"part": "muon", "scale": "original", "adamw_lr_ratio": 0.25, "beta1": 0.7, "beta2": 0.9, "eps": 1e-3},
    {"part": "muon", "nesterov": False, "momentum": 0.8, "ns_steps": 3, "decay_vectors": False},
    {"part": "lion"},
    {"part": "lion", "beta1": 0.5, "beta2": 0.7, "decay_vectors": False},
    {"part": "sgd"},
    {"part": "sgd", "nesterov": True, "decay_vectors": False},
    {"part": "sgd", "momentum": 0.0},
]


@pytest.mark.parametrize("words", CASES, ids=lambda words: " ".join(map(str, words.values())))
@pytest.mark.parametrize("tied", ["false", "true"])
def test_updates_equal_the_textbook(words: dict[str, Any], tied: str) -> None:
    """Updates are equal for every logical tensor, with weight decay and changing learning rates, including zero."""
    model = small(f"tie_embeddings={tied}")
    options = Optimizer.resolve({**words, "weight_decay": 0.2}).to_dict()
    optimizer = build(options, model)
    weights, steps, lr_factors = tensors(model), {}, {}
    for tensor in model.logical_tensors():
        kind = options["part"] if options["part"] != "muon" or tensor.role in MATRIX_ROLES else "adamw"
        lr_factors[tensor.name] = options["adamw_lr_ratio"] if kind != options["part"] else 1.0
        exempt = tensor.data.ndim < 2 and not options["decay_vectors"]
        steps[tensor.name] = TEXTBOOKS[kind]({**options, "weight_decay": 0.0 if exempt else 0.2})
    assert (tied == "true") == ("head.weight" not in weights)
    for number, lr in enumerate(RATES):
        set_rate(optimizer, lr)
        grads = set_random_gradients(model, number)
        optimizer.step()
        for name, w in weights.items():
            weights[name] = steps[name](w, grads[name], lr * lr_factors[name])
    for name, value in tensors(model).items():
        close(value, weights[name])


@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(configs())
def test_muon_supports_any_model(config: ModelConfig) -> None:
    """Every logical tensor has its rule's update, and every matrix of a stack is orthogonalized separately."""
    model = Transformer(config).double()
    weights = tensors(model)
    optimizer = build({"part": "muon", "weight_decay": 0.2}, model, 0.01)
    options = Optimizer.resolve({"part": "muon", "weight_decay": 0.2}).to_dict()
    grads = set_random_gradients(model, 0)
    optimizer.step()
    for tensor in model.logical_tensors():
        w, g, lr = weights[tensor.name], grads[tensor.name], 0.01 * tensor.lr_factor
        if tensor.role in MATRIX_ROLES and w.ndim > 1:
            expected = torch.stack(
                [
                    textbook_muon(options)(*pair, lr)
                    for pair in zip(w.view(-1, *w.shape[-2:]), g.view(-1, *w.shape[-2:]), strict=True)
                ]
            ).view(w.shape)
        else:
            expected = textbook_adamw(options)(w, g, lr)
        close(tensor.data.detach(), expected)


@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(configs(), st.integers(1, 6))
def test_muon_counts_its_matmuls_as_torch_does(config: ModelConfig, ns_steps: int) -> None:
    model = Transformer(config)
    kind = Optimizer.resolve({"part": "muon", "ns_steps": ns_steps})
    assert isinstance(kind, Optimizer)
    optimizer = kind.build(model, 0.01)
    set_random_gradients(model, 0)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    with torch.device("meta"):
        assert kind.flops(Transformer(config)) == counter.get_total_flops()
    model.requires_grad_(False)
    assert kind.flops(model) == 0, "frozen parameters are not updated"


def test_flops_of_a_step_include_those_of_the_optimizer() -> None:
    words = ["d_model=16", "n_layers=2", "attention.n_heads=2", "context_length=16", "train.batch_size=4"]
    adamw, muon = (run_config("mingpt", *words, f"optimizer={name}") for name in ("adamw", "muon"))
    assert (
        adamw.flops_per_step() == 4 * 16 * adamw.flops_per_token() and muon.flops_per_token() == adamw.flops_per_token()
    )
    # per layer four matrices of 16 x 16 and two of 16 x 64, five iterations each
    square, wide = 4 * 16**3 + 2 * 16**3, 4 * 16 * 16 * 64 + 2 * 16**3
    update = 2 * 5 * (4 * square + 2 * wide)
    assert muon.flops_per_step() - adamw.flops_per_step() == update
    frozen = run_config("mingpt", *words, "optimizer=muon", "train.freeze=blocks.0")
    assert frozen.flops_per_step() - 4 * 16 * frozen.flops_per_token() == update // 2
    budgets = [training_budget(RunArm(name, (), config), {}) for name, config in (("a", adamw), ("m", muon))]
    assert budgets[1].flops - budgets[0].flops == muon.train.steps * update


@pytest.mark.parametrize(("scale", "theirs"), [("rms", "match_rms_adamw"), ("original", "original")])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6), (1, 4)])
def test_muon_equals_torch(
    monkeypatch: pytest.MonkeyPatch, scale: str, theirs: str, nesterov: bool, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    mine, other = (nn.Linear(*shape, bias=False).double() for _ in range(2))
    other.load_state_dict(mine.state_dict())
    optimizer = build({"part": "muon", "scale": scale, "nesterov": nesterov, "weight_decay": 0.1}, mine)
    reference = torch.optim.Muon(
        other.parameters(), lr=1.0, weight_decay=0.1, momentum=0.95, nesterov=nesterov, adjust_lr_fn=theirs
    )
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)  # torch always orthogonalizes in bfloat16
    for lr in RATES:
        set_rate(optimizer, lr)
        reference.param_groups[0]["lr"] = lr
        mine.weight.grad = torch.randn_like(mine.weight)
        other.weight.grad = mine.weight.grad.clone()
        optimizer.step()
        reference.step()
        close(mine.weight.detach(), other.weight.detach())


@settings(max_examples=25, deadline=None)
@given(
    beta1=st.floats(0, 0.99),
    beta2=st.floats(0, 0.999),
    eps=st.sampled_from([1e-10, 1e-8, 1e-3]),
    decay=st.sampled_from([0.0, 0.01, 1.0]),
)
def test_adamw_equals_torch_bit_for_bit(beta1: float, beta2: float, eps: float, decay: float) -> None:
    models = [nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = build({"part": "adamw", "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": decay}, models[0])
    theirs = torch.optim.AdamW(
        models[1].parameters(), lr=1.0, betas=(beta1, beta2), eps=eps, weight_decay=decay, fused=True
    )
    for step, lr in enumerate(RATES):
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr
            model(torch.sin(torch.arange(20.0).view(4, 5) + step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for mine, reference in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine, reference)


def test_a_first_step_does_not_import_the_compiler() -> None:
    """Importing torch._dynamo would take more than a second of every command and of every run of a comparison."""
    code = """
import sys, torch, partwise
from partwise.presets import PRESETS
from partwise.train.optimizers import Optimizer
for name in PRESETS:
    partwise.preset(name, vocab_size=65)
for short_conv in ("none", "token_shift", "conv"):
    for optimizer in ("adamw", "muon", "lion"):
        config = partwise.preset("mingpt", "n_layers=1", "d_model=16", f"short_conv={short_conv}", vocab_size=9)
        model = partwise.Transformer(config)
        updates = Optimizer.resolve(optimizer).build(model, 0.1)
        model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
        updates.step()
        updates.zero_grad()
        updates.load_state_dict(updates.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_equals_torch(nesterov: bool) -> None:
    mine, other = small(), small()
    optimizer = build({"part": "sgd", "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.1}, mine)
    reference = torch.optim.SGD(other.parameters(), momentum=0.9, nesterov=nesterov, weight_decay=0.1, foreach=False)
    for number, lr in enumerate(RATES):
        set_rate(optimizer, lr)
        reference.param_groups[0]["lr"] = lr
        set_random_gradients(mine, number), set_random_gradients(other, number)
        optimizer.step(), reference.step()
    for name, value in tensors(mine).items():
        close(value, tensors(other)[name])


# orthogonalization


def spectrum(shape: tuple[int, int], values: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """U, V^T and U S V^T with random orthogonal U and V."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(size, len(values), generator=generator, dtype=torch.float64))[0] for size in shape
    )
    return left, right.T, left @ values.diag() @ right.T


@pytest.mark.parametrize("shape", [(8, 8), (8, 30), (30, 8)])
@pytest.mark.parametrize("steps", [1, 5])
def test_orthogonalization_only_changes_singular_values(shape: tuple[int, int], steps: int) -> None:
    """U S V^T -> U p(p(..p(S / |S|))) V^T, p(x) = a x + b x^3 + c x^5."""
    values = torch.logspace(-3, 2, 8, dtype=torch.float64)
    left, right, matrix = spectrum(shape, values)
    x = values / values.norm()
    for _ in range(steps):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    close(orthogonalize(matrix, steps), left @ x.diag() @ right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(16, 16), (16, 64), (64, 16), (100, 20)])
def test_singular_values_end_up_in_the_published_range(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """About 0.7 .. 1.2, for singular values over a factor of 100 and for those of a random matrix."""
    values = torch.logspace(-2, 0, min(shape), dtype=torch.float64)
    random = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for matrix in (spectrum(shape, values)[2], random):
        values = torch.linalg.svdvals(orthogonalize(matrix.to(dtype)).double())
        assert values.min() > 0.68 and values.max() < 1.21  # extremes of the polynomial above 0.002


@settings(max_examples=40)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.floats(1e-4, 1e4), st.integers(0, 9)
)
def test_orthogonalization_is_invariant_to_scale_transposition_and_batching(
    stack: int, batch: int, rows: int, columns: int, size: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(stack, batch, rows, columns, generator=generator, dtype=torch.float64)
    expected = orthogonalize(x)
    close(orthogonalize(x * size), expected)
    close(orthogonalize(x.mT), expected.mT)
    for i in range(stack):
        for j in range(batch):
            close(orthogonalize(x[i, j]), expected[i, j])


def test_precision_depends_on_the_device() -> None:
    """float32 on the CPU even for bfloat16 inputs; the result has the dtype of the input."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    result = orthogonalize(x.bfloat16())
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, orthogonalize(x.bfloat16().float()).bfloat16())
    assert optimizer_steps.compute_dtype(torch.empty(0, dtype=torch.float64)) == torch.float64


# which tensors Muon updates


@pytest.mark.parametrize("tied", ["false", "true"])
def test_muon_updates_the_matrices_within_residual_branches(tied: str) -> None:
    model = small(f"tie_embeddings={tied}", "positions=learned")
    optimizer = build("muon", model)
    kinds = {id(p): group["kind"] for group in optimizer.param_groups for p in group["params"]}
    assert kinds.keys() == {id(p) for p in model.parameters()}
    kind_of = {t.name: kinds[id(p)] for p, tensors in tensors_by_parameter(model).items() for t in tensors}
    assert kind_of.keys() == model.state_dict().keys()
    matrices = {name for name in kind_of if name.startswith("blocks.") and model.state_dict()[name].ndim == 2}
    assert len(matrices) == 2 * 7  # queries, keys, values, out; gate, up, down
    assert {name for name, kind in kind_of.items() if kind == "muon"} == matrices


class Stack(nn.Module):
    """Matrices in one three-dimensional parameter, or in separate parameters."""

    def __init__(self, stacked: bool) -> None:
        super().__init__()
        values = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.matrices = nn.ParameterList([values] if stacked else values.unbind())

    def set_gradients(self, step: int) -> None:
        grads = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for parameter, grad in zip(self.matrices, [grads] if len(self.matrices) == 1 else grads, strict=True):
            parameter.grad = grad


@pytest.mark.parametrize("scale", ["rms", "original"])
def test_stacked_matrices_equal_separate_ones(scale: str) -> None:
    stack, separate = Stack(True), Stack(False)
    optimizers = [build({"part": "muon", "scale": scale}, model, 0.02) for model in (stack, separate)]
    for step in range(4):
        for model, optimizer in zip((stack, separate), optimizers, strict=True):
            model.set_gradients(step)
            optimizer.step()
    close(stack.matrices[0].detach(), torch.stack(list(separate.matrices)).detach())


def test_the_memory_bound_does_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for max_elements in (optimizer_steps.MAX_BATCH_ELEMENTS, 300, 1):
        monkeypatch.setattr(optimizer_steps, "MAX_BATCH_ELEMENTS", max_elements)
        model = small()
        optimizer = build("muon", model, 0.02)
        for step in range(3):
            set_random_gradients(model, step)
            optimizer.step()
        results.append(tensors(model))
    for other in results[1:]:
        for name in other:
            close(other[name], results[0][name])


@pytest.mark.parametrize("kind", ["muon", "lion"])
def test_fused_and_separate_projections_train_equally(tiny: Tiny, kind: str) -> None:
    """In float64, training gives equal losses and weights whether a parameter stores one matrix or several."""
    runs = []
    for fused in ("true", "false"):
        # no biases: the gradient of the keys' bias is rounding error, and Lion would follow its sign
        words = ("ffn=swiglu", "attention.n_kv_heads=1", f"attention.fused_qkv={fused}", "optimizer.weight_decay=0.1")
        run = Run(tiny("train.steps=12", f"optimizer={kind}", *words))
        run.model.double()
        losses = [step.loss for step in run.steps()]
        runs.append((run.model.state_dict(), losses, len(list(run.model.parameters()))))
    assert runs[0][2] < runs[1][2] and runs[0][0].keys() == runs[1][0].keys()
    assert runs[0][1] == pytest.approx(runs[1][1], rel=EXACT)
    for name, value in runs[0][0].items():
        close(value, runs[1][0][name])


# learning rates


def set_lr_factor(model: Transformer, factor: float) -> None:
    """Set the learning-rate factor of the matrices within residual branches."""
    original = model.logical_tensors

    def with_factor() -> Iterator[LogicalTensor]:
        for tensor in original():
            yield replace(tensor, lr_factor=factor if tensor.role in MATRIX_ROLES else 1.0)

    model.logical_tensors = with_factor  # type: ignore[method-assign]


@each
def test_a_parametrization_scales_learning_rates(kind: str) -> None:
    model = small()
    before, roles = tensors(model), {tensor.name: tensor.role for tensor in model.logical_tensors()}
    changes = []
    for factor in (1.0, 0.25):
        model = small()
        set_lr_factor(model, factor)
        optimizer = build(kind, model, 0.01)
        set_random_gradients(model, 0)
        optimizer.step()  # at the initial learning rates
        changes.append({name: tensor - before[name] for name, tensor in tensors(model).items()})
    for name, role in roles.items():
        expected = changes[0][name] * (0.25 if role in MATRIX_ROLES else 1.0)
        assert (changes[1][name] - expected).abs().max() <= 1e-15 * before[
            name
        ].abs().max() + EXACT * expected.abs().max()


def test_the_loop_sets_the_learning_rate_of_every_group(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transformer.logical_tensors
    with_half_lr = lambda model: (replace(t, lr_factor=0.5) for t in original(model))  # noqa: E731
    monkeypatch.setattr(Transformer, "logical_tensors", with_half_lr)
    run = Run(
        tiny("optimizer=muon", "optimizer.adamw_lr_ratio=0.2", "schedule=linear", "schedule.warmup=2", "train.lr=0.01")
    )
    for step in run.steps():
        assert step.lr == 0.01 * run.config.schedule.factor(step.step - 1, 6)
        rates = {group["kind"]: group["lr"] for group in run.optimizer.param_groups}
        assert rates == {"muon": step.lr * 0.5, "adamw": step.lr * 0.1}


def test_the_lr_factor_defaults_to_one(tiny: Tiny) -> None:
    run = Run(tiny())
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=5.0)
    assert run.update().lr == run.optimizer.param_groups[0]["lr"] == 3e-4


# zero and missing gradients


@each
@pytest.mark.parametrize("decay_vectors", [True, False])
def test_zero_gradients_only_decay(kind: str, decay_vectors: bool) -> None:
    model = small()
    before = tensors(model)
    optimizer = build({"part": kind, "weight_decay": 0.5, "decay_vectors": decay_vectors}, model, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, tensor in tensors(model).items():
        expected = before[name] * (0.95 if decay_vectors or tensor.ndim > 1 else 1.0)
        assert tensor.isfinite().all() and (tensor - expected).abs().max() <= EXACT * before[name].abs().max()


@each
def test_a_step_without_a_gradient_does_not_count(kind: str) -> None:
    """Two equal layers that get the same gradients at different steps, without any in between, end equal."""
    torch.manual_seed(0)
    early, late = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    late.load_state_dict(early.state_dict())
    optimizer = build({"part": kind, "weight_decay": 0.1}, nn.ModuleList([early, late]), 0.01)
    grads = [[torch.randn_like(p) for p in early.parameters()] for _ in range(3)]
    for turn, (mine, other) in enumerate([(0, None), (1, 0), (2, None), (None, 1), (None, 2)]):
        frozen = [p.detach().clone() for p in late.parameters()]
        for layer, number in ((early, mine), (late, other)):
            for p, grad in zip(layer.parameters(), grads[number or 0], strict=True):
                p.grad = None if number is None else grad.clone()
        optimizer.step()
        if other is None:
            assert all(torch.equal(p, old) for p, old in zip(late.parameters(), frozen, strict=True))
            assert turn > 0 or all(p not in optimizer.state for p in late.parameters())
    for p, q in zip(early.parameters(), late.parameters(), strict=True):
        close(p.detach(), q.detach())


@each
def test_a_non_finite_update_leaves_the_state_unchanged(tiny: Tiny, kind: str) -> None:
    run = Run(tiny(f"optimizer={kind}"))
    run.update()
    before = {name: value.clone() for name, value in {**run.model.state_dict(), **run.optimizer_tensors()}.items()}
    hook = run.model.head.bias.register_hook(lambda grad: grad * math.nan)
    with pytest.raises(Diverged):
        run.update()
    after = {**run.model.state_dict(), **run.optimizer_tensors()}
    assert run.step == 1 and all(torch.equal(after[name], value) for name, value in before.items())
    hook.remove()
    assert run.update().step == 2


# resuming

RESUMED = {
    "adamw": [],
    "muon": ["ffn=swiglu", "embed_dropout=0.1", "optimizer.decay_vectors=false"],
    "muon original": [
        "tie_embeddings=true",
        "optimizer.scale=original",
        "optimizer.adamw_lr_ratio=0.1",
        "schedule=linear",
    ],
    "lion": ["schedule=inverse_sqrt", "schedule.warmup=2", "train.grad_accumulation=2"],
    "sgd": ["optimizer.nesterov=true"],
    "sgd plain": ["optimizer.momentum=0.0"],
}


def state_bytes(run: Run) -> dict[str, tuple[Any, ...]]:
    state = {f"optimizer {name}": value for name, value in run.optimizer_tensors().items()}
    return {
        name: (value.dtype, tuple(value.shape), value.detach().contiguous().numpy().tobytes())
        for name, value in {**run.model.state_dict(), **state}.items()
    }


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_equals_uninterrupted_bit_for_bit(tiny: Tiny, tmp_path: Path, name: str) -> None:
    config = tiny(f"optimizer={name.split()[0]}", "train.lr=1e-2", *RESUMED[name])
    uninterrupted = Run(config)
    expected = {step.step: state_bytes(uninterrupted) for step in uninterrupted.steps()}
    seen = {}
    for stop in (1, 4, None):
        folder = RunFolder(tmp_path / "run", config)
        try:
            for event in folder.events():
                if isinstance(event, Step):
                    seen[event.step] = state_bytes(folder.run)
                    folder.stop_requested = event.step == stop
        except Interrupted:
            assert stop is not None
    assert seen == expected and len(seen) == 6


@pytest.mark.parametrize("kind", EVERY)
def test_the_state_survives_saving_and_loading(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    run = Run(tiny(f"optimizer={kind}"))
    run.update()
    path = tmp_path / "state.safetensors"
    tensor_writer(run.optimizer_tensors())(path)
    other = Run(run.config)
    other.restore(1, run.model.state_dict(), TensorFiles([path]))
    assert state_bytes(other) == state_bytes(run)
    groups = zip(other.optimizer.param_groups, Run(run.config).optimizer.param_groups, strict=True)
    for restored, fresh in groups:
        assert {k: v for k, v in restored.items() if k not in ("params", "lr")} == {
            k: v for k, v in fresh.items() if k not in ("params", "lr")
        }


# options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("muon momentum=1.0", "optimizer.momentum=1.0: input should be less than 1"),
        ("muon ns_steps=0", "optimizer.ns_steps=0: input should be greater than or equal to 1"),
        ("muon ns_steps=51", "optimizer.ns_steps=51: input should be less than or equal to 50"),
        ("muon scale=big", "optimizer.scale=big: input should be 'rms' or 'original'"),
        ("muon adamw_lr_ratio=0", "optimizer.adamw_lr_ratio=0: input should be greater than 0"),
        ("muon eps=0", "optimizer.eps=0: input should be greater than 0"),
        ("lion beta2=1", "optimizer.beta2=1: input should be less than 1"),
        ("lion weight_decay=-0.1", "optimizer.weight_decay=-0.1: input should be greater than or equal to 0"),
        ("lion eps=1e-8", "unknown option 'optimizer.eps'"),
        ("sgd momentum=-1", "optimizer.momentum=-1: input should be greater than or equal to 0"),
        ("sgd dampening=0.1", "unknown option 'optimizer.dampening'"),
        ("sgd nesterov=true optimizer.momentum=0", "optimizer.nesterov=true needs optimizer.momentum above 0"),
    ],
)
def test_options_out_of_range_raise(tiny: Tiny, words: str, message: str) -> None:
    kind, _, option = words.partition(" ")
    with pytest.raises(ConfigError) as caught:
        tiny(f"optimizer={kind}", *f"optimizer.{option}".split())
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
