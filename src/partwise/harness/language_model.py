"""Our models as language models of the harness: `lm_eval.simple_evaluate(model=PartwiseLM(run=...))`."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from partwise.compute.float64 import to_float64
from partwise.config import ConfigError
from partwise.evaluate.loss import evaluation_mode
from partwise.generation.generate import decode, decoding_model
from partwise.generation.sampling import Sampling, uniform_numbers
from partwise.tokenizers import WithSpecialTokens
from partwise.train.trained_model import open_trained

BATCH_SIZE = 64
Ids = tuple[int, ...]
Request = tuple[Any, list[int], list[int]]


@register_model("partwise")
class PartwiseLM(TemplateLM):
    """A run, or a folder as `transformers` writes it, scored and continued in batches.

    `precision` is that of the run by default. Context that does not fit `context_length` is dropped on the left. Raises
    ConfigError.
    """

    def __init__(
        self, run: str, batch_size: int | str | None = None, precision: str | None = None, **ignored: Any
    ) -> None:
        super().__init__()
        trained = open_trained(run, precision)
        self.model, self.lm_tokenizer = trained.model, trained.tokenizer
        self.model.check_generates()
        self.precision = trained.runtime.precision
        self.specials = self.lm_tokenizer if isinstance(self.lm_tokenizer, WithSpecialTokens) else None
        self.backend = "causal" if self.specials is None else "seq2seq"
        self.batch_size = int(batch_size) if batch_size and str(batch_size).isdecimal() else BATCH_SIZE

    @property
    def max_length(self) -> int:
        return self.model.config.context_length

    @property
    def tokenizer_name(self) -> str:
        return "partwise"  # of templates for chats, which our models do not have

    @property
    def eot_token_id(self) -> int:
        """What the first token of a text without context follows. Raises ConfigError."""
        if self.specials is not None:
            return self.specials.eos_id
        try:
            return self.tok_encode("\n")[0]
        except ConfigError:
            raise ConfigError(
                "the tokenizer has no newline to put before a text without context: give each item a context"
            ) from None

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        ids: list[int] = self.lm_tokenizer.encode(string).tolist()
        return ids

    def _loglikelihood_tokens(self, requests: list[Request], **kwargs: Any) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for (_, _, continuation), index in zip(requests, range(len(requests)), strict=True):
            if not 0 < len(continuation) <= self.max_length:
                raise ConfigError(
                    f"item {index}: a continuation of {len(continuation)} tokens cannot be scored: "
                    f"must have from 1 to context_length={self.max_length}"
                )
        with evaluation_mode(self.model, self.precision) as device:
            score = self.score_targets if self.specials else self.score_continuations
            for index, log_p in score(requests, device):
                targets = torch.tensor(requests[index][2], device=device)
                chosen = to_float64(log_p.gather(1, targets[:, None])).sum().item()
                answers[index] = chosen, bool((log_p.argmax(dim=1) == targets).all())
        for request, answer in zip(requests, answers, strict=True):
            if request[0] is not None:  # windows of a rolling text are not requests
                self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def score_continuations(self, requests: list[Request], device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """The index of each request and the log-probabilities (N, V) of every token at each of its N targets.

        Requests of equal inputs share a row. Several continuations of one context share its cache.
        """
        rows: dict[tuple[Ids, Ids], list[int]] = {}  # context, then the inputs after it -> requests
        for index, (_, before, continuation) in enumerate(requests):
            room = self.max_length + 1 - len(continuation)  # the last token is only a target
            rows.setdefault((tuple(before[-room:]), tuple(continuation[:-1])), []).append(index)
        contexts: dict[Ids, list[Ids]] = {}
        for context, inputs in rows:
            contexts.setdefault(context, []).append(inputs)
        shared = [(context, inputs) for context, inputs in contexts.items() if len(inputs) > 1]
        for batch in batches(sorted(shared, key=lambda item: len(item[0])), max(1, self.batch_size // 4)):
            pairs = [(number, inputs) for number, (_, several) in enumerate(batch) for inputs in several]
            found = self.cached_logits([context for context, _ in batch], pairs, device)
            for (number, inputs), logits in zip(pairs, found, strict=True):
                for index in rows[batch[number][0], inputs]:
                    yield index, log_probabilities(logits)
        alone = [(context, inputs[0]) for context, inputs in contexts.items() if len(inputs) == 1]
        for batch_rows in batches(sorted(alone, key=lambda row: -len(row[0]) - len(row[1])), self.batch_size):
            tokens = padded([context + inputs for context, inputs in batch_rows], device)
            for (context, inputs), logits in zip(batch_rows, self.model(tokens), strict=True):
                window = logits[len(context) - 1 : len(context) + len(inputs)]
                for index in rows[context, inputs]:
                    yield index, log_probabilities(window)

    def cached_logits(
        self, contexts: list[Ids], pairs: list[tuple[int, Ids]], device: torch.device
    ) -> Iterator[Tensor]:
        """Contexts of similar length, and for each pair the logits (1 + N, V) after context `number` and N inputs.

        What all contexts have room for is cached once for each context; the rest is part of every row.
        """
        cached = min(map(len, contexts)) - 1
        rows = [contexts[number][cached:] + inputs for number, inputs in pairs]
        cache = self.model.new_cache(len(contexts), cached + max(map(len, rows)))
        if cached:
            self.model(torch.tensor([context[:cached] for context in contexts], device=device), cache)
        cache.select(torch.tensor([number for number, _ in pairs], device=device))
        logits = self.model(padded(rows, device), cache)
        for (_, inputs), row, own in zip(pairs, rows, logits, strict=True):
            yield own[len(row) - len(inputs) - 1 : len(row)]

    def score_targets(self, requests: list[Request], device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """As `score_continuations`, for targets of sources; those of equal length form batches without padding."""
        assert self.specials is not None
        order = sorted(range(len(requests)), key=lambda index: len(requests[index][1]))
        for _, same_length in groupby(order, key=lambda index: len(requests[index][1])):
            for batch in batches(list(same_length), self.batch_size):
                source = torch.tensor([requests[index][1][-self.max_length :] for index in batch], device=device)
                inputs = padded([(self.specials.bos_id, *requests[index][2][:-1]) for index in batch], device)
                for index, logits in zip(batch, self.model(inputs, source=source), strict=True):
                    yield index, log_probabilities(logits[: len(requests[index][2])])

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text, in windows without common targets. Raises ConfigError for pairs."""
        if self.specials is not None:
            raise ConfigError("an encoder-decoder cannot score text without a source: choose another task")
        windows, counts = list[Request](), list[int]()
        for request in requests:
            pairs = get_rolling_token_windows(self.tok_encode(request.args[0]), self.eot_token_id, self.max_length, 1)
            own = [(None, *make_disjoint_window(pair)) for pair in pairs]
            windows += own
            counts.append(len(own))
        scores = iter(self._loglikelihood_tokens(windows))
        totals = [sum(next(scores)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The text that continues each context, up to the first of its stop texts. Raises ConfigError."""
        texts = [""] * len(requests)
        encoded = [self.tok_encode(request.args[0]) or [self.eot_token_id] for request in requests]
        options = [generation_options(request.args[1]) for request in requests]
        order = sorted(range(len(requests)), key=lambda index: (str(options[index]), len(encoded[index])))
        with evaluation_mode(self.model, self.precision):
            decoder = decoding_model(self.model) if self.precision == "float32" else self.model
            for _, alike in groupby(order, key=lambda index: (str(options[index]), len(encoded[index]))):
                for batch in batches(list(alike), self.batch_size):
                    prompts = [encoded[index] for index in batch]
                    found = self.continue_rows(decoder, batch, prompts, *options[batch[0]])
                    for index, text in zip(batch, found, strict=True):
                        texts[index] = text
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def continue_rows(
        self, decoder: Any, rows: list[int], prompts: list[list[int]], sampling: Sampling, until: list[str], length: int
    ) -> list[str]:
        """The continuations of prompts of equal length, which depend only on the prompt and its row."""
        tokens, source = torch.tensor(prompts, device=self.model.embed.weight.device), None
        stop_id, befores = None, prompts
        if self.specials is not None:
            tokens, source = tokens.new_full((len(rows), 1), self.specials.bos_id), tokens[:, -self.max_length :]
            stop_id, befores = self.specials.eos_id, [[] for _ in rows]
        uniform = uniform_numbers(rows, length, 0, tokens.device)
        texts, streams = [""] * len(rows), [self.lm_tokenizer.decode_stream(after) for after in befores]
        unfinished = set(range(len(rows)))
        for ids in decode(decoder, tokens, uniform, sampling, source=source, tokenizer=self.lm_tokenizer):
            for row, token in enumerate(ids.tolist()):
                if row in unfinished:
                    ended = token == stop_id
                    texts[row] += "" if ended else streams[row].push(token)
                    if ended or any(stop in texts[row] for stop in until):
                        unfinished.discard(row)
            if not unfinished:
                break
        texts = [text + stream.flush() for text, stream in zip(texts, streams, strict=True)]
        return [min((text.partition(stop)[0] for stop in until), key=len, default=text) for text in texts]


def generation_options(values: dict[str, Any]) -> tuple[Sampling, list[str], int]:
    """Sampling, stop texts and the largest number of new tokens from a task's `generation_kwargs`. Raises ConfigError."""
    options = dict(values)
    until = options.pop("until", None) or []
    length = options.pop("max_gen_toks", None) or options.pop("max_new_tokens", None) or 256
    sample, temperature = options.pop("do_sample", None), options.pop("temperature", None)
    greedy = sample is False or (sample is None and not temperature)
    sampling = Sampling(
        0.0 if greedy else 1.0 if temperature is None else float(temperature),
        options.pop("top_k", None) or None,
        float(options.pop("top_p", None) or 1.0),
    )
    if options:
        raise ConfigError(f"generation_kwargs has {sorted(options)[0]!r}, which is not supported: leave it out")
    return sampling, [until] if isinstance(until, str) else list(until), int(length)


def log_probabilities(logits: Tensor) -> Tensor:
    """In float32, or float64 for a model in float64."""
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(dim=-1)


def batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def padded(rows: Iterable[Ids], device: torch.device) -> Tensor:
    """Rows of ids -> (B, T), with zeros after shorter ones: no token depends on later ones."""
    rows = list(rows)
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(ids).to(device)
