"""Verdicts for existing values: judge every arm against a baseline, and write the result as plain text."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.methods import find_method, newest_method
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_p, format_percent
from partwise.comparison.stats.power import minimum_detectable_effect
from partwise.comparison.stats.protocol import Claim, Rules, first_seeds
from partwise.comparison.stats.samples import pooled_sd
from partwise.comparison.stats.verdict_text import details, explanations, headline, seed_count
from partwise.config import ConfigError, did_you_mean


def judge_arms(
    values: Mapping[str, Mapping[int, float]], rules: Rules, baseline: str | None = None, judged: int | None = None
) -> tuple[list[Effect], list[Effect]]:
    """Judge every arm against `baseline` (default: the first arm), all together.

    If an earlier verdict used the first `judged` seeds in ascending order, these give the verdicts, and the second list has
    exploratory estimates from all seeds; otherwise it is empty. Raises ConfigError for an unknown baseline or an invalid
    `judged`, and whatever `Rules.judge` raises.
    """
    against = next(iter(values)) if baseline is None else baseline
    if against not in values:
        raise ConfigError(f"unknown baseline {against!r}{did_you_mean(against, values)}")
    claims = [Claim(arm, against) for arm in values if arm != against]
    if judged is None:
        return rules.judge(values, claims), []
    seeds = set().union(*values.values())
    if not 2 <= judged <= len(seeds):
        raise ConfigError(
            f"judged={judged}: expected the number of seeds of an earlier verdict, from 2 to {len(seeds)}"
        )
    return rules.judge(first_seeds(values, judged), claims), rules.explore(values, claims) if judged < len(
        seeds
    ) else []


def render_verdicts(
    effects: Sequence[Effect], values: Mapping[str, Mapping[int, float]], exploratory: Sequence[Effect] = ()
) -> str:
    """Plain text: each verdict in two lines, a table of the differences from the baseline, one of the arms, and details.

    `exploratory` are estimates from more seeds than the verdicts used.
    """
    heads = "\n".join("\n  ".join(headline(effect)) for effect in effects)
    sentences = [*details(effects), *(effect.sentence for effect in exploratory)]
    rest = "\n".join(["Details", *sentences, *notes(effects, values)])
    return "\n\n".join([heads, *map(align, tables(effects, values)), rest]) + "\n"


def tables(effects: Sequence[Effect], values: Mapping[str, Mapping[int, float]]) -> list[list[list[str]]]:
    """The rows of the table of the differences and of the table of the arms, each with its head first."""
    return [_differences_table(effects), _arms_table(effects, values)]


def _arms_table(effects: Sequence[Effect], values: Mapping[str, Mapping[int, float]]) -> list[list[str]]:
    first = effects[0]
    rows = [["arm", "seeds", "mean", "SD", "failed"]]
    for arm, runs in values.items():
        failed = sum(has_failed(value, first.failure, first.lower_is_better) for value in runs.values())
        row = [f"{arm} (baseline)" if arm == first.against else arm, seed_count(arm, len(runs), effects)]
        sd = None if failed else pooled_sd([list(runs.values())])
        digits = choose_decimals(sd or 0.0, ())
        row += ["-" if failed else format_number(math.fsum(runs.values()) / len(runs), digits)]
        rows.append([*row, "-" if sd is None else format_number(sd, digits), str(failed)])
    if all(row[-1] == "0" for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    return rows


def _differences_table(effects: Sequence[Effect]) -> list[list[str]]:
    """One row per comparison; if there are several, with the adjusted p."""
    rows = [["difference", "n", "mean", "interval", "r", "p", "p sign flip", "p adjusted", "verdict"]]
    for e in effects:
        row = [f"{e.arm} - {e.against}", str(e.n) if e.paired else f"{e.n_arm}, {e.n_against}"]
        if e.mean is None or e.low is None or e.high is None:
            row += ["-" if e.mean is None else format_number(e.mean, 4), "-", "-"]
        else:
            digits = choose_decimals((e.high - e.low) / 2, (e.low, e.high), e.margin)
            bounds = f"{format_number(e.low, digits)} to {format_number(e.high, digits)}"
            row += [format_number(e.mean, digits), f"{bounds} ({format_percent(e.alpha, complement=True)})"]
            row += ["-" if e.correlation is None else f"{e.correlation:.2f}"]
        ps = (e.p_failures if e.failed else e.p, e.p_sign_flip, e.p_adjusted)
        row += ["-" if p is None else format_p(p, e.total_alpha) for p in ps]
        rows.append([*row, e.verdict or "no verdict"])
    if len(effects) < 2:
        rows = [row[:7] + row[8:] for row in rows]
    return rows


def align(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to equal terminal width: the first left-aligned, the others right-aligned."""
    columns = []
    for i, column in enumerate(zip(*rows, strict=True)):
        widths = [len(cell) if cell.isascii() else cell_len(cell) for cell in column]
        widest = max(widths)
        pads = [" " * (widest - width) for width in widths]
        columns.append([cell + pad if i == 0 else pad + cell for cell, pad in zip(column, pads, strict=True)])
    return "\n".join(map("  ".join, zip(*columns, strict=True)))


def notes(effects: Sequence[Effect], values: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """Context for the verdicts: seed SD, minimum detectable effect, multiple comparisons, and warnings."""
    first = effects[0]
    complete = [
        list(runs.values())
        for runs in values.values()
        if not any(has_failed(value, first.failure, first.lower_is_better) for value in runs.values())
    ]
    yield from explanations(effects)
    pairs = [effect for effect in effects if effect.paired and effect.sd_difference is not None]
    sd = pooled_sd(complete)
    if sd is not None:
        seed_sd = format_number(sd, choose_decimals(sd, ()))
        yield f"Seed SD, pooled over {len(complete)} arm{'s' if len(complete) > 1 else ''}: {seed_sd}."
    if any(effect.sd_difference for effect in pairs):
        n = min(effect.n for effect in pairs)
        sd_run = math.hypot(*(e.sd_difference or 0.0 for e in pairs)) / math.sqrt(2 * len(pairs))
        detectable = minimum_detectable_effect(sd_run, n, alpha=first.total_alpha / first.n_comparisons)
        yield (
            f"Minimum detectable effect of {n} pairs at 80% power: "
            f"{format_number(detectable, choose_decimals(detectable, ()))}; smaller differences are likely to be missed."
        )
    for effect in effects:
        if effect.df is not None and math.isinf(effect.df) and effect.mean is not None:
            scaled = abs(effect.mean) / math.sqrt(1 / effect.n_arm + 1 / effect.n_against)
            yield (
                f"{effect.arm}: with a known SD of one run, the difference over sqrt(1/n + 1/n) is "
                f"{format_number(scaled, 4)}, which rules such as modded-nanogpt's compare with a threshold "
                "(0.004 at an SD of 0.0013)."
            )
    if len(effects) > 1:
        yield f"{len(effects)} comparisons with {first.against}: replicate a winner on fresh seeds."
    for warning in find_method(newest_method()).warnings(effects):
        yield f"Warning: {warning}"
