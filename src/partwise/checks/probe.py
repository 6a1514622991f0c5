"""A model whose calls repeat: no call leaves a trace in the model, in its buffers or in a random number generator."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from partwise.checks.measures import nudge, other_ids, perturb, relative_change
from partwise.checks.random_state import seeded
from partwise.model import Transformer
from partwise.parts.operations import Operation

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""The change of logits, relative to the largest, that rounding may cause: a product over all tokens may be rounded in another
order if later ones change, and deep models amplify that."""

ROWS = 2
"""Rows of a batch of ids."""


class Probe:
    """A copy of a model at some weights, called on random ids in a precision that its layers support.

    `backends` prepares each copy; by default, every layer computes its own equation.
    """

    def __init__(
        self,
        model: Transformer,
        state: str,
        precision: torch.dtype,
        backends: Callable[[Transformer], None] | None = None,
    ) -> None:
        self.model, self.state, self.precision, self.backends = model, state, precision, backends
        config, self.device = model.config, model.embed.weight.device
        generator = torch.Generator().manual_seed(1)
        shape = (ROWS, config.context_length)
        self.ids = torch.randint(config.vocab_size, shape, generator=generator).to(self.device)
        self.source: Tensor | None = None
        if config.takes_source:
            length = min(16, config.context_length)
            limit = config.vocab_size if config.padding_idx is None else max(1, config.padding_idx)
            self.source = torch.randint(limit, (ROWS, length), generator=generator).to(self.device)

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.precision]

    @contextmanager
    def repeatable(self, seed: int = 0) -> Iterator[None]:
        """Restored random state, and autocast if the precision is bfloat16."""
        bfloat16 = self.precision == torch.bfloat16
        with seeded(seed), torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            yield

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
            with self.repeatable(), torch.no_grad():
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
                with self.repeatable(seed):
                    found.append(copied(tokens, source=self.source))
        return relative_change(found[2], found[0])


def copy_model(model: Transformer, share_parameters: bool = False) -> Transformer:
    """A copy in which every layer computes its own equation."""
    memo: dict[int, object] = {id(each.backends): () for each in model.modules() if isinstance(each, Operation)}
    for tensor in kept_tensors(model):
        if not tensor.is_leaf:  # part of the graph of an earlier step, which cannot be copied
            memo[id(tensor)] = tensor.detach().clone()
    if share_parameters:
        memo |= {id(parameter): parameter for parameter in model.parameters()}
    copied = copy.deepcopy(model, memo)
    copied.reset_backends()
    return copied


def kept_tensors(model: Transformer) -> Iterator[Tensor]:
    """Tensors in plain attributes of layers, such as an output that is kept to be looked at, and in lists of them."""
    for module in model.modules():
        for value in vars(module).values():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            yield from (each for each in items if isinstance(each, Tensor))


def widest_probe(model: Transformer, length: int, state: str) -> Probe:
    """A probe in float64; in float32, or under autocast, if its device, its memory or a layer does not support that.

    Raises what a layer raises in float32.
    """
    failed: Exception | None = None
    for precision in TOLERANCES:
        if precision == torch.float64 and model.embed.weight.device.type == "mps":
            continue
        try:
            copied = copy_model(model).to(torch.float64 if precision == torch.float64 else torch.float32)
            probe = Probe(copied, state, precision)
            probe.logits(training=False)(probe.ids[:, :length])
            return probe
        except Exception as error:
            failed = error if precision != torch.bfloat16 else failed
    assert failed is not None
    raise failed


def perturbed_probe(probe: Probe, length: int, seed: int) -> Probe:
    """A probe with random weights; near those of the model if its layers are not finite elsewhere."""
    found = Probe(copy_model(probe.model), "with random weights", probe.precision, probe.backends)
    perturb(found.model, seed)
    if not found.is_finite(length):
        found.model = copy_model(probe.model)
        nudge(found.model, seed)
    return found
