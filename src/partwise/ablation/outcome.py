"""The outcome of a run: its final losses, curves and accuracies, read from its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partwise.comparison.results import Accuracies, Accuracy, Proportion, TaskScore, TrialResult
from partwise.comparison.trials.trial import REPEATING, VALIDATION_LOSS
from partwise.config import ConfigError
from partwise.plots.curves import thin
from partwise.records import read_record
from partwise.train.metrics import read_metrics
from partwise.train.result import RESULT

CURVE_POINTS = 200
ACCURACY_KEYS = {"exact match": "exact_match", "character accuracy": "char_accuracy"}
"""The metrics that are accuracies, and their names in an `Accuracy`."""


def read_outcome(folder: Path, seed: int, steps: int, metric: str = VALIDATION_LOSS) -> TrialResult:
    """The outcome of a finished run of `steps`. Raises ConfigError if the run lacks the metric."""
    result = read_record(folder / RESULT)
    lines = read_metrics(folder)
    evaluations = tuple(
        (line["step"], line["validation"], line["training"]) for line in lines if line["kind"] == "evaluation"
    )
    losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]
    completed = "diverged" not in result and bool(evaluations) and evaluations[-1][0] == steps
    accuracy = read_accuracy(result.get("accuracy"))
    task_score = TaskScore.from_dict(result["task_score"]) if "task_score" in result else None
    loss = evaluations[-1][1] if completed else None
    return TrialResult(
        seed=seed,
        value=metric_value(folder, metric, loss, accuracy, task_score),
        diverged=not completed,
        validation_loss=loss,
        training_loss=evaluations[-1][2] if completed else None,
        # unknown for a single run if several seeds share a process
        peak_memory=None if "seeds_per_process" in result else result["peak_memory"],
        accuracy=accuracy,
        task_score=task_score,
        training_curve=tuple(thin(losses, CURVE_POINTS)),
        evaluations=evaluations,
    )


def metric_value(
    folder: Path, metric: str, loss: float | None, accuracy: Accuracies | None, task_score: TaskScore | None
) -> float | None:
    if loss is not None and task_score is not None and metric != VALIDATION_LOSS:
        return task_score.value
    if metric not in ACCURACY_KEYS or loss is None:
        return loss
    if not accuracy:
        raise ConfigError(f"{folder} has no {metric}: delete this run's folder to repeat the run{REPEATING}")
    proportion: Proportion = getattr(accuracy["all"], ACCURACY_KEYS[metric])
    return proportion.proportion


def read_accuracy(stored: dict[str, Any] | None) -> Accuracies | None:
    return {kind: Accuracy.from_dict(scores) for kind, scores in stored.items()} if stored else None


def pool_accuracy(trials: Sequence[TrialResult]) -> Accuracies | None:
    """Accuracies over the problems of all seeds combined."""
    scores = [trial.accuracy for trial in trials if trial.accuracy]
    if not scores:
        return None
    return {
        kind: Accuracy(
            **{
                measure: pool_proportions([getattr(score[kind], measure) for score in scores])
                for measure in Accuracy.model_fields
            }
        )
        for kind in scores[0]
    }


def pool_proportions(parts: Sequence[Proportion]) -> Proportion:
    from partwise.evaluate.arithmetic import CorrectCount

    pooled = CorrectCount(sum(part.correct for part in parts), sum(part.total for part in parts))
    return Proportion.from_dict(pooled.to_dict())
