"""Interpolation with an n-gram language model, against the reference KneserNey, and where it must not be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import partwise
from partwise.baselines.kneser_ney import KneserNey
from partwise.checkpoint import DamagedFileError, load, load_model, tensor_writer
from partwise.compute.backends.decoding import unsupported_layer
from partwise.config import ConfigError
from partwise.data import build_examples
from partwise.evaluate.loss import mean_loss
from partwise.generation.generate import decode, decoding_model
from partwise.generation.sampling import Sampling, uniform_numbers
from partwise.model import ModelConfig, Transformer
from partwise.tensor_files import TensorFiles
from partwise.train.config import run_config
from partwise.train.evaluation import Evaluation, evaluate
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder

EXACT = 1e-12
SHORT = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.steps=4", "ngram_lm=kneser_ney"]
SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "attention": {"part": "multihead", "n_heads": 2}}


def model_of(vocab_size: int, text: np.ndarray | None, context_length: int = 64, **options: Any) -> Transformer:
    config = ModelConfig.from_dict(
        {
            **SMALL,
            "vocab_size": vocab_size,
            "context_length": context_length,
            "ngram_lm": {"part": "kneser_ney", **options},
        }
    )
    model = Transformer(config, seed=1).double().eval()
    if text is not None:
        model.counts.fit(text)
    return model


def own_logits(model: Transformer, tokens: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """The logits without the n-gram model."""
    model.train()
    try:
        return model(tokens, **kwargs)
    finally:
        model.eval()


def expected(
    model: Transformer, ngram_model: KneserNey, own: torch.Tensor, row: np.ndarray, weight: float
) -> torch.Tensor:
    """Position by position, from the n-gram distribution after the preceding tokens."""
    after = np.stack([ngram_model.distribution(row[: position + 1]) for position in range(len(row))])
    return (1 - weight) * own.softmax(-1) + weight * torch.from_numpy(after)


@given(st.data())
def test_interpolation_at_every_position(data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(2, 9))
    context_tokens = data.draw(st.integers(0, 5))
    weight = data.draw(st.floats(0.01, 0.99))
    seed = data.draw(st.integers(0, 2**32))
    generator = np.random.default_rng(seed)
    text = generator.integers(
        0, data.draw(st.integers(1, vocab_size)), data.draw(st.integers(1, 60))
    )  # some ids never occur
    rows = generator.integers(0, vocab_size, (2, data.draw(st.integers(1, 12))))
    model = model_of(vocab_size, text, context_tokens=context_tokens, interpolation_weight=weight)
    ngram_model, tokens = KneserNey(text, vocab_size, context_tokens), torch.from_numpy(rows)
    own = own_logits(model, tokens)
    expected_p = torch.stack([expected(model, ngram_model, o, row, weight) for o, row in zip(own, rows, strict=True)])
    torch.testing.assert_close(model(tokens).exp(), expected_p, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(model(tokens).exp().sum(-1), torch.ones(rows.shape).double(), rtol=EXACT, atol=EXACT)

    cut = data.draw(st.integers(0, rows.shape[1]))  # two cached calls
    cache = model.new_cache(2)
    parts = [model(part, cache) for part in (tokens[:, :cut], tokens[:, cut:]) if part.shape[1]]
    torch.testing.assert_close(torch.cat(parts, 1).exp(), expected_p, rtol=1e-10, atol=1e-10)

    boundary = data.draw(st.integers(0, rows.shape[1]))  # two documents per row
    document_ids = (torch.arange(rows.shape[1]) >= boundary).long().expand(2, -1)
    packed = model(tokens, document_ids=document_ids).exp()
    own = own_logits(model, tokens, document_ids=document_ids)
    for index, row in enumerate(rows):
        separate = [
            expected(model, ngram_model, own[index, part], row[part], weight)
            for part in (slice(0, boundary), slice(boundary, None))
            if len(row[part])
        ]
        torch.testing.assert_close(packed[index], torch.cat(separate), rtol=EXACT, atol=EXACT)


def test_real_text_equals_the_reference() -> None:
    text = np.frombuffer((Path(__file__).parents[2] / "docs" / "benchmarks.md").read_bytes()[:20_000], np.uint8) % 128
    model, ngram_model = (
        model_of(128, text, context_tokens=6, interpolation_weight=1 - 1e-15, context_length=512),
        KneserNey(text[:20_000], 128, 6),
    )
    row = np.frombuffer(
        b"the same command continues, and nothing is ever extrapolated to other settings. " * 6, np.uint8
    )
    tokens = torch.from_numpy(row.astype(np.int64))[None]
    found = model(tokens).detach()[0, :-1].gather(-1, tokens[0, 1:, None])[:, 0]
    np.testing.assert_allclose(found.exp().numpy(), ngram_model.probabilities(row)[1:], rtol=1e-10)


def test_training_uses_only_the_models_logits() -> None:
    text = np.random.default_rng(0).integers(0, 5, 200)
    with_ngram_lm, without = model_of(5, text), model_of(5, None)
    tokens = torch.from_numpy(text[None, :20])
    plain = without(tokens)
    assert torch.equal(own_logits(with_ngram_lm, tokens), plain)
    assert not torch.equal(with_ngram_lm(tokens), plain)
    with_ngram_lm.train()
    F.cross_entropy(with_ngram_lm(tokens)[0], tokens[0]).backward()
    assert all(parameter.grad is not None for parameter in with_ngram_lm.parameters())


def test_without_fit_logits_are_unchanged() -> None:
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


def test_run_fits_its_training_text_and_checkpoints_it(run: RunFolder) -> None:
    ids = run.run.dataset.split("train")
    assert torch.equal(run.run.model.counts.text, torch.from_numpy(ids.astype(np.int64)).to(torch.uint8))
    model, _ = load(run.path)
    run.run.plan.apply(model)
    tokens = torch.from_numpy(ids[None, 3:19].astype(np.int64))
    assert torch.equal(model(tokens), run.run.model.eval()(tokens))
    held_out = run_config("mingpt", *SHORT, "train.tuning_split=true", data="text.txt")
    part = Run(held_out, held_out.prepare().tuning_split()).model.counts.text
    assert torch.equal(part, run.run.model.counts.text[: len(part)]) and len(part) < len(ids)


def test_max_tokens_limits_the_text_and_invalid_texts_are_rejected(run: RunFolder, tmp_path: Path) -> None:
    short = Run(run_config("mingpt", *SHORT, "ngram_lm.max_tokens=100", data="text.txt"))
    assert torch.equal(short.model.counts.text, run.run.model.counts.text[:100])
    folder = next(iter((run.path / "checkpoints").glob("step-*")))
    tensors = dict(TensorFiles([folder / "model.safetensors"]))
    for wrong in (torch.zeros(3_000_000, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8), torch.tensor(1)):
        tensor_writer({**tensors, "counts.text": wrong})(folder / "model.safetensors")
        with pytest.raises((DamagedFileError, ConfigError), match="do not match the configuration"):
            load_model(folder)
    for wrong in (torch.full((50,), 200, dtype=torch.uint8), torch.full((50,), -3), torch.full((50,), torch.nan)):
        tensor_writer({**tensors, "counts.text": wrong})(folder / "model.safetensors")
        with pytest.raises(
            DamagedFileError, match=r"is damaged: counts\.text is not a text of ids below vocab_size=20"
        ):
            load_model(folder)


def test_a_vocabulary_of_256_loads(run: RunFolder, tmp_path: Path) -> None:
    """The ids have 8 bits, in which 256 is 0."""
    config = run_config("mingpt", *SHORT, "tokenizer=bytes", data="text.txt")
    folder = RunFolder(tmp_path / "bytes", config)
    for _ in folder.events():
        pass
    assert load(folder.path)[0].counts.text.dtype == torch.uint8


def test_training_text_is_scored_without_the_ngram_lm(run: RunFolder) -> None:
    batches = list(run.run.examples.eval_batches())
    model = run.run.model
    without = Transformer(run.config.model)
    without.load_state_dict({**model.state_dict(), "counts.text": torch.zeros(0, dtype=torch.uint8)})
    run.run.plan.apply(without)
    assert mean_loss(model, batches, training_text=True) == mean_loss(without, batches) > mean_loss(model, batches)
    validation = build_examples(run.run.dataset, "val", run.config.seq_len, run.config.model.context_length)
    evaluation = evaluate(run.run)
    precision = run.runtime.precision
    assert isinstance(evaluation, Evaluation)
    assert evaluation.validation == mean_loss(model, validation.eval_batches(), precision)
    same_size = run.run.examples.truncate_like(validation).eval_batches()
    assert evaluation.training == mean_loss(model, same_size, precision, training_text=True)


def test_resumed_run_equals_uninterrupted_run(run: RunFolder, tmp_path: Path) -> None:
    interrupted = RunFolder(tmp_path / "runs" / "interrupted", run.config)
    for event in interrupted.events():
        if getattr(event, "step", 0) == 2:
            break
    interrupted.checkpoints.save()
    again = RunFolder(interrupted.path, run.config)
    for _ in again.events():
        pass
    tokens = torch.arange(16)[None] % 20
    assert torch.equal(again.run.model.eval()(tokens), run.run.model.eval()(tokens))


def test_state_dict_includes_the_text(run: RunFolder) -> None:
    other = Transformer(run.config.model)
    other.load_state_dict(run.run.model.state_dict())
    assert torch.equal(other.counts.text, run.run.model.counts.text)


def test_cached_and_uncached_generation_are_equal(run: RunFolder) -> None:
    model, _ = load(run.path)
    prompt, uniform = torch.zeros(2, 3, dtype=torch.long), uniform_numbers([0, 1], 12, 0)
    assert decoding_model(model) is model
    assert unsupported_layer(model) == "ngram_lm=kneser_ney is not supported"
    both = [torch.stack(list(decode(model, prompt, uniform, Sampling(), cached=cached))) for cached in (True, False)]
    assert torch.equal(*both)


def test_pairs_are_rejected() -> None:
    with pytest.raises(ConfigError, match="ngram_lm=kneser_ney needs text, but data=arithmetic_pairs contains pairs"):
        run_config("original", "ngram_lm=kneser_ney", data="arithmetic_pairs")


def test_default_weight() -> None:
    assert partwise.preset("llama", "ngram_lm=kneser_ney", vocab_size=65).ngram_lm.interpolation_weight == 0.5
