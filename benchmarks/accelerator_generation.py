"""Generation on one accelerator: pieces of `accelerator.py`."""

import statistics
from collections.abc import Callable

import torch
from accelerator import Place
from accelerator_shapes import gpt2_config, gpt2_sizes, in_turn
from measuring import ratios
from torch import Tensor

from partwise.generation.generate import decode, decoding_model
from partwise.generation.sampling import Sampling
from partwise.generation.static_decoding import StaticDecoder
from partwise.model import Transformer

PROMPT, NEW_TOKENS = 32, 256
Values = dict[str, float | None]


def generation(place: Place, notes: list[str], rows: int) -> Values:
    """Greedy continuations in float32 of one prompt per row, beside transformers' GPT-2 of the same size."""
    sizes = gpt2_sizes(place)
    prompt, new = (4, 8) if place.small else (PROMPT, NEW_TOKENS)
    model = Transformer(gpt2_config(place, 1).model).to(place.device).eval()
    tokens = torch.randint(sizes.vocab, (rows, prompt), device=place.device)
    uniform = torch.rand(rows, new, device=place.device, dtype=torch.float64)

    def continuation(decoder: object) -> Tensor:
        return torch.stack(list(decode(decoder, tokens, uniform, Sampling(temperature=0))), dim=1)  # type: ignore[arg-type]

    decoder = StaticDecoder(model) if place.small else decoding_model(model)
    steps: dict[str, Callable[[], object]] = {
        "ours": lambda: continuation(decoder),
        "eager": lambda: continuation(decoding_model(model, backend="eager")),
    }
    same = torch.equal(continuation(decoder), continuation(model))
    notes.append(f"{type(decoder).__name__}: the same {new} tokens per row as without: {same}")
    peer = transformers_generation(place, tokens, new, notes)
    if peer:
        steps["peer"] = peer
    seconds = in_turn(place, steps, rounds=3, count=2)
    rates = {name: rows * new / statistics.median(each) for name, each in seconds.items()}
    return {
        "ours": rates["ours"],
        "eager": rates["eager"],
        "peer": rates.get("peer"),
        "ratio": ratios(seconds["peer"], seconds["ours"])["ratio"] if peer else None,
    }


def transformers_generation(place: Place, tokens: Tensor, new: int, notes: list[str]) -> Callable[[], object] | None:
    """The same by transformers' GPT-2 with its default cache, or None if it is not installed."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        notes.append("transformers is not installed")
        return None
    sizes = gpt2_sizes(place)
    config = GPT2Config(
        n_layer=sizes.layers,
        n_embd=sizes.width,
        n_head=sizes.heads,
        n_positions=sizes.context,
        vocab_size=sizes.vocab,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).to(place.device).eval()  # type: ignore[arg-type]
    mask = torch.ones_like(tokens)
    return lambda: model.generate(tokens, attention_mask=mask, do_sample=False, max_new_tokens=new, min_new_tokens=new)


def generation_1(place: Place, notes: list[str]) -> Values:
    return generation(place, notes, 1)


def generation_64(place: Place, notes: list[str]) -> Values:
    return generation(place, notes, 4 if place.small else 64)
