"""`partwise.verdict`: existing values of any origin, and their verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.protocol import Rules
from partwise.comparison.stats.run_curves import is_wandb_export, read_tensorboard, read_wandb, values_of_curves
from partwise.comparison.stats.value_files import check_values, read_frame, read_table
from partwise.comparison.stats.value_verdicts import judge_arms, render_verdicts
from partwise.config import ConfigError

Values = Mapping[str, Mapping[int, float]]
"""arm -> seed -> value."""


@dataclass(frozen=True)
class Verdicts:
    """The effect of every arm against the baseline; as text, the tables and sentences that `partwise verdict` prints."""

    effects: tuple[Effect, ...]
    exploratory: tuple[Effect, ...]
    """Estimates from all seeds, if the verdicts use the first ones only."""
    notes: tuple[str, ...]
    """Remarks about the runs that were read, such as different last steps."""
    values: Values
    read: str | None = None
    """How names, columns and separators of a file or folder were read, in one line."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values, as `partwise verdict --json` prints them."""
        return {
            "effects": [effect.to_dict() for effect in self.effects],
            "exploratory": [effect.to_dict() for effect in self.exploratory],
            "notes": list(self.notes),
            "read": self.read,
        }

    def __str__(self) -> str:
        text = render_verdicts(self.effects, self.values, self.exploratory)
        return (f"{self.read}\n\n" if self.read else "") + text + "".join(f"Note: {note}\n" for note in self.notes)


def verdict(
    source: Any,
    *,
    margin: float,
    columns: Mapping[str, str] | None = None,
    run_names: str | None = None,
    take: str | int | None = None,
    baseline: str | None = None,
    judged: int | None = None,
    alpha: float = 0.05,
    failure: float | None = None,
    higher_is_better: bool = False,
    paired: bool = True,
    known_sd: float | None = None,
    metric: str = "value",
    unit: str = "",
) -> Verdicts:
    """Judge existing values: the difference of every arm from the baseline, its interval and its verdict.

    `source` is a data frame with a row per run (pandas, polars, or another that narwhals knows), a mapping
    arm -> seed -> value, or a path: CSV, JSON or Parquet with a row per run, a folder of TensorBoard runs, or the CSV
    export of a chart by Weights & Biases. `columns` gives the source's own names, such as
    `{"arm": "group", "value": "loss"}`; for the last two, "value" is the tag or the metric.

    If runs logged the metric over training, `run_names` says how arm and seed are found in a run's name (default:
    `"{arm}-{seed}"`), and `take` which value counts: "last" (default), "min", "max", or that at a step. nan or inf is a run
    that diverged.

    `margin` is the largest difference that does not matter. It and `failure` are in the values' unit. The other keywords are
    the options of `partwise verdict`. Raises ConfigError.
    """
    values, notes, read = load_values(source, columns or {}, run_names, None if take is None else str(take))
    rules = Rules(
        margin=margin,
        alpha=alpha,
        looks=(),
        failure=failure,
        lower_is_better=not higher_is_better,
        metric=metric,
        unit=unit,
        design="paired" if paired else "unpaired",
        known_sd=known_sd,
    )
    effects, exploratory = judge_arms(values, rules, baseline, judged)
    return Verdicts(tuple(effects), tuple(exploratory), tuple(notes), values, read)


class Loaded(NamedTuple):
    """The values of a source, notes on its runs, and how it was read."""

    values: Values
    notes: list[str]
    read: str | None


def load_values(source: Any, columns: Mapping[str, str], run_names: str | None, take: str | None) -> Loaded:
    """The values of a source. Raises ConfigError."""
    path = Path(source) if isinstance(source, str | Path) else None
    if path and (path.is_dir() or is_wandb_export(path)):
        if others := columns.keys() - {"value"}:
            name = min(others)
            raise ConfigError(f"--columns {name}={columns[name]}: {path} has no such columns; give --run-names")
        read_runs, take = read_tensorboard if path.is_dir() else read_wandb, take or "last"
        runs = read_runs(path, columns.get("value"), run_names)
        values, notes = values_of_curves(runs.curves, take, str(path))
        check_values(values, str(path))
        return Loaded(values, notes, f"Read {path}: {runs.describe(take)}.")
    given = {"take": take, "run-names": run_names}
    if option := next((name for name, value in given.items() if value is not None), None):
        kinds = "a folder of TensorBoard runs or a chart exported by Weights & Biases"
        raise ConfigError(f"--{option} {given[option]}: only for {kinds}; other sources have a row per run")
    if path:
        values, read = read_table(path, columns)
        return Loaded(values, [], f"Read {path}: {read}.")
    if isinstance(source, Mapping):
        check_values(source, "the values")
        return Loaded(source, [], None)
    return Loaded(read_frame(source, columns), [], None)
