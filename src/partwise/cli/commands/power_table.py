"""The power of a comparison from numbers alone: `plan` without a preset, and the tables of `plan`. Imports no torch."""

from collections.abc import Sequence

from partwise.cli.terminal import console, format_duration, table
from partwise.comparison.stats.effect import DEFAULT_MARGIN
from partwise.comparison.stats.noise import Noise, given_noise
from partwise.comparison.stats.power import default_looks
from partwise.comparison.stats.simulated_power import (
    Design,
    detectable_effect,
    one_real_claim,
    seeds_for_effect,
    seeds_for_equivalence,
)
from partwise.config import ConfigError

SEED_COUNTS = (4, 8, 16, 32)


def plan_numbers(
    *,
    claims: int,
    sd: float | None,
    effect: float | None,
    margin: float = DEFAULT_MARGIN,
    alpha: float = 0.05,
    looks: str | None = None,
    protocol: bool,
) -> None:
    """Print the power of a comparison that is known by its numbers. Raises ConfigError without `sd`."""
    if sd is None:
        raise ConfigError(
            "plan without a preset needs --sd, the SD of a difference between two arms at one seed: give both"
        )
    designs = make_designs(parse_looks(looks) if looks else (), protocol, claims, margin, alpha)
    show_power(designs, given_noise(sd), effect)


def parse_looks(text: str) -> tuple[int, ...]:
    """4,8,16 -> (4, 8, 16). Raises ConfigError."""
    try:
        return tuple(int(seeds) for seeds in text.split(","))
    except ValueError:
        raise ConfigError(f"--looks {text}: expected numbers of seeds, such as 4,8,16") from None


def make_designs(looks: Sequence[int], protocol: bool, claims: int, margin: float, alpha: float) -> list[Design]:
    """The design with these looks, or one for each of 4, 8, 16 and 32 seeds, with the looks of `--protocol` if asked for."""
    plans = [tuple(looks)] if looks else [default_looks(n) if protocol else (n,) for n in SEED_COUNTS]
    return [Design(each, claims, margin, alpha) for each in plans]


def show_power(
    designs: Sequence[Design], noise: Noise, effect: float | None, seconds_per_seed: float | None = None
) -> None:
    """Print what each design detects, and the seeds that a goal needs, assuming the upper limit of the noise."""
    first, sd = designs[0], noise.upper_sd
    console.print(noise.sentence, markup=False)
    has_looks = any(len(design.looks) > 1 for design in designs)
    columns = ["seeds", *(["looks"] if has_looks else []), *(["time, at most"] if seconds_per_seed else [])]
    columns += ["MDE", "equal arms: equivalent"]
    if effect:
        columns += [f"{effect:g}: detected", f"{effect:g}: equivalent", *(["pairs used"] if has_looks else [])]
    rows = []
    for design in designs:
        seeds = design.looks[-1]
        cells = [str(seeds), *([", ".join(map(str, design.looks))] if has_looks else [])]
        cells += [format_duration(seeds * seconds_per_seed)] if seconds_per_seed else []
        cells += [f"{detectable_effect(design, sd):.4f}", percent(one_real_claim(design, 0.0, sd).equivalent)]
        if effect:
            rates = one_real_claim(design, effect, sd)
            cells += [percent(rates.better), percent(rates.equivalent), *([f"{rates.pairs:.1f}"] if has_looks else [])]
        rows.append(cells)
    others = "" if first.claims == 1 else f" of {first.claims}, the others without an effect"
    console.print(table(f"one claim{others}; margin ±{first.margin:g}, alpha {first.alpha:g}", columns, rows))
    console.print("MDE: minimum detectable effect, called better or worse in 4 of 5 comparisons", markup=False)
    needed = [f"detecting {effect:g} takes {seeds_for_effect(effect, sd, first):,} seeds"] if effect else []
    needed += [f"calling equal arms equivalent takes {seeds_for_equivalence(sd, first):,}"] if first.margin else []
    if needed:
        console.print(f"judged once, with 80% power: {', and '.join(needed)}", markup=False)


def percent(rate: float) -> str:
    return f"{100 * rate:.0f}%"
