"""`partwise.compare`: a comparison from a script or a notebook."""

from contextlib import nullcontext
from typing import Literal

from partwise.cli.terminal import ComparisonProgress
from partwise.comparison.experiment import Comparison
from partwise.comparison.measures import Measure
from partwise.comparison.runs.comparison import plan_comparison
from partwise.comparison.stats.effect import DEFAULT_MARGIN


def compare(
    preset: str,
    *overrides: str,
    data: str | None = None,
    arms: list[str] | None = None,
    cumulative: bool = False,
    interaction: list[str] | None = None,
    common: list[str] | None = None,
    seeds: int = 5,
    first_seed: int = 0,
    looks: list[int] | None = None,
    metric: Literal["loss", "exact_match", "char_accuracy"] = "loss",
    margin: float = DEFAULT_MARGIN,
    alpha: float = 0.05,
    failure: float | None = None,
    online: bool = False,
    negative_control: str | None = None,
    positive_control: str | None = None,
    tune: str | None = None,
    tune_seeds: int = 4,
    match: Measure | None = None,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    seeds_per_process: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Train a preset and its variants over paired seeds and judge the effect of each change.

    The keywords are the options of `partwise compare`. `overrides` define the second arm, and each string in `arms`, such as
    `"ffn=geglu norm=rmsnorm"`, another one; `common` applies to every arm. `margin` is in the metric's unit: nats per
    token for losses. Results and report are written to `runs/NAME`; the same call resumes the comparison. `imports` name
    files with parts of your own. `progress=False` prints nothing. Raises ConfigError.
    """
    comparison = plan_comparison(
        preset,
        *overrides,
        data=data,
        arms=arms,
        cumulative=cumulative,
        interaction=interaction,
        common=common,
        seeds=seeds,
        first_seed=first_seed,
        looks=looks,
        metric=metric,
        margin=margin,
        alpha=alpha,
        failure=failure,
        online=online,
        negative_control=negative_control,
        positive_control=positive_control,
        tune=tune,
        tune_seeds=tune_seeds,
        match=match,
        name=name,
        imports=imports,
        workers=workers,
        seeds_per_process=seeds_per_process,
    )
    with ComparisonProgress() if progress else nullcontext(lambda comparison: None) as display:
        comparison.run(display)
    return comparison
