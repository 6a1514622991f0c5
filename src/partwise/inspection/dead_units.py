"""The share of dead hidden units in each layer: those that are zero for every token of a text."""

from collections import Counter

from torch import Tensor

from partwise.evaluate.loss import evaluation_mode
from partwise.inspection.activations import record_activations
from partwise.model import Transformer


def dead_shares(model: Transformer, tokens: Tensor, source: Tensor | None = None) -> list[float]:
    """The dead share of hidden units per layer, the encoder's first, over tokens (B, T) and their source (B, M).

    Give held-out text, such as 4,096 tokens of the validation split: a unit that fires more rarely counts as dead. The
    model computes in evaluation mode, layer by layer.
    """
    with evaluation_mode(model, "float32"):
        statistics = record_activations(model, tokens, source).statistics
    units, dead = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for location, found in statistics.items():
        if location.site.endswith(": hidden"):  # a mixture has several such sites
            units[location.stack, location.layer] += found.nonzero.numel()
            dead[location.stack, location.layer] += found.n_dead
    return [dead[layer] / units[layer] for layer in units]
