"""A model whose calls repeat: no call leaves a trace in the model, in its buffers or in a random number generator."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from partwise.checks.measures import nudge, other_ids, perturb, relative_change
from partwise.checks.random_state import seeded
from partwise.machine import is_out_of_memory
from partwise.model import Transformer
from partwise.parts.operations import Operation

EXACT, ROUNDED = 1e-9, 1e-4
"""The change of logits, relative to the largest, that rounding may cause in float64 and in float32: sums over later
positions in a product of matrices are rounded in another order, and deep models amplify that."""

ROWS = 2
"""Of a batch of ids."""


class Probe:
    """A copy of a model at some weights, called on random ids. In float64 if its layers support that, else in float32.

    `backends` prepares each copy; by default, every layer computes its own equation.
    """

    def __init__(self, model: Transformer, state: str, backends: Callable[[Transformer], None] | None = None) -> None:
        self.model, self.state, self.backends = model, state, backends
        config, device = model.config, model.embed.weight.device
        generator = torch.Generator().manual_seed(1)
        shape = (ROWS, config.context_length)
        self.ids = torch.randint(config.vocab_size, shape, generator=generator).to(device)
        self.source: Tensor | None = None
        if model.encoder is not None:
            length = min(16, config.context_length)
            limit = config.vocab_size if config.padding_idx is None else max(1, config.padding_idx)
            self.source = torch.randint(limit, (ROWS, length), generator=generator).to(device)

    @property
    def tolerance(self) -> float:
        return EXACT if self.model.embed.weight.dtype == torch.float64 else ROUNDED

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    def copy(self, training: bool) -> Transformer:
        """A copy with buffers and attributes of its own; parameters are shared."""
        copied = copy_model(self.model, share_parameters=True).train(training)
        copied.seed_dropout(0, 0)
        if self.backends:
            self.backends(copied)
        return copied

    def logits(self, training: bool) -> Callable[[Tensor], Tensor]:
        """The function from ids to logits in training or in evaluation mode."""

        def call(tokens: Tensor) -> Tensor:
            with seeded(), torch.no_grad():
                aux_losses: list[Tensor] = []
                return self.copy(training)(tokens, source=self.source, aux_losses=aux_losses)

        return call

    def is_finite(self, length: int) -> bool:
        return bool(self.logits(training=False)(self.ids[:, :length]).isfinite().all())

    def noise(self, length: int, training: bool) -> float:
        """How far two equal calls lie apart: only randomness that no generator restores makes a difference."""
        call, ids = self.logits(training), self.ids[:, :length]
        return relative_change(call(ids), call(ids))

    def change_by_evaluation(self, length: int) -> float:
        """How far a second evaluation of a text lies from the first, with other random numbers and another text between."""
        ids = self.ids[:, :length]
        found = []
        copied = self.copy(training=False)
        with torch.no_grad():
            for seed, tokens in enumerate((ids, other_ids(ids, self.vocab_size), ids)):
                with seeded(seed):
                    found.append(copied(tokens, source=self.source))
        return relative_change(found[2], found[0])


def copy_model(model: Transformer, share_parameters: bool = False) -> Transformer:
    """A copy in which every layer computes its own equation."""
    memo: dict[int, object] = {id(each.backends): () for each in model.modules() if isinstance(each, Operation)}
    if share_parameters:
        memo |= {id(parameter): parameter for parameter in model.parameters()}
    copied = copy.deepcopy(model, memo)
    copied.reset_backends()
    return copied


def widest(model: Transformer, length: int) -> Transformer:
    """A copy in float64, or in float32 if its device or one of its layers does not support float64."""
    if model.embed.weight.device.type != "mps":
        try:
            copied = copy_model(model).double()
            Probe(copied, "").logits(training=False)(Probe(copied, "").ids[:, :length])
            return copied
        except Exception as error:
            if is_out_of_memory(type(error).__name__, str(error)):
                raise
    return copy_model(model).float()


def perturbed_copy(model: Transformer, length: int, seed: int) -> Transformer:
    """A copy with random weights; near those of the model if its layers are not finite elsewhere."""
    copied = copy_model(model)
    perturb(copied, seed)
    if not Probe(copied, "").is_finite(length):
        copied = copy_model(model)
        nudge(copied, seed)
    return copied
