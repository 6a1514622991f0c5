"""Counts mixed into a model: the tables against the model of counts they come from, and where they must not be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import partwise
from partwise.checkpoint import Damaged, load, load_model, load_tensors, tensor_writer
from partwise.config import ConfigError
from partwise.data import examples
from partwise.evaluate.loss import mean_loss
from partwise.generation import Sampling, decode, generator, uniform_numbers
from partwise.kernels.decoding import unlike
from partwise.model import ModelConfig, Transformer
from partwise.parts.ngram import KneserNey
from partwise.train.folder import Evaluation, RunFolder
from partwise.train.loop import Run
from partwise.train.settings import run_config

EXACT = 1e-12
SHORT = ["d_model=16", "n_layers=1", "attention.n_heads=2", "max_len=16", "train.steps=4", "counts=kneser_ney"]
SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "attention": {"part": "multihead", "n_heads": 2}}


def model_of(vocab_size: int, text: np.ndarray | None, max_len: int = 64, **options: Any) -> Transformer:
    config = ModelConfig.from_dict(
        {**SMALL, "vocab_size": vocab_size, "max_len": max_len, "counts": {"part": "kneser_ney", **options}}
    )
    model = Transformer(config, seed=1).double().eval()
    if text is not None:
        model.counts.count(text)
    return model


def own_logits(model: Transformer, tokens: torch.Tensor, **given: Any) -> torch.Tensor:
    """What it says without its counts."""
    model.train()
    try:
        return model(tokens, **given)
    finally:
        model.eval()


def expected(model: Transformer, counted: KneserNey, own: torch.Tensor, row: np.ndarray, weight: float) -> torch.Tensor:
    """Place by place, each from the distribution after the tokens before it."""
    after = np.stack([counted.distribution(row[: place + 1]) for place in range(len(row))])
    return (1 - weight) * own.softmax(-1) + weight * torch.from_numpy(after)


@given(st.data())
def test_each_place_is_mixed_with_what_was_counted(data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(2, 9))
    context = data.draw(st.integers(0, 5))
    weight = data.draw(st.floats(0.01, 0.99))
    seed = data.draw(st.integers(0, 2**32))
    generator = np.random.default_rng(seed)
    text = generator.integers(
        0, data.draw(st.integers(1, vocab_size)), data.draw(st.integers(1, 60))
    )  # some never occur
    rows = generator.integers(0, vocab_size, (2, data.draw(st.integers(1, 12))))
    model = model_of(vocab_size, text, context=context, weight=weight)
    counted, tokens = KneserNey(text, vocab_size, context), torch.from_numpy(rows)
    own = own_logits(model, tokens)
    wanted = torch.stack([expected(model, counted, o, row, weight) for o, row in zip(own, rows, strict=True)])
    torch.testing.assert_close(model(tokens).exp(), wanted, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(model(tokens).exp().sum(-1), torch.ones(rows.shape).double(), rtol=EXACT, atol=EXACT)

    cut = data.draw(st.integers(0, rows.shape[1]))  # in two calls over states
    states = model.start(2)
    parts = [model(part, states) for part in (tokens[:, :cut], tokens[:, cut:]) if part.shape[1]]
    torch.testing.assert_close(torch.cat(parts, 1).exp(), wanted, rtol=1e-10, atol=1e-10)

    border = data.draw(st.integers(0, rows.shape[1]))  # two documents in one row: what was counted ends at the border
    segments = (torch.arange(rows.shape[1]) >= border).long().expand(2, -1)
    packed = model(tokens, segments=segments).exp()
    own = own_logits(model, tokens, segments=segments)
    for place, row in enumerate(rows):
        apart = [
            expected(model, counted, own[place, part], row[part], weight)
            for part in (slice(0, border), slice(border, None))
            if len(row[part])
        ]
        torch.testing.assert_close(packed[place], torch.cat(apart), rtol=EXACT, atol=EXACT)


def test_the_counts_of_real_text_are_those_of_the_floor() -> None:
    text = np.frombuffer((Path(__file__).parent.parent / "README.md").read_bytes()[:20_000], np.uint8) % 128
    model, counted = model_of(128, text, context=6, weight=1 - 1e-15, max_len=512), KneserNey(text[:20_000], 128, 6)
    row = np.frombuffer(
        b"the same command continues, and nothing is ever extrapolated to other settings. " * 6, np.uint8
    )
    tokens = torch.from_numpy(row.astype(np.int64))[None]
    found = model(tokens).detach()[0, :-1].gather(-1, tokens[0, 1:, None])[:, 0]
    np.testing.assert_allclose(found.exp().numpy(), counted.probabilities(row)[1:], rtol=1e-10)


def test_training_sees_the_model_alone() -> None:
    text = np.random.default_rng(0).integers(0, 5, 200)
    with_counts, without = model_of(5, text), model_of(5, None)
    tokens = torch.from_numpy(text[None, :20])
    plain = without(tokens)
    assert torch.equal(own_logits(with_counts, tokens), plain)
    assert not torch.equal(with_counts(tokens), plain)
    with_counts.train()
    F.cross_entropy(with_counts(tokens)[0], tokens[0]).backward()
    assert all(parameter.grad is not None for parameter in with_counts.parameters())


def test_a_model_that_counted_nothing_says_what_it_says_alone() -> None:
    model = model_of(5, None)
    tokens = torch.arange(5)[None]
    assert torch.equal(model(tokens), own_logits(model, tokens))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(
        "to be, or not to be, that is the question: whether tis nobler in the mind. " * 40
    )
    folder = RunFolder(tmp_path / "runs" / "counted", run_config("mingpt", *SHORT, data="text.txt"))
    for _ in folder.events():
        pass
    return folder


def test_a_run_counts_its_training_text_and_its_checkpoint_says_what_it_says(run: RunFolder) -> None:
    ids = run.run.dataset.split("train")
    assert torch.equal(run.run.model.counts.text, torch.from_numpy(ids.astype(np.int64)).to(torch.uint8))
    model, _ = load(run.path)
    model.use_path(run.run.choices.attention_path, run.run.choices.ffn_path, run.run.choices.block_path)
    tokens = torch.from_numpy(ids[None, 3:19].astype(np.int64))
    assert torch.equal(model(tokens), run.run.model.eval()(tokens))
    held_out = run_config("mingpt", *SHORT, "train.held_out=true", data="text.txt")
    part = Run(held_out, held_out.prepare().held_out()).model.counts.text
    assert torch.equal(part, run.run.model.counts.text[: len(part)]) and len(part) < len(ids)


def test_the_limit_is_kept_and_what_exceeds_it_is_refused(run: RunFolder, tmp_path: Path) -> None:
    short = Run(run_config("mingpt", *SHORT, "counts.limit=100", data="text.txt"))
    assert torch.equal(short.model.counts.text, run.run.model.counts.text[:100])
    folder = next(iter((run.path / "checkpoints").glob("step-*")))
    tensors = load_tensors(folder / "model.safetensors")
    for wrong in (torch.zeros(3_000_000, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8), torch.tensor(1)):
        tensor_writer({**tensors, "counts.text": wrong})(folder / "model.safetensors")
        with pytest.raises((Damaged, ConfigError), match="do not fit the configuration"):
            load_model(folder)
    for wrong in (torch.full((50,), 200, dtype=torch.uint8), torch.full((50,), -3), torch.full((50,), torch.nan)):
        tensor_writer({**tensors, "counts.text": wrong})(folder / "model.safetensors")
        with pytest.raises(Damaged, match=r"the text that was counted in .* is no text of 20 tokens"):
            load_model(folder)


def test_text_that_was_counted_is_scored_without_the_counts(run: RunFolder) -> None:
    batches = list(run.run.examples.scored())
    model = run.run.model
    alone = Transformer(run.config.model)
    alone.load_state_dict({**model.state_dict(), "counts.text": torch.zeros(0, dtype=torch.uint8)})
    alone.use_path(run.choices.attention_path, run.choices.ffn_path, run.choices.block_path)
    assert mean_loss(model, batches, learned=True) == mean_loss(alone, batches) > mean_loss(model, batches)
    validation = examples(run.run.dataset, "val", run.config.context, run.config.model.max_len)
    evaluation = run.evaluate()
    precision = run.choices.precision
    assert isinstance(evaluation, Evaluation)
    assert evaluation.validation == mean_loss(model, validation.scored(), precision)
    same_size = run.run.examples.as_much_as(validation).scored()
    assert evaluation.training == mean_loss(model, same_size, precision, learned=True)


def test_a_run_that_was_stopped_continues_bit_by_bit(run: RunFolder, tmp_path: Path) -> None:
    halves = RunFolder(tmp_path / "runs" / "halves", run.config)
    for event in halves.events():
        if getattr(event, "step", 0) == 2:
            break
    halves.save()
    again = RunFolder(halves.path, run.config)
    for _ in again.events():
        pass
    tokens = torch.arange(16)[None] % 20
    assert torch.equal(again.run.model.eval()(tokens), run.run.model.eval()(tokens))


def test_any_model_of_the_configuration_loads_the_counts(run: RunFolder) -> None:
    other = Transformer(run.config.model)
    other.load_state_dict(run.run.model.state_dict())
    assert torch.equal(other.counts.text, run.run.model.counts.text)


def test_generation_with_and_without_states_is_the_same(run: RunFolder) -> None:
    model, _ = load(run.path)
    prompt, uniform = torch.zeros(2, 3, dtype=torch.long), uniform_numbers([0, 1], 12, 0)
    assert generator(model) is model
    assert unlike(model) == "it does not know counts=kneser_ney"
    both = [torch.stack(list(decode(model, prompt, uniform, Sampling(), cached=cached))) for cached in (True, False)]
    assert torch.equal(*both)


def test_pairs_are_refused() -> None:
    with pytest.raises(ConfigError, match="counts=kneser_ney counts running text, and data=arithmetic_pairs is pairs"):
        run_config("original", "counts=kneser_ney", data="arithmetic_pairs")


def test_python_sees_it() -> None:
    assert partwise.preset("llama", "counts=kneser_ney", vocab_size=65).counts.weight == 0.5
