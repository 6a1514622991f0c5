"""The loss beyond the length of training: the same targets at every length, and RoPE scaled for it."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import partwise
from partwise.checks.measures import perturb
from partwise.config import ConfigError
from partwise.evaluate.lengths import at_length, loss_by_length, loss_by_position, window_ends
from partwise.model.reconfigured import reconfigured
from partwise.parts.positions.rotary import scaled_rope
from recipes import error

EXACT = 1e-12
TRAINED, VOCAB = 8, 11
SIZES = ["d_model=16", "n_layers=2", "attention.n_heads=2", f"context_length={TRAINED}"]
IDS = np.random.default_rng(0).integers(0, VOCAB, 200).astype(np.uint8)


def model(*words: str) -> partwise.Transformer:
    one = partwise.Transformer(partwise.preset("mingpt", *SIZES, *words, vocab_size=VOCAB)).double().eval()
    perturb(one, 0)
    return one


def direct_loss(one: partwise.Transformer, target: int, inputs: int) -> float:
    """Nats of IDS[target], predicted from the `inputs` tokens before it, in a pass of its own."""
    tokens = torch.from_numpy(IDS[target - inputs : target].astype(np.int64))
    with torch.no_grad():
        return F.cross_entropy(one(tokens[None])[0, -1], torch.tensor(int(IDS[target]))).item()


def test_every_length_has_the_same_targets_each_after_that_much_context() -> None:
    one, lengths = model("positions=rope"), [TRAINED, 3 * TRAINED]
    found = loss_by_length(one, IDS, lengths)
    first, last = 3 * TRAINED + 1 - 4, 3 * TRAINED + 4 * ((len(IDS) - 1 - 3 * TRAINED) // 4)
    for length in lengths:
        changed = at_length(one, length)
        targets = range(first, last + 1)
        # windows end at the last of four targets, so the first of the four has 3 tokens of context fewer
        expected = [direct_loss(changed, target, length - (last - target) % 4) for target in targets]
        assert found[length] == pytest.approx(np.mean(expected), abs=EXACT)


def test_windows_are_spread_over_the_text() -> None:
    assert window_ends(100, 10, 10, 1000).tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert window_ends(100, 10, 10, 30).tolist() == [10, 50, 90]
    assert window_ends(11, 10, 5, 1).tolist() == [10]
    with pytest.raises(ConfigError, match="10 tokens are fewer than a window of 10"):
        window_ends(10, 10, 5, 1)


@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "alibi", "none", "t5"])
def test_a_longer_context_changes_no_loss_within_the_trained_length(positions: str) -> None:
    """Causality: neither later tokens nor larger tables affect a position; and cached = uncached beyond it."""
    one = model(f"positions={positions}")
    longer = at_length(one, 4 * TRAINED)
    assert longer.config.context_length == 4 * TRAINED and longer.embed.weight.dtype == torch.float64
    tokens = torch.from_numpy(IDS[None, : 4 * TRAINED].astype(np.int64))
    with torch.no_grad():
        whole, cache = longer(tokens), longer.new_cache(1)
        assert error(whole[:, :TRAINED], one(tokens[:, :TRAINED])) <= EXACT
        steps = [longer(piece, cache) for piece in tokens.split(5, dim=1)]
    assert error(torch.cat(steps, dim=1), whole) <= EXACT
    by_position = loss_by_position(one, IDS, 4 * TRAINED, max_windows=3)
    assert by_position.shape == (4 * TRAINED,)
    starts = window_ends(len(IDS), 4 * TRAINED, 4 * TRAINED, 12 * TRAINED) - 4 * TRAINED
    expected = [direct_loss(longer, start + TRAINED, TRAINED) for start in starts]
    assert by_position[TRAINED - 1] == pytest.approx(np.mean(expected), abs=EXACT)


def test_a_window_of_attention_makes_the_context_before_it_irrelevant() -> None:
    one = model("positions=rope", "n_layers=1", "attention.window=3")
    found = loss_by_length(one, IDS, [TRAINED, 2 * TRAINED, 4 * TRAINED])
    assert max(found.values()) - min(found.values()) <= EXACT
    full = loss_by_length(model("positions=rope", "n_layers=1"), IDS, [TRAINED, 2 * TRAINED])
    assert abs(full[TRAINED] - full[2 * TRAINED]) > 1e-6


@pytest.mark.parametrize(("scaling", "part"), [("linear", "rope_linear"), ("ntk", "rope_ntk"), ("yarn", "rope_yarn")])
def test_scaled_rope_has_the_factor_of_the_length_and_the_trained_options(scaling: str, part: str) -> None:
    one = model("positions=rope", "positions.theta=100", "positions.layout=interleaved")
    longer = at_length(one, 4 * TRAINED, scaling=scaling).config.positions
    expected = {"part": part, "theta": 100.0, "layout": "interleaved", "factor": 4.0}
    assert expected.items() <= longer.to_dict().items()
    assert longer.to_dict().get("original_context_length", TRAINED) == TRAINED
    plain, scaled = (loss_by_length(one, IDS, [TRAINED, 4 * TRAINED], scaling=each) for each in (None, scaling))
    assert plain[TRAINED] == scaled[TRAINED] and abs(plain[4 * TRAINED] - scaled[4 * TRAINED]) > 1e-6
    half = at_length(one, 4 * TRAINED, trained_length=TRAINED // 2, scaling=scaling).config.positions
    assert half.to_dict()["factor"] == 8


def test_interpolation_at_twice_the_length_equals_training_positions_at_every_second_place() -> None:
    """Position 2 t of the interpolated model has the angle of position t of the trained one."""
    one = model("positions=rope")
    longer = at_length(one, 2 * TRAINED, scaling="linear")
    heads = torch.randn(1, 2, TRAINED, 8, dtype=torch.float64)
    places = torch.arange(TRAINED)
    assert error(longer.positions.on_heads(heads, 2 * places), one.positions.on_heads(heads, places)) <= EXACT


def test_what_a_model_cannot_do_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="positions=learned has no parameters beyond context_length=8, so 16 tokens"):
        loss_by_length(model("positions=learned"), IDS, [TRAINED, 2 * TRAINED])
    assert set(loss_by_length(model("positions=learned"), IDS, [4, TRAINED])) == {4, TRAINED}
    rope = model("positions=rope").config
    with pytest.raises(ConfigError, match="scaling='dynamic': choose linear, ntk, yarn"):
        scaled_rope(rope.positions, "dynamic", 8, 16)
    with pytest.raises(ConfigError, match="scaling='ntk' applies to positions=rope, not positions=alibi"):
        at_length(model("positions=alibi"), 16, scaling="ntk")
    wider = partwise.preset("mingpt", *SIZES, "positions=rope", "ffn.hidden=40", vocab_size=VOCAB)
    with pytest.raises(ConfigError, match=r"blocks\.0\.ffn\.\w+\.weight is 64x16, not 40x16"):
        reconfigured(model("positions=rope"), wider)
