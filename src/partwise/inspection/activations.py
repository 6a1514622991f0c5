"""What flows through a model: mean, variance and zeros at every site, and which hidden units fire for which tokens."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from partwise.config import recipes_by_layer
from partwise.drawing import COLOURS, canvas, canvases, svg
from partwise.inspection import curves
from partwise.inspection.page import Figure, Look
from partwise.inspection.recording import Hook, hooked
from partwise.inspection.subject import Subject
from partwise.model import ModelConfig, Transformer
from partwise.parts.experts import MixtureOfExperts, PlainExperts
from partwise.parts.mixing import Unmixed
from partwise.parts.mlp import MLP, GatedMLP

TOKENS_AT_ONCE = 1024
"""So many tokens go through the model in one piece: what flows need not fit memory for a whole sample."""

PICTURED, UNITS = 24, 192
"""Tokens, each named at its row, and units in the picture of one layer: more could not be told apart."""

GREY = "#c8c8c8"


class Place(NamedTuple):
    stack: str  # "encoder" or "decoder"
    layer: int
    site: str

    @property
    def fires(self) -> bool:
        """Whether an activation function is given what stands here."""
        return self.site.endswith(": pre")


class Tally:
    """Moments of all numbers at one site in float64, and how often each unit is zero or positive, in one pass.

    Pieces are merged as in Chan, Golub & LeVeque 1983: no square of a large mean is ever taken from another. A unit is
    one of F numbers per token, and in a mixture one of the numbers of one of X experts; elsewhere X = 1.
    """

    def __init__(self, n_experts: int = 1) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.seen = torch.zeros(n_experts, 1, dtype=torch.long)  # (X, 1) tokens that an expert was given
        self.nonzero = torch.zeros(n_experts, 0, dtype=torch.long)  # (X, F) those for which a unit was not zero
        self.positive = torch.zeros(n_experts, 0, dtype=torch.long)  # (X, F) those for which it was positive
        self.picture = torch.zeros(0, n_experts, 0)  # (tokens, X, F) 1 positive, 0 not, nan for an expert not chosen

    def add(self, values: Tensor, expert: Tensor) -> None:
        """Values (P, F) of P tokens, or of P pairs of a token and its expert, whose number stands in `expert` (P,)."""
        if not len(values):
            return
        values = values.double()
        count, mean = values.numel(), values.mean().item()
        squares, step = (values - mean).square().sum().item(), mean - self.mean
        whole = self.count + count
        self.squares += squares + step**2 * self.count * count / whole
        self.mean += step * count / whole
        self.count = whole
        self.seen = summed(self.seen, torch.ones_like(values[:, :1]), expert)
        self.nonzero = summed(self.nonzero, values != 0, expert)
        self.positive = summed(self.positive, values > 0, expert)

    def depict(self, values: Tensor, expert: Tensor, token: Tensor, shown: int) -> None:
        """Keep which of these values are positive, of the tokens whose number in `token` (P,) is below `shown`."""
        kept = token < shown
        self.picture = torch.full((shown, len(self.seen), values.shape[1]), torch.nan)
        self.picture[token[kept], expert[kept]] = (values[kept] > 0).float()

    @property
    def variance(self) -> float:
        """The mean square of the distance from the mean."""
        return self.squares / self.count if self.count else float("nan")

    @property
    def zeros(self) -> int:
        """How many of the numbers are exactly zero."""
        return self.count - int(self.nonzero.sum())

    @property
    def dead(self) -> int:
        """How many units were zero for every token; those of an expert that no token chose are among them."""
        return int((self.nonzero == 0).sum())


def summed(counts: Tensor, happened: Tensor, expert: Tensor) -> Tensor:
    """(X, F) counts, or (X, 0) before the first, plus those of (P, F) for the expert (P,) of each row."""
    if not counts.shape[1]:
        counts = counts.new_zeros(len(counts), happened.shape[1])
    return counts.index_add(0, expert, happened.to(counts))


class Activations:
    """What was seen: by place, in the order of the model, with the encoder first."""

    def __init__(self) -> None:
        self.tallies: dict[Place, Tally] = {}
        self.tokens: dict[str, int] = {}  # stack -> tokens seen
        self.counted: dict[str, Tensor] = {}  # stack -> (B T,) true for a token, false for padding
        self.first: dict[str, int] = {}  # stack -> tokens of the first row to keep a picture of

    def begin(self, stack: str, ids: Tensor, padding: int | None, shown: int) -> None:
        """The ids (B, T) of a stack's next pass, and how many of its first tokens to keep a picture of."""
        counted = ids != padding if padding is not None else torch.ones_like(ids, dtype=torch.bool)
        self.counted[stack] = counted.flatten()
        self.first[stack] = min(shown, int(counted[0].sum()))
        self.tokens[stack] = self.tokens.get(stack, 0) + int(counted.sum())

    def take(self, place: Place, values: Tensor, token: Tensor | None = None, expert: Tensor | None = None) -> None:
        """Numbers of every token (B, T, ...); or (P, F) of pairs of a token and its expert, each (P,)."""
        counted = self.counted[place.stack]
        if token is None or expert is None:
            values = values.flatten(0, 1).flatten(1)
            token, expert = torch.arange(len(values)), torch.zeros(len(values), dtype=torch.long)
        kept = counted[token]
        values, token, expert = values[kept], token[kept], expert[kept]
        self.tallies[place].add(values, expert)
        if place.fires and self.first[place.stack]:
            self.tallies[place].depict(values, expert, token, self.first[place.stack])


def model_hooks(model: Transformer, seen: Activations) -> Iterator[tuple[nn.Module, Hook]]:
    """What adds every pass through the model to `seen`: the modules to watch, each with what to do when it was called."""
    for stack, part in (("encoder", model.encoder), ("decoder", model)):
        for layer, block in enumerate(part.blocks if part else ()):
            yield from block_hooks(block, stack, layer, seen)


def block_hooks(block: nn.Module, stack: str, layer: int, seen: Activations) -> Iterator[tuple[nn.Module, Hook]]:
    """The same for one block; the places are made in the order of the model."""

    def place(site: str, n_experts: int = 1) -> Place:
        here = Place(stack, layer, site)
        seen.tallies[here] = Tally(n_experts)
        return here

    def output(here: Place) -> Hook:
        return lambda module, inputs, value: seen.take(here, value[0] if isinstance(value, tuple) else value)

    children = dict(block.named_children())
    for name in ("mixing", "attention", "cross"):
        if name in children and not isinstance(children[name], Unmixed):
            yield children[name], output(place(name))
    for path, module in children["ffn"].named_modules(prefix="ffn"):
        if isinstance(module, MixtureOfExperts):
            n_experts = module.router.n_experts
            pre, hidden = place(f"{path}.experts: pre", n_experts), place(f"{path}.experts: hidden", n_experts)
            yield from mixture_hooks(module, pre, hidden, seen)
        elif isinstance(module, MLP):
            yield module.up, output(place(f"{path}: pre"))
            yield module.hidden_dropout, output(place(f"{path}: hidden"))
        elif isinstance(module, GatedMLP):
            yield module.gate_up, output(place(f"{path}: pre"))
            yield module.hidden_dropout, output(place(f"{path}: hidden"))
    yield children["ffn"], output(place("ffn"))
    yield block, output(place("stream"))


def mixture_hooks(
    mixture: MixtureOfExperts, pre: Place, hidden: Place, seen: Activations
) -> Iterator[tuple[nn.Module, Hook]]:
    """The experts see pairs of a token and one of its experts, expert by expert, a token's pairs apart."""
    route: dict[str, Tensor] = {}

    def chosen(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        k = output[1].shape[1]
        route["expert"], order = output[1].flatten().sort(stable=True)
        route["token"] = order // k

    experts = mixture.experts
    yield mixture.router, chosen
    first = experts.up if isinstance(experts, PlainExperts) else experts.gate
    yield first, lambda module, inputs, output: seen.take(pre, output, **route)
    yield experts.down, lambda module, inputs, output: seen.take(hidden, inputs[0], **route)


@torch.no_grad()
def observe(
    model: Transformer, tokens: Tensor, source: Tensor | None = None, shown: int = 0, at_once: int = TOKENS_AT_ONCE
) -> Activations:
    """What flows through the model over tokens (B, T) and their source (B, M), padding left out.

    About `at_once` tokens go through at a time, and of the first row `shown` are kept for the pictures. The model is to
    be in evaluation mode; nothing of it changes.
    """
    seen, padding = Activations(), model.config.padding_idx
    with hooked([*model_hooks(model, seen)]):
        rows = max(1, at_once // tokens.shape[1])
        for first in range(0, len(tokens), rows):
            piece = tokens[first : first + rows]
            read = None if source is None else source[first : first + rows]
            for stack, ids in (("encoder", read), ("decoder", piece)):
                if ids is not None:
                    seen.begin(stack, ids, padding, 0 if first else shown)
            model(piece, source=read)
    return seen


def look(subject: Subject) -> Look:
    """Statistics of every site over a sample, what fires, and the activation functions themselves."""
    tokens, source = subject.tensors(subject.sample() if subject.text is None else subject.row())
    config = subject.config.model
    seen = observe(subject.model, tokens, source, PICTURED)
    firing = {place: tally for place, tally in seen.tallies.items() if place.fires}
    figures = [how_often(firing, config)] if firing else []
    for stack, ids in (("encoder", source), ("decoder", tokens)):
        layers = {place: tally for place, tally in firing.items() if place.stack == stack}
        if ids is not None and layers:
            figures.append(for_which(layers, config, subject.symbols(ids[0, :PICTURED].numpy())))
    kinds = {stack: f"{stack} tokens" if source is not None else "tokens" for stack in seen.tokens}
    return Look(
        f"activations over {' and '.join(f'{count:,} {kinds[stack]}' for stack, count in seen.tokens.items())}",
        "Mean and variance are those of all numbers at a site; a zero is exact, and padding is left out. A unit is dead "
        "where it is zero for every token; all units of an expert that no token chose count as dead. `pre` is what "
        "the activation function is given, of gated kinds the gate; `hidden` is what it gives, of gated kinds times up. "
        "`stream` is the residual stream after the block, and what has no such word is the output of a branch.",
        ["layer and site", "mean", "variance", "zeros", "units", "dead", "dead share"],
        [row(place, tally, config) for place, tally in seen.tallies.items()],
        [*figures, *curves.figures()],
    )


def row(place: Place, tally: Tally, config: ModelConfig) -> tuple[str, ...]:
    units, dead = tally.nonzero.numel(), tally.dead
    zeros = share(tally.zeros, tally.count)
    moments = f"{tally.mean:.3g}", f"{tally.variance:.3g}"
    return f"{layer_name(place, config)} {place.site}", *moments, zeros, f"{units:,}", f"{dead:,}", share(dead, units)


def layer_name(place: Place, config: ModelConfig) -> str:
    return f"{place.stack} {place.layer}" if config.encoder_layers else f"{place.layer}"


def share(part: int, whole: int) -> str:
    """A percentage in which neither few nor almost all look like none or all."""
    shown = f"{100 * part / max(1, whole):.1f}%"
    return {"0.0%": "<0.1%" if part else "0%", "100.0%": ">99.9%" if part < whole else "100%"}.get(shown, shown)


def activation_name(place: Place, config: ModelConfig) -> str:
    """`3 relu`, and where a layer has several, which one: `3 moe experts`."""
    layers = config.encoder_layers if place.stack == "encoder" else config.n_layers
    kind = recipes_by_layer(config.ffn, layers)[place.layer].name
    module = place.site.split(":")[0].removeprefix("ffn").replace(".", " ")
    return f"{layer_name(place, config)} {kind}{module}"


def how_often(layers: dict[Place, Tally], config: ModelConfig) -> Figure:
    """Layers x units: for which share of the tokens a unit fires, each layer's units in order."""
    from matplotlib.colors import LinearSegmentedColormap

    # nan, of an expert not chosen, is sorted to the end
    shares = [(tally.positive / tally.seen).flatten().sort().values.numpy() for tally in layers.values()]
    strips = [units[evenly(len(units), 400)] for units in shares]
    names = [activation_name(place, config) for place in layers]
    figure, axes = canvas(0.95 + 0.24 * len(strips), "often", width=7.5)
    shades = LinearSegmentedColormap.from_list("often", [COLOURS[0], "#eef4fa"]).with_extremes(under="black", bad=GREY)
    height = len(strips)
    image = axes.imshow(
        strips, cmap=shades, vmin=1e-9, vmax=1, aspect="auto", interpolation="none", extent=(0, 100, height, 0)
    )
    axes.hlines(range(1, height), 0, 100, color="white", linewidth=2)
    axes.set_yticks([number + 0.5 for number in range(height)], names)
    for number, tally in enumerate(layers.values()):
        never = int((tally.positive == 0).sum())
        axes.annotate(f"{never:,} never", (100, number + 0.5), (6, 0), textcoords="offset points", va="center")
    axes.set_xlabel("units of the layer, in order, %")
    axes.tick_params(axis="y", length=0)
    scale = figure.colorbar(image, ax=axes, location="top", shrink=0.6, aspect=40)
    scale.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25", "50", "75", "100 % of tokens"])
    return Figure(
        "How often each hidden unit fires",
        svg(figure, "often"),
        "A unit fires for a token where what its activation is given (of gated kinds the gate) is positive: under relu, "
        "relu2 and reglu it is zero for every other token. Black: for no token; under these three the unit is then dead, "
        "and no gradient reaches it. Grey: units of an expert that no token chose.",
    )


def for_which(layers: dict[Place, Tally], config: ModelConfig, symbols: list[str]) -> Figure:
    """Tokens x units of one row of the sample, for the layers of one stack."""
    from matplotlib.colors import ListedColormap

    (first, tally), lines = next(iter(layers.items())), -(-len(layers) // 2)
    key, tokens = f"which-{first.stack}", len(tally.picture)
    shades = ListedColormap(["black", "white"]).with_extremes(bad=GREY)
    figure, grid = canvases(lines * (0.4 + 0.09 * tokens), key, rows=lines, columns=2, width=7.5)
    panels = [axes for line in grid for axes in line]
    for axes, (place, tally) in zip(panels, layers.items(), strict=False):
        picture = tally.picture.flatten(1)  # (tokens, X F)
        units = picture.shape[1]
        drawn = f"{units:,} units" if units <= UNITS else f"{UNITS} of {units:,} units"
        shown = picture[:, evenly(units, min(units, UNITS))].numpy()
        axes.imshow(shown, cmap=shades, vmin=0, vmax=1, aspect="auto", interpolation="none")
        axes.set_title(f"{activation_name(place, config)}: {drawn}", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks(range(tokens), [symbol[:8] for symbol in symbols[:tokens]], fontsize=6)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(True)
    for axes in panels[len(layers) :]:
        axes.set_axis_off()
    return Figure(
        "Which hidden units fire for which tokens" + (f": the {first.stack}" if config.encoder_layers else ""),
        svg(figure, key),
        "The first tokens of the first row, one per line; a column is a unit. White: it fires. Black: it does not. Grey: "
        "the unit is of an expert that the token did not choose.",
    )


def evenly(count: int, wanted: int) -> np.ndarray:
    """So many places among `count`, the first and the last included."""
    return np.linspace(0, count - 1, wanted).round().astype(int)
