"""Beam search: the most likely continuation as a whole, instead of token by token. Graves 2012, arXiv:1211.3711."""

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.model import Transformer


@torch.no_grad()
def beam_search(
    model: Transformer,
    tokens: Tensor,
    *,
    num_beams: int,
    max_new_tokens: int,
    eos_id: int | None,
    length_penalty: float = 0.6,
    source: Tensor | None = None,
) -> list[int]:
    """The ids that continue one row (1, T): at most `max_new_tokens`, ended early by `eos_id`.

    Each step keeps the `num_beams` most likely unfinished continuations. Of those that ended or reached
    `max_new_tokens`, the one with the largest log P / ((5 + n) / 6)^length_penalty over its n tokens is returned (Wu et
    al. 2016, arXiv:1609.08144); ties go to the first found. Raises ConfigError for fewer than one beam, or if the row
    would exceed context_length.
    """
    if num_beams < 1:
        raise ConfigError(f"num_beams={num_beams}: must be at least 1 (the most likely token at each step)")
    if tokens.shape[1] + max_new_tokens - 1 > model.config.context_length:
        raise ConfigError(
            f"{tokens.shape[1]} tokens and {max_new_tokens} more do not fit "
            f"context_length={model.config.context_length}: lower max_new_tokens"
        )
    cache = model.new_cache(1, tokens.shape[1] + max_new_tokens, source)
    scores = torch.zeros(1, dtype=torch.float64, device=tokens.device)  # log P of each unfinished beam
    rows: list[list[int]] = [[]]
    best: tuple[float, list[int]] | None = None
    for step in range(max_new_tokens):
        logits = model(tokens, cache)[:, -1].double()
        if not logits.isfinite().any(dim=-1).all() or logits.isnan().any():
            raise ConfigError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        totals = (scores[:, None] + logits.log_softmax(dim=-1)).flatten()  # (num_beams * V,)
        V = logits.shape[1]
        order = totals.argsort(descending=True, stable=True)[
            : 2 * num_beams
        ].tolist()  # enough even if half of them end
        kept: list[int] = []
        for index in order:
            row, token = rows[index // V], index % V
            if token == eos_id or step == max_new_tokens - 1:
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
        rows = [[*rows[index // V], index % V] for index in kept]
        scores, tokens = totals[kept], tokens.new_tensor([[index % V] for index in kept])
        cache.select(origins)
    assert best is not None
    return best[1]
