"""`eval`: scores beside their floors."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from partwise.checkpoint import load
from partwise.config import ConfigError
from partwise.data import Dataset, examples, problem_lines
from partwise.evaluate.arithmetic import Share, accuracy_by_operation, answer_problems
from partwise.evaluate.loss import Score, mean_loss
from partwise.evaluate.scores import dataset_floors
from partwise.model import Transformer
from partwise.terminal import console, table
from partwise.train.card import open_run
from partwise.train.choices import Choices
from partwise.train.folder import Evaluation


def evaluate_run(name: str, problems: int | None, json_file: Path | None) -> None:
    """Score a run and print its scores beside the floors."""
    folder, config, card = open_run(name)
    model, _ = load(folder)
    choices = Choices(**card["choices"])
    if choices.device != "cpu" and getattr(torch, choices.device).is_available():
        model.to(choices.device)
    model.use_path(choices.attention_path, choices.ffn_path, choices.block_path)
    dataset = config.prepare()
    if dataset.hash != card["data"]["hash"]:
        raise ConfigError(f"the data of {name} has changed since it was trained: train again with --fresh")
    scores = show_scores(model, dataset, config.context, choices, problems)
    if json_file:
        json_file.write_text(json.dumps(scores, indent=1) + "\n")


def show_scores(
    model: Transformer,
    dataset: Dataset,
    context: int,
    choices: Choices,
    problems: int | None,
    known: Evaluation | None = None,
) -> dict[str, Any]:
    """Losses on the whole validation split and on as much training text; for arithmetic, accuracies as well.

    Losses that are `known`, on the whole splits and of this very model, are not computed again.
    """
    train, validation = (examples(dataset, name, context, model.config.max_len) for name in ("train", "val"))
    nats = known.validation if known else mean_loss(model, validation.scored(), choices.precision)
    tokens = sum(batch.count for batch in validation.scored())
    answers = dataset.corpus.answers_only
    unscored = 0 if dataset.corpus.paired else dataset.tokenizer.bytes_of(dataset.split("val")[:1])
    # a character of a problem is a byte
    score = Score(nats, tokens, tokens if answers else dataset.bytes("val") - unscored)
    same_size = train.as_much_as(validation)
    training = known.training if known else mean_loss(model, same_size.scored(), choices.precision, learned=True)
    with console.status("fitting the floors") if console.is_terminal else nullcontext():
        floors = dataset_floors(dataset)
    unit = "character" if dataset.tokenizer.vocab_size == len(dataset.corpus.alphabet()) else "token"
    rows = [
        ("validation", f"{nats:.4f}", f"{score.bits_per_byte:.4f}", f"{score.perplexity:.3f}"),
        ("training (equal slice)", f"{training:.4f}", "", f"{math.exp(training):.3f}"),
        ("floor: frequencies", f"{floors['unigram']:.4f}", "", f"{math.exp(floors['unigram']):.3f}"),
        (f"floor: {floors['context']}-{unit} table", f"{floors['kneser_ney']:.4f}", "", ""),
    ]
    console.print(table("loss", ["", f"nats per {unit}", "bits per byte", "perplexity"], rows))
    if answers:
        how = "in answers behind their questions"
    elif dataset.corpus.paired:
        how = "in targets over their sources"
    else:
        how = f"in windows of {context} that start cold"
    console.print(
        f"{score.tokens:,} tokens, each scored once {how}; the floors are tables of counts fitted on "
        f"{floors['fitted_tokens']:,} training tokens"
    )
    scores: dict[str, Any] = {
        "validation": nats,
        "training": training,
        "bits_per_byte": score.bits_per_byte,
        "perplexity": score.perplexity,
        "tokens": score.tokens,
        "floors": floors,
    }
    if dataset.corpus.task == "arithmetic":
        scores["accuracy"] = show_accuracy(model, dataset, choices.precision, problems, floors)
    return scores


def show_accuracy(
    model: Transformer, dataset: Dataset, precision: str, problems: int | None, floors: dict[str, Any]
) -> dict[str, Any]:
    """Greedy and sampled accuracy on the test problems, overall and per operation."""
    lines = problem_lines(dataset, "test", problems)
    found: dict[str, Any] = {}
    floor = ("floor", *(f"{floors[name]:.4f}" for name in ("most_frequent_closed", "most_frequent", "constant_answer")))
    for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        answers = answer_problems(model, dataset.tokenizer, lines, temperature=temperature, precision=precision)
        by_operation = accuracy_by_operation(lines, answers)
        found[kind] = {key: value.to_dict() for key, value in by_operation.items()}
        rows = [
            (key, *(with_interval(share) for share in (value.characters_closed, value.characters, value.exact)))
            for key, value in by_operation.items()
        ]
        columns = ["", "characters with $", "characters", "whole answers"]
        console.print(table(f"{kind} answers to {len(lines):,} problems", columns, [*rows, floor]))
    console.print("floors: the most frequent character of each place; the most common answer to every problem")
    return found


def with_interval(share: Share) -> str:
    low, high = share.interval()
    return f"{share.share:.4f} ({low:.4f}, {high:.4f})"
