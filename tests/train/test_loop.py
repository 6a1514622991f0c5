"""Steps equal the textbook; dropout noise and initialization are keyed by name; non-finite steps are not taken."""

import json
import math
import random
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from partwise import cli, preset
from partwise.checkpoint import latest_checkpoint, list_checkpoints
from partwise.model import Transformer
from partwise.parts.dropout import Dropout
from partwise.tensor_files import TensorFiles
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Diverged, Run, Step
from partwise.train.optimizers import AdamW
from partwise.train.run_folder import CheckpointSaved, RunFolder
from partwise.train.schedules import Schedule
from recipes import split_loss

Tiny = Callable[..., RunConfig]
EXACT = 1e-12
SMALL = ["d_model=16", "n_layers=2", "attention.n_heads=2", "context_length=16"]


def close(value: Tensor, reference: Tensor) -> None:
    """Assert equality to 1e-12 of the largest reference value."""
    assert value.shape == reference.shape and value.dtype == torch.float64
    assert (value - reference).abs().max() <= EXACT * reference.abs().max()


def double(config: RunConfig) -> Run:
    """A run in float64."""
    run = Run(config)
    run.model.double()
    return run


def gradients(run: Run) -> tuple[dict[str, Tensor], Step]:
    """The gradients that a step passes to the optimizer."""
    grads: dict[str, Tensor] = {}

    def record() -> None:
        grads.update({name: p.grad.clone() for name, p in run.model.named_parameters() if p.grad is not None})

    run.optimizer.step = record  # type: ignore[method-assign, assignment]
    step = run.update()
    assert grads.keys() == dict(run.model.named_parameters()).keys()
    return grads, step


def textbook_gradients(run: Run) -> tuple[dict[str, Tensor], Tensor]:
    """The gradients of the mean cross-entropy over all targets of the batch, and that loss."""
    batch = run.batch()
    log_p = run.model(torch.from_numpy(batch.inputs)).log_softmax(-1)
    loss = -log_p.gather(-1, torch.from_numpy(batch.targets)[:, :, None]).mean()
    names, parameters = zip(*run.model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True)), loss.detach()


# the batches


@pytest.mark.parametrize("data", ["windows", "problems", "pairs"])
def test_each_seed_has_batches_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    """If they ignored the seed, all runs would share one order of the data, and seed SDs would shrink unseen."""
    monkeypatch.chdir(tmp_path)
    words = {
        "windows": ["data=arithmetic"],
        "problems": ["data=arithmetic", "data.aligned=true", "context_length=64"],
        "pairs": ["data=arithmetic_pairs", "encoder_layers=1", "context_length=48"],
    }[data]
    sizes = [*SMALL, "data.train=300", "data.validation=20", "data.test=20", "train.batch_size=8"]
    batches = {}
    for seed in (0, 1, 2):
        run = Run(run_config("mingpt", *sizes, *words, f"train.seed={seed}"))
        for step in (0, 1):
            run.step = step
            batches[seed, step] = run.batch().targets.tobytes()
        assert Run(run.config).batch().targets.tobytes() == batches[seed, 0]
    assert len(set(batches.values())) == len(batches)


def test_a_target_is_the_next_input(tiny: Tiny) -> None:
    """Predicting the input itself is learned at once, and looks like a very good model."""
    batch = Run(tiny("train.batch_size=8")).batch()
    assert (batch.targets[:, :-1] == batch.inputs[:, 1:]).all() and (batch.targets != batch.inputs).any()


def test_each_seed_has_initial_weights_of_its_own(tiny: Tiny) -> None:
    first, again, other = (Run(tiny(f"train.seed={seed}")).model.state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])


# the step


@pytest.mark.parametrize("grad_accumulation", [1, 2, 4, 8])
def test_gradient_accumulation_does_not_change_the_gradient(tiny: Tiny, grad_accumulation: int) -> None:
    run = double(tiny("train.batch_size=8", f"train.grad_accumulation={grad_accumulation}"))
    expected, loss = textbook_gradients(run)
    grads, step = gradients(run)
    for name in expected:
        close(grads[name], expected[name])
    assert step.tokens == 8 * 16 and step.loss == pytest.approx(loss.item(), rel=EXACT)


@pytest.mark.parametrize("grad_clip", [None, 1e9, 0.25])
def test_clipping_equals_the_textbook(tiny: Tiny, grad_clip: float | None) -> None:
    """g min(1, c / (|g| + 1e-6)), |g| over all parameters together; Pascanu et al. 2013, with torch's 1e-6."""
    run = double(tiny(*([f"train.grad_clip={grad_clip}"] if grad_clip else [])))
    expected, _ = textbook_gradients(run)
    grads, step = gradients(run)
    norm = math.sqrt(sum(float((grad**2).sum()) for grad in expected.values()))
    assert norm > 0.5 and step.grad_norm == pytest.approx(norm, rel=EXACT)  # the norm before clipping
    factor = min(1.0, (grad_clip or math.inf) / (norm + 1e-6))
    assert (factor < 1) == (grad_clip == 0.25)
    for name in expected:
        close(grads[name], expected[name] * factor)


@pytest.mark.parametrize("decay_vectors", [True, False])
def test_updates_equal_a_textbook_adamw(tiny: Tiny, decay_vectors: bool) -> None:
    """w -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w); Loshchilov & Hutter 2017, algorithm 2."""
    b1, b2, eps, decay, lr = 0.8, 0.95, 1e-6, 0.1, 3e-3
    words = f"beta1={b1} beta2={b2} eps={eps} weight_decay={decay} decay_vectors={str(decay_vectors).lower()}".split()
    config = tiny("schedule=cosine", "schedule.warmup=2", f"train.lr={lr}", *(f"optimizer.{word}" for word in words))
    run, reference = double(config), double(config)
    weights = dict(reference.model.named_parameters())
    m, v = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    assert {w.ndim for w in weights.values()} == {1, 2}
    for t in range(1, 7):
        reference.step = t - 1
        grads, loss = textbook_gradients(reference)
        step = run.update()
        assert step.step == t and step.loss == pytest.approx(loss.item(), rel=1e-9)
        assert step.lr == lr * config.schedule.factor(t - 1, 6)
        with torch.no_grad():
            for name, w in weights.items():
                m[name] = b1 * m[name] + (1 - b1) * grads[name]
                v[name] = b2 * v[name] + (1 - b2) * grads[name] ** 2
                change = (m[name] / (1 - b1**t)) / ((v[name] / (1 - b2**t)).sqrt() + eps)
                shrink = decay * w if decay_vectors or w.ndim > 1 else 0.0
                w -= step.lr * (change + shrink)
        for name, found in run.model.named_parameters():
            close(found.detach(), weights[name].detach())


def test_adamw_alone_equals_the_textbook_over_changing_rates() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(7, 5).double()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = AdamW(weight_decay=0.2, decay_vectors=False).build(model, 1.0)
    m, v = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    for t, lr in enumerate([1e-2, 3e-2, 0.0, 1e-3, 2e-2], start=1):
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = lr
        for name, p in model.named_parameters():
            p.grad = torch.randn_like(p) * 10.0**-t
            m[name] = 0.9 * m[name] + 0.1 * p.grad
            v[name] = 0.999 * v[name] + 0.001 * p.grad**2
            shrink = 0.2 * weights[name] if name == "weight" else 0.0
            change = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
            weights[name] = weights[name] - lr * (change + shrink)
        optimizer.step()
        for name, p in model.named_parameters():
            close(p.detach(), weights[name])


# schedules


def factors(options: dict[str, Any], steps: int) -> list[float]:
    schedule: Any = Schedule.resolve(options)
    return [schedule.factor(step, steps) for step in range(steps)]


def test_schedule_exact_values() -> None:
    assert factors({"part": "constant"}, 3) == [1, 1, 1]
    assert factors({"part": "constant", "warmup": 4}, 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    cosine = factors({"part": "cosine", "warmup": 2, "min_lr_ratio": 0.1}, 11)
    assert cosine[:3] == [0.5, 1, 1] and cosine[-1] == 0.1 and cosine[6] == pytest.approx(0.55, rel=EXACT)
    assert cosine[4] == pytest.approx(0.1 + 0.45 * (1 + math.sqrt(0.5)), rel=EXACT)
    assert factors({"part": "cosine", "warmup": 0, "min_lr_ratio": 0.0}, 3) == pytest.approx([1, 0.5, 0], abs=EXACT)
    wsd = {"part": "wsd", "warmup": 2, "decay_fraction": 0.4, "min_lr_ratio": 0.0}
    assert factors(wsd, 10) == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert factors({**wsd, "min_lr_ratio": 0.5}, 10)[-4:] == [1, 0.875, 0.75, 0.625]
    assert factors({**wsd, "decay_fraction": 0.0}, 4) == [0.5, 1, 1, 1]


@given(
    st.sampled_from(["constant", "cosine", "wsd"]), st.integers(0, 30), st.integers(1, 60), st.floats(0, 1), st.data()
)
def test_learning_rates_depend_only_on_the_step(kind: str, warmup: int, steps: int, ratio: float, data: Any) -> None:
    options = {"part": kind, "warmup": warmup, **({} if kind == "constant" else {"min_lr_ratio": ratio})}
    expected = factors(options, steps)
    schedule: Any = Schedule.resolve(options)
    shuffled = data.draw(st.permutations(range(steps)))
    assert {step: schedule.factor(step, steps) for step in shuffled} == dict(enumerate(expected))
    assert all(0 <= factor <= 1 for factor in expected)
    assert all(factor == (step + 1) / warmup for step, factor in enumerate(expected[:warmup])) or kind == "wsd"
    if kind != "constant":
        after = expected[warmup:]
        assert all(b <= a + EXACT for a, b in pairwise(after))  # never increases again


# dropout noise


def masks(words: str, *key: int) -> dict[str, Tensor]:
    """The mask of every dropout of a model, by site."""
    model = Transformer(preset("toy", *SMALL, "embed_dropout=0.1", "residual.dropout=0.1", *words.split())).train()
    model.seed_dropout(*key)
    shape = (3, 16, 16)
    return {name: m(torch.ones(shape)) > 0 for name, m in model.named_modules() if isinstance(m, Dropout) and m.p > 0}


def test_two_variants_have_equal_noise_at_equal_sites_and_sites_differ() -> None:
    base = masks("", 0, 5, 1)
    assert len(base) == 1 + 2 * 5  # the embeddings; per block attention, hidden, output and two residual branches
    for words in (
        "ffn=swiglu ffn.hidden_dropout=0.1 ffn.output_dropout=0.1",
        "attention.fused_qkv=true",
        "positions=rope",
    ):
        other = masks(words, 0, 5, 1)
        assert other.keys() == base.keys() and all(torch.equal(other[site], base[site]) for site in base)
    deeper = masks("n_layers=3", 0, 5, 1)
    assert len(deeper) == 16 and all(torch.equal(deeper[site], base[site]) for site in base)
    fewer = masks("attention.dropout=0.0", 0, 5, 1)  # fewer draws elsewhere change nothing
    assert len(fewer) == 9 and all(torch.equal(fewer[site], base[site]) for site in fewer)
    distinct = {mask.numpy().tobytes() for mask in base.values()}
    assert len(distinct) == len(base)


def test_noise_is_keyed_by_seed_step_and_first_row() -> None:
    base = masks("", 0, 5, 1)
    assert all(torch.equal(mask, base[site]) for site, mask in masks("", 0, 5, 1).items())
    for key in ((1, 5, 1), (0, 6, 1), (0, 5, 2), (0, 51, 0)):
        assert not any(torch.equal(mask, base[site]) for site, mask in masks("", *key).items())


def test_the_loop_keys_dropout_by_step_and_first_row(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[tuple[int, ...]] = []
    monkeypatch.setattr(Transformer, "seed_dropout", lambda model, *key: keys.append(key))
    run = Run(tiny("train.grad_accumulation=2", "train.steps=2", "train.seed=7"))
    list(run.steps())
    half = run.config.train.batch_size // 2
    assert keys == [(7, 0, 0), (7, 0, half), (7, 1, 0), (7, 1, half)]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_has_the_right_rate_and_preserves_the_mean(p: float) -> None:
    dropout = Dropout(p)
    dropout.site = "here"
    dropout.seed(0, 0)
    output = dropout(torch.ones(1000, 1000, dtype=torch.float64))
    assert set(output.unique().tolist()) == {0.0, 1 / (1 - p)}
    rate = (output > 0).double().mean().item()
    assert abs(rate - (1 - p)) < 5 * math.sqrt(p * (1 - p) / 1e6)
    rows = (output > 0).double().mean(1) - (1 - p)  # rows are independent: their variance is binomial
    assert rows.var().item() == pytest.approx(p * (1 - p) / 1000, rel=0.25)


def test_evaluation_has_no_dropout_and_restores_the_mode(tiny: Tiny) -> None:
    sites = ("embed_", "attention.", "ffn.hidden_", "ffn.output_", "residual.")
    words = ("positions=rope", "train.attention_backend=eager", "train.block_backend=eager")
    run = Run(tiny(*(f"{site}dropout=0.5" for site in sites), *words))
    ids = run.dataset.split("val")[:201]
    for training in (True, False):
        run.model.train(training)
        first, second = split_loss(run.model, ids, 16), split_loss(run.model, ids, 16)
        assert first == second and all(module.training is training for module in run.model.modules())
    plain = Run(tiny(*words))
    plain.model.load_state_dict(run.model.state_dict())
    assert split_loss(plain.model, ids, 16) == first
    batch, run_losses = run.batch(), []
    for step in (0, 0, 1):
        run.model.train().seed_dropout(0, step)
        run_losses.append(run.loss(batch).item())
    assert run_losses[0] == run_losses[1] != run_losses[2]
    assert math.isfinite(run.update().loss)  # tensors cached in evaluation do not break autograd


# initialization


def initial(words: str, seed: int = 0) -> dict[str, Tensor]:
    model = Transformer(preset("mingpt", *SMALL, "attention.bias=true", "ffn.bias=true", *words.split()), seed)
    return {tensor.name: tensor.data.detach().clone() for tensor in model.logical_tensors()}


def unequal(a: dict[str, Tensor], b: dict[str, Tensor]) -> set[str]:
    """The common names whose values differ."""
    return {name for name in a.keys() & b.keys() if not torch.equal(a[name], b[name])}


def test_fused_and_separate_projections_have_equal_initial_weights() -> None:
    fused, separate = initial("attention.fused_qkv=true"), initial("attention.fused_qkv=false")
    assert fused.keys() == separate.keys() and not unequal(fused, separate)
    gated = initial("ffn=swiglu ffn.bias=true")
    assert {"blocks.0.ffn.gate.weight", "blocks.0.ffn.up.bias", "blocks.0.attention.q.weight"} <= gated.keys()


def test_replacing_a_part_leaves_other_initial_weights_equal() -> None:
    base, gated = initial(""), initial("ffn=swiglu ffn.bias=true ffn.hidden=64")
    assert not unequal(base, gated)  # with equal hidden width, also those of up and down
    resized = initial("ffn=swiglu ffn.bias=true ffn.hidden=40")
    others = {name for name in base if ".ffn." not in name}
    assert len(others) >= 20 and others <= resized.keys() and not unequal(base, resized) & others
    assert not unequal(base, initial("positions=rope")) and not unequal(base, initial("head_bias=false"))


def test_changing_the_depth_leaves_common_initial_weights_equal() -> None:
    shallow, deep = initial(""), initial("n_layers=3")
    assert shallow.keys() < deep.keys() and not unequal(shallow, deep)
    scaled = {layers: initial(f"init=gpt2 n_layers={layers}") for layers in (2, 8)}
    changed = unequal(scaled[2], scaled[8])
    assert changed == {f"blocks.{n}.{end}.weight" for n in (0, 1) for end in ("attention.out", "ffn.down")}
    assert all(torch.allclose(scaled[2][name], 2 * scaled[8][name], rtol=1e-6) for name in changed)


def test_initial_weights_differ_between_seeds_and_names() -> None:
    one, two = initial("", seed=0), initial("", seed=1)
    vectors = {name for name in one if ".norm" in name}
    assert unequal(one, two) == one.keys() - vectors
    block = [one[f"blocks.{n}.attention.{name}.weight"] for n in (0, 1) for name in ("q", "k", "v", "out")]
    assert len({tensor.numpy().tobytes() for tensor in block}) == 8


def test_initialization_is_independent_of_the_global_generators() -> None:
    first = initial("")
    torch.manual_seed(12345)
    torch.rand(7)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()  # type: ignore[index, union-attr]
    second = initial("")
    after = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()  # type: ignore[index, union-attr]
    assert not unequal(first, second)
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


@pytest.mark.parametrize("init", ["torch", "torch_scaled", "normal", "gpt2"])
def test_initial_weights_have_the_documented_distribution(init: str) -> None:
    config = preset("mingpt", f"init={init}", "attention.bias=true", "ffn.bias=true", "d_model=64", "n_layers=4")
    output_scale = 1 / math.sqrt(2 * 4) if init in ("torch_scaled", "gpt2") else 1.0
    seen = set()
    for tensor in Transformer(config, seed=3).logical_tensors():
        x, n = tensor.data.detach().double(), tensor.data.numel()
        seen.add(tensor.role)
        if tensor.role == "vector":
            assert set(x.unique().tolist()) <= {0.0, 1.0}
            continue
        if init in ("normal", "gpt2"):
            if tensor.role == "bias":
                assert not x.any()
                continue
            std, kurtosis = 0.02 * (output_scale if tensor.role == "output" else 1), 3.0
        elif tensor.role == "table":
            std, kurtosis = 1.0, 3.0
        else:
            fan_in = 256 if "ffn.down" in tensor.name else 64
            bound = (output_scale if tensor.role == "output" else 1) / math.sqrt(fan_in)
            assert x.abs().max() <= bound * (1 + 1e-6)
            std, kurtosis = bound / math.sqrt(3), 1.8
        assert abs(x.mean()) < 5 * std / math.sqrt(n)
        assert abs(x.var(correction=0) / std**2 - 1) < 5 * math.sqrt((kurtosis - 1) / n) + 1 / n
        if n > 1000:  # the shape as well: five standard errors of the fourth moment
            fourth = ((x / std) ** 4).mean()
            assert abs(fourth - kurtosis) < 5 * math.sqrt((105 - 9 if kurtosis == 3.0 else 9 - 3.24) / n)
    assert seen == {"table", "score", "hidden", "output", "head", "bias", "vector"}


# non-finite values


def state_bytes(run: Run) -> dict[str, bytes]:
    tensors = {**run.model.state_dict(), **run.optimizer_tensors()}
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["weight", "gradient"])
def test_a_non_finite_update_is_not_made(tiny: Tiny, poison: float, where: str) -> None:
    run = Run(tiny("train.grad_accumulation=2", "train.grad_clip=1.0"))
    run.update()
    if where == "weight":
        with torch.no_grad():
            run.model.head.bias[0] = poison
    else:
        run.model.head.bias.register_hook(lambda grad: grad * poison)
    before, named = state_bytes(run), r"embed\.weight and \d+ others?" if where == "weight" else r"head\.bias"
    message = rf"\Astep 2: loss \S+, gradient norm (nan|inf), in the gradient of {named}: lower train\.lr, .*\Z"
    with pytest.raises(Diverged, match=message):
        run.update()
    assert state_bytes(run) == before and run.step == 1
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_a_diverged_run_keeps_its_last_finite_checkpoint_and_resumes_from_it(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("train.save_every=2")
    uninterrupted = RunFolder(tmp_path / "uninterrupted", config)
    list(uninterrupted.events())
    folder = RunFolder(tmp_path / "run", config)
    with pytest.raises(Diverged, match="step 3: loss nan"):
        for event in folder.events():
            if isinstance(event, CheckpointSaved):
                with torch.no_grad():
                    folder.run.model.embed.weight[:] = math.nan
    assert [path.name for path in list_checkpoints(folder.path / "checkpoints")] == ["step-00000002"]
    result = folder.path / "result.json"
    assert json.loads(result.read_text())["diverged"].startswith("step 3: loss nan")
    again = RunFolder(folder.path, config)
    list(again.events())
    assert state_bytes(again.run) == state_bytes(uninterrupted.run)
    assert (
        json.loads(result.read_text())["evaluations"]
        == json.loads((tmp_path / "uninterrupted/result.json").read_text())["evaluations"]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "train.lr=1e39 train.save_every=1",
            r"step 1: \S+ is not finite",
        ),  # overflows float32: the weights are infinite
        ("train.lr=1e30 train.eval_every=1", "step 1: validation loss nan"),  # finite weights, but not logits
        ("optimizer=sgd optimizer.weight_decay=1e60", r"step 1: an optimizer setting .* overflows float32"),
    ],
)
def test_non_finite_weights_are_never_saved(tiny: Tiny, tmp_path: Path, words: str, message: str) -> None:
    folder = RunFolder(tmp_path, tiny("residual.final_norm=false", *words.split()))
    with pytest.raises(Diverged, match=message):
        list(folder.events())
    assert list_checkpoints(tmp_path / "checkpoints") == []


def test_divergence_on_the_command_line_prints_one_line_and_sets_the_status(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 20)
    words = "train.lr=1e30 train.steps=9 train.save_every=1 train.eval_every=9 train.batch_size=4"
    monkeypatch.setattr(
        sys, "argv", ["partwise", "train", "mingpt", *SMALL, *words.split(), "--data", "./text.txt", "--name", "r"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert err.startswith("error: training diverged at step ") and err.count("\n") == 1 and "Traceback" not in out + err
    found, errors = latest_checkpoint(tmp_path / "runs" / "r" / "checkpoints")
    if found:
        assert all(tensor.isfinite().all() for tensor in TensorFiles([found / "model.safetensors"]).values())
    assert errors == []
