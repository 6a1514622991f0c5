"""What lessons measure of a trained model beside its loss. Each takes the folder of a run, and what follows an @;
None where it does not apply."""

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from partwise.checks.measures import cached_logits
from partwise.evaluate.lengths import loss_by_length
from partwise.inspection.attention import attention_maps, attention_statistics, record_calls
from partwise.inspection.cost import cache_growth
from partwise.inspection.dead_units import dead_shares
from partwise.inspection.positions import input_norms
from partwise.inspection.subject import Subject, find_subject
from partwise.parts.positions.rotary import Rope


@lru_cache(maxsize=1)
def open_run(folder: Path) -> Subject:
    """The model of a run and its text; the measures of one run share them."""
    return find_subject(str(folder), [])


def entropy(folder: Path, layer: str) -> float:
    """Mean entropy of the attention of one layer over its largest possible value: 1 if all keys weigh the same."""
    subject = open_run(folder)
    found = attention_statistics(subject.model, *subject.tensors(subject.sample()))[int(layer)]
    return found.entropy.mean().item() / found.max_entropy


def initial_entropy(folder: Path, layer: str) -> float:
    """As `entropy`, of the model before training."""
    subject = initial(open_run(folder))
    found = attention_statistics(subject.model, *subject.tensors(subject.sample()))[int(layer)]
    return found.entropy.mean().item() / found.max_entropy


def initial(subject: Subject) -> Subject:
    """The same model before training."""
    return Subject(subject.name, subject.config, subject.folder)


def open_at(folder: Path, when: str) -> Subject:
    """The model of a run before training, `start`, or after it, `end`."""
    subject = open_run(folder)
    return initial(subject) if when == "start" else subject


def position_share(folder: Path, when: str) -> float:
    """The norm of the position vectors over that of the embeddings that they are added to, before or after training."""
    subject = open_at(folder, when)
    config = subject.config.model
    inputs, _ = subject.tensors(subject.sample())
    norms = input_norms(subject.model, inputs, config.context_length, config.padding_idx)
    assert norms.ratio is not None
    return 1 / norms.ratio.mean().item()


TARGETS = 4096
"""Targets of a loss by length: its error cancels in differences, since all lengths have the same targets."""


def longer(folder: Path, argument: str) -> float | None:
    """The loss on inputs of a length such as `512`, or `512 ntk` with scaled RoPE, minus that on the length of training."""
    length, _, scaling = argument.partition(" ")
    subject = open_run(folder)
    if scaling and not isinstance(subject.config.model.positions, Rope):
        return None
    trained, ids = subject.config.seq_len, subject.dataset.split("val")
    lengths = (trained, int(length))
    losses = loss_by_length(
        subject.model, ids, lengths, trained_length=trained, scaling=scaling or None, max_targets=TARGETS
    )
    return losses[int(length)] - losses[trained]


def dead_share(folder: Path, when: str) -> float:
    """The share of hidden units that are zero for every token, over all layers, before or after training."""
    subject = open_at(folder, when)
    shares = dead_shares(subject.model, *subject.tensors(subject.sample()))
    return sum(shares) / len(shares)


def weight_back(folder: Path, argument: str) -> float:
    """The mean weight on the token so many before the query, of the head with the largest: `start 2`, `end 1`."""
    when, back = argument.split()
    subject = open_at(folder, when)
    calls = record_calls(subject.model, *subject.tensors(subject.sample())).values()
    return max(largest_weight_back(attention_maps(each), int(back)) for each in calls)


def largest_weight_back(maps: Tensor, back: int) -> float:
    """Over the heads of maps (B, H, T, T): the mean over queries that have so many tokens before them."""
    return maps.diagonal(-back, dim1=-2, dim2=-1).double().mean((0, 2)).max().item()


def cache_size(folder: Path, length: str) -> float:
    """KiB of the cache of one text of so many tokens, in float32."""
    return cache_growth(open_run(folder).config.model, [int(length)])[0] * 4 / 1024


def cached_digits(folder: Path, tokens: str) -> float:
    """The decimal digits in which the logits of so many tokens agree, read at once and one by one with a cache.

    This is -log10 of the largest difference over the largest logit.
    """
    subject = open_run(folder)
    inputs, _ = subject.tensors(subject.sample())
    with torch.no_grad():
        row = inputs[:, : int(tokens)]
        logits = subject.model(row)
        cached = cached_logits(subject.model, row, range(1, row.shape[1]))
    return -math.log10(((cached - logits).abs().max() / logits.abs().max()).item())


MEASURES: dict[str, Callable[[Path, str], float | None]] = {
    "longer": longer,
    "dead share": dead_share,
    "entropy": entropy,
    "initial entropy": initial_entropy,
    "position share": position_share,
    "weight back": weight_back,
    "cache size": cache_size,
    "cached digits": cached_digits,
}
