"""What training has changed: the variance of the residual stream, and dead units, against initial weights."""

import torch
from torch import Tensor

from partwise.inspection.activations import ActivationSite, ActivationStatistics
from partwise.inspection.logit_lens import residual_streams
from partwise.inspection.subject import Subject
from partwise.model import ModelConfig, Transformer
from partwise.plots.drawing import draw
from partwise.plots.page import PageFigure
from partwise.plots.plotting import COLORS, legend_above, new_figure, set_integer_ticks, set_log_scale

INITIALIZATIONS = ("torch", "normal", "orthogonal")
"""Drawn beside the model's own."""

MOST_PARAMETERS = 2**25
"""Larger models are not initialized again."""

MOST_TOKENS = 1024


def initial_model(subject: Subject, init: str | None = None) -> Transformer:
    """The subject's model with the initial weights of its seed, by its own or another initialization."""
    config = subject.config.model
    if init is not None:
        config = ModelConfig.from_dict({**config.to_dict(), "init": {"part": init}})
    return Transformer(config, seed=subject.config.train.weights_seed).eval()


@torch.no_grad()
def stream_variances(model: Transformer, tokens: Tensor, source: Tensor | None = None) -> list[float]:
    """The variance of the decoder's residual stream after the embeddings and after each layer."""
    return [stream.double().var(correction=0).item() for stream in residual_streams(model, tokens, source).values()]


def stream_figure(subject: Subject, tokens: Tensor, source: Tensor | None) -> PageFigure:
    """The variance by depth of the model, of its initialization, and of others."""
    rows = max(1, MOST_TOKENS // tokens.shape[1])
    tokens, source = tokens[:rows], None if source is None else source[:rows]
    config, trained = subject.config.model, subject.run is not None
    own = f"init={config.init.name}"
    lines = {"trained": stream_variances(subject.model, tokens, source)} if trained else {}
    if config.parameters() <= MOST_PARAMETERS:
        names = [None, *(name for name in INITIALIZATIONS if name != config.init.name)]
        for name in names:
            model = initial_model(subject, name)
            lines[own if name is None else f"init={name}"] = stream_variances(model, tokens, source)
    elif not trained:
        lines[own] = stream_variances(subject.model, tokens, source)
    figure, axes = new_figure(3.0, "stream", width=7.5)
    for color, (name, values) in zip(COLORS, lines.items(), strict=False):
        width = 2.2 if name == next(iter(lines)) else 1.2
        axes.plot(range(len(values)), values, "o-", color=color, linewidth=width, markersize=3, label=name)
    set_log_scale(axes)
    set_integer_ticks(axes)
    axes.set_xlabel("number of layers")
    axes.set_ylabel("variance")
    legend_above(axes, 4)
    return PageFigure(
        "Does the residual stream grow with depth?",
        draw(figure, "stream"),
        f"The variance of the stream's values after the embeddings (0) and after each layer. {own} is "
        + ("that of the run before training" if trained else "the preset's own")
        + "; the others are the same model with other initial weights.",
    )


def dead_figure(
    trained: dict[ActivationSite, ActivationStatistics], initial: dict[ActivationSite, ActivationStatistics] | None
) -> list[PageFigure]:
    """The dead share of each layer's hidden units, before and after training; none if no unit is ever zero."""
    sites = [site for site in trained if site.site.endswith(": hidden")]
    if not any(trained[site].n_zeros for site in sites):
        return []
    figure, axes = new_figure(0.9 + 0.42 * len(sites), "dead", width=7.5)
    drawn = [
        ("initial weights", initial, COLORS[7]),
        ("this model" if initial is None else "trained", trained, COLORS[6]),
    ]
    for index, (name, statistics, color) in enumerate(each for each in drawn if each[1] is not None):
        assert statistics is not None
        shares = [100 * statistics[site].n_dead / statistics[site].nonzero.numel() for site in sites]
        places = [row + 0.36 * index for row in range(len(sites))]
        axes.barh(places, shares, height=0.34, color=color, label=name)
        for place, share, site in zip(places, shares, sites, strict=True):
            text = f"{statistics[site].n_dead:,} of {statistics[site].nonzero.numel():,}"
            axes.annotate(text, (share, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    both = len({site.stack for site in sites}) > 1
    names = [f"{f'{site.stack} ' if both else ''}layer {site.layer}" for site in sites]
    axes.set_yticks([row + (0.18 if initial is not None else 0) for row in range(len(sites))], names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(5.0, 1.2 * axes.get_xlim()[1]))
    axes.set_xlabel("% of hidden units that are dead")
    axes.tick_params(axis="y", length=0)
    legend_above(axes)
    return [
        PageFigure(
            "How many hidden units are dead",
            draw(figure, "dead"),
            "A unit is dead if it is zero for every token of the sample: it adds nothing, and receives no gradient.",
        )
    ]
