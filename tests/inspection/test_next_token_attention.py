"""The attention of a head as a model writes equals the maps of `partwise inspect RUN attention`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings

import partwise
from command_line import run
from partwise.checkpoint import load
from partwise.compute.backend_plan import apply_backends
from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError
from partwise.inspection import attention
from partwise.inspection.next_token_attention import NextTokenAttention
from partwise.model import Transformer
from partwise.tokenizers import WithSpecialTokens
from partwise.tokenizers.characters import CharacterTokenizer
from partwise.train.config import TrainConfig
from recipes import configs, perturbed, tokens

EXACT = 1e-12
WINDOW = 9
"""A context that the text below leaves behind."""

MODEL = ["d_model=16", "n_layers=2", "attention.n_heads=2", "train.batch_size=2", "train.steps=2", "train.threads=1"]


@settings(max_examples=25)
@given(configs())
def test_every_weight_equals_that_of_the_map(config: partwise.ModelConfig) -> None:
    """For any attention, with the cache that generation has, and text that grows by one or several tokens."""
    assume(not config.encoder_layers)
    model, ids = perturbed(config).double(), tokens()[0].tolist()
    names = attention.record_calls(model, tokens()[:1])
    maps = {attention.kind_and_layer(name)[1]: attention.attention_maps(calls)[0] for name, calls in names.items()}
    for layer, expected in maps.items():
        for head in range(len(expected)):
            found = NextTokenAttention(model, layer, head, len(ids))
            for length in (2, 3, len(ids)):
                torch.testing.assert_close(
                    found.weights(ids[:length]), expected[head, length - 1, :length], atol=EXACT, rtol=0
                )


@pytest.fixture
def trained(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    words = ["train", "mingpt", *MODEL, f"context_length={WINDOW}", "--data", "text.txt", "--name", "a"]
    assert run(monkeypatch, *words) == 0
    capsys.readouterr()
    return here


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_the_lines_have_the_text_of_the_same_command_and_the_weights_of_the_inspection(
    backend: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "a", "--prompt", "the quick", "--max-new-tokens", "12", "--seed", "5", "--backend", backend]
    assert run(monkeypatch, *words) == 0
    plain = capsys.readouterr().out
    assert run(monkeypatch, *words, "--json", "--attention", "1,0") == 0
    first, *written, last = lines(capsys.readouterr().out)
    assert first == {"kind": "prompt", "row": 0, "tokens": list("the quick")}
    assert {line["kind"] for line in written} == {"token"} and len(written) == 12
    [text] = last["texts"]
    assert "".join(line["text"] for line in written) == text and f"the quick{text}\n" == plain
    model, tokenizer = load("a")
    ids = tokenizer.encode("the quick").tolist()
    for line in written:
        kept = torch.tensor([ids[-WINDOW:]])
        [calls] = [each for name, each in attention.record_calls(model, kept).items() if "blocks.1." in name]
        expected = attention.attention_maps(calls)[0, 0, -1].tolist()
        assert line["attention"] == pytest.approx([0.0] * (len(ids) - len(expected)) + expected, abs=1e-6)
        assert sum(line["attention"]) == pytest.approx(1, abs=1e-5)
        ids.append(line["id"])


def test_a_batch_and_beams_are_lines_too(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "a", "--max-new-tokens", "4", "--json"]
    assert run(monkeypatch, *words, "--prompt", "the", "--prompt", "lazy") == 0
    found = lines(capsys.readouterr().out)
    assert [line["tokens"] for line in found if line["kind"] == "prompt"] == [list("the"), list("lazy")]
    texts = ["".join(line.get("text", "") for line in found if line.get("row") == row) for row in (0, 1)]
    assert found[-1] == {"kind": "end", "texts": texts}
    assert run(monkeypatch, *words, "--prompt", "the", "--num-beams", "2") == 0
    _, written, last = lines(capsys.readouterr().out)
    assert written == {"kind": "text", "row": 0, "text": last["texts"][0]}


def test_a_character_of_several_tokens_is_whole(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every token has a line and a weight, also those that end within a character."""
    words = ["train", "mingpt", *MODEL, "context_length=16", "tokenizer=bytes", "--data", "text.txt", "--name", "b"]
    assert run(monkeypatch, *words) == 0
    capsys.readouterr()
    assert (
        run(
            monkeypatch,
            "generate",
            "b",
            "--prompt",
            "aé",
            "--max-new-tokens",
            "5",
            "--temperature",
            "50",
            "--json",
            "--attention=0,1",
        )
        == 0
    )
    first, *written, last = lines(capsys.readouterr().out)
    assert first["tokens"] == ["a", "", "é"]
    tokens_of = [line for line in written if line["kind"] == "token"]
    assert [len(line["attention"]) for line in tokens_of] == [3, 4, 5, 6, 7]
    assert "".join(line["text"] for line in written) == last["texts"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attention", "0,0"], "--attention 0,0 needs --json"),
        (["--json", "--attention", "first"], "--attention first: expected LAYER,HEAD, such as 0,0"),
        (["--json", "--attention", "2,0"], "--attention 2,0: layers with attention weights: 0, 1"),
        (["--json", "--attention", "1,2"], "--attention 1,2: layer 1 has heads 0 to 1"),
        (["--json", "--attention", "0,0", "--prompt", "fox"], "give one --prompt"),
        (["--json", "--attention", "0,0", "--num-beams", "2"], "leave out --num-beams"),
        (["--json", "--attention", "0,0", "--precision", "bfloat16"], "leave out --precision"),
        (["--json", "--temperature", "-1"], "temperature=-1"),
        (["--json", "--prompt", "@"], "'@'"),
    ],
)
def test_refusals_are_one_line(
    options: list[str],
    message: str,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "generate", "a", "--prompt", "the", *options) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_observing_shares_the_weights_and_leaves_the_backends() -> None:
    model = partwise.Transformer(partwise.ModelConfig(vocab_size=11, d_model=16, n_layers=1, context_length=8)).eval()
    apply_backends(model, choose_runtime(TrainConfig(device="cpu", precision="float32")))
    before = [getattr(module, "backends", ()) for module in model.modules()]
    observer = NextTokenAttention(model, 0, 0, 8)
    assert [getattr(module, "backends", ()) for module in model.modules()] == before
    own = {tensor.data_ptr() for tensor in model.parameters()}
    assert {tensor.data_ptr() for tensor in observer.model.parameters()} == own


def test_a_model_of_pairs_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ["n_layers=1", "encoder_layers=1", "d_model=16", "context_length=32", "attention.n_heads=2"]
    model = Transformer(partwise.preset("original", *pairs))
    tokenizer = WithSpecialTokens(CharacterTokenizer("0123456789+= "))
    monkeypatch.setattr("partwise.cli.commands.generate.load", lambda name: (model, tokenizer))
    assert run(monkeypatch, "generate", "pairs", "--prompt", "1+2", "--json", "--attention", "0,0") == 2
    assert "pairs was trained on pairs; `partwise inspect` shows its maps" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        NextTokenAttention(model, 0, 0, 4)
