"""`partwise.compare` and `partwise.compare_function`: comparisons from a script or a notebook."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from partwise.any_code.function_comparison import make_function_comparison
from partwise.comparison.experiment import Comparison
from partwise.comparison.measures import Measure
from partwise.comparison.progress import ComparisonProgress
from partwise.comparison.stats.effect import DEFAULT_MARGIN, BaselineDesign
from partwise.config import ConfigError
from partwise.torch_extra import require_torch


def compare(
    preset: str,
    *overrides: str,
    data: str | None = None,
    arms: list[str] | None = None,
    cumulative: bool = False,
    interaction: list[str] | None = None,
    common: list[str] | None = None,
    seeds: int = 5,
    horizons: list[int] | None = None,
    first_seed: int = 0,
    looks: list[int] | None = None,
    design: BaselineDesign = "paired",
    baseline_runs: int = 1,
    metric: str = "loss",
    margin: float = DEFAULT_MARGIN,
    alpha: float = 0.05,
    failure: float | None = None,
    online: bool = False,
    negative_control: str | None = None,
    positive_control: str | None = None,
    tune: str | None = None,
    tune_seeds: int = 4,
    tune_steps: int | None = None,
    tuned_only: bool = False,
    allow_leak: bool = False,
    match: Measure | None = None,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    seeds_per_process: int | None = None,
    processes_per_run: int = 1,
    progress: bool = True,
) -> Comparison:
    """Train a preset and its variants over paired seeds and judge the effect of each change.

    The keywords are the options of `partwise compare`. `overrides` define the second arm, and each string in `arms`, such as
    `"ffn=geglu norm=rmsnorm"`, another one; `common` applies to every arm. `margin` is in the metric's unit: nats per
    token for losses. Results and report are written to `runs/NAME`; the same call resumes the comparison. `imports` name
    files with parts of your own. `progress=False` prints nothing. Returns the comparison, with its `verdicts` by arm, its
    `results` and the path of its `report`. Raises ConfigError.
    """
    if callable(preset):
        raise ConfigError(
            "partwise.compare takes the name of a preset: compare a function by partwise.compare_function"
        )
    require_torch("partwise.compare")
    from partwise.ablation.run_comparison import plan_comparison  # imports torch, which functions may not need

    comparison = plan_comparison(
        preset,
        *overrides,
        data=data,
        arms=arms,
        cumulative=cumulative,
        interaction=interaction,
        common=common,
        seeds=seeds,
        horizons=horizons,
        first_seed=first_seed,
        looks=looks,
        design=design,
        baseline_runs=baseline_runs,
        metric=metric,
        margin=margin,
        alpha=alpha,
        failure=failure,
        online=online,
        negative_control=negative_control,
        positive_control=positive_control,
        tune=tune,
        tune_seeds=tune_seeds,
        tune_steps=tune_steps,
        tuned_only=tuned_only,
        allow_leak=allow_leak,
        match=match,
        name=name,
        imports=imports,
        workers=workers,
        seeds_per_process=seeds_per_process,
        processes_per_run=processes_per_run,
    )
    return run(comparison, progress)


def compare_function(
    train: Callable[..., float],
    arms: Mapping[str, Mapping[str, Any]],
    *,
    margin: float,
    seeds: int = 5,
    first_seed: int = 0,
    looks: Sequence[int] = (),
    design: BaselineDesign = "paired",
    baseline_runs: int = 1,
    metric: str = "value",
    unit: str = "",
    higher_is_better: bool = False,
    alpha: float = 0.05,
    failure: float | None = None,
    online: bool = False,
    name: str | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Call a function of your own over paired seeds, and judge what each change of its arguments bought.

    It is called as `train(seed=seed, report=report, **settings)` for every seed and every arm; `arms` maps an arm's name to
    its settings, the baseline first. It returns the metric, and `report(step, value)` adds a point to a curve. `margin` is
    the largest difference that does not matter, in the metric's unit.

    With `workers`, that many processes import the function from its file; otherwise it runs in this process, one trial after
    the other. A call that raises an exception is a failed trial: it is counted, and the others continue. Results and report
    are written to `runs/NAME`; the same call resumes the comparison. Raises ConfigError.
    """
    comparison = make_function_comparison(
        train,
        arms,
        seeds=seeds,
        first_seed=first_seed,
        looks=looks,
        design=design,
        baseline_runs=baseline_runs,
        margin=margin,
        alpha=alpha,
        failure=failure,
        online=online,
        metric=metric,
        unit=unit,
        higher_is_better=higher_is_better,
        name=name,
        workers=workers,
    )
    return run(comparison, progress)


def run(comparison: Comparison, progress: bool) -> Comparison:
    with ComparisonProgress() if progress else nullcontext(lambda comparison: None) as display:
        comparison.run(display)
    return comparison
