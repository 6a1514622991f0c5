"""Beam search: the most likely continuation as a whole, instead of token by token. Graves 2012, arXiv:1211.3711."""

from collections.abc import Collection

import torch
from torch import Tensor

from partwise.compute.float64 import float64_device, to_float64
from partwise.config import ConfigError
from partwise.generation.sampling import known_ids
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer


@torch.no_grad()
def beam_search(
    model: Transformer,
    tokens: Tensor,
    *,
    num_beams: int,
    max_new_tokens: int,
    eos_id: int | Collection[int] | None,
    length_penalty: float = 0.6,
    source: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
) -> list[int]:
    """The ids that continue one row (1, T): at most `max_new_tokens`, ended early by `eos_id`, or one of several.

    Each step keeps the `num_beams` most likely unfinished continuations. Of those that ended or reached
    `max_new_tokens`, the one with the largest log P / ((5 + n) / 6)^length_penalty over its n tokens is returned (Wu et
    al. 2016, arXiv:1609.08144); ties go to the first found. Ids that the `tokenizer` lacks are never chosen; P is
    that of the whole table. Raises ConfigError for fewer than one beam, or if the row would exceed context_length.
    """
    if num_beams < 1:
        raise ConfigError(f"num_beams={num_beams}: must be at least 1 (the most likely token at each step)")
    if tokens.shape[1] + max_new_tokens - 1 > model.config.context_length:
        raise ConfigError(
            f"{tokens.shape[1]} tokens and {max_new_tokens} more do not fit "
            f"context_length={model.config.context_length}: lower max_new_tokens"
        )
    ends = {eos_id} if isinstance(eos_id, int) else set(eos_id or ())
    found = None if tokenizer is None else known_ids(tokenizer, model.config.vocab_size, float64_device(tokens.device))
    known = slice(None) if found is None else found
    ids = range(model.config.vocab_size) if found is None else found.tolist()
    cache = model.new_cache(1, tokens.shape[1] + max_new_tokens, source)
    scores = to_float64(torch.zeros(1, device=tokens.device))  # log P of each unfinished beam
    rows: list[list[int]] = [[]]
    best: tuple[float, list[int]] | None = None
    for step in range(max_new_tokens):
        logits = to_float64(model(tokens, cache)[:, -1])
        if not logits.isfinite().any(dim=-1).all() or logits.isnan().any():
            raise ConfigError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        log_p = logits.log_softmax(dim=-1)[:, known]  # (num_beams, V)
        totals = (scores[:, None] + log_p).flatten()  # (num_beams * V,)
        V = log_p.shape[1]
        order = totals.argsort(descending=True, stable=True)[
            : (1 + len(ends)) * num_beams
        ].tolist()  # enough even if every beam ends
        kept: list[int] = []
        for index in order:
            row, token = rows[index // V], ids[index % V]
            if token in ends or step == max_new_tokens - 1:
                score = totals[index].item() / ((5 + step + 1) / 6) ** length_penalty
                if len(kept) < num_beams and (best is None or score > best[0]):
                    best = score, [*row, token]
            elif len(kept) < num_beams:
                kept.append(index)
        # log P only decreases: stop once no unfinished beam can reach the best score, even at its most favorable length
        if not kept or (
            best
            and best[0] >= totals[kept[0]].item() / ((5 + max_new_tokens) / 6) ** length_penalty
            and length_penalty >= 0
        ):
            break
        origins = torch.tensor([index // V for index in kept], device=tokens.device)
        rows = [[*rows[index // V], ids[index % V]] for index in kept]
        scores, tokens = totals[kept], tokens.new_tensor([[row[-1]] for row in rows])
        cache.select(origins)
    assert best is not None
    return best[1]
