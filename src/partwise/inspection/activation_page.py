"""The page of activations: statistics, dead units, the variance of the stream, and which units fire for which tokens."""

import numpy as np

from partwise.config import recipes_by_layer
from partwise.inspection import activation_functions
from partwise.inspection.activations import ActivationSite, ActivationStatistics, record_activations
from partwise.inspection.initializations import MOST_PARAMETERS, dead_figure, initial_model, stream_figure
from partwise.inspection.subject import Subject
from partwise.model import ModelConfig
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import add_color_scale, new_figure, new_subplots

PATTERN_TOKENS, PATTERN_UNITS = 24, 192
"""Maximum tokens (labeled) and units in a layer's firing-pattern figure; more would be illegible."""

NEVER, GRAY = "#b03a3a", "#c8c8c8"
"""The colors of units that never fire, and of those whose expert received no token."""


def inspect(subject: Subject) -> Page:
    """Activation statistics over a sample, firing patterns, and the activation functions."""
    tokens, source = subject.tensors(subject.sample() if subject.text is None else subject.row())
    config = subject.config.model
    recorder = record_activations(subject.model, tokens, source, PATTERN_TOKENS)
    preactivations = {key: statistics for key, statistics in recorder.statistics.items() if key.is_preactivation}
    figures = [firing_rate_figure(preactivations, config)] if preactivations else []
    again = subject.run is not None and config.parameters() <= MOST_PARAMETERS
    initial = record_activations(initial_model(subject), tokens, source).statistics if again else None
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
        [
            *figures,
            *dead_figure(recorder.statistics, initial),
            *([] if subject.config.model.encoder_only else [stream_figure(subject, tokens, source)]),
            *activation_functions.figures(),
        ],
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
