"""Text generation: prefill, decode, sample. Cached and uncached generation compute the same function."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.compute.backends.decoding import Decoder, DecodingCache, UnsupportedModelError
from partwise.compute.bf16_emulation import emulate_bf16
from partwise.config import ConfigError
from partwise.generation.beam_search import beam_search
from partwise.generation.sampling import Sampling, known_ids, uniform_numbers
from partwise.generation.static_decoding import StaticDecoder, StaticDecodingCache, unsupported_reason
from partwise.model import Transformer
from partwise.model.cache import Cache
from partwise.tokenizers import Tokenizer, WithSpecialTokens


@torch.no_grad()
def decode(
    model: Transformer | Decoder | StaticDecoder,
    tokens: Tensor,
    uniform: Tensor,
    sampling: Sampling,
    cached: bool = True,
    source: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
) -> Iterator[Tensor]:
    """Continue (B, T) prompts; yields one (B,) tensor of ids for each column of the (B, N) uniform numbers.

    `source` (B, M) is the input of an encoder-decoder. Ids that the `tokenizer` lacks are never chosen. The model sees the
    last context_length tokens. Up to that length each step computes only the new token with a cache; beyond it the window
    slides and is recomputed at each step, since every position has changed.
    """
    forward: Any = model
    limit = model.config.context_length
    total = tokens.shape[1] + uniform.shape[1]
    cache = prefill_shared_prefix(model, tokens, min(limit, total), source) if cached else None
    known = None if tokenizer is None else known_ids(tokenizer, model.config.vocab_size, tokens.device)
    for column in range(uniform.shape[1]):
        if cache is not None and tokens.shape[1] <= limit:
            logits = forward(tokens[:, cache.length :], cache)
        else:
            logits = forward(tokens[:, -limit:], source=source)
        last = logits[:, -1]  # (B, V)
        ids = sampling.sample(last if known is None else last[:, known], uniform[:, column]).to(tokens.device)
        if known is not None:
            ids = known[ids]
        yield ids
        tokens = torch.cat([tokens, ids[:, None]], dim=1)


def prefill_shared_prefix(
    model: Any, tokens: Tensor, length: int, source: Tensor | None = None
) -> Cache | DecodingCache | StaticDecodingCache:
    """A cache of up to `length` positions for (B, T) prompts, which holds their common prefix if that is long enough."""
    rows, T = tokens.shape
    if source is not None:
        return model.new_cache(rows, length, source)
    shared = int((tokens == tokens[:1]).all(dim=0).int().cumprod(dim=0).sum())
    shared = min(shared, T - 1) if rows > 1 and model.config.context_length >= T else 0
    if shared < T * MIN_SHARED_PREFIX:
        return model.new_cache(rows, length)
    cache = model.new_cache(1, length)
    model(tokens[:1, :shared], cache)
    cache.select(tokens.new_zeros(rows))
    return cache


MIN_SHARED_PREFIX = 0.25
"""The fraction of a prompt from which a common prefix is prefilled once; shorter ones are prefilled in every row."""

PRECISIONS, BACKENDS = ("float32", "bfloat16"), ("auto", "eager", "cpp")


def decoding_model(
    model: Transformer, precision: str = "float32", backend: str = "auto"
) -> Transformer | Decoder | StaticDecoder:
    """The model itself, a `Decoder` if the C++ kernel supports it, or on CUDA a `StaticDecoder`; outputs are equal up to
    rounding.

    With `precision` bfloat16 the model is passed through `emulate_bf16`. `backend` eager or cpp forces the choice. If not
    the model itself, the result holds a copy of its current weights. Raises ConfigError if the kernel does not support
    the model, or for an unknown `precision` or `backend`.
    """
    for key, word, choices in (("precision", precision, PRECISIONS), ("backend", backend, BACKENDS)):
        if word not in choices:
            raise ConfigError(f"{key}={word}: must be {', '.join(choices[:-1])} or {choices[-1]}")
    if isinstance(model, Transformer):  # without a cache, nothing else would refuse it
        model.check_generates()
    model = emulate_bf16(model) if precision == "bfloat16" else model
    if backend == "eager":
        return model
    if backend == "auto" and model.embed.weight.is_cuda and unsupported_reason(model) is None:
        return StaticDecoder(model)
    try:  # rather than asking first: whether a model is supported takes as long to find out as a token
        return Decoder(model, bf16=precision == "bfloat16")
    except UnsupportedModelError:
        if backend == "cpp":
            raise
        return model


def generate(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    stop: str | None = None,
    seed: int = 0,
    cached: bool = True,
    num_beams: int | None = None,
    length_penalty: float = 0.6,
    precision: str = "float32",
    backend: str = "auto",
    on_text: Callable[[int, str], None] | None = None,
    on_token: Callable[[int, int | None, str], None] | None = None,
) -> list[str]:
    """The continuation of each prompt: at most `max_new_tokens` tokens, ended early by the text `stop` (one token).

    A prompt and its continuation, joined, are the text of all their ids. Ids that the tokenizer lacks, such as rows that pad
    a table, are never chosen. `on_text(row, piece)` streams complete characters; `on_token(row, id, piece)` has every token
    with the text that it completes, perhaps none, and without an id the text of no single token. A continuation depends only
    on the prompt, the seed, and the prompt's index in the list. For an encoder-decoder a prompt is a source and the
    continuation its target. With `num_beams`, beam search replaces sampling; see `beam_search` for `length_penalty`, and
    `decoding_model` for `precision` and `backend`. Raises ConfigError for an empty prompt, characters unknown to the
    tokenizer, or a backend that does not support the model.
    """
    sampling = Sampling(temperature, top_k, top_p)
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    specials = tokenizer if isinstance(tokenizer, WithSpecialTokens) else None
    if specials and stop is not None:
        raise ConfigError(f"stop={stop!r}: a target ends with its end token; leave stop out")
    stop_ids = {specials.eos_id} if specials else set() if stop is None else single_tokens(tokenizer, stop)
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens={max_new_tokens}: must be at least 1")
    if any(len(ids) == 0 for ids in encoded):
        raise ConfigError("the prompt is empty: must have at least one character")
    befores = [[] if specials else ids.tolist() for ids in encoded]  # a target does not continue its source
    device = model.embed.weight.device
    uniform = uniform_numbers(range(len(prompts)), max_new_tokens, seed, device)
    texts = [""] * len(prompts)

    def write(row: int, token: int | None, piece: str) -> None:
        texts[row] += piece
        if on_token and (token is not None or piece):
            on_token(row, token, piece)
        if on_text and piece:
            on_text(row, piece)

    was_training = model.training
    model.eval()
    try:
        decoder: Any = decoding_model(model, precision, backend)
        # prompts of equal length form a batch: without padding, a row cannot depend on the others
        for prompt_length in sorted({len(ids) for ids in encoded}):
            rows = [row for row, ids in enumerate(encoded) if len(ids) == prompt_length]
            tokens, source = torch.from_numpy(np.stack([encoded[row] for row in rows])).to(device), None
            if specials:
                tokens, source = tokens.new_full((len(rows), 1), specials.bos_id), tokens
            if num_beams is not None:
                for index, row in enumerate(rows):
                    row_source = None if source is None else source[index : index + 1]
                    prompt = tokens[index : index + 1]
                    limit = model.config.context_length - prompt.shape[1] + 1
                    ids = beam_search(
                        decoder,
                        prompt,
                        num_beams=num_beams,
                        max_new_tokens=min(max_new_tokens, limit),
                        eos_id=stop_ids,
                        length_penalty=length_penalty,
                        source=row_source,
                        tokenizer=tokenizer,
                    )
                    write(row, None, tokenizer.continuation(befores[row], ids))
                continue
            streams = [tokenizer.decode_stream(befores[row]) for row in rows]
            unfinished = set(range(len(rows)))
            for next_tokens in decode(decoder, tokens, uniform[rows], sampling, cached, source, tokenizer):
                ids = next_tokens.tolist()
                for index in sorted(unfinished):
                    ended = ids[index] in stop_ids
                    piece = streams[index].push(ids[index]) + (streams[index].flush() if ended else "")
                    write(rows[index], ids[index], piece)
                    if ended:
                        unfinished.discard(index)
                if not unfinished:
                    break
            for index in sorted(unfinished):
                write(rows[index], None, streams[index].flush())
    finally:
        model.train(was_training)
    return texts


def single_tokens(tokenizer: Tokenizer, text: str) -> set[int]:
    """The ids whose text is `text`, at the start of a text or inside one. Raises ConfigError if there are none."""
    alone, content = tokenizer.encode(text), text.encode()
    found = {int(index) for index in alone if len(alone) == 1}
    found |= {index for index in range(tokenizer.vocab_size) if content and tokenizer.token_bytes(index) == content}
    if not found:
        raise ConfigError(f"stop={text!r} is {len(alone)} tokens: must be one token")
    return found
