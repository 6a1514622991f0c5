"""The plain files of examples/from_scratch equal the shipped layers, losses, steps and intervals, in float64."""

import math
import random
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partwise
from from_scratch import (
    attention_scale,
    cache,
    encoder_decoder,
    ffn,
    heads,
    longer,
    ngram,
    norms,
    online,
    optimizers,
    paired,
    positions,
    residual,
)
from partwise.baselines.references import kneser_ney_loss, unigram_loss
from partwise.comparison.stats import samples
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.online import online_level
from partwise.config import REGISTRY
from partwise.inspection.attention import entropy_max_and_sink
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import AttentionMask
from partwise.parts.contracts import ForwardContext, HeadLayout, LayerContext, PositionLayer
from partwise.parts.positions.bias import alibi_slopes
from partwise.train.optimizer_steps import orthogonalize
from partwise.train.optimizers import Optimizer
from recipes import error
from references.mingpt import mingpt_logits

FILES = sorted((Path(__file__).parents[1] / "examples" / "from_scratch").glob("*.py"))
EXACT = 1e-12
SHAPES = [(1, 1, 8), (2, 5, 12), (3, 16, 48)]  # batch, tokens, width
each_shape = pytest.mark.parametrize("shape", SHAPES)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomized(module: nn.Module) -> nn.Module:
    """The module in eval mode, in float64, with random parameters."""
    for number, parameter in enumerate(module.double().parameters()):
        parameter.data = 0.4 * normal(*parameter.shape, seed=number)
    return module.eval()


def part(family: str, name: str, **options: Any) -> Any:
    return REGISTRY[family][name].from_dict(options, prefix=family)


def context(length: int, positions: PositionLayer | None = None, **options: Any) -> ForwardContext:
    return ForwardContext(positions or PositionLayer(), torch.arange(length), **options)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_prints_its_number(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    (line,) = capsys.readouterr().out.splitlines()
    assert any(character.isdigit() for character in line) and "nan" not in line


@pytest.mark.parametrize(("symbols", "length", "n"), [(3, 7, 4), (5, 300, 1), (5, 300, 3), (27, 2000, 4)])
def test_ngrams(symbols: int, length: int, n: int) -> None:
    """With tokens that the training text lacks, contexts that end it, and a text shorter than any n-gram."""
    draw = random.Random(length + n)
    train = [min(draw.randrange(symbols), draw.randrange(symbols)) for _ in range(length)]
    ids = [draw.randrange(symbols + 1) for _ in range(200)]
    arrays = np.array(train), np.array(ids), symbols + 2
    assert ngram.unigram_loss(train, ids, symbols + 2) == pytest.approx(unigram_loss(*arrays), rel=EXACT)
    assert ngram.KneserNey(train, symbols + 2, n).loss(ids) == pytest.approx(kneser_ney_loss(*arrays, n - 1), rel=EXACT)


@pytest.mark.parametrize(("n", "confidence"), [(2, 0.95), (5, 0.95), (16, 0.999)])
def test_paired_differences(n: int, confidence: float) -> None:
    arm, baseline = (1.5 + 0.02 * normal(n, seed=seed) for seed in (1, 2))
    differences = paired.paired_difference(arm.tolist(), baseline.tolist())
    judged = judge(
        "arm", "baseline", *(dict(enumerate(values.tolist())) for values in (arm, baseline)), alpha=1 - confidence
    )
    assert paired.sd(arm.tolist()) == pytest.approx(samples.sd(arm.tolist()), rel=EXACT)
    assert paired.sd(differences) == pytest.approx(judged.sd_difference, rel=EXACT)
    assert paired.mean(differences) == pytest.approx(judged.mean, rel=EXACT)
    interval = paired.t_interval(differences, confidence)
    assert interval == pytest.approx((judged.low, judged.high), rel=EXACT)
    assert interval == pytest.approx(samples.t_interval(differences, 1 - confidence), rel=EXACT)


def test_seeds_needed() -> None:
    """One seed fewer gives an interval that reaches the difference."""
    for sd, difference in ((0.02, 0.02), (0.005, 0.02), (0.013, 0.005)):
        n = paired.seeds_needed(sd, difference)
        half = [samples.t_critical(k - 1, 0.05) * sd / math.sqrt(k) for k in (n, n - 1) if k > 1]
        assert half[0] < difference <= half[-1] or n == 2


@pytest.mark.parametrize("found", [[], [1], [3, 3], [2, 7, 20]])
def test_online_levels(found: list[int]) -> None:
    for tried in range(max(found, default=0), 45):
        for alpha in (0.05, 0.2):
            assert online.online_level(tried, found, alpha) == pytest.approx(
                online_level(tried, found, alpha), rel=EXACT
            )


@each_shape
def test_positions(shape: tuple[int, int, int]) -> None:
    x, (B, T, D) = normal(*shape), shape
    layer_ctx = LayerContext(D, 1, 20, HeadLayout(2, 2, D // 2))
    learned = randomized(part("positions", "learned").build(layer_ctx))
    t = torch.arange(T)
    assert error(positions.learned(x, learned.weight), learned.at_input(x, t)) <= EXACT
    sinusoidal = part("positions", "sinusoidal").build(layer_ctx)
    assert error(positions.sinusoidal(x), sinusoidal.at_input(x, t)) <= EXACT
    for theta in (10000.0, 500.0):
        q, rotary = normal(B, 2, T, D // 2), part("positions", "rope", theta=theta).build(layer_ctx)
        assert error(positions.rope(q, theta), rotary.on_heads(q, t)) <= EXACT


@each_shape
def test_feed_forward_layers(shape: tuple[int, int, int]) -> None:
    x, D = normal(*shape), shape[-1]
    for name, activation in (("relu", ffn.relu), ("gelu", ffn.gelu), ("swish", ffn.silu)):
        layer = randomized(part("ffn", name, hidden=2 * D + 1).build(LayerContext(D, 1, 20)))
        assert error(ffn.mlp(x, layer.up.weight, layer.down.weight, activation), layer(x)) <= EXACT
    layer = randomized(part("ffn", "swiglu", hidden=2 * D + 1).build(LayerContext(D, 1, 20)))
    w = layer.state_dict()
    assert error(ffn.swiglu(x, w["gate.weight"], w["up.weight"], w["down.weight"]), layer(x)) <= EXACT


def test_dead_share_is_that_of_the_inspection() -> None:
    from partwise.inspection.activations import ActivationStatistics

    h = ffn.relu(normal(2, 6, 40) - 1.2)
    statistics = ActivationStatistics()
    statistics.update(h.flatten(0, 1), torch.zeros(12, dtype=torch.long))
    assert 0 < statistics.n_dead < 40 and ffn.dead_share(h) == pytest.approx(statistics.n_dead / 40, rel=EXACT)


@pytest.mark.parametrize("scale", [None, 1.0])
@each_shape
def test_scaled_attention_and_its_entropy(shape: tuple[int, int, int], scale: float | None) -> None:
    B, T, E = shape
    q, k, v = (3 * normal(B, 2, length, E, seed=seed) for seed, length in enumerate((T, 7, 7)))
    core = AttentionCore(E, scale or E**-0.5)
    everything = AttentionMask(lambda: torch.zeros(()), full=True)
    assert error(attention_scale.attention(q, k, v, scale), core(q, k, v, everything)) <= EXACT
    weights = attention_scale.softmax(q @ k.transpose(-2, -1))
    weights[..., 0] = torch.where(weights[..., 0] < 1e-3, 0, weights[..., 0])
    assert error(attention_scale.entropy(weights), entropy_max_and_sink(weights, core)[0]) <= EXACT


def test_scaled_embeddings() -> None:
    words = ["d_model=12", "n_layers=1", "attention.n_heads=2", "positions=none", "scale_embeddings=true"]
    model = randomized(partwise.Transformer(partwise.preset("mingpt", *words)))
    tokens, seen = torch.arange(12).view(2, 6), []
    model.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0]))
    model(tokens)
    assert error(attention_scale.embed(tokens, model.embed.weight), seen[0]) <= EXACT


def projections(layer: nn.Module) -> list[Tensor]:
    return [layer.state_dict()[f"{role}.weight"] for role in ("q", "k", "v", "out")]


@pytest.mark.parametrize("n_heads", [1, 4])
@each_shape
def test_multi_head_attention(shape: tuple[int, int, int], n_heads: int) -> None:
    x, (_, T, D) = normal(*shape), shape
    recipe = part("attention", "multihead", n_heads=n_heads)
    layer = randomized(recipe.build(LayerContext(D, 1, 20, recipe.heads(D))))
    assert error(heads.multi_head_attention(x, *projections(layer), n_heads), layer(x, context(T))) <= EXACT
    assert torch.equal(heads.merge_heads(heads.split_heads(x, n_heads)), x)


@each_shape
def test_norms(shape: tuple[int, int, int]) -> None:
    x, D = 0.1 * normal(*shape), shape[-1]
    layernorm, rmsnorm = (randomized(part("norm", name).build(D)) for name in ("layernorm", "rmsnorm"))
    assert error(norms.layernorm(x, layernorm.weight, layernorm.bias), layernorm(x)) <= EXACT
    assert error(norms.rmsnorm(x, rmsnorm.weight), rmsnorm(x)) <= EXACT


WIRINGS = {"pre": residual.pre_norm, "post": residual.post_norm, "none": residual.no_residual}


@pytest.mark.parametrize("name", sorted(WIRINGS.keys() & REGISTRY["residual"].keys()))
@each_shape
def test_residual_wirings(shape: tuple[int, int, int], name: str) -> None:
    D, names = shape[-1], ["attention", "cross", "ffn"]
    x, matrices = normal(*shape), [normal(D, D, seed=seed) for seed in (4, 5, 6)]
    branches = [lambda x, ctx=None, m=m: torch.tanh(x @ m) + x**2 for m in matrices]
    wiring = part("residual", name).build(LayerContext(D, 1, 20), names, lambda: nn.LayerNorm(D))
    randomized(wiring)
    own_norms = [wiring.norms[branch] for branch in names]
    assert error(WIRINGS[name](x, branches, own_norms), wiring(x, context(shape[1]), branches)) <= EXACT


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@each_shape
def test_grouped_query_attention_and_its_cache(shape: tuple[int, int, int], n_kv_heads: int) -> None:
    """Cached equals uncached, token by token and in chunks, and both equal the layer, whose cache has as many bytes."""
    x, (B, T, D) = normal(*shape), shape
    recipe = part("attention", "multihead", n_heads=4, n_kv_heads=n_kv_heads)
    layer = randomized(recipe.build(LayerContext(D, 1, T, recipe.heads(D))))
    expected = layer(x, context(T))
    assert error(cache.grouped_query_attention(x, *projections(layer), 4, n_kv_heads), expected) <= EXACT
    for size in (1, 3):
        own = cache.Cache()
        chunks = [
            cache.grouped_query_attention(c, *projections(layer), 4, n_kv_heads, own) for c in x.split(size, dim=1)
        ]
        assert error(torch.cat(chunks, dim=1), expected) <= EXACT
    shipped = sum(buffer.nbytes for buffer in layer.new_cache(B, T, x).buffers)
    assert own.bytes() == shipped == cache.cache_bytes(B, T, 1, n_kv_heads, D // 4, 8)


class OneMatrix(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.w = nn.Parameter(normal(rows, columns))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 8), (8, 3), (16, 16)])
def test_optimizer_steps(rows: int, columns: int) -> None:
    for name in ("adamw", "muon"):
        model = OneMatrix(rows, columns)
        optimizer = Optimizer.resolve(name).build(model, 0.1)
        w = model.w.detach().clone()
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for step in range(1, 6):
            grad = model.w.grad = normal(rows, columns, seed=10 + step)
            optimizer.step()
            if name == "adamw":
                optimizers.adamw_step(w, grad, m, v, step, 0.1)
            else:
                optimizers.muon_step(w, grad, m, 0.1)
            assert error(w, model.w) <= EXACT
    grad = normal(rows, columns)
    assert error(optimizers.newton_schulz(grad), orthogonalize(grad)) <= EXACT


@pytest.mark.parametrize("n_heads", [1, 3, 8, 12])
def test_alibi(n_heads: int) -> None:
    assert longer.alibi_slopes(n_heads) == pytest.approx(alibi_slopes(n_heads), rel=EXACT)
    layer = part("positions", "alibi").build(LayerContext(48, 1, 20, HeadLayout(n_heads, n_heads, 4)))
    t = torch.arange(9)
    seen = torch.ones(9, 9).tril().bool()
    assert error(longer.alibi_bias(n_heads, 9)[:, seen], layer.on_scores(t, t, normal(1))[:, seen]) <= EXACT


@pytest.mark.parametrize(("head_dim", "factor", "trained"), [(4, 2.0, 16), (64, 4.0, 128), (128, 8.0, 4096)])
def test_frequencies_for_longer_texts(head_dim: int, factor: float, trained: int) -> None:
    ntk = part("positions", "rope_ntk", factor=factor)
    yarn = part("positions", "rope_yarn", factor=factor, original_context_length=trained)
    for own, recipe in (
        (longer.rope_frequencies(head_dim), part("positions", "rope")),
        (longer.ntk_frequencies(head_dim, factor), ntk),
        (longer.yarn_frequencies(head_dim, factor, trained), yarn),
    ):
        expected = torch.tensor(recipe.frequencies(head_dim), dtype=torch.float64)
        assert (own / expected - 1).abs().max() <= EXACT
    assert longer.yarn_scale(factor) == pytest.approx(yarn.attention_scaling(), rel=EXACT)


@pytest.mark.parametrize(("length", "window"), [(1, 2), (7, 3), (16, 5)])
def test_the_window(length: int, window: int) -> None:
    mask = context(length).mask(normal(1, length, 4), length, window).bias()
    hidden = torch.zeros(length, length).bool() if mask is None else mask.isinf()
    assert torch.equal(longer.window_mask(length, window), ~hidden)


@pytest.mark.parametrize("words", ["", "ffn=swiglu ffn.hidden=64"])
@pytest.mark.parametrize(("length", "n_layers", "n_heads"), [(1, 1, 1), (16, 2, 4)])
def test_the_gpt_equals_the_preset(words: str, length: int, n_layers: int, n_heads: int) -> None:
    """`mingpt_logits` computes with the model of gpt.py; at full size see tests/presets/test_tutorials.py."""
    sizes = ["d_model=24", f"n_layers={n_layers}", f"attention.n_heads={n_heads}", "context_length=16"]
    model = randomized(partwise.Transformer(partwise.preset("mingpt", *sizes, *words.split(), vocab_size=19)))
    tokens = torch.randint(19, (3, length), generator=torch.Generator().manual_seed(0))
    kind = "swiglu" if words else "relu"
    with torch.no_grad():
        own = mingpt_logits(model.state_dict(), tokens, n_layers=n_layers, n_heads=n_heads, ffn=kind)
        assert error(own, model(tokens)) <= EXACT


RENAMED = {"residual.norms.attention": "ln1", "residual.norms.cross": "ln2", "residual.norms.ffn": "ln3"}


def copied(block: nn.Module, shipped: nn.Module) -> nn.Module:
    """The block with the weights of a shipped one; the last norm of an encoder is its second."""
    names = RENAMED if shipped.cross is not None else RENAMED | {"residual.norms.ffn": "ln2"}
    weights = {}
    for name, tensor in shipped.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        weights[name] = tensor
    block.double().load_state_dict(weights)
    return block


@pytest.mark.parametrize("shape", [(1, 1, 1, 8, 1), (2, 5, 7, 12, 2), (3, 9, 4, 24, 4)])
def test_the_original_transformer(shape: tuple[int, int, int, int, int]) -> None:
    """Two blocks of each stack, with embeddings and positions of other lessons, on sources with padding."""
    B, T, M, D, n_heads = shape
    words = [f"d_model={D}", f"attention.n_heads={n_heads}", "n_layers=2", "encoder_layers=2", "ffn.hidden=20"]
    config = partwise.preset("original", *words, "context_length=16", "padding_idx=0", vocab_size=11)
    model = randomized(partwise.Transformer(config))
    draw = torch.Generator().manual_seed(0)
    tokens, source = (torch.randint(1, 11, (B, length), generator=draw) for length in (T, M))
    source[0, M // 2 + 1 :] = 0
    padding = encoder_decoder.padding_mask(source, 0)

    def embed(tokens: Tensor) -> Tensor:
        return positions.sinusoidal(attention_scale.embed(tokens, model.embed.weight))

    with torch.no_grad():
        memory, x = embed(source), embed(tokens)
        for shipped in model.encoder.blocks:
            memory = copied(encoder_decoder.EncoderBlock(D, n_heads, 20), shipped)(memory, padding)
        for shipped in model.blocks:
            x = copied(encoder_decoder.DecoderBlock(D, n_heads, 20), shipped)(x, memory, padding)
        assert error(x @ model.embed.weight.T, model(tokens, source=source)) <= EXACT
