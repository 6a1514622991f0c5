"""Beam search: the most likely whole continuations, rather than the most likely next token. Graves 2012, arXiv:1211.3711."""

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.model import Transformer


@torch.no_grad()
def beam_search(
    model: Transformer,
    tokens: Tensor,
    *,
    beams: int,
    length: int,
    end: int | None,
    penalty: float = 0.6,
    source: Tensor | None = None,
) -> list[int]:
    """The ids that continue one row (1, T), at most `length` of them, ended by the id `end` where there is one.

    At each step the `beams` likeliest open continuations are kept; of those that ended, or reached `length`, the best
    has the largest log P / ((5 + n) / 6)^penalty over n tokens (Wu et al. 2016, arXiv:1609.08144), ties to the first
    found. Raises ConfigError for fewer than one beam, or a row that outgrows max_len.
    """
    if beams < 1:
        raise ConfigError(f"beams={beams}: give 1 (the most likely token at each step) or more")
    if tokens.shape[1] + length - 1 > model.config.max_len:
        raise ConfigError(
            f"{tokens.shape[1]} tokens and {length} more do not fit max_len={model.config.max_len}: lower length"
        )
    states = model.start(1, tokens.shape[1] + length, source)
    scores = torch.zeros(1, dtype=torch.float64, device=tokens.device)  # log P of each open beam
    rows: list[list[int]] = [[]]
    best: tuple[float, list[int]] | None = None
    for place in range(length):
        logits = model(tokens, states)[:, -1].double()
        if not logits.isfinite().any(dim=-1).all() or logits.isnan().any():
            raise ConfigError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        totals = (scores[:, None] + logits.log_softmax(dim=-1)).flatten()  # (beams * V,)
        V = logits.shape[1]
        order = totals.argsort(descending=True, stable=True)[: 2 * beams].tolist()  # enough, if half of them end
        kept: list[int] = []
        for index in order:
            row, token = rows[index // V], index % V
            if token == end or place == length - 1:
                score = totals[index].item() / ((5 + place + 1) / 6) ** penalty
                if len(kept) < beams and (best is None or score > best[0]):
                    best = score, [*row, token]
            elif len(kept) < beams:
                kept.append(index)
        # log P only falls: once no open beam can reach the best, even at the length that favours it most, it is found
        if not kept or (best and best[0] >= totals[kept[0]].item() / ((5 + length) / 6) ** penalty and penalty >= 0):
            break
        origins = torch.tensor([index // V for index in kept], device=tokens.device)
        rows = [[*rows[index // V], index % V] for index in kept]
        scores, tokens = totals[kept], tokens.new_tensor([[index % V] for index in kept])
        states.select(origins)
    assert best is not None
    return best[1]
