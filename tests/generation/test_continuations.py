"""Prompt and continuation, joined, are the text of all their ids: sampled, streamed, by beam search, and in answers."""

import pytest
import torch

from partwise.config import ConfigError
from partwise.evaluate.arithmetic import continue_problems
from partwise.generation.generate import generate
from partwise.model import ModelConfig, Transformer
from recipes import perturbed
from tokenizer_kinds import KINDS, PIECES, llama2, numbered, of_library
from tokenizers import decoders, models, pre_tokenizers

PROMPTS = {"words": "hello it", "wordpiece": "hello", "end_of_word": "he"}


def model_of(rows: int, seed: int = 0) -> Transformer:
    sizes = {"vocab_size": rows, "d_model": 16, "n_layers": 1, "context_length": 64}
    return perturbed(ModelConfig.from_dict(sizes), seed, size=2.0)


def most_likely(model: Transformer, ids: list[int], n: int) -> list[int]:
    with torch.no_grad():
        for _ in range(n):
            ids = [*ids, int(model(torch.tensor([ids]))[0, -1].argmax())]
    return ids


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "special"])
def test_the_space_after_a_prompt_is_kept(kind: str, seed: int) -> None:
    tokenizer = KINDS[kind]
    model, prompt = model_of(tokenizer.vocab_size, seed), PROMPTS.get(kind, "hello")
    before = tokenizer.encode(prompt).tolist()
    expected = tokenizer.decode(most_likely(model, before, 8))
    pieces: list[str] = []
    (text,) = generate(
        model, tokenizer, [prompt], max_new_tokens=8, temperature=0, on_text=lambda _, x: pieces.append(x)
    )
    assert tokenizer.decode(before) + text == expected and "".join(pieces) == text
    assert generate(model, tokenizer, [prompt], max_new_tokens=8, num_beams=1) == [text]


def test_an_answer_keeps_its_space() -> None:
    """An answer is what the model writes after the problem, so a space before it counts as a character."""
    tokens = ["$", "(", "1", "+", ")", "=", "▁2", "▁$"]
    tokenizer = of_library(
        models.BPE(numbered(tokens), []), pre_tokenizers.Metaspace("▁", "never"), decoders.Metaspace()
    )
    model = model_of(tokenizer.vocab_size)
    problem = "$(1+1)=  2$"
    before = tokenizer.encode("$(1+1)=").tolist()
    expected = tokenizer.continuation(before, most_likely(model, before, 4)[len(before) :]).partition("$")[0][:4]
    assert continue_problems(model, tokenizer, [problem], temperature=0) == [expected]


def test_a_text_stops_at_a_token_inside_it() -> None:
    """Alone, "lo" is encoded with the mark of a space; inside a text it is the token without."""
    tokenizer = KINDS["metaspace"]
    stop = PIECES.index("lo") + 1
    assert len(tokenizer.encode("lo")) > 1 and tokenizer.token_bytes(stop) == b"lo"
    model = model_of(tokenizer.vocab_size)
    free = generate(model, tokenizer, ["hello"], max_new_tokens=40, temperature=2.0)[0]
    found = generate(model, tokenizer, ["hello"], max_new_tokens=40, temperature=2.0, stop="lo")[0]
    assert "lo" in free and free.startswith(found) and found.endswith("lo") and len(found) < len(free)
    assert generate(model_of(llama2().vocab_size), llama2(), ["hello"], max_new_tokens=2, stop="\n")
    with pytest.raises(ConfigError, match="stop='hello lo' is"):
        generate(model, tokenizer, ["hello"], stop="hello lo")
