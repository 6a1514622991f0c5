"""An encoder alone equals BERT, and differs from a decoder by its mask alone; it trains, resumes and is inspected."""

from pathlib import Path
from typing import Any

import pytest
import torch

import partwise
from bert import bert_of
from partwise.checks.model_checks import CACHE, LEAK, check_model
from partwise.config import ConfigError
from partwise.inspection.attention import attention_maps, attention_statistics, record_calls
from partwise.tokenizers import ByteTokenizer
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Step
from partwise.train.run_folder import Interrupted, RunFolder
from recipes import error, perturbed
from test_records import command

EXACT = 1e-12
WIDTH, HEADS, HIDDEN, VOCAB, PAD = 12, 3, 20, 12, 0
WORDS = [
    "n_layers=0", "encoder_layers=2", "data.mask_rate=0.15", "data=shakespeare", "d_model=16", "attention.n_heads=2",
    "context_length=16", "train.batch_size=4", "train.steps=6", "train.eval_every=3", "train.precision=float32",
    "train.device=cpu",
]  # fmt: skip


def encoder(**changes: Any) -> partwise.Transformer:
    values: dict[str, Any] = {
        "vocab_size": VOCAB,
        "d_model": WIDTH,
        "n_layers": 0,
        "encoder_layers": 2,
        "context_length": 16,
        "positions": "learned",
        "attention": {"part": "multihead", "n_heads": HEADS, "bias": True, "out_bias": True},
        "ffn": {"part": "gelu", "hidden": HIDDEN, "bias": True},
        "norm": {"part": "layernorm", "eps": 1e-12},
        "head_bias": True,
    }
    return perturbed(partwise.ModelConfig.from_dict(values | changes))


def test_the_logits_equal_those_of_bert() -> None:
    """`transformers`' BertModel with a tied head, on one segment, whose embedding is part of the learned positions."""
    model = encoder(
        residual={"part": "post", "final_norm": False}, embed_norm=True, tie_embeddings=True, padding_idx=PAD
    )
    state = model.state_dict()
    assert not any(name.startswith(("blocks", "positions", "residual")) for name in state)  # no trace of a decoder
    bert = bert_of(model, HEADS, HIDDEN, PAD)
    tokens = torch.tensor([[3, 5, 7, 2, 9, 4], [6, 1, 8, PAD, PAD, PAD]])
    shown = tokens != PAD
    hidden = bert(tokens, attention_mask=shown.long()).last_hidden_state
    expected = hidden @ state["embed.weight"].T + state["head.bias"]
    assert error(model(tokens)[shown], expected[shown]) <= EXACT


def test_a_decoder_differs_by_its_mask_alone() -> None:
    """With the same weights in one layer, the last position sees the same tokens, and every other one more of them."""
    model = encoder(encoder_layers=1)
    decoder = perturbed(partwise.ModelConfig.from_dict(model.config.to_dict() | {"n_layers": 1, "encoder_layers": 0}))
    state = {name.removeprefix("encoder."): tensor for name, tensor in model.state_dict().items()}
    decoder.load_state_dict(state)
    tokens = torch.tensor([[3, 5, 7, 2, 9, 4]])
    ours, causal = model(tokens)[0], decoder(tokens)[0]
    assert error(ours[-1], causal[-1]) <= EXACT
    assert all(error(ours[position], causal[position]) > 1e-6 for position in range(5))
    (both,), (before,) = (
        [attention_maps(calls)[0] for calls in record_calls(each, tokens).values()] for each in (model, decoder)
    )
    assert (both > 0).all()
    assert torch.equal(before > 0, torch.ones(6, 6).tril().bool().expand_as(before))
    (statistics,) = attention_statistics(model, tokens)
    assert (statistics.kind, statistics.max_entropy) == ("encoder", pytest.approx(torch.tensor(6.0).log().item()))


def test_what_needs_a_next_token_is_refused() -> None:
    model = encoder()
    for use in (
        lambda: model.new_cache(1),
        lambda: partwise.generate(model, ByteTokenizer(), ["a"]),
        lambda: partwise.generate(model, ByteTokenizer(), ["a"], cached=False),
        lambda: model(torch.zeros(1, 3, dtype=torch.long), source=torch.zeros(1, 3, dtype=torch.long)),
    ):
        with pytest.raises(ConfigError, match=r"^n_layers=0.*encoder alone[^\n]*$"):
            use()


def test_the_checks_expect_that_every_position_sees_all() -> None:
    for trained in (False, True):
        findings = check_model(encoder(), 16, trained=trained)
        assert {each.outcome for each in findings} == {"passed"}
        assert not {LEAK, CACHE} & {each.check for each in findings}


def losses(folder: Path, config: RunConfig, *stops: int) -> list[tuple[float, float]]:
    """Loss and norm of each step of a run that is stopped after some of them."""
    seen = []
    for stop in (*stops, None):
        run = RunFolder(folder, config)
        try:
            for event in run.events():
                if isinstance(event, Step):
                    seen.append((event.loss, event.grad_norm))
                    run.stop_requested = event.step == stop
        except Interrupted:
            assert stop is not None
    return seen


def test_a_run_resumes_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    config = run_config("mingpt", *WORDS)
    whole = losses(tmp_path / "whole", config)
    assert len(whole) == 6
    assert losses(tmp_path / "stopped", config, 2, 4) == whole


def test_train_eval_inspect_and_report(tmp_path: Path) -> None:
    status, printed, errors = command(tmp_path, ["train", "mingpt", *WORDS, "--name", "masked"])
    assert status == 0, errors
    assert "reference: unigram" in printed and "2-gram" not in printed
    assert "worse than a unigram model, which predicts the same for every token" in " ".join(printed.split())
    assert "masked" in printed and "partwise generate" not in printed
    status, again, errors = command(tmp_path, ["eval", "masked"])
    assert status == 0, errors
    loss = next(line for line in printed.splitlines() if line.startswith("validation  "))
    assert loss in again  # the same masks
    for what in ("attention", "activations", "positions", "cost", "memory", "coordinates"):
        status, printed, errors = command(tmp_path, ["inspect", "masked", what])
        assert status == 0, errors
        assert "encoder" in printed or what in ("memory", "coordinates")
    page = (tmp_path / "runs/masked/inspect-attention-masked.html").read_text()
    assert "Attention maps of the encoder" in page and "&lt;mask&gt;" in page
    assert command(tmp_path, ["report", "masked"])[0] == 0
    assert "2 encoder layers, d_model 16" in (tmp_path / "runs/masked/report.html").read_text()
    for words in (["generate", "masked"], ["export", "masked", "out"], ["export", "masked", "out", "--family", "partwise"],
                  ["inspect", "masked", "length"], ["inspect", "masked", "logit-lens"]):  # fmt: skip
        status, _, errors = command(tmp_path, words)
        assert status == 2 and errors.startswith("error: ") and len(errors.strip().splitlines()) == 1, errors
    assert not (tmp_path / "out").exists()
