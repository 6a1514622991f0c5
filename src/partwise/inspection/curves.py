"""The activation functions themselves: their curves, their gradients, and how far they move the mean of their input."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from partwise.config import REGISTRY
from partwise.drawing import COLOURS, canvas, canvases, svg
from partwise.inspection.page import Figure
from partwise.parts.feed_forward import Gated, Wide
from partwise.parts.mlp import Activation

BETAS = (0.5, 1.0, 2.0)
"""Drawn of a kind with an option `beta`; of an option with a few values all are, and of any other its own default."""


@dataclass(frozen=True)
class Variant:
    """An activation function as the layers of a kind use it; of gated kinds it is applied to the gate."""

    kind: str
    options: str  # such as `beta=2.0`; empty where the kind has none to choose
    gated: bool
    activation: Activation

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.kind, "gate" if self.gated else "", self.options]))


def variants() -> Iterator[Variant]:
    """The activation of every registered feed-forward that has one and needs no option to be given."""
    for kind, recipe in REGISTRY["ffn"].items():
        if not issubclass(recipe, Wide) or any(field.is_required() for field in recipe.model_fields.values()):
            continue
        choices = choices_of(recipe)
        for values in product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            options = ", ".join(f"{name}={value}" for name, value in chosen.items())
            yield Variant(kind, options, issubclass(recipe, Gated), recipe(**chosen).activation())


def choices_of(recipe: type[Wide]) -> dict[str, tuple[Any, ...]]:
    """The options, beside those of every feed-forward, that make another function of an activation."""
    own = {name: field for name, field in recipe.model_fields.items() if name not in Wide.model_fields}
    choices = {
        name: get_args(field.annotation) for name, field in own.items() if get_origin(field.annotation) is Literal
    }
    return choices | ({"beta": BETAS} if "beta" in own else {})


def curve(activation: Activation, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and f'(x) of points (N,)."""
    x = x.detach().requires_grad_()
    y = activation(x.clone())  # some overwrite what they are given
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gradient


def shifted(activation: Activation, width: int | None = None) -> tuple[float, float]:
    """Mean and variance of f(x), where x has mean 0 and variance 1: a bias shift is this mean.

    Without a width x is normal, as behind a wide layer. With one, from 3 on, x is one of `width` independent normal
    numbers, standardised together as LayerNorm does: (x_1, ..., x_n) is uniform on the sphere of radius sqrt(n) whose
    sum is 0, so that x = sqrt(n - 1) cos(phi) with a density of phi in [0, pi] proportional to sin(phi)^(n - 3). For
    relu that gives sqrt(2) / pi = 0.4502 at n = 3, and 1 / sqrt(2 pi) = 0.3989 as n grows. Why it matters: Clevert et
    al. 2015, arXiv:1511.07289. By Gauss-Legendre quadrature in float64, in pieces between which a function may bend.
    """
    x, weights = normal_points() if width is None else standardised_points(width)
    with torch.no_grad():
        y = activation(torch.from_numpy(x).clone()).numpy()
    mean = float(weights @ y)
    return mean, float(weights @ (y - mean) ** 2)


def normal_points() -> tuple[np.ndarray, np.ndarray]:
    """Points and weights, each (N,), of a mean over the unit normal distribution."""
    x, weights = points(-12, 12)
    weights = weights * np.exp(-(x**2) / 2)
    return x, weights / weights.sum()


def standardised_points(width: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for one of so many standardised normal numbers."""
    phi, weights = points(0, np.pi)
    weights = weights * np.sin(phi) ** (width - 3)
    return np.sqrt(width - 1) * np.cos(phi), weights / weights.sum()


def points(low: float, high: float, pieces: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre points and weights, each (N,), of as many equal pieces; none lies across the middle."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = (high - low) / pieces / 2
    middles = low + half * (2 * np.arange(pieces) + 1)
    return (middles[:, None] + half * nodes).reshape(-1), np.tile(half * weights, pieces)


def figures() -> list[Figure]:
    """Curves with gradients, and bias shifts, of all activation functions; they depend on no model."""
    return [curves_figure(), shift_figure()]


def curves_figure() -> Figure:
    kinds: dict[str, list[Variant]] = {}
    for variant in variants():
        kinds.setdefault(variant.kind, []).append(variant)
    x = torch.linspace(-4, 4, 161, dtype=torch.float64)
    columns = 5
    lines = -(-len(kinds) // columns)
    figure, grid = canvases(1.8 * lines, "curves", rows=lines, columns=columns, width=7.5)
    panels = [axes for line in grid for axes in line]
    for axes, (kind, members) in zip(panels, kinds.items(), strict=False):
        axes.axhline(0, color="#dadce0", linewidth=0.8)
        axes.axvline(0, color="#dadce0", linewidth=0.8)
        for colour, variant in zip(COLOURS, members, strict=False):
            y, gradient = curve(variant.activation, x)
            axes.plot(x, y, color=colour, label=variant.options or None)
            axes.plot(x, gradient, color=colour, linestyle=(0, (3, 1.5)), linewidth=1)
        axes.set_title(f"{kind}, its gate" if members[0].gated else kind, fontsize=9)
        axes.set_xlim(-4, 4)
        axes.set_xticks([-4, 0, 4])
        axes.set_ylim(-1.5, 6)
        axes.set_yticks([0, 2, 4])
        if len(members) > 1:
            axes.legend(fontsize=6, frameon=False, loc="upper left", handlelength=1, borderpad=0)
    for axes in panels[len(kinds) :]:
        axes.set_axis_off()
    return Figure(
        "The activation functions",
        svg(figure, "curves"),
        "Solid: the function. Dashed: its gradient. Of a gated kind it is applied to the gate, and then multiplied by up.",
    )


def shift_figure() -> Figure:
    rows = [(variant.name, shifted(variant.activation), shifted(variant.activation, 3)) for variant in variants()]
    longest = max(0.0, *(mean for _, *both in rows for mean, _ in both))
    figure, axes = canvas(1 + 0.24 * len(rows), "shift", width=7.5)
    places = list(range(len(rows)))
    axes.barh(places, [wide[0] for _, wide, _ in rows], color=COLOURS[0], height=0.6)
    axes.plot([narrow[0] for _, _, narrow in rows], places, "o", color=COLOURS[1], markersize=5)
    for number, (column, heading) in enumerate(((1.12, "normal input"), (1.58, "3 standardised"))):
        axes.annotate(heading, (column * longest, -1), va="center", color=COLOURS[number], weight="bold")
        for place, (_, *moments) in enumerate(rows):
            mean, variance = moments[number]
            text = f"{mean if abs(mean) > 5e-5 else 0:.4f} ({variance:.3f})"  # never "-0.0000"
            axes.annotate(text, (column * longest, place), va="center")
    axes.set_xlim(right=2.02 * longest)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= longest])
    axes.set_yticks(places, [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -1.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("mean of the output", loc="left")
    return Figure(
        "Bias shift: the mean of the output where the input has mean 0 and variance 1",
        svg(figure, "shift"),
        "What an activation gives, its mean and in brackets its variance, for a normal input, as in a wide layer (bars), "
        "and for 3 normal numbers standardised together, as behind LayerNorm of width 3 (dots). There relu "
        "turns mean 0 into sqrt(2) / pi = 0.4502 on average, and any one row into 0.408 to 0.471; in a wide layer into "
        "1 / sqrt(2 pi) = 0.3989. Of gated kinds this is the gate: times an independent up of mean 0, the product has "
        "mean 0 whatever the gate.",
    )
