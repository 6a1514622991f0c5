"""Generation: prefill, decode, sample. Cached and uncached generation compute the same function."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.beam import beam_search
from partwise.config import ConfigError
from partwise.kernels.decoding import Decoder, Kept, refusal
from partwise.model import Transformer
from partwise.rounding import rounded
from partwise.states import States
from partwise.tokenizers import Tokenizer, WithSpecials


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from logits.

    The rule, in this order: temperature 0 takes the most likely token. Otherwise logits are divided by the temperature;
    only the `top_k` most likely tokens stay; of these, the fewest most likely ones whose probabilities reach `top_p` of
    what is left, at least one. Ties go to the lower id. The draw inverts the cumulative distribution.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature={self.temperature}: give 0 (the most likely token) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: give 1 or more, or leave it out")
        if not 0 <= self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p}: give a number from 0 (the most likely token) to 1 (every token)")

    def draw(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """(B, V) logits and (B,) uniform numbers in [0, 1) -> (B,) ids. Raises ConfigError where a row has none."""
        top = logits.amax(dim=-1, keepdim=True)  # not a number where one of the row is none
        if not top.isfinite().all():
            raise ConfigError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        if self.temperature == 0:
            return logits.argmax(dim=-1)  # the first of equals
        chosen, sure = self.among(self.top_k or ENOUGH, logits, top, uniform)
        if not sure.all():
            rest = ~sure
            chosen[rest] = self.among(logits.shape[1], logits[rest], top[rest], uniform[rest])[0]
        return chosen

    def among(self, count: int, logits: Tensor, top: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) ids drawn among the `count` most likely ones, and (B,) whether a look at the others would change nothing."""
        order, ranked = most_likely(logits, count)
        everything = order.shape[1] == logits.shape[1] or count == self.top_k
        weights = self.weights(ranked, top)
        mass = weights.cumsum(dim=-1)
        total = mass[:, -1:] if everything else self.weights(logits, top).sum(dim=-1, keepdim=True)
        kept = mass - weights < self.top_p * total
        kept[:, 0] = True
        kept_mass = (weights * kept).cumsum(dim=-1)
        target = uniform.double().unsqueeze(-1) * (total if self.top_p == 1 else kept_mass[:, -1:])
        rank = torch.searchsorted(kept_mass, target, right=True)
        rank = torch.minimum(rank, (kept & (weights > 0)).sum(dim=-1, keepdim=True) - 1)
        sure = (target < kept_mass[:, -1:]) & ~kept[:, -1:] if self.top_p < 1 else target < mass[:, -1:]
        return order.gather(-1, rank).squeeze(-1), sure.squeeze(-1) | everything

    def weights(self, logits: Tensor, top: Tensor) -> Tensor:
        """Probabilities but for a factor, in float64."""
        return ((logits.double() - top.double()) / self.temperature).exp()


ENOUGH = 1024
"""So many of the most likely ids are put in order first: where they settle the draw, sorting the rest would cost more."""


def most_likely(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most likely ids of each row (B, V), the likeliest first, equals by their id, and their logits."""
    B, V = logits.shape
    if count < V // 2:
        least = logits.topk(count, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
        places = (logits >= least).nonzero()
        if len(places) == B * count:  # else equals stand on both sides of the border
            ids = places[:, 1].view(B, count)  # rising
            few = logits.gather(-1, ids)
            order = few.argsort(dim=-1, descending=True, stable=True)
            return ids.gather(-1, order), few.gather(-1, order)
    order = logits.argsort(dim=-1, descending=True, stable=True)[:, :count]
    return order, logits.gather(-1, order)


@torch.no_grad()
def decode(
    model: Transformer | Decoder,
    tokens: Tensor,
    uniform: Tensor,
    sampling: Sampling,
    cached: bool = True,
    source: Tensor | None = None,
) -> Iterator[Tensor]:
    """Continue (B, T) prompts; yields one (B,) tensor of ids for each column of the (B, N) uniform numbers.

    An encoder-decoder continues them over its `source` (B, M). The model sees the last max_len tokens. While everything
    fits, each step runs on the new token alone over cached states; beyond, the window slides and is computed anew, as
    every position has moved.
    """
    run: Any = model
    limit = model.config.max_len
    total = tokens.shape[1] + uniform.shape[1]
    states = start(model, tokens, min(limit, total), source) if cached else None
    for column in range(uniform.shape[1]):
        if states is not None and tokens.shape[1] <= limit:
            logits = run(tokens[:, states.length :], states)
        else:
            logits = run(tokens[:, -limit:], source=source)
        chosen = sampling.draw(logits[:, -1], uniform[:, column])
        yield chosen
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)


def start(model: Any, tokens: Tensor, length: int, source: Tensor | None = None) -> States | Kept:
    """States for (B, T) prompts of up to `length` positions; a long beginning that all of them share is computed once."""
    rows, T = tokens.shape
    if source is not None:
        return model.start(rows, length, source)
    shared = int((tokens == tokens[:1]).all(dim=0).int().cumprod(dim=0).sum())
    shared = min(shared, T - 1) if rows > 1 and model.config.max_len >= T else 0
    if shared < T * SHARED:
        return model.start(rows, length)
    states = model.start(1, length)
    model(tokens[:1, :shared], states)
    states.select(tokens.new_zeros(rows))
    return states


SHARED = 0.25
"""Of a prompt: a shorter beginning is computed with each row, in one pass over all of it."""

PRECISIONS, PATHS = ("float32", "bfloat16"), ("auto", "torch", "kernel")


def generator(model: Transformer, precision: str = "float32", path: str = "auto") -> Transformer | Decoder:
    """What generates for the model, and equals it but for rounding: itself, or the compiled kernel where it can serve.

    With `precision` bfloat16 the model is `rounded`. `path` torch or kernel forces the one or the other. What is returned
    keeps the weights of now, where it is not the model itself. Raises ConfigError where the kernel cannot serve, or for
    another word.
    """
    for key, word, known in (("precision", precision, PRECISIONS), ("path", path, PATHS)):
        if word not in known:
            raise ConfigError(f"{key}={word}: give {', '.join(known[:-1])} or {known[-1]}")
    model = rounded(model) if precision == "bfloat16" else model
    if path == "torch" or (path == "auto" and refusal(model) is not None):
        return model
    return Decoder(model, half=precision == "bfloat16")


def uniform_numbers(rows: Sequence[int], length: int, seed: int) -> Tensor:
    """(len(rows), length) numbers in [0, 1) of which row i is the same whatever stands beside it."""
    numbers = np.empty((len(rows), length))
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed={seed}: give a whole number from 0 to 2**64 - 1")
    for place, row in enumerate(rows):
        numbers[place] = np.random.Generator(np.random.Philox(key=np.array([seed, row], dtype=np.uint64))).random(
            length
        )
    return torch.from_numpy(numbers)


def generate(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    length: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    stop: str | None = None,
    seed: int = 0,
    cached: bool = True,
    beams: int | None = None,
    penalty: float = 0.6,
    precision: str = "float32",
    path: str = "auto",
    on_text: Callable[[int, str], None] | None = None,
) -> list[str]:
    """The continuation of each prompt, at most `length` tokens, ended after the text `stop` (one token) where given.

    `on_text(row, piece)` is called with whole characters as they come. A prompt's continuation depends on the seed and
    its place in the list only. To an encoder-decoder a prompt is a source, and its continuation the target. With `beams`
    the likeliest whole continuation is searched for instead of drawn; see `beam_search` for the `penalty` on short ones.
    `precision` and `path` are those of `generator`. Raises ConfigError for an empty prompt, characters the tokenizer has
    not seen, or a path that cannot serve the model.
    """
    sampling = Sampling(temperature, top_k, top_p)
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    specials = tokenizer if isinstance(tokenizer, WithSpecials) else None
    if specials and stop is not None:
        raise ConfigError(f"stop={stop!r}: a target ends by itself; leave stop out")
    stop_id = specials.end if specials else single_token(tokenizer, stop) if stop is not None else None
    if length < 1:
        raise ConfigError(f"length={length}: give 1 or more")
    if any(len(ids) == 0 for ids in encoded):
        raise ConfigError("the prompt is empty: give at least one character")
    device = model.embed.weight.device
    uniform = uniform_numbers(range(len(prompts)), length, seed).to(device)
    texts = [""] * len(prompts)
    was_training = model.training
    model.eval()
    try:
        decoder: Any = generator(model, precision, path)
        # prompts of one length go through together: no padding, so a row cannot depend on its neighbours
        for size in sorted({len(ids) for ids in encoded}):
            rows = [row for row, ids in enumerate(encoded) if len(ids) == size]
            tokens, source = torch.from_numpy(np.stack([encoded[row] for row in rows])).to(device), None
            if specials:
                tokens, source = tokens.new_full((len(rows), 1), specials.start), tokens
            if beams is not None:
                for place, row in enumerate(rows):
                    one = None if source is None else source[place : place + 1]
                    prompt = tokens[place : place + 1]
                    room = model.config.max_len - prompt.shape[1] + 1
                    ids = beam_search(
                        decoder, prompt, beams=beams, length=min(length, room), end=stop_id, penalty=penalty, source=one
                    )
                    texts[row] = tokenizer.decode(ids)
                    if on_text:
                        on_text(row, texts[row])
                continue
            streams = [tokenizer.stream() for _ in rows]
            open_rows = set(range(len(rows)))
            for chosen in decode(decoder, tokens, uniform[rows], sampling, cached, source):
                ids = chosen.tolist()
                for place in sorted(open_rows):
                    ended = ids[place] == stop_id
                    piece = streams[place].push(ids[place]) + (streams[place].flush() if ended else "")
                    texts[rows[place]] += piece
                    if piece and on_text:
                        on_text(rows[place], piece)
                    if ended:
                        open_rows.discard(place)
                if not open_rows:
                    break
            for place in sorted(open_rows):
                piece = streams[place].flush()
                texts[rows[place]] += piece
                if piece and on_text:
                    on_text(rows[place], piece)
    finally:
        model.train(was_training)
    return texts


def single_token(tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise ConfigError(f"stop={text!r} is {len(ids)} tokens: give a text of one token")
    return int(ids[0])
