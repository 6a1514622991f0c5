"""The registered activation functions: curves, gradients and bias shift."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from partwise.config import REGISTRY
from partwise.parts.feed_forward.dense import FeedForwardOptions, Gated
from partwise.plots.drawing import draw
from partwise.plots.page import PageFigure
from partwise.plots.plotting import COLORS, new_figure, new_subplots

BETAS = (0.5, 1.0, 2.0)
"""Values shown for an option `beta`. Options with a fixed set of values show all of them; others show their default."""


@dataclass(frozen=True)
class Variant:
    """An activation function with its options; gated feed-forwards apply it to the gate."""

    kind: str
    options: str  # e.g. `beta=2.0`; empty without options
    gated: bool
    activation: Callable[[Tensor], Tensor]

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.kind, "gate" if self.gated else "", self.options]))


def iter_variants() -> Iterator[Variant]:
    """The activation functions of all registered feed-forwards that have one and no required option."""
    for kind, recipe in REGISTRY["ffn"].items():
        if not issubclass(recipe, FeedForwardOptions) or any(
            field.is_required() for field in recipe.model_fields.values()
        ):
            continue
        choices = option_values(recipe)
        for values in product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            options = ", ".join(f"{name}={value}" for name, value in chosen.items())
            yield Variant(kind, options, issubclass(recipe, Gated), recipe(**chosen).activation().function)


def option_values(recipe: type[FeedForwardOptions]) -> dict[str, tuple[Any, ...]]:
    """The options that change the activation function, with the values to show."""
    own = {name: field for name, field in recipe.model_fields.items() if name not in FeedForwardOptions.model_fields}
    choices = {
        name: get_args(field.annotation) for name, field in own.items() if get_origin(field.annotation) is Literal
    }
    return choices | ({"beta": BETAS} if "beta" in own else {})


def value_and_gradient(activation: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and f'(x) for points (N,)."""
    x = x.detach().requires_grad_()
    y = activation(x.clone())  # some work in place
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gradient


def output_moments(activation: Callable[[Tensor], Tensor], width: int | None = None) -> tuple[float, float]:
    """Mean and variance of f(x) for x with mean 0 and variance 1. The mean is the bias shift.

    Without `width`, x is normal, as in a wide layer. With `width` >= 3, x is one of `width` independent normal numbers
    standardized together, as by LayerNorm: (x_1, ..., x_n) is uniform on the sphere of radius sqrt(n) with sum 0, so
    x = sqrt(n - 1) cos(phi), where phi in [0, pi] has density proportional to sin(phi)^(n - 3). ReLU gives sqrt(2) / pi
    = 0.4502 at n = 3, and approaches 1 / sqrt(2 pi) = 0.3989 as n grows. Why it matters: Clevert et al. 2015,
    arXiv:1511.07289. Computed in float64 by Gauss-Legendre quadrature with a subinterval border at the kink, x = 0.
    """
    x, weights = normal_quadrature() if width is None else standardized_quadrature(width)
    with torch.no_grad():
        y = activation(torch.from_numpy(x).clone()).numpy()
    mean = float(weights @ y)
    return mean, float(weights @ (y - mean) ** 2)


def normal_quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights, each (N,), of an expectation over the standard normal distribution."""
    x, weights = gauss_legendre(-12, 12)
    weights = weights * np.exp(-(x**2) / 2)
    return x, weights / weights.sum()


def standardized_quadrature(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights, each (N,), of an expectation over one of `width` normal numbers standardized together."""
    phi, weights = gauss_legendre(0, np.pi)
    weights = weights * np.sin(phi) ** (width - 3)
    return np.sqrt(width - 1) * np.cos(phi), weights / weights.sum()


def gauss_legendre(low: float, high: float, intervals: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights, each (N,), on equal subintervals; the midpoint is a border of two of them."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half_width = (high - low) / intervals / 2
    centers = low + half_width * (2 * np.arange(intervals) + 1)
    return (centers[:, None] + half_width * nodes).reshape(-1), np.tile(half_width * weights, intervals)


def figures() -> list[PageFigure]:
    """Curves with gradients, and bias shifts, of all activation functions; independent of any model."""
    return [curves_figure(), bias_shift_figure()]


def curves_figure() -> PageFigure:
    kinds: dict[str, list[Variant]] = {}
    for variant in iter_variants():
        kinds.setdefault(variant.kind, []).append(variant)
    x = torch.linspace(-4, 4, 161, dtype=torch.float64)
    columns = 5
    rows = -(-len(kinds) // columns)
    figure, grid = new_subplots(1.8 * rows, "curves", rows=rows, columns=columns, width=7.5)
    panels = [axes for row in grid for axes in row]
    for axes, (kind, members) in zip(panels, kinds.items(), strict=False):
        axes.axhline(0, color="#dadce0", linewidth=0.8)
        axes.axvline(0, color="#dadce0", linewidth=0.8)
        for color, variant in zip(COLORS, members, strict=False):
            y, gradient = value_and_gradient(variant.activation, x)
            axes.plot(x, y, color=color, label=variant.options or None)
            axes.plot(x, gradient, color=color, linestyle=(0, (3, 1.5)), linewidth=1)
        axes.set_title(f"{kind} (gate)" if members[0].gated else kind, fontsize=9)
        axes.set_xlim(-4, 4)
        axes.set_xticks([-4, 0, 4])
        axes.set_ylim(-1.5, 6)
        axes.set_yticks([0, 2, 4])
        if len(members) > 1:
            axes.legend(fontsize=6, frameon=False, loc="upper left", handlelength=1, borderpad=0)
    for axes in panels[len(kinds) :]:
        axes.set_axis_off()
    return PageFigure(
        "Activation functions",
        draw(figure, "curves"),
        "Solid: the function. Dashed: its gradient. Gated variants apply it to the gate and multiply the result by the up "
        "projection.",
    )


def bias_shift_figure() -> PageFigure:
    rows = [
        (variant.name, output_moments(variant.activation), output_moments(variant.activation, 3))
        for variant in iter_variants()
    ]
    longest = max(0.0, *(mean for _, *both in rows for mean, _ in both))
    figure, axes = new_figure(1 + 0.24 * len(rows), "shift", width=7.5)
    positions = list(range(len(rows)))
    axes.barh(positions, [wide[0] for _, wide, _ in rows], color=COLORS[0], height=0.6)
    axes.plot([narrow[0] for _, _, narrow in rows], positions, "o", color=COLORS[1], markersize=5)
    for number, (column, heading) in enumerate(((1.12, "normal input"), (1.58, "3 standardized"))):
        axes.annotate(heading, (column * longest, -1), va="center", color=COLORS[number], weight="bold")
        for position, (_, *moments) in enumerate(rows):
            mean, variance = moments[number]
            text = f"{mean if abs(mean) > 5e-5 else 0:.4f} ({variance:.3f})"  # never "-0.0000"
            axes.annotate(text, (column * longest, position), va="center")
    axes.set_xlim(right=2.02 * longest)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= longest])
    axes.set_yticks(positions, [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -1.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("mean of the output", loc="left")
    return PageFigure(
        "Bias shift: mean output for an input with mean 0 and variance 1",
        draw(figure, "shift"),
        "Mean of the activation's output, with its variance in parentheses, for a normal input, as in a wide layer (bars), "
        "and for 3 normal numbers standardized together, as after a LayerNorm of width 3 (dots). After such a LayerNorm, "
        "ReLU shifts the mean from 0 to sqrt(2) / pi = 0.4502 on average, and to between 0.408 and 0.471 for a single row; "
        "in a wide layer, to 1 / sqrt(2 pi) = 0.3989. For gated variants the values are those of the gate: multiplied by an "
        "independent up projection with mean 0, the product has mean 0 for any gate.",
    )
