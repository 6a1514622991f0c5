"""Activation statistics at every site, which units are dead, and for which tokens each unit fires."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from partwise.inspection.hooks import Hook, forward_hooks
from partwise.model import Transformer
from partwise.parts.feed_forward.mlp import MLP, GatedMLP
from partwise.parts.feed_forward.moe import MixtureOfExperts, UngatedExperts
from partwise.parts.short_conv import IdentityShortConv

TOKENS_PER_PASS = 1024
"""Tokens per forward pass: the activations of a whole sample need not fit in memory."""


class ActivationSite(NamedTuple):
    stack: str  # "encoder" or "decoder"
    layer: int
    site: str

    @property
    def is_preactivation(self) -> bool:
        """Whether this is the input of an activation function."""
        return self.site.endswith(": pre")


class ActivationStatistics:
    """One-pass mean and variance at a site in float64, and how often each unit is nonzero or positive.

    Batches are merged as in Chan, Golub & LeVeque 1983, which never subtracts the square of a large mean. A unit is one
    of F values per token, or one of F values of one of X experts in a mixture; elsewhere X = 1.
    """

    def __init__(self, n_experts: int = 1) -> None:
        self.count, self.mean, self.squared_deviations = 0, 0.0, 0.0
        self.expert_tokens = torch.zeros(n_experts, 1, dtype=torch.long)  # (X, 1) tokens routed to each expert
        self.nonzero = torch.zeros(n_experts, 0, dtype=torch.long)  # (X, F) tokens for which the unit was nonzero
        self.positive = torch.zeros(n_experts, 0, dtype=torch.long)  # (X, F) tokens for which it was positive
        self.pattern = torch.zeros(0, n_experts, 0)  # (tokens, X, F) 1 if positive, else 0; nan if not routed here

    def update(self, values: Tensor, expert: Tensor) -> None:
        """Add values (P, F) of P tokens, or of P (token, expert) pairs with the expert's index in `expert` (P,)."""
        if not len(values):
            return
        values = values.double()
        count, mean = values.numel(), values.mean().item()
        squared_deviations, delta = (values - mean).square().sum().item(), mean - self.mean
        total = self.count + count
        self.squared_deviations += squared_deviations + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total
        self.expert_tokens = add_counts(self.expert_tokens, torch.ones_like(values[:, :1]), expert)
        self.nonzero = add_counts(self.nonzero, values != 0, expert)
        self.positive = add_counts(self.positive, values > 0, expert)

    def set_pattern(self, values: Tensor, expert: Tensor, token: Tensor, n_tokens: int) -> None:
        """Store which values are positive for the first `n_tokens` tokens; `token` (P,) holds token indices."""
        selected = token < n_tokens
        self.pattern = torch.full((n_tokens, len(self.expert_tokens), values.shape[1]), torch.nan)
        self.pattern[token[selected], expert[selected]] = (values[selected] > 0).float()

    @property
    def variance(self) -> float:
        """Population variance (division by N)."""
        return self.squared_deviations / self.count if self.count else float("nan")

    @property
    def n_zeros(self) -> int:
        """The number of values that are exactly zero."""
        return self.count - int(self.nonzero.sum())

    @property
    def n_dead(self) -> int:
        """The number of units that were zero for every token, including all units of experts without tokens."""
        return int((self.nonzero == 0).sum())


def add_counts(counts: Tensor, mask: Tensor, expert: Tensor) -> Tensor:
    """Add a mask (P, F) to counts (X, F), row by row to the expert (P,); counts are (X, 0) before the first batch."""
    if not counts.shape[1]:
        counts = counts.new_zeros(len(counts), mask.shape[1])
    return counts.index_add(0, expert, mask.to(counts))


class ActivationRecorder:
    """Activation statistics by site, in model order with the encoder first."""

    def __init__(self) -> None:
        self.statistics: dict[ActivationSite, ActivationStatistics] = {}
        self.n_tokens: dict[str, int] = {}  # stack -> tokens so far, without padding
        self.token_masks: dict[str, Tensor] = {}  # stack -> (B T,) true for a token, false for padding
        self.pattern_tokens: dict[str, int] = {}  # stack -> tokens of the first row in the firing pattern

    def start_pass(self, stack: str, ids: Tensor, padding_idx: int | None, pattern_tokens: int) -> None:
        """Start a forward pass of a stack: its ids (B, T), and how many leading tokens the firing pattern covers."""
        mask = ids != padding_idx if padding_idx is not None else torch.ones_like(ids, dtype=torch.bool)
        self.token_masks[stack] = mask.flatten().cpu()
        self.pattern_tokens[stack] = min(pattern_tokens, int(mask[0].sum()))
        self.n_tokens[stack] = self.n_tokens.get(stack, 0) + int(mask.sum())

    def record(
        self, location: ActivationSite, values: Tensor, token: Tensor | None = None, expert: Tensor | None = None
    ) -> None:
        """Add values (B, T, ...) of all tokens, or (P, F) of (token, expert) pairs with both indices, each (P,)."""
        mask = self.token_masks[location.stack]
        values = values.cpu()  # not every device has float64
        if token is None or expert is None:
            values = values.flatten(0, 1).flatten(1)
            token, expert = torch.arange(len(values)), torch.zeros(len(values), dtype=torch.long)
        selected = mask[token]
        values, token, expert = values[selected], token[selected], expert[selected]
        self.statistics[location].update(values, expert)
        if location.is_preactivation and self.pattern_tokens[location.stack]:
            self.statistics[location].set_pattern(values, expert, token, self.pattern_tokens[location.stack])


def model_hooks(model: Transformer, recorder: ActivationRecorder) -> Iterator[tuple[nn.Module, Hook]]:
    """Modules with the forward hooks that record their activations."""
    for stack, part in (("encoder", model.encoder), ("decoder", model)):
        for layer, block in enumerate(part.blocks if part else ()):
            yield from block_hooks(block, stack, layer, recorder)


def block_hooks(
    block: nn.Module, stack: str, layer: int, recorder: ActivationRecorder
) -> Iterator[tuple[nn.Module, Hook]]:
    """The hooks of one block; adds its sites to the recorder in model order."""

    def add_location(site: str, n_experts: int = 1) -> ActivationSite:
        location = ActivationSite(stack, layer, site)
        recorder.statistics[location] = ActivationStatistics(n_experts)
        return location

    def record_output(location: ActivationSite) -> Hook:
        return lambda module, inputs, output: recorder.record(
            location, output[0] if isinstance(output, tuple) else output
        )

    children = dict(block.named_children())
    for name in ("mixing", "attention", "cross"):
        if name in children and not isinstance(children[name], IdentityShortConv):
            yield children[name], record_output(add_location(name))
    for path, module in children["ffn"].named_modules(prefix="ffn"):
        if isinstance(module, MixtureOfExperts):
            n_experts = module.router.n_experts
            pre = add_location(f"{path}.experts: pre", n_experts)
            hidden = add_location(f"{path}.experts: hidden", n_experts)
            yield from moe_hooks(module, pre, hidden, recorder)
        elif isinstance(module, MLP):
            yield module.up, record_output(add_location(f"{path}: pre"))
            yield module.hidden_dropout, record_output(add_location(f"{path}: hidden"))
        elif isinstance(module, GatedMLP):
            yield module.gate_up, record_output(add_location(f"{path}: pre"))
            yield module.hidden_dropout, record_output(add_location(f"{path}: hidden"))
    yield children["ffn"], record_output(add_location("ffn"))
    yield block, record_output(add_location("stream"))


def moe_hooks(
    moe: MixtureOfExperts, pre: ActivationSite, hidden: ActivationSite, recorder: ActivationRecorder
) -> Iterator[tuple[nn.Module, Hook]]:
    """The hooks of a mixture: its experts process (token, expert) pairs sorted by expert."""
    routing: dict[str, Tensor] = {}

    def record_routing(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        k = output[1].shape[1]
        routing["expert"], order = output[1].flatten().cpu().sort(stable=True)
        routing["token"] = order // k

    experts = moe.experts
    yield moe.router, record_routing
    first = experts.up if isinstance(experts, UngatedExperts) else experts.gate
    yield first, lambda module, inputs, output: recorder.record(pre, output, **routing)
    yield experts.down, lambda module, inputs, output: recorder.record(hidden, inputs[0], **routing)


@torch.no_grad()
def record_activations(
    model: Transformer,
    tokens: Tensor,
    source: Tensor | None = None,
    pattern_tokens: int = 0,
    tokens_per_pass: int = TOKENS_PER_PASS,
) -> ActivationRecorder:
    """Activation statistics over tokens (B, T) and their source (B, M), without padding.

    Each pass holds about `tokens_per_pass` tokens; the first `pattern_tokens` of the first row give the firing patterns.
    The model must be in evaluation mode, and is not modified.
    """
    recorder, padding_idx = ActivationRecorder(), model.config.padding_idx
    with forward_hooks([*model_hooks(model, recorder)]):
        rows = max(1, tokens_per_pass // tokens.shape[1])
        for first in range(0, len(tokens), rows):
            chunk = tokens[first : first + rows]
            source_chunk = None if source is None else source[first : first + rows]
            inputs = {"encoder": source_chunk, "decoder": chunk}
            for stack, ids in ({"encoder": chunk} if model.config.encoder_only else inputs).items():
                if ids is not None:
                    recorder.start_pass(stack, ids, padding_idx, 0 if first else pattern_tokens)
            model(chunk, source=source_chunk)
    return recorder
