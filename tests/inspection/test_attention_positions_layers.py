"""Inspections of attention, positions, layers and gradients are correct for any combination of parts."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import partwise
from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX, prepare
from partwise.inspection import attention, gradients, logit_lens, map_figures, positions
from partwise.inspection.hooks import watch_modules
from partwise.inspection.subject import find_subject
from partwise.plots.page import Page, write_page
from partwise.train.config import RunConfig
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder
from recipes import LENGTH, VOCAB, configs, error, logits_of, perturbed, source_of, tokens

EXACT = 1e-12
SUMS = 1e-5  # float32: squares are added up in another order

MIXED_ATTENTION = (
    "attention={cycle: [{part: differential, n_heads: 2, head_dim: 4}, {part: mla, n_heads: 4, rope_head_dim: 4}]}"
)
# no test here needs the compiled kernels
PLAIN = ["train.attention_backend=eager", "train.ffn_backend=eager", "train.block_backend=eager"]
TINY = [
    "n_layers=2",
    "d_model=16",
    "attention.n_heads=2",
    "context_length=32",
    "train.seq_len=32",
    "train.batch_size=4",
]
TINY += PLAIN


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., RunConfig]) -> Path:
    """A finished run of six steps whose learning rate decays to zero."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    for _ in RunFolder(path, tiny("schedule=linear", "schedule.warmup=0", "train.grad_clip=0.1", *PLAIN)).events():
        pass
    return path


# attention


def eager_weights(model: partwise.Transformer) -> dict[str, list[Tensor]]:
    """The attention weights of the model's own forward pass with the eager backend."""
    recorded: dict[str, list[Tensor]] = {}
    model.reset_backends()

    def record(name: str, inputs: object, weights: Tensor) -> None:
        recorded.setdefault(name, []).append(weights)

    with watch_modules(model, rf"{attention.MODULE_PATTERN}\.dropout", record):
        logits_of(model, tokens())
    return recorded


@settings(max_examples=15)
@given(configs())
def test_maps_equal_the_models_weights(config: partwise.ModelConfig) -> None:
    """The models have every backend, differential and grouped heads, sinks, windows and biases."""
    model = perturbed(config)
    source = source_of(model, tokens())
    calls = attention.record_calls(model, tokens(), source)
    own = eager_weights(model)
    layers = config.n_layers * (2 if config.encoder_layers else 1) + config.encoder_layers
    assert len(calls) == layers and {f"{name}.dropout" for name in calls} == own.keys()
    for name, layer_calls in calls.items():
        expected = torch.stack(own[f"{name}.dropout"], dim=2).flatten(1, 2)
        assert error(attention.attention_maps(layer_calls), expected) <= EXACT
        if layer_calls[0].core.sinks is None:
            sums = attention.attention_maps(layer_calls, unscaled=True).sum(-1)
            assert error(sums, torch.ones_like(sums)) <= EXACT
    assert not any(module._forward_hooks for module in model.modules())  # all hooks are removed


@settings(max_examples=12)
@given(configs())
def test_statistics_equal_those_of_each_map(config: partwise.ModelConfig) -> None:
    """Computed query by query for the last head, over keys with positive weight."""
    model = perturbed(config)
    source = source_of(model, tokens())
    calls = attention.record_calls(model, tokens(), source)
    by_layer = attention.attention_statistics(model, tokens(), source)
    assert sorted((each.kind, each.layer) for each in by_layer) == sorted(map(attention.kind_and_layer, calls))
    for name, layer_calls in calls.items():
        kind, layer = attention.kind_and_layer(name)
        statistics = next(each for each in by_layer if (each.kind, each.layer) == (kind, layer))
        queries = source if kind == "encoder" else tokens()
        maps, has_sinks = attention.attention_maps(layer_calls), layer_calls[0].core.sinks is not None
        assert queries is not None and len(statistics.heads) == maps.shape[1] == len(set(statistics.heads))
        positions = [(b, t) for b, t in np.ndindex(*queries.shape) if queries[b, t] != config.padding_idx]
        rows = [maps[b, -1, t].numpy() for b, t in positions]
        sums = np.array([row.sum() for row in rows])
        full = [np.append(row, 1 - row.sum()) if has_sinks else row for row in rows]
        entropies = [-sum(w * math.log(w) for w in row if w > 0) for row in full]
        distances = [row @ np.abs(t - np.arange(len(row))) for (_, t), row in zip(positions, rows, strict=True)]
        max_entropies = [math.log((row > 0).sum() + has_sinks) for row in rows]
        for values, expected in (
            (statistics.entropy, np.mean(entropies)),
            (statistics.max_weight, np.mean([row.max() for row in rows])),
            (statistics.first_key, np.mean([row[0] for row in rows])),
            (statistics.sink, np.mean(1 - sums)),
            (statistics.distance, np.sum(distances) / np.sum(sums)),
            (torch.tensor([statistics.max_entropy]), np.mean(max_entropies)),
        ):
            assert values[-1].item() == pytest.approx(expected, abs=1e-6)
        limit = statistics.max_entropy + 1e-9
        assert (statistics.entropy <= limit).all() and (statistics.unscaled_entropy <= limit).all()


def test_unscaled_weights_by_hand() -> None:
    """Causal softmax(q k^T) from the projections of the first layer; and softmax(log(weights) / scale)."""
    sizes = {"vocab_size": VOCAB, "d_model": 8, "n_layers": 1, "context_length": LENGTH}
    heads = {"part": "multihead", "n_heads": 2}
    config = partwise.ModelConfig.from_dict({**sizes, "positions": "none", "attention": heads})
    model = perturbed(config)
    (calls,) = attention.record_calls(model, tokens()).values()
    state = model.state_dict()
    x = model.blocks[0].residual.norms["attention"](model.embed(tokens()))
    q, k = ((x @ state[f"blocks.0.attention.{name}.weight"].T).unflatten(-1, (2, 4)).transpose(1, 2) for name in "qk")
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected = (q @ k.transpose(2, 3)).masked_fill(hidden, float("-inf")).softmax(-1)
    assert error(attention.attention_maps(calls, unscaled=True), expected) <= EXACT
    assert error((2 * attention.attention_maps(calls).log()).softmax(-1), expected) <= EXACT


def test_softmax_saturates_without_the_scale() -> None:
    """Scores have variance head_dim without it and 1 with it: equal at head_dim 1, far apart at 1024."""
    assert attention.softmax_saturation(1, True) == attention.softmax_saturation(1, False)
    unscaled, scaled = attention.softmax_saturation(1024, False), attention.softmax_saturation(1024, True)
    assert unscaled.entropy < 0.05 and unscaled.max_weight > 0.9 and unscaled.gradient_norm < 0.1
    # for independent normal scores of variance 1 and many keys, the entropy is log n - 1/2
    assert scaled.entropy == pytest.approx(1 - 0.5 / math.log(attention.N_KEYS), abs=0.02)
    assert scaled.gradient_norm > 2 * unscaled.gradient_norm


@settings(max_examples=20)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6))
def test_the_norm_of_the_jacobian_of_softmax(scores: list[float]) -> None:
    x = torch.tensor(scores, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), x)
    assert attention.softmax_jacobian_norm(x.softmax(-1)).item() == pytest.approx(jacobian.norm().item(), abs=1e-9)


# positions


def test_sinusoidal_positions_have_norm_sqrt_of_half_the_width() -> None:
    for width in (16, 64, 512):
        layer = partwise.parts.positions.absolute.SinusoidalTable(
            300, partwise.parts.positions.angles.inverse_frequencies(1e4, width)
        )
        norms = positions.position_norms(layer, 300, torch.zeros(3, width, dtype=torch.float64))
        assert (
            norms is not None and error(norms, torch.full((300,), math.sqrt(width / 2), dtype=torch.float64)) <= EXACT
        )


@settings(max_examples=12)
@given(configs())
def test_norms_equal_those_of_the_inputs(config: partwise.ModelConfig) -> None:
    """Norms of embeddings and positions equal those computed from the model's own tables."""
    model = perturbed(config)
    for prefix, stack in positions.stacks_by_prefix(model).items():
        ids = source_of(model, tokens()) if prefix else tokens()
        assert ids is not None
        norms = positions.input_norms(stack, ids, config.context_length, config.padding_idx)
        unpadded = [(b, t) for b, t in np.ndindex(*ids.shape) if ids[b, t] != config.padding_idx]
        factor = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        rows = [stack.embed.weight[ids[b, t]] * factor for b, t in unpadded]
        assert error(norms.embeddings, torch.stack(rows).norm(dim=1)) <= EXACT
        if config.positions.name not in ("learned", "sinusoidal"):
            assert norms.positions is None and norms.ratio is None
        elif config.positions.name == "learned":
            assert norms.positions is not None and error(norms.positions, stack.positions.weight.norm(dim=1)) <= EXACT


def test_rotary_wavelengths_and_alibi_bias() -> None:
    rope = partwise.Transformer(partwise.preset("llama", "d_model=32", "attention.n_heads=4", "n_layers=1")).positions
    waves = positions.wavelengths(rope)
    assert error(waves, 2 * math.pi * 1e4 ** torch.tensor([0, 0.25, 0.5, 0.75], dtype=torch.float64)) <= EXACT
    angles = torch.arange(50)[:, None] * (2 * math.pi / waves)
    assert error(positions.rotary_decay(rope, 8, 50), angles.cos().mean(1)) <= 1e-6  # its tables are at least float32
    alibi = partwise.Transformer(partwise.preset("mingpt", "positions=alibi", "n_layers=1")).positions
    distances, bias = positions.score_bias(alibi, 9, causal=True)
    assert sorted(distances.tolist()) == list(range(9))
    assert error(bias, -torch.tensor([2.0**-h for h in range(1, 9)])[:, None] * distances) <= 1e-6
    bidirectional, _ = positions.score_bias(alibi, 9, causal=False)
    assert sorted(bidirectional.tolist()) == list(range(-8, 9))


def test_tables_of_any_width_are_initialized_like_the_models() -> None:
    """Standard normal with init=torch, standard deviation 0.02 with gpt2."""
    for words, expected in ((["init=torch"], 1.0), (["init=gpt2"], 0.02)):
        config = partwise.preset("mingpt", *words)
        norm = positions.initial_norm(config, 500, 256)
        assert norm == pytest.approx(expected * 16, rel=0.02)
        model = partwise.Transformer(config)
        assert model.embed.weight.norm(dim=1).mean().item() == pytest.approx(
            positions.initial_norm(config, config.vocab_size, config.d_model), rel=0.05
        )
    assert positions.initial_norm(partwise.preset("mingpt"), positions.MAX_TABLE_SIZE, 2) is None


# logit lens


@settings(max_examples=12)
@given(configs())
def test_the_last_layer_gives_the_models_logits(config: partwise.ModelConfig) -> None:
    model = perturbed(config)
    with torch.no_grad():
        streams = logit_lens.residual_streams(model, tokens(), source_of(model, tokens()))
        assert [*streams] == ["embeddings", *(f"layer {layer}" for layer in range(config.n_layers))]
        logits = logits_of(model, tokens())
        assert error(logit_lens.logit_lens(model, streams[f"layer {config.n_layers - 1}"]), logits) <= EXACT
        assert all(logit_lens.logit_lens(model, stream).shape == logits.shape for stream in streams.values())


@settings(max_examples=10)
@given(configs())
def test_predictions_by_layer_equal_those_of_each_token(config: partwise.ModelConfig) -> None:
    """Metrics are means over several batches, without padding; the last layer's metrics are the model's."""
    model = perturbed(config)
    inputs, targets = tokens(4), tokens(4, shift=3).clone()
    targets[1, 2:] = IGNORE_INDEX
    source = source_of(model, inputs)
    batches = [(inputs[i : i + 2], targets[i : i + 2], None if source is None else source[i : i + 2]) for i in (0, 2)]
    layers = logit_lens.predictions_by_layer(model, batches)
    with torch.no_grad():
        probabilities = model(inputs, source=source).softmax(-1)
    scored = [(b, t) for b, t in np.ndindex(4, LENGTH) if targets[b, t] != IGNORE_INDEX]
    correct = [probabilities[b, t, targets[b, t]].item() for b, t in scored]
    last = layers[-1]
    assert last.loss == pytest.approx(-np.mean(np.log(correct))) and last.probability == pytest.approx(np.mean(correct))
    assert last.agreement == 1 and abs(last.kl) < 1e-9
    assert last.accuracy == pytest.approx(np.mean([probabilities[b, t].argmax() == targets[b, t] for b, t in scored]))
    ranks = sorted(1 + int((probabilities[b, t] > probabilities[b, t, targets[b, t]]).sum()) for b, t in scored)
    assert last.rank == ranks[(len(ranks) - 1) // 2]
    assert all(layer.kl >= -1e-9 for layer in layers)


# gradients


@settings(max_examples=8)
@given(configs())
def test_squares_add_up_to_the_total(config: partwise.ModelConfig) -> None:
    """The sum holds for any parts, over micro-batches, and each norm is that of torch's gradient."""
    model = partwise.Transformer(config)
    with gradients.gradient_norms(model) as norms:
        for _ in range(2):  # two micro-batches
            logits_of(model, tokens()).square().mean().backward()
    assert norms.keys() <= {tensor.name for tensor in model.logical_tensors()}
    total = sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
    assert sum(norm.double() ** 2 for norm in norms.values()).item() == pytest.approx(total.item(), rel=SUMS)
    for name, parameter in model.named_parameters():
        if name in norms and parameter.grad is not None:
            assert norms[name].item() == pytest.approx(parameter.grad.norm().item(), rel=SUMS)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize("clip", ["null", "0.01"])
def test_recording_leaves_training_unchanged(clip: str, tiny: Callable[..., RunConfig]) -> None:
    """The total norms equal those of training without recording, and squares add up at every step."""
    config = tiny(f"train.grad_clip={clip}", "train.grad_accumulation=2", *PLAIN)
    dataset = prepare(config.data, config.tokenizer)
    norms, totals = gradients.record_norms(Run(config, dataset), 4)
    assert totals == [step.grad_norm for step, _ in zip(Run(config, dataset).steps(), range(4), strict=False)]
    assert {"blocks.0.attention.q.weight", "blocks.1.attention.v.weight"} <= norms.keys()
    groups = gradients.group_norms(norms)
    for values in (norms, groups, gradients.group_norms(norms, by_layer=True)):
        squares = np.sum([np.square(each) for each in values.values()], axis=0)
        assert squares == pytest.approx(np.square(totals), rel=SUMS)
    assert {"embed", "head", "layer 0 attention", "layer 1 ffn", "layer 0 residual"} <= groups.keys()


def test_a_run_continues_from_its_newest_checkpoint(folder: Path, tiny: Callable[..., RunConfig]) -> None:
    """Its first step in memory equals the seventh of an uninterrupted run, and the folder does not change."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    subject = find_subject(str(folder), [])
    run = gradients.start_run(subject)
    assert run.step == 6
    uninterrupted = Run(run.config, subject.dataset, run.runtime)
    for _ in range(6):
        uninterrupted.update()
    assert run.update().loss == uninterrupted.update().loss
    gradients.inspect(subject)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="remove overrides that change its weights"):
        gradients.start_run(find_subject(str(folder), ["d_model=8"]))


@given(st.sampled_from(["constant", "cosine", "wsd", "linear", "inverse_sqrt"]), st.integers(1, 30), st.integers(0, 50))
def test_a_held_schedule_keeps_its_final_factor(name: str, steps: int, step: int) -> None:
    from partwise.train.schedules import Schedule

    inner = Schedule.resolve({"part": name})
    assert isinstance(inner, Schedule)
    held = gradients.HoldFinal(inner=inner)
    assert held.factor(step, steps) == inner.factor(min(step, steps - 1), steps) >= 0


def test_groups_by_tensor_name() -> None:
    assert gradients.group_of("encoder.blocks.11.ffn.experts.up.weight") == ("encoder layer 11", "ffn")
    assert gradients.group_of("encoder.positions.weight") == ("", "encoder positions")
    assert gradients.group_of("head.bias") == ("", "head")


# pages


SHAPES: dict[str, list[str]] = {  # as small as possible: most of the time goes into rendering text in figures
    "run": [],
    "mingpt": [*TINY[1:], "n_layers=1", "positions=t5", "attention.sinks=true", "ffn.expansion=1"],
    "original": [*TINY[1:], "n_layers=1", "encoder_layers=1", "ffn.hidden=16"],
    "deepseek": [
        *TINY[:2],
        *TINY[3:],
        MIXED_ATTENTION,
        "residual=hyper_connections",
        "ffn={part: moe, n_experts: 3, hidden: 8}",
    ],
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("module", [attention, positions, logit_lens, gradients])
def test_pages_of_any_model(
    name: str, module: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "STEPS", 2)
    monkeypatch.setattr(map_figures, "SHOWN_LAYERS", 2)
    monkeypatch.setattr(map_figures, "SHOWN_HEADS", 2)
    monkeypatch.setattr(attention, "HEAD_DIMS", [1, 64])
    subject = find_subject(str(folder) if name == "run" else name, SHAPES[name], seq_len=8)
    page: Page = module.inspect(subject)
    assert page.rows and all(len(row) == len(page.columns) <= 9 for row in page.rows)
    assert max(sum(len(cell) + 2 for cell in row) for row in [page.columns, *page.rows]) <= 100
    write_page(tmp_path / "page.html", name, page)
    text = (tmp_path / "page.html").read_text()
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert text.count("<svg") == len(page.figures) > 0 and len(set(ids)) == len(ids)
    assert "mathdefault" not in text and "nan" not in " ".join(cell for row in page.rows for cell in row)
    kinds = {row[0].split()[0] for row in page.rows}
    if module is attention:
        assert kinds == ({"self", "cross", "encoder"} if name == "original" else {"self"})
