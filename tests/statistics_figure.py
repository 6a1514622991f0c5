"""The figure of docs/statistics.md, from its table of false claims: `make generate` draws it."""

from partwise.plots.plotting import COLORS, new_figure, to_svg

HEAD = "| looks (seeds) | arms | noise | false claims |"
LOOKS = "4, 8, 16"
PROMISED = 5.0


def false_claims(page: str) -> dict[str, dict[int, float]]:
    """Noise -> number of arms -> percentage of comparisons with a false claim, at the default looks."""
    found: dict[str, dict[int, float]] = {}
    table = page.partition(HEAD)[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        looks, arms, noise, rate, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        if looks == LOOKS:
            found.setdefault(noise, {})[int(arms)] = float(rate.split()[0])
    return found


def draw(page: str) -> str:
    """A line per kind of noise, a dot per number of arms, and the promise of 5%, as SVG."""
    rates = false_claims(page)
    counts = sorted({arms for each in rates.values() for arms in each})
    figure, axes = new_figure(0.9 + 0.28 * len(rates), "errors", width=8.2)
    for place, each in enumerate(reversed(rates.values())):
        axes.plot([min(each.values()), max(each.values())], [place, place], color="#9aa0a6", linewidth=1)
        for color, arms in zip(COLORS, counts, strict=False):
            if arms in each:
                axes.plot(each[arms], place, "o", color=color, ms=6)
    for color, arms in zip(COLORS, counts, strict=False):
        axes.plot([], [], "o", color=color, label=f"{arms} arm{'s' * (arms > 1)}")
    axes.axvline(PROMISED, color="#333333", linewidth=0.8, linestyle="--", label="promised: at most 5%")
    axes.set_yticks(range(len(rates)), [*reversed(rates)])
    axes.set_xlim(left=0)
    axes.set_xlabel("comparisons of equal arms with a false claim, %")
    figure.legend(loc="outside upper left", ncols=len(counts) + 1, frameon=False)
    figure.set_facecolor("white")  # a file of its own has no page behind it, and may be read in a dark theme
    attributes = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="820"'
    return to_svg(figure, "errors").replace("<svg ", f"<svg {attributes} ", 1)
