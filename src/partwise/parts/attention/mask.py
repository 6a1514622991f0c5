"""Attention masks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

OnScores = Callable[[Tensor, Tensor, Tensor], Tensor | None]
"""`on_scores` of a `PositionLayer`."""


@dataclass(frozen=True)
class MaskRule:
    """Which keys a query attends to, and the bias of its scores, by positions: for backends that need no mask in memory.

    A query at position past_length + t attends to keys of its own document (B, S), before or at its position if `causal`,
    and at a distance below `window`.
    """

    past_length: int
    causal: bool
    window: int | None
    document_ids: Tensor | None
    on_scores: OnScores | None


class AttentionMask:
    """An attention mask and position bias, built only if needed.

    `full`: every query attends to every key, without a bias. `causal`: the lower triangle of a square, torch's
    `is_causal=True` (upper-left alignment). `causal_lower_right`: as `torch.nn.attention.bias.causal_lower_right`, the
    last query attends to all keys, each query before it to one key less. `causal` implies `causal_lower_right`, with as
    many keys as queries.
    """

    def __init__(
        self,
        make_bias: Callable[[], Tensor],
        full: bool = False,
        causal: bool = False,
        causal_lower_right: bool = False,
        rule: MaskRule | None = None,
    ) -> None:
        self.make_bias = make_bias
        self.cached_bias: Tensor | None = None
        self.full = full
        self.causal = causal
        self.causal_lower_right = causal_lower_right
        self.rule = rule  # None for masks of another form
        self.kept: Any = None  # of a backend, for the layers that share this mask

    def bias(self) -> Tensor | None:
        """(T, S), (H, T, S), (B, H or 1, T, S) or (B, 1, 1, S) added to the scores, with -inf at hidden keys."""
        if self.full:
            return None
        if self.cached_bias is None:
            self.cached_bias = self.make_bias()
        return self.cached_bias


def self_attention_mask(
    x: Tensor,
    n_keys: int,
    window: int | None,
    past_length: int,
    causal: bool,
    document_ids: Tensor | None,
    on_scores: OnScores | None,
) -> AttentionMask:
    """The mask of the tokens x (B, T, D) after `past_length` others, over the last `n_keys` positions.

    A query attends to keys of its own document (B, S) at a distance below `window`; `on_scores` is that of a `PositionLayer`.
    """
    T = x.shape[1]

    def bias() -> Tensor:
        positions = torch.arange(past_length + T, device=x.device)
        queries, keys = positions[past_length:], positions[len(positions) - n_keys :]
        distance = queries[:, None] - keys  # (T, S)
        hidden = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
        if window is not None:
            hidden = hidden | (distance.abs() >= window)
        bias = None if on_scores is None else on_scores(queries, keys, x)  # (H, T, S)
        if document_ids is not None:
            q_documents, k_documents = document_ids[:, past_length:], document_ids[:, len(positions) - n_keys :]
            hidden = (hidden | (q_documents[:, :, None] != k_documents[:, None, :])).unsqueeze(1)  # (B, 1, T, S)
        if bias is None:
            bias = torch.zeros(hidden.shape, device=x.device)
        return bias.to(x.dtype).masked_fill(hidden, float("-inf"))

    plain = document_ids is None and on_scores is None and (window is None or window >= n_keys)
    return AttentionMask(
        bias,
        full=plain and (T == 1 or not causal),
        causal=plain and causal and n_keys == T,
        causal_lower_right=plain and causal,
        rule=MaskRule(past_length, causal, window, document_ids, on_scores),
    )


def padding_mask(x: Tensor, padding: Tensor | None) -> AttentionMask:
    """The mask over a source with padding (B, M): all of it, if None."""

    def bias() -> Tensor:
        assert padding is not None
        return x.new_zeros(padding.shape).masked_fill(padding, float("-inf"))[:, None, None, :]  # (B, 1, 1, M)

    return AttentionMask(bias, full=padding is None)
