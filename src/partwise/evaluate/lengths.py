"""The loss on text longer than a model was trained on: the same targets with more or less context, and by position."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from partwise.config import ConfigError
from partwise.evaluate.loss import evaluation_mode
from partwise.model import ModelConfig, Transformer
from partwise.model.reconfigured import reconfigured
from partwise.parts.positions.rotary import scaled_rope

MAX_TARGETS = 8192
"""Targets of each length by default: enough for about 0.01 nats per character."""

TOKENS_PER_PASS = 4096


def loss_by_length(
    model: Transformer,
    ids: np.ndarray,
    lengths: Sequence[int],
    *,
    trained_length: int | None = None,
    scaling: str | None = None,
    max_targets: int = MAX_TARGETS,
    precision: str = "float32",
) -> dict[int, float]:
    """Nats per token of the same targets at every length of the input; `ids` (N,) are a held-out text.

    A window of `length` tokens is scored on its last b tokens, b half of the shortest length, so each target is predicted
    from at least length - b tokens; windows of all lengths end at the same places. With `scaling` ("linear", "ntk" or
    "yarn"), RoPE is scaled by length / `trained_length` (default: context_length) at lengths beyond it. Raises
    ConfigError.
    """
    n_targets = max(1, min(lengths) // 2)
    ends = window_ends(len(ids), max(lengths), n_targets, max_targets)
    losses = {}
    for length in lengths:
        changed = at_length(model, length, trained_length, scaling)
        losses[length] = float(window_losses(changed, ids, ends, length, precision)[:, -n_targets:].mean())
    return losses


def loss_by_position(
    model: Transformer, ids: np.ndarray, length: int, *, max_windows: int = 128, precision: str = "float32"
) -> np.ndarray:
    """(length,): nats per token at each position, the mean over windows of the text `ids` (N,). Raises ConfigError."""
    ends = window_ends(len(ids), length, length, max_windows * length)
    return window_losses(at_length(model, length), ids, ends, length, precision).mean(axis=0)


def at_length(
    model: Transformer, length: int, trained_length: int | None = None, scaling: str | None = None
) -> Transformer:
    """The model for inputs of `length` tokens, with the same weights. Raises ConfigError if it cannot take as many."""
    config, changes = model.config, dict[str, object]()
    trained_length = trained_length or config.context_length
    if length > config.context_length:
        changes["context_length"] = length
    if scaling is not None and length > trained_length:
        changes["positions"] = scaled_rope(config.positions, scaling, trained_length, length)
    return reconfigured(model, ModelConfig.from_dict({**config.to_dict(), **changes})) if changes else model


def window_ends(n_tokens: int, length: int, n_targets: int, max_targets: int) -> np.ndarray:
    """The indices of the last target of windows of at most `length` inputs whose last `n_targets` targets do not overlap.

    At most `max_targets` targets, evenly spread over the text. Raises ConfigError for a text shorter than one window.
    """
    if n_tokens <= length:
        raise ConfigError(
            f"{n_tokens} tokens are fewer than a window of {length} and its last target: give a longer text"
        )
    ends = np.arange(length, n_tokens, n_targets)
    return ends[np.linspace(0, len(ends) - 1, min(len(ends), max(1, max_targets // n_targets))).round().astype(int)]


def window_losses(model: Transformer, ids: np.ndarray, ends: np.ndarray, length: int, precision: str) -> np.ndarray:
    """(windows, length): nats of every target in the windows of `length` inputs that precede each end, in float64."""
    rows, losses = max(1, TOKENS_PER_PASS // length), []
    with evaluation_mode(model, precision) as device:
        for first in range(0, len(ends), rows):
            window = ends[first : first + rows, None] + np.arange(-length, 1)
            tokens = torch.from_numpy(ids[window].astype(np.int64)).to(device)
            logits = model(tokens[:, :-1])
            logits = logits if logits.dtype == torch.float64 else logits.float()
            nats = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
            losses.append(nats.cpu().double().unflatten(0, (-1, length)).numpy())
    return np.concatenate(losses)
