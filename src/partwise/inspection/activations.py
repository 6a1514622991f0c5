"""Activation statistics at every site, dead units, and which hidden units fire for which tokens."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from partwise.config import recipes_by_layer
from partwise.inspection import activation_functions
from partwise.inspection.hooks import Hook, forward_hooks
from partwise.inspection.subject import Subject
from partwise.model import ModelConfig, Transformer
from partwise.parts.feed_forward.mlp import MLP, GatedMLP
from partwise.parts.feed_forward.moe import MixtureOfExperts, UngatedExperts
from partwise.parts.short_conv import IdentityShortConv
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import add_color_scale, new_figure, new_subplots

TOKENS_PER_PASS = 1024
"""Tokens per forward pass: the activations of a whole sample need not fit in memory."""

PATTERN_TOKENS, PATTERN_UNITS = 24, 192
"""Maximum tokens (labeled) and units in a layer's firing-pattern figure; more would be illegible."""

NEVER, GRAY = "#b03a3a", "#c8c8c8"
"""The colors of units that never fire, and of those whose expert received no token."""


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
            for stack, ids in (("encoder", source_chunk), ("decoder", chunk)):
                if ids is not None:
                    recorder.start_pass(stack, ids, padding_idx, 0 if first else pattern_tokens)
            model(chunk, source=source_chunk)
    return recorder


def inspect(subject: Subject) -> Page:
    """Activation statistics over a sample, firing patterns, and the activation functions."""
    tokens, source = subject.tensors(subject.sample() if subject.text is None else subject.row())
    config = subject.config.model
    recorder = record_activations(subject.model, tokens, source, PATTERN_TOKENS)
    preactivations = {key: statistics for key, statistics in recorder.statistics.items() if key.is_preactivation}
    figures = [firing_rate_figure(preactivations, config)] if preactivations else []
    for stack, ids in (("encoder", source), ("decoder", tokens)):
        layers = {key: statistics for key, statistics in preactivations.items() if key.stack == stack}
        if ids is not None and layers:
            labels = subject.token_labels(ids[0, :PATTERN_TOKENS].numpy())
            figures.append(firing_pattern_figure(layers, config, labels))
    experts = ", including all units of an expert that received no token" if has_experts(preactivations) else ""
    nouns = {stack: f"{stack} tokens" if source is not None else "tokens" for stack in recorder.n_tokens}
    return Page(
        f"activation statistics over {' and '.join(f'{n:,} {nouns[stack]}' for stack, n in recorder.n_tokens.items())}",
        "Mean and variance are over all values at a site, without padding; zeros are exact zeros. A unit is dead if it is "
        f"zero for every token{experts}. `pre` is the input of the "
        "activation function (in gated variants the gate); `hidden` is its output (in gated variants times the up "
        "projection). `stream` is the residual stream after the block; the other sites are outputs of the block's branches.",
        ["layer and site", "mean", "variance", "zeros", "units", "dead", "dead %"],
        [table_row(location, statistics, config) for location, statistics in recorder.statistics.items()],
        [*figures, *activation_functions.figures()],
    )


def table_row(location: ActivationSite, statistics: ActivationStatistics, config: ModelConfig) -> tuple[str, ...]:
    units, dead = statistics.nonzero.numel(), statistics.n_dead
    zeros = percentage(statistics.n_zeros, statistics.count)
    moments = f"{statistics.mean:.3g}", f"{statistics.variance:.3g}"
    name = f"{layer_name(location, config)} {location.site}"
    return name, *moments, zeros, f"{units:,}", f"{dead:,}", percentage(dead, units)


def layer_name(location: ActivationSite, config: ModelConfig) -> str:
    return f"{location.stack} {location.layer}" if config.encoder_layers else f"{location.layer}"


def percentage(count: int, total: int) -> str:
    """A percentage that rounds to 0% or 100% only if it is exactly that."""
    text = f"{100 * count / max(1, total):.1f}%"
    return {"0.0%": "<0.1%" if count else "0%", "100.0%": ">99.9%" if count < total else "100%"}.get(text, text)


def activation_name(location: ActivationSite, config: ModelConfig) -> str:
    """`3 relu`, or `3 moe experts` in a layer with several activation functions."""
    layers = config.encoder_layers if location.stack == "encoder" else config.n_layers
    kind = recipes_by_layer(config.ffn, layers)[location.layer].name
    module = location.site.split(":")[0].removeprefix("ffn").replace(".", " ")
    return f"{layer_name(location, config)} {kind}{module}"


def firing_rate_figure(layers: dict[ActivationSite, ActivationStatistics], config: ModelConfig) -> PageFigure:
    """Layers x units: the fraction of tokens for which each unit fires, sorted within the layer."""
    from matplotlib import colormaps

    # nan sorts last: units of experts without tokens
    rates = [(layer.positive / layer.expert_tokens).flatten().sort().values.numpy() for layer in layers.values()]
    strips = [units[evenly_spaced(len(units), 400)] for units in rates]
    names = [activation_name(location, config) for location in layers]
    figure, axes = new_figure(0.95 + 0.24 * len(strips), "often", width=7.5)
    colors = colormaps["viridis"].with_extremes(under=NEVER, bad=GRAY)
    height = len(strips)
    image = axes.imshow(
        strips, cmap=colors, vmin=1e-9, vmax=1, aspect="auto", interpolation="none", extent=(0, 100, height, 0)
    )
    axes.hlines(range(1, height), 0, 100, color="white", linewidth=2)
    axes.set_yticks([number + 0.5 for number in range(height)], names)
    for number, layer in enumerate(layers.values()):
        never = int((layer.positive == 0).sum())
        axes.annotate(f"{never:,} never", (100, number + 0.5), (6, 0), textcoords="offset points", va="center")
    axes.set_xlabel("units of the layer, sorted by firing rate, %")
    axes.tick_params(axis="y", length=0)
    scale = add_color_scale(figure, image, axes, "fires for % of tokens")
    scale.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25", "50", "75", "100"])
    return PageFigure(
        "Firing rate of each hidden unit",
        draw(figure, "often"),
        "A unit fires for a token if the input of its activation function (in gated variants the gate) is positive; with "
        "relu, relu2 and reglu it is zero for all other tokens. Red: never fires; with these three the unit is then dead "
        "and receives no gradient."
        + (" Gray: units of an expert that received no token." if has_experts(layers) else ""),
    )


def firing_pattern_figure(
    layers: dict[ActivationSite, ActivationStatistics], config: ModelConfig, labels: list[str]
) -> PageFigure:
    """Tokens x units for one row of the sample, for the layers of one stack."""
    from matplotlib.colors import ListedColormap

    (first, statistics), n_rows = next(iter(layers.items())), -(-len(layers) // 2)
    key, tokens = f"which-{first.stack}", len(statistics.pattern)
    colors = ListedColormap(["black", "white"]).with_extremes(bad=GRAY)
    figure, grid = new_subplots(n_rows * (0.4 + 0.09 * tokens), key, rows=n_rows, columns=2, width=7.5)
    panels = [axes for row in grid for axes in row]
    for axes, (location, statistics) in zip(panels, layers.items(), strict=False):
        pattern = statistics.pattern.flatten(1)  # (tokens, X F)
        units = pattern.shape[1]
        subset = f"{units:,} units" if units <= PATTERN_UNITS else f"{PATTERN_UNITS} of {units:,} units"
        order = statistics.positive.flatten().argsort(stable=True)  # unsorted, a pattern looks like noise
        image = pattern[:, order[evenly_spaced(units, min(units, PATTERN_UNITS))]].numpy()
        axes.imshow(image, cmap=colors, vmin=0, vmax=1, aspect="auto", interpolation="none")
        axes.set_title(f"{activation_name(location, config)}: {subset}", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks(range(tokens), [label[:8] for label in labels[:tokens]], fontsize=6)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(True)
    for axes in panels[len(layers) :]:
        axes.set_axis_off()
    return PageFigure(
        "Which hidden units fire for which tokens" + (f": {first.stack}" if config.encoder_layers else ""),
        draw(figure, key),
        "Rows are the first tokens of the first sequence. Columns are units, from those that rarely fire in the sample to "
        "those that often do: white stripes are units for every token, short dashes are units for a few kinds of token. "
        "White: fires. Black: does not fire."
        + (" Gray: the token was not routed to the unit's expert." if has_experts(layers) else ""),
    )


def has_experts(layers: dict[ActivationSite, ActivationStatistics]) -> bool:
    return any(len(layer.expert_tokens) > 1 for layer in layers.values())


def evenly_spaced(count: int, n: int) -> np.ndarray:
    """`n` indices below `count`, including the first and the last."""
    return np.linspace(0, count - 1, n).round().astype(int)
