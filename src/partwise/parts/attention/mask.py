"""Attention masks."""

from collections.abc import Callable

from torch import Tensor


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
    ) -> None:
        self.make_bias = make_bias
        self.cached_bias: Tensor | None = None
        self.full = full
        self.causal = causal
        self.causal_lower_right = causal_lower_right

    def bias(self) -> Tensor | None:
        """(T, S), (H, T, S), (B, H or 1, T, S) or (B, 1, 1, S) added to the scores, with -inf at hidden keys."""
        if self.full:
            return None
        if self.cached_bias is None:
            self.cached_bias = self.make_bias()
        return self.cached_bias
