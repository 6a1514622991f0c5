"""The figures of each difference: every seed, at the end and over training."""

from collections.abc import Iterator

from partwise.comparison.report.cells import ADJUSTED, confidence
from partwise.comparison.results import Results
from partwise.plots.blocks import Cell, Figure
from partwise.plots.cells import capitalize_first
from partwise.plots.colors import VERDICT_COLORS


def difference_figures(results: Results) -> Iterator[Figure]:
    """Every seed and the mean of each difference."""
    from partwise.comparison.report.figures import draw_differences

    protocol = results.protocol
    for index, effect in enumerate(results.effects):
        color = VERDICT_COLORS[effect.verdict or "none"]
        svg = draw_differences(effect, color, protocol.margin, protocol.lower_is_better, f"d{index}")
        if svg:
            note = f"{capitalize_first(protocol.metric_with_unit)}. Each dot is one seed, trained once with each arm"
            note += "; the diamond is the mean" if effect.mean is not None else ""
            note += f" with its {confidence(effect)} interval" if effect.low is not None else ""
            note += f"; the band is the margin of ±{protocol.margin:g}." if protocol.margin else "."
            rows: list[list[Cell]] = [
                [f"seed {seed}", difference, None, None]
                for seed, difference in zip(effect.seeds, effect.differences, strict=True)
                if difference is not None
            ]
            if effect.mean is not None:
                rows.append(["mean", effect.mean, effect.low, effect.high])
            columns = ["", "difference", "low", "high"]
            yield Figure(f"{effect.arm} minus {effect.against}", svg, note, columns=columns, rows=rows)


def over_time_figures(results: Results) -> Iterator[Figure]:
    """Every seed of each difference over training."""
    from partwise.comparison.report.figures import draw_over_time

    for index, claim in enumerate(results.claims):
        effect = claim.effect
        svg = draw_over_time(claim, VERDICT_COLORS[effect.verdict or "none"], results.protocol.margin, f"o{index}")
        if svg:
            note = "One thin line per seed"
            note += ", the mean in bold with its interval" if effect.verdict else ""
            note += ". The verdict is for the last step only; the earlier steps are descriptive."
            note += f" {ADJUSTED}" if effect.verdict and effect.n_comparisons > 1 else ""
            rows: list[list[Cell]] = [
                [f"seed {seed}", step, difference, None, None]
                for seed, line in zip(effect.seeds, claim.differences_over_training, strict=True)
                for step, difference in line
            ]
            if effect.verdict:
                rows += [
                    ["mean", point.step, point.mean, point.low, point.high] for point in claim.effect_over_training
                ]
            columns = ["", "step", "difference", "low", "high"]
            yield Figure(f"{effect.arm} minus {effect.against}, over training", svg, note, columns=columns, rows=rows)
