"""What one head attends to as a model writes: the weights of the query that predicts each token."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.inspection.attention import attention_maps, kind_and_layer, record_calls
from partwise.model import Transformer


class NextTokenAttention:
    """The weights of one self-attention map of a decoder, computed beside generation, whose results it leaves unchanged.

    It shares the weights of the model, but none of its backends: some compute a layer without its attention weights.
    """

    def __init__(self, model: Transformer, layer: int, head: int, length: int) -> None:
        """For texts of at most `length` tokens. Raises ConfigError if there is no such layer or head."""
        self.model = sharing_weights(model).eval()
        self.limit = model.config.context_length
        self.head, self.cache = head, self.model.new_cache(1, min(length, self.limit))
        named = record_calls(self.model, torch.zeros(1, 1, dtype=torch.long))
        maps = {number: (name, calls) for name, calls in named.items() for number in self_attention(name)}
        if layer not in maps:
            known = ", ".join(map(str, sorted(maps))) or "none"
            raise ConfigError(f"--attention {layer},{head}: layers with attention weights: {known}")
        self.name, calls = maps[layer]
        heads = attention_maps(calls).shape[1]
        if head >= heads:
            raise ConfigError(f"--attention {layer},{head}: layer {layer} has heads 0 to {heads - 1}")

    @torch.no_grad()
    def weights(self, ids: Sequence[int]) -> Tensor:
        """(S,) the weight of each of the S tokens so far in predicting the next one.

        `ids` continue those of the call before. Tokens outside the context or the window have weight 0; with a sink, the
        weights add up to less than 1.
        """
        tokens = torch.tensor(ids, dtype=torch.long)[None]
        if len(ids) <= self.limit:
            calls = record_calls(self.model, tokens[:, self.cache.length :], cache=self.cache)
        else:
            calls = record_calls(self.model, tokens[:, -self.limit :])
        last = attention_maps(calls[self.name])[0, self.head, -1]  # (S,), or fewer with a window
        return torch.cat([last.new_zeros(len(ids) - len(last)), last])


def self_attention(name: str) -> list[int]:
    """The layer of a module's name, if that is a layer of self-attention in a decoder."""
    kind, layer = kind_and_layer(name)
    return [layer] if kind == "self" else []


def sharing_weights(model: Transformer) -> Transformer:
    """A copy of a model, with the same tensors, that computes every layer's own equation."""
    tensors = [*model.parameters(), *model.buffers()]
    copy = deepcopy(model, {id(tensor): tensor for tensor in tensors})
    copy.reset_backends()
    return copy
