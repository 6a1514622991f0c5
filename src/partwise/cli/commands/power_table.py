"""The power of a comparison from numbers alone: `plan` without a preset, and the tables of `plan`. Imports no torch."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partwise.cli.terminal import console, format_duration, print_json, table
from partwise.comparison.design.plan import Plan
from partwise.comparison.stats.cheapest_design import design_runs
from partwise.comparison.stats.effect import DEFAULT_MARGIN
from partwise.comparison.stats.methods import newest_method
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

PROTOCOL_SEEDS = 16
"""Seeds of a comparison with planned looks, where --seeds is not given."""


@dataclass(frozen=True)
class TrialTime:
    """The seconds of one trial, and how many trials run at a time."""

    seconds: float
    arms: int
    workers: int = 1
    """The number of trials that run at a time on one machine."""
    machines: int = 1

    def of(self, seeds: int) -> float:
        """The seconds of all trials; those that are left over for the last round take as long as the others."""
        return math.ceil(self.arms * seeds / (self.workers * self.machines)) * self.seconds


def plan_numbers(
    *,
    claims: int,
    sd: float | None,
    effect: float | None,
    margin: float = DEFAULT_MARGIN,
    alpha: float = 0.05,
    looks: str | None = None,
    protocol: bool,
    as_json: bool = False,
) -> None:
    """Print the power of a comparison that is known by its numbers. Raises ConfigError without `sd`."""
    if sd is None:
        raise ConfigError(
            "plan without a preset needs --sd, the SD of the difference between two arms trained on the same seed, as in "
            "--sd 0.01"
        )
    designs = make_designs(parse_looks(looks) if looks else (), protocol, claims, margin, alpha, newest_method())
    show_power(compute_power(designs, given_noise(sd), effect), as_json)


def planned_looks(options: Mapping[str, Any], protocol: bool) -> tuple[int, ...]:
    """The looks that `--looks` or `--protocol` plan; none without them. Raises ConfigError for --looks beside --seeds."""
    if "looks" not in options:
        return default_looks(options.get("seeds", PROTOCOL_SEEDS)) if protocol else ()
    if "seeds" in options:
        raise ConfigError(
            f"--seeds {options['seeds']} --looks {options['looks']}: give only one; the last look sets the seeds"
        )
    return parse_looks(options["looks"])


def parse_looks(text: str) -> tuple[int, ...]:
    """4,8,16 -> (4, 8, 16). Raises ConfigError."""
    return parse_numbers("--looks", text, "numbers of seeds, such as 4,8,16")


def parse_numbers(flag: str, text: str, expected: str) -> tuple[int, ...]:
    """4,8,16 -> (4, 8, 16). Raises ConfigError."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} {text}: expected {expected}") from None


def make_designs(
    looks: Sequence[int], protocol: bool, claims: int, margin: float, alpha: float, method: int
) -> list[Design]:
    """The design with these looks, or one for each of 4, 8, 16 and 32 seeds, with the looks of `--protocol` if asked for."""
    plans = [tuple(looks)] if looks else [default_looks(n) if protocol else (n,) for n in SEED_COUNTS]
    return [Design(each, claims, margin, alpha, method=method) for each in plans]


def compute_power(
    designs: Sequence[Design], noise: Noise, effect: float | None, time: TrialTime | None = None
) -> dict[str, Any]:
    """The detectable effect of each design, and the seeds that a goal needs, at the upper limit of the noise; JSON values.

    `seconds` is the time that a design takes at most, None if the time of a trial is unknown.
    """
    first, sd = designs[0], noise.upper_sd
    rows = []
    for design in designs:
        rates = one_real_claim(design, effect, sd) if effect else None
        rows.append(
            {
                "seeds": design.looks[-1],
                "looks": list(design.looks),
                "seconds": time.of(design.looks[-1]) if time else None,
                "minimum_detectable_effect": detectable_effect(design, sd),
                "equivalent_if_equal": one_real_claim(design, 0.0, sd).equivalent,
                "detected": rates.better if rates else None,
                "equivalent": rates.equivalent if rates else None,
                "pairs": rates.pairs if rates else None,
            }
        )
    r, shown = noise.correlation, effect or detectable_effect(designs[-1], sd)
    runs = [] if r is None or r >= 1 else design_runs(shown, sd, r, first.claims, first.alpha)
    return {
        "claims": first.claims,
        "machines": time.machines if time else None,
        "margin": first.margin,
        "alpha": first.alpha,
        "sd": sd,
        "noise": noise.sentence,
        "effect": effect or None,
        "designs": rows,
        "seeds_for_effect": seeds_for_effect(effect, sd, first) if effect else None,
        "seeds_for_equivalence": seeds_for_equivalence(sd, first) if first.margin else None,
        "correlation": r,
        "design_effect": shown if runs else None,
        "runs_by_design": [{**dataclasses.asdict(each), "flags": each.flags} for each in runs],
    }


def show_power(power: Mapping[str, Any], as_json: bool = False) -> None:
    """Print the result of `compute_power`, as JSON or as a table and sentences."""
    if as_json:
        print_json(power)
        return
    console.print(power["noise"], markup=False)
    effect, designs = power["effect"], power["designs"]
    has_looks = any(len(design["looks"]) > 1 for design in designs)
    has_times = designs[0]["seconds"] is not None
    columns = ["seeds", *(["looks"] if has_looks else []), *([time_heading(power["machines"])] if has_times else [])]
    columns += ["MDE", "equivalent if equal"]
    if effect:
        columns += [f"detected if {effect:g}", f"equivalent if {effect:g}", *(["pairs used"] if has_looks else [])]
    rows = []
    for design in designs:
        cells = [str(design["seeds"]), *([", ".join(map(str, design["looks"]))] if has_looks else [])]
        cells += [format_duration(design["seconds"])] if has_times else []
        cells += [f"{design['minimum_detectable_effect']:.4f}", percent(design["equivalent_if_equal"])]
        if effect:
            cells += [percent(design["detected"]), percent(design["equivalent"])]
            cells += [f"{design['pairs']:.1f}"] if has_looks else []
        rows.append(cells)
    others = "" if power["claims"] == 1 else f" of {power['claims']}, the others without an effect"
    title = f"one claim{others}; margin ±{power['margin']:g}, alpha {power['alpha']:g}"
    console.print(table(title, columns, rows))
    console.print("MDE: minimum detectable effect, called better or worse in 4 of 5 comparisons", markup=False)
    console.print("equivalent if equal: how often arms without a difference are called equivalent", markup=False)
    needed = [f"detecting {effect:g} takes {power['seeds_for_effect']:,} seeds"] if effect else []
    if power["seeds_for_equivalence"] is not None:
        needed.append(f"calling equal arms equivalent takes {power['seeds_for_equivalence']:,} seeds")
    if needed:
        console.print(f"judged once, with 80% power: {', and '.join(needed)}", markup=False)
    if power["runs_by_design"]:
        console.print(design_sentence(power), markup=False, soft_wrap=True)


def design_sentence(power: Mapping[str, Any]) -> str:
    """Whether pairing pays, and the design with the fewest runs beside the paired one."""
    paired, *others = sorted(power["runs_by_design"], key=lambda each: each["design"] != "paired")
    best = min(others, key=lambda each: each["runs"])
    start = (
        f"paired runs correlate with r = {power['correlation']:.2f}, and showing {power['design_effect']:.4g} takes "
    )
    start += f"{paired['runs']:,} runs, baseline included ({paired['flags']})"
    if best["runs"] >= paired["runs"]:
        return f"{start}: pairing pays"
    return f"{start}; fewest are {best['runs']:,} with {best['flags']}"


def power_sentences(plan: Plan, noise: Noise) -> list[str]:
    """The detectable effect of a plan's seeds, and the assumed noise."""
    design = Design(plan.looks, plan.n_claims, plan.rules.margin, plan.rules.alpha, method=plan.rules.method)
    one = "" if design.claims == 1 else f" for one real effect among {design.claims} claims"
    effect, equal = detectable_effect(design, noise.upper_sd), one_real_claim(design, 0.0, noise.upper_sd).equivalent
    unit = f" {plan.rules.unit}" if plan.rules.unit else ""
    return [
        f"minimum detectable effect of {plan.seeds} seeds at 80% power{one}: {effect:.4f}{unit}; equal arms are called "
        f"equivalent with a probability of {percent(equal)}",
        noise.sentence,
    ]


def time_heading(machines: int) -> str:
    return "time, at most" if machines == 1 else f"time on {machines} machines, at most"


def percent(rate: float) -> str:
    return f"{100 * rate:.0f}%"
