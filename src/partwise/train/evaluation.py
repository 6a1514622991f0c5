"""The evaluation of a run in training: losses on the validation split and on as much training text."""

import math
from dataclasses import dataclass

from partwise.config import ConfigError
from partwise.data import Dataset, build_examples
from partwise.evaluate.loss import mean_loss, random_batches_loss
from partwise.train.config import RunConfig
from partwise.train.loop import Diverged, Run


@dataclass(frozen=True)
class Evaluation:
    """Losses in nats per token after `step` steps, on the validation split and on training text of equal size."""

    step: int
    validation: float
    training: float
    validation_estimator: str


def evaluate(run: Run) -> Evaluation:
    """The losses of a run after its current step, by the average of its weights if it keeps one.

    Raises Diverged if they are not finite.
    """
    with run.average.swapped():
        return _evaluate(run)


def _evaluate(run: Run) -> Evaluation:
    dataset, config, precision = run.dataset, run.config, run.runtime.precision
    train = config.train
    run.runtime.set_threads()
    validation = build_examples(dataset, "val", config.seq_len, config.model.context_length)
    if train.validation_estimator == "full":
        splits = (validation, run.examples.truncate_like(validation))
        losses = [mean_loss(run.model, split.eval_batches(), precision, split is not validation) for split in splits]
    else:
        losses = [
            random_batches_loss(
                run.model,
                split,
                train.batch_size,
                key=f"{dataset.hash} {name}",
                seed=train.seed,
                step=run.step,
                precision=precision,
                training_text=name == "train",
            )
            for name, split in (("val", validation), ("train", run.examples))
        ]
    if not all(map(math.isfinite, losses)):
        raise Diverged(run.step, f"validation loss {losses[0]}, training loss {losses[1]}")
    return Evaluation(run.step, losses[0], losses[1], train.validation_estimator)


def check_split_lengths(dataset: Dataset, config: RunConfig) -> None:
    """Raise ConfigError if a split has no sequence of train.seq_len tokens, or a pair or problem is too long."""
    if dataset.corpus.paired:
        for name in ("train", "val"):
            build_examples(dataset, name, config.seq_len, config.model.context_length)  # raises if a pair is too long
        return
    build_examples(dataset, "train", config.seq_len, config.model.context_length)  # raises if a problem is too long
    for name, min_length in (
        ("train", config.seq_len),
        ("val", config.seq_len if config.train.validation_estimator == "random" else 1),
    ):
        if len(dataset.split(name)) <= min_length:
            raise ConfigError(
                f"train.seq_len={config.seq_len} is too long for the {name} split of {len(dataset.split(name))} tokens: "
                "lower train.seq_len"
            )
