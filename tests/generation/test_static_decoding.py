"""Decoding over caches of fixed size equals decoding over growing ones, and is one computation for every token."""

import pytest
import torch

import partwise
from partwise import ConfigError
from partwise.generation.beam_search import beam_search
from partwise.generation.generate import decode
from partwise.generation.sampling import Sampling
from partwise.generation.static_decoding import StaticDecoder, unsupported_reason
from partwise.presets import PRESETS
from recipes import LENGTH, VOCAB, error, perturbed, source_of, tokens

EXACT = 1e-12
SMALL = ("d_model=32", f"context_length={LENGTH}", "attention.n_heads=4")
DEPTHS = {"deepseek": 4}  # the length of its list of parts
FAMILIES = sorted({name.partition("-")[0] for name in PRESETS} - {"pythia"})
SUPPORTED = {"deepseek": ("ffn=swiglu",), "fast": ("ngram_lm=none",)}
"""Instead of experts and an n-gram language model."""


def small(preset: str, *words: str) -> partwise.Transformer:
    settings = [*SMALL, f"n_layers={DEPTHS.get(preset, 2)}"]
    settings += ["encoder_layers=2"] if PRESETS[preset].settings.get("encoder_layers") else []
    return perturbed(partwise.preset(preset, *settings, *SUPPORTED.get(preset, ()), *words, vocab_size=VOCAB))


CASES = [(preset,) for preset in FAMILIES] + [
    ("llama", "attention.window=3"),
    ("llama", "attention.window=2", "attention.softcap=8", "attention.sinks=true", "positions=alibi"),
    ("mingpt", "positions=t5", "attention.n_kv_heads=2"),
    ("mingpt", "attention=differential"),
    ("llama", "short_conv=conv", "ngram_embeddings=hashed", "attention.value_residual=true"),
]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
@pytest.mark.parametrize("prompt", [1, 3])
def test_every_token_equals_that_over_a_growing_cache(words: tuple[str, ...], prompt: int) -> None:
    model = small(*words)
    inputs = tokens()
    source = source_of(model, inputs)
    decoder = StaticDecoder(model)
    with torch.no_grad():
        growing, fixed = model.new_cache(2, LENGTH, source), decoder.new_cache(2, LENGTH, source)
        for start, end in [(0, prompt), *((t, t + 1) for t in range(prompt, LENGTH))]:
            expected = model(inputs[:, start:end], growing)
            assert error(decoder(inputs[:, start:end], fixed), expected) <= EXACT
            rows = torch.tensor([1, 0])
            for cache in (growing, fixed):
                cache.select(rows)
            inputs = inputs[rows]
    assert fixed.length == growing.length == LENGTH
    with pytest.raises(ConfigError, match="7 tokens do not fit context_length=6"):
        decoder(inputs[:, :1], fixed)


@pytest.mark.parametrize("words", [("gpt2",), ("gemma2",), ("llama", "short_conv=conv"), ("original",)], ids=" ".join)
def test_all_tokens_are_one_graph(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.compute.compilation.COMPILER", "aot_eager")
    torch._dynamo.reset()
    model, inputs = small(*words), tokens()
    source = source_of(model, inputs)
    growing, fixed = (
        model.new_cache(2, LENGTH, source),
        StaticDecoder(model, compiled=True).new_cache(2, LENGTH, source),
    )
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for start, end in [(0, 2), *((t, t + 1) for t in range(2, LENGTH))]:
            assert error(fixed.extend(inputs[:, start:end]), model(inputs[:, start:end], growing)) <= EXACT
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


def test_sampling_and_beams_are_those_of_the_model() -> None:
    model = small("llama")
    decoder = StaticDecoder(model)
    uniform = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)).double()
    prompts = tokens()[:, :3]
    found, expected = (torch.stack([*decode(each, prompts, uniform, Sampling())]) for each in (decoder, model))
    assert torch.equal(found, expected)
    for eos_id in (None, 1, 4):  # beams that end leave fewer rows
        options = {"num_beams": 3, "max_new_tokens": 4, "eos_id": eos_id}
        assert beam_search(decoder, prompts[:1], **options) == beam_search(model, prompts[:1], **options)


def test_what_is_not_one_computation_is_refused() -> None:
    experts = small("mingpt", "ffn=moe")
    assert unsupported_reason(experts) is not None
    with pytest.raises(ConfigError, match="does not support this model: experts"):
        StaticDecoder(experts)
    counts = small("mingpt", "ngram_lm=kneser_ney")
    assert unsupported_reason(counts) is not None
    cache = StaticDecoder(small("mingpt")).new_cache(2)
    cache.extend(tokens()[:, :2])
    cache.truncate(1)
    cache.extend(tokens()[:, 1:2])
    with pytest.raises(ConfigError, match="cannot truncate a static cache"):
        cache.truncate(1)
