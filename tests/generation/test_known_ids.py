"""Ids that the tokenizer lacks are never generated: rows that pad a table, and holes in a vocabulary."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from partwise.data import Batch
from partwise.evaluate.arithmetic import answer_problems
from partwise.evaluate.loss import mean_loss
from partwise.generation.beam_search import beam_search
from partwise.generation.generate import decode, generate
from partwise.generation.sampling import Sampling, known_ids
from partwise.generation.static_decoding import StaticDecoder
from partwise.model import ModelConfig, Transformer
from partwise.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer, WithSpecialTokens
from partwise.tokenizers.files import tokenizer_from_dict
from recipes import perturbed

ROWS = 64


def holey(characters: str = "abcdef") -> Tokenizer:
    """Every second id has no token, and so have those from 10 on."""
    tokenizer_json = CharacterTokenizer(characters).to_dict()
    vocab = {character: 2 * index for index, character in enumerate(characters)}
    return tokenizer_from_dict(tokenizer_json | {"model": tokenizer_json["model"] | {"vocab": vocab}})


def model_of(rows: int = ROWS, **parts: Any) -> Transformer:
    sizes = {"vocab_size": rows, "d_model": 16, "n_layers": 1, "context_length": 32}
    return perturbed(ModelConfig.from_dict({**sizes, **parts}), 0, size=2.0)


def greedy(model: Transformer, tokens: torch.Tensor, known: list[int], n: int) -> list[int]:
    """The most likely known id, step by step."""
    with torch.no_grad():
        for _ in range(n):
            chosen = known[int(model(tokens)[0, -1, known].argmax())]
            tokens = torch.cat([tokens, torch.tensor([[chosen]])], dim=1)
    return tokens[0, -n:].tolist()


TOKENIZERS = {"padded": CharacterTokenizer("abcdef"), "holes": holey()}
KNOWN = {"padded": [0, 1, 2, 3, 4, 5], "holes": [0, 2, 4, 6, 8, 10]}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("backend", ["eager", "cpp"])
def test_only_known_ids_are_generated(kind: str, backend: str) -> None:
    model, tokenizer = model_of().float(), TOKENIZERS[kind]
    prompt = torch.tensor([tokenizer.encode("abc").tolist()])
    expected = tokenizer.decode(greedy(model, prompt, KNOWN[kind], 12))
    options: dict[str, Any] = {"max_new_tokens": 12, "backend": backend}
    assert generate(model, tokenizer, ["abc"], temperature=0, **options) == [expected]
    assert generate(model, tokenizer, ["abc"], num_beams=1, **options) == [expected]
    (sampled,) = generate(model, tokenizer, ["abc"], temperature=3.0, **options)
    assert len(sampled) == 12 and len(set(sampled)) > 1


def test_a_static_cache_generates_only_known_ids() -> None:
    model, tokenizer = model_of(), TOKENIZERS["holes"]
    prompts, uniform = torch.tensor([[0, 2]]), torch.rand(1, 12, generator=torch.Generator().manual_seed(0)).double()
    for sampling in (Sampling(0), Sampling(2.0)):
        found = [
            torch.cat([*decode(each, prompts, uniform, sampling, tokenizer=tokenizer)])
            for each in (StaticDecoder(model), model)
        ]
        assert torch.equal(*found) and set(found[0].tolist()) <= set(KNOWN["holes"])


def test_a_known_id_has_its_share_of_the_probability_of_known_ids() -> None:
    """Sampling inverts the distribution over known ids: the same as that of a table without the others."""
    model, tokenizer = model_of(), TOKENIZERS["padded"]
    uniform, prompts = torch.linspace(0, 1, 200)[:-1, None].double(), torch.zeros(199, 1, dtype=torch.long)
    (found,) = decode(model, prompts, uniform, Sampling(), tokenizer=tokenizer)
    with torch.no_grad():
        expected = Sampling().sample(model(prompts)[:, -1, :6], uniform[:, 0])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_beam_search_finds_the_most_likely_known_ids(kind: str) -> None:
    """Against all sequences; probabilities are those of the whole table, as in evaluation."""
    model, known, prompt = model_of(), KNOWN[kind], [0, 4]
    with torch.no_grad():
        scores = {
            row: sum(
                float(model(torch.tensor([[*prompt, *row[:at]]]))[0, -1].log_softmax(-1)[token])
                for at, token in enumerate(row)
            )
            for row in product(known, repeat=3)
        }
    options: dict[str, Any] = {"num_beams": 36, "max_new_tokens": 3, "eos_id": None, "tokenizer": TOKENIZERS[kind]}
    assert tuple(beam_search(model, torch.tensor([prompt]), **options)) == max(scores, key=lambda row: scores[row])


def test_targets_of_pairs_and_answers_have_only_known_ids() -> None:
    pairs = WithSpecialTokens(TOKENIZERS["holes"])
    model = model_of(encoder_layers=1)
    for options in ({"temperature": 0}, {"temperature": 2.0}, {"num_beams": 3}):
        assert set(generate(model, pairs, ["ab", "cd"], max_new_tokens=20, **options)[0]) <= set("abcdef")
    digits = CharacterTokenizer("0123456789+-*/().=$")
    answers = answer_problems(model_of(), digits, ["$(1+1)=2$", "$(2+2)=4$"], temperature=1.0)
    assert all(set(answer) <= set(digits.alphabet) for answer in answers)


def test_losses_are_those_of_the_whole_table() -> None:
    model, ids = model_of(), np.array([[0, 2, 4, 6]], dtype=np.int64)
    with torch.no_grad():
        log_p = model(torch.from_numpy(ids))[0].double().log_softmax(-1)
    expected = -float(log_p[torch.arange(3), torch.from_numpy(ids[0, 1:])].mean())
    found = mean_loss(model, [Batch(ids[:, :-1], ids[:, 1:])], "float32")
    assert found == pytest.approx(expected, rel=1e-6)  # the loss is computed in float32


def test_a_table_without_further_rows_has_no_mask() -> None:
    device = torch.device("cpu")
    assert known_ids(ByteTokenizer(), 256, device) is None
    assert known_ids(ByteTokenizer(), 100, device) is None  # a smaller table has only ids that the tokenizer has
    found = known_ids(TOKENIZERS["holes"], ROWS, device)
    assert found is not None and found.tolist() == KNOWN["holes"]
