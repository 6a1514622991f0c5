"""What the looks at attention, positions, layers and gradients say is true, on any combination of parts."""

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
from partwise.data import IGNORED, prepare
from partwise.inspection import attention, gradients, lens, positions
from partwise.inspection.page import Look, write_page
from partwise.inspection.recording import watching
from partwise.inspection.subject import find_subject
from partwise.train.folder import RunFolder
from partwise.train.loop import Run
from partwise.train.settings import RunConfig
from recipes import LENGTH, VOCAB, ask, configs, error, perturbed, source_of, tokens

EXACT = 1e-12
SUMS = 1e-5  # float32: squares are added up in another order

PATTERN = "attention={cycle: [{part: differential, n_heads: 2, head_dim: 4}, {part: latent, n_heads: 4, rope_dim: 4}]}"
TINY = ["n_layers=2", "d_model=16", "attention.n_heads=2", "max_len=32", "train.context=32", "train.batch_size=4"]
PLAIN = [
    "train.attention_path=fused",
    "train.ffn_path=torch",
    "train.block_path=layers",
]  # nothing here needs the compiled kernels
TINY += PLAIN


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., RunConfig]) -> Path:
    """A finished run of six steps, whose learning rate falls to nothing."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    for _ in RunFolder(path, tiny("schedule=linear", "schedule.warmup=0", "train.clip=0.1", *PLAIN)).events():
        pass
    return path


# attention


def weights_of(model: partwise.Transformer) -> dict[str, list[Tensor]]:
    """What the model itself multiplies values by, at the end of its own equation."""
    found: dict[str, list[Tensor]] = {}
    model.use_path("products")

    def take(name: str, inputs: object, weights: Tensor) -> None:
        found.setdefault(name, []).append(weights)

    with watching(model, rf"{attention.SITES}\.dropout", take):
        ask(model, tokens())
    return found


@settings(max_examples=15)
@given(configs())
def test_maps_are_the_models_own_weights(config: partwise.ModelConfig) -> None:
    """On whatever path the look is taken; two maps of a differential head, heads in groups, sinks, windows, biases."""
    model = perturbed(config)
    source = source_of(model, tokens())
    calls = attention.calls_of(model, tokens(), source)
    own = weights_of(model)
    layers = config.n_layers * (2 if config.encoder_layers else 1) + config.encoder_layers
    assert len(calls) == layers and {f"{name}.dropout" for name in calls} == own.keys()
    for name, each in calls.items():
        expected = torch.stack(own[f"{name}.dropout"], dim=2).flatten(1, 2)
        assert error(attention.maps(each), expected) <= EXACT
        if each[0].scores.sinks is None:
            sums = attention.maps(each, raw=True).sum(-1)
            assert error(sums, torch.ones_like(sums)) <= EXACT
    assert not any(module._forward_hooks for module in model.modules())  # nobody listens any more


@settings(max_examples=12)
@given(configs())
def test_habits_are_those_of_each_map(config: partwise.ModelConfig) -> None:
    """Against one query at a time of the last head, and the keys that have any weight."""
    model = perturbed(config)
    source = source_of(model, tokens())
    calls = attention.calls_of(model, tokens(), source)
    found = attention.habits(model, tokens(), source)
    assert sorted((each.kind, each.layer) for each in found) == sorted(map(attention.place_of, calls))
    for name, each in calls.items():
        habits = next(one for one in found if (one.kind, one.layer) == attention.place_of(name))
        queries = source if habits.kind == "encoder" else tokens()
        maps, sunk = attention.maps(each), each[0].scores.sinks is not None
        assert queries is not None and len(habits.heads) == maps.shape[1] == len(set(habits.heads))
        kept = [(b, t) for b, t in np.ndindex(*queries.shape) if queries[b, t] != config.padding_idx]
        rows = [maps[b, -1, t].numpy() for b, t in kept]
        sums = np.array([row.sum() for row in rows])
        whole = [np.append(row, 1 - row.sum()) if sunk else row for row in rows]
        entropies = [-sum(w * math.log(w) for w in row if w > 0) for row in whole]
        walked = [row @ np.abs(t - np.arange(len(row))) for (_, t), row in zip(kept, rows, strict=True)]
        seen = [math.log((row > 0).sum() + sunk) for row in rows]
        for values, expected in (
            (habits.entropy, np.mean(entropies)),
            (habits.largest, np.mean([row.max() for row in rows])),
            (habits.first, np.mean([row[0] for row in rows])),
            (habits.sink, np.mean(1 - sums)),
            (habits.distance, np.sum(walked) / np.sum(sums)),
            (torch.tensor([habits.most]), np.mean(seen)),
        ):
            assert values[-1].item() == pytest.approx(expected, abs=1e-6)
        assert (habits.entropy <= habits.most + 1e-9).all() and (habits.raw_entropy <= habits.most + 1e-9).all()


def test_raw_weights_by_hand() -> None:
    """softmax(q k^T) over the past, from the projections of the first layer; and log-weights times 1 / scale."""
    sizes = {"vocab_size": VOCAB, "d_model": 8, "n_layers": 1, "max_len": LENGTH}
    heads = {"part": "multihead", "n_heads": 2}
    config = partwise.ModelConfig.from_dict({**sizes, "positions": "none", "attention": heads})
    model = perturbed(config)
    (calls,) = attention.calls_of(model, tokens()).values()
    state = model.state_dict()
    x = model.blocks[0].residual.norms["attention"](model.embed(tokens()))
    q, k = ((x @ state[f"blocks.0.attention.{name}.weight"].T).unflatten(-1, (2, 4)).transpose(1, 2) for name in "qk")
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected = (q @ k.transpose(2, 3)).masked_fill(hidden, float("-inf")).softmax(-1)
    assert error(attention.maps(calls, raw=True), expected) <= EXACT
    assert error((2 * attention.maps(calls).log()).softmax(-1), expected) <= EXACT


def test_softmax_saturates_without_the_scale() -> None:
    """Scores of variance d without it, of variance 1 with it: the same at width 1, and far apart at 1024."""
    assert attention.saturation(1, True) == attention.saturation(1, False)
    raw, scaled = attention.saturation(1024, False), attention.saturation(1024, True)
    assert raw.entropy < 0.05 and raw.largest > 0.9 and raw.gradient < 0.1
    # scores that are independent normal numbers of variance 1: entropy log n - 1/2 for many keys
    assert scaled.entropy == pytest.approx(1 - 0.5 / math.log(attention.KEYS), abs=0.02)
    assert scaled.gradient > 2 * raw.gradient


@settings(max_examples=20)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6))
def test_the_norm_of_the_jacobian_of_softmax(scores: list[float]) -> None:
    x = torch.tensor(scores, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), x)
    assert attention.jacobian_norm(x.softmax(-1)).item() == pytest.approx(jacobian.norm().item(), abs=1e-9)


# positions


def test_sinusoidal_positions_have_half_the_width_as_their_square() -> None:
    for width in (16, 64, 512):
        layer = partwise.parts.positions.SinusoidalTable(300, partwise.parts.positions.plain_frequencies(1e4, width))
        found = positions.added(layer, 300, torch.zeros(3, width, dtype=torch.float64))
        assert (
            found is not None and error(found, torch.full((300,), math.sqrt(width / 2), dtype=torch.float64)) <= EXACT
        )


@settings(max_examples=12)
@given(configs())
def test_norms_are_those_of_what_enters(config: partwise.ModelConfig) -> None:
    """Embeddings and positions by their norms, from the sum that a model's own first layers make of them."""
    model = perturbed(config)
    for side, stack in positions.stacks(model).items():
        ids = source_of(model, tokens()) if side else tokens()
        assert ids is not None
        found = positions.norms(stack, ids, config.max_len, config.padding_idx)
        kept = [(b, t) for b, t in np.ndindex(*ids.shape) if ids[b, t] != config.padding_idx]
        factor = math.sqrt(config.d_model) if config.embed_scale else 1.0
        rows = [stack.embed.weight[ids[b, t]] * factor for b, t in kept]
        assert error(found.embeddings, torch.stack(rows).norm(dim=1)) <= EXACT
        if config.positions.name not in ("learned", "sinusoidal"):
            assert found.positions is None and found.ratio is None
        elif config.positions.name == "learned":
            assert found.positions is not None and error(found.positions, stack.positions.weight.norm(dim=1)) <= EXACT


def test_what_rope_turns_and_what_alibi_adds() -> None:
    rope = partwise.Transformer(partwise.preset("llama", "d_model=32", "attention.n_heads=4", "n_layers=1")).positions
    waves = positions.wavelengths(rope)
    assert error(waves, 2 * math.pi * 1e4 ** torch.tensor([0, 0.25, 0.5, 0.75], dtype=torch.float64)) <= EXACT
    turns = torch.arange(50)[:, None] * (2 * math.pi / waves)
    assert error(positions.decay(rope, 8, 50), turns.cos().mean(1)) <= 1e-6  # its tables are float32 or finer
    alibi = partwise.Transformer(partwise.preset("mingpt", "positions=alibi", "n_layers=1")).positions
    distances, scores = positions.added_scores(alibi, 9, causal=True)
    assert sorted(distances.tolist()) == list(range(9))
    assert error(scores, -torch.tensor([2.0**-h for h in range(1, 9)])[:, None] * distances) <= 1e-6
    both_ways, _ = positions.added_scores(alibi, 9, causal=False)
    assert sorted(both_ways.tolist()) == list(range(-8, 9))


def test_tables_of_any_width_are_drawn_like_the_models_own() -> None:
    """Unit normal under init=torch, +-0.02 under gpt2; a scale of sqrt(width) makes xavier's pass sinusoidal positions."""
    for words, expected in ((["init=torch"], 1.0), (["init=gpt2"], 0.02)):
        config = partwise.preset("mingpt", *words)
        norm = positions.drawn_norm(config, 500, 256)
        assert norm == pytest.approx(expected * 16, rel=0.02)
        model = partwise.Transformer(config)
        assert model.embed.weight.norm(dim=1).mean().item() == pytest.approx(
            positions.drawn_norm(config, config.vocab_size, config.d_model), rel=0.05
        )
    assert positions.drawn_norm(partwise.preset("mingpt"), positions.NUMBERS, 2) is None


# the lens


@settings(max_examples=12)
@given(configs())
def test_the_last_layer_says_what_the_model_says(config: partwise.ModelConfig) -> None:
    model = perturbed(config)
    with torch.no_grad():
        after = lens.streams(model, tokens(), source_of(model, tokens()))
        assert [*after] == ["embeddings", *(f"layer {layer}" for layer in range(config.n_layers))]
        logits = ask(model, tokens())
        assert error(lens.lens(model, after[f"layer {config.n_layers - 1}"]), logits) <= EXACT
        assert all(lens.lens(model, stream).shape == logits.shape for stream in after.values())


@settings(max_examples=10)
@given(configs())
def test_layers_are_judged_token_by_token(config: partwise.ModelConfig) -> None:
    """In whatever pieces, padding left out; a model of no layers is what the embeddings are judged by."""
    model = perturbed(config)
    inputs, targets = tokens(4), tokens(4, shift=3).clone()
    targets[1, 2:] = IGNORED
    source = source_of(model, inputs)
    pieces = [(inputs[i : i + 2], targets[i : i + 2], None if source is None else source[i : i + 2]) for i in (0, 2)]
    found = lens.layers(model, pieces)
    with torch.no_grad():
        chances = model(inputs, source=source).softmax(-1)
    kept = [(b, t) for b, t in np.ndindex(4, LENGTH) if targets[b, t] != IGNORED]
    own = [chances[b, t, targets[b, t]].item() for b, t in kept]
    last = found[-1]
    assert last.loss == pytest.approx(-np.mean(np.log(own))) and last.probability == pytest.approx(np.mean(own))
    assert last.settled == 1 and abs(last.to_last) < 1e-9
    assert last.right == pytest.approx(np.mean([chances[b, t].argmax() == targets[b, t] for b, t in kept]))
    ranks = sorted(1 + int((chances[b, t] > chances[b, t, targets[b, t]]).sum()) for b, t in kept)
    assert last.rank == ranks[(len(ranks) - 1) // 2]
    assert all(layer.to_last >= -1e-9 for layer in found)


# gradients


@settings(max_examples=8)
@given(configs())
def test_squares_add_up_to_the_whole(config: partwise.ModelConfig) -> None:
    """On any parts, over micro-batches and under clipping; and they are the norms of torch's own gradients."""
    model = partwise.Transformer(config)
    with gradients.recording_norms(model) as norms:
        for _ in range(2):  # two micro-batches
            ask(model, tokens()).square().mean().backward()
    assert norms.keys() <= {tensor.name for tensor in model.logical_tensors()}
    whole = sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
    assert sum(norm.double() ** 2 for norm in norms.values()).item() == pytest.approx(whole.item(), rel=SUMS)
    for name, parameter in model.named_parameters():
        if name in norms and parameter.grad is not None:
            assert norms[name].item() == pytest.approx(parameter.grad.norm().item(), rel=SUMS)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize("clip", ["null", "0.01"])
def test_each_step_is_the_one_that_training_makes(clip: str, tiny: Callable[..., RunConfig]) -> None:
    """The look changes nothing: the same losses and norms as without it, and squares that add up at every step."""
    config = tiny(f"train.clip={clip}", "train.accumulate=2", *PLAIN)
    dataset = prepare(config.data, config.tokenizer)
    norms, totals = gradients.train_a_little(Run(config, dataset), 4)
    assert totals == [step.grad_norm for step, _ in zip(Run(config, dataset).steps(), range(4), strict=False)]
    assert {"blocks.0.attention.q.weight", "blocks.1.attention.v.weight"} <= norms.keys()
    groups = gradients.grouped(norms)
    for values in (norms, groups, gradients.grouped(norms, by_layer=True)):
        squares = np.sum([np.square(each) for each in values.values()], axis=0)
        assert squares == pytest.approx(np.square(totals), rel=SUMS)
    assert {"embed", "head", "layer 0 attention", "layer 1 ffn", "layer 0 residual"} <= groups.keys()


def test_a_run_goes_on_from_its_newest_weights(folder: Path, tiny: Callable[..., RunConfig]) -> None:
    """Its first step in memory is the seventh of a run that never stopped, and nothing of the folder changes."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    subject = find_subject(str(folder), [])
    run = gradients.begin(subject)
    assert run.step == 6
    straight = Run(run.config, subject.dataset, run.choices)
    for _ in range(6):
        straight.update()
    assert run.update().loss == straight.update().loss
    gradients.look(subject)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="leave out overrides that change its weights"):
        gradients.begin(find_subject(str(folder), ["d_model=8"]))


@given(st.sampled_from(["constant", "cosine", "wsd", "linear", "inverse_sqrt"]), st.integers(1, 30), st.integers(0, 50))
def test_a_schedule_stays_at_its_end(name: str, steps: int, step: int) -> None:
    from partwise.train.schedules import Schedule

    inner = Schedule.resolve({"part": name})
    assert isinstance(inner, Schedule)
    held = gradients.Held(inner=inner)
    assert held.factor(step, steps) == inner.factor(min(step, steps - 1), steps) >= 0


def test_names_tell_their_group() -> None:
    assert gradients.group_of("encoder.blocks.11.ffn.experts.up.weight") == ("encoder layer 11", "ffn")
    assert gradients.group_of("encoder.positions.weight") == ("", "encoder positions")
    assert gradients.group_of("head.bias") == ("", "head")


# pages


SHAPES: dict[str, list[str]] = {  # as small as they can be: most of the time goes into the letters of the figures
    "run": [],
    "mingpt": [*TINY[1:], "n_layers=1", "positions=t5", "attention.sinks=true", "ffn.expansion=1"],
    "original": [*TINY[1:], "n_layers=1", "encoder_layers=1", "ffn.hidden=16"],
    "deepseek": [*TINY[:2], *TINY[3:], PATTERN, "residual=hyper", "ffn={part: moe, n_experts: 3, hidden: 8}"],
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("what", [attention, positions, lens, gradients])
def test_a_page_of_anything(
    name: str, what: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "STEPS", 2)
    monkeypatch.setattr(attention, "MAPS", (2, 2))
    monkeypatch.setattr(attention, "WIDTHS", [1, 64])
    subject = find_subject(str(folder) if name == "run" else name, SHAPES[name], context=8)
    found: Look = what.look(subject)
    assert found.rows and all(len(row) == len(found.columns) <= 9 for row in found.rows)
    assert max(sum(len(cell) + 2 for cell in row) for row in [found.columns, *found.rows]) <= 100
    write_page(tmp_path / "page.html", name, found)
    text = (tmp_path / "page.html").read_text()
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert text.count("<svg") == len(found.figures) > 0 and len(set(ids)) == len(ids)
    assert "mathdefault" not in text and "nan" not in " ".join(cell for row in found.rows for cell in row)
    kinds = {row[0].split()[0] for row in found.rows}
    if what is attention:
        assert kinds == ({"self", "cross", "encoder"} if name == "original" else {"self"})
