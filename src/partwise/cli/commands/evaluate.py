"""`eval`: scores beside their references."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from partwise.checkpoint import load
from partwise.cli.terminal import console, table
from partwise.compute.runtime import Runtime
from partwise.config import ConfigError
from partwise.data import Dataset, build_examples, problem_lines
from partwise.evaluate.arithmetic import Proportion, accuracy_by_operation, answer_problems
from partwise.evaluate.loss import SplitLoss, mean_loss
from partwise.evaluate.references import dataset_references
from partwise.model import Transformer
from partwise.train.run_folder import Evaluation
from partwise.train.run_metadata import open_run


def evaluate_run(name: str, problems: int | None, json_file: Path | None) -> None:
    """Score a run and print its scores beside the references."""
    folder, config, card = open_run(name)
    model, _ = load(folder)
    runtime = Runtime(**card["runtime"])
    if runtime.device != "cpu" and getattr(torch, runtime.device).is_available():
        model.to(runtime.device)
    model.use_backend(runtime.attention_backend, runtime.ffn_backend, runtime.block_backend)
    dataset = config.prepare()
    if dataset.hash != card["data"]["hash"]:
        raise ConfigError(f"the data of {name} has changed since it was trained: train again with --fresh")
    scores = show_scores(model, dataset, config.seq_len, runtime, problems)
    if json_file:
        json_file.write_text(json.dumps(scores, indent=1) + "\n")


def show_scores(
    model: Transformer,
    dataset: Dataset,
    context: int,
    runtime: Runtime,
    problems: int | None,
    known: Evaluation | None = None,
) -> dict[str, Any]:
    """Losses on the whole validation split and on as much training text; for arithmetic, accuracies as well.

    Losses that are `known`, on the whole splits and of this very model, are not computed again.
    """
    train, validation = (
        build_examples(dataset, name, context, model.config.context_length) for name in ("train", "val")
    )
    nats = known.validation if known else mean_loss(model, validation.eval_batches(), runtime.precision)
    tokens = sum(batch.n_targets for batch in validation.eval_batches())
    answers = dataset.corpus.answers_only
    unscored = 0 if dataset.corpus.paired else dataset.tokenizer.count_bytes(dataset.split("val")[:1])
    # a character of a problem is a byte
    score = SplitLoss(nats, tokens, tokens if answers else dataset.bytes("val") - unscored)
    same_size = train.truncate_like(validation)
    training = (
        known.training if known else mean_loss(model, same_size.eval_batches(), runtime.precision, training_text=True)
    )
    with console.status("fitting the references") if console.is_terminal else nullcontext():
        references = dataset_references(dataset)
    unit = "character" if dataset.tokenizer.vocab_size == len(dataset.corpus.alphabet()) else "token"
    rows = [
        ("validation", f"{nats:.4f}", f"{score.bits_per_byte:.4f}", f"{score.perplexity:.3f}"),
        ("training (equal slice)", f"{training:.4f}", "", f"{math.exp(training):.3f}"),
        ("reference: frequencies", f"{references['unigram']:.4f}", "", f"{math.exp(references['unigram']):.3f}"),
        (f"reference: {references['context']}-{unit} table", f"{references['kneser_ney']:.4f}", "", ""),
    ]
    console.print(table("loss", ["", f"nats per {unit}", "bits per byte", "perplexity"], rows))
    if answers:
        how = "in answers behind their questions"
    elif dataset.corpus.paired:
        how = "in targets over their sources"
    else:
        how = f"in windows of {context} that start cold"
    console.print(
        f"{score.tokens:,} tokens, each scored once {how}; the references are tables of counts fitted on "
        f"{references['fitted_tokens']:,} training tokens"
    )
    scores: dict[str, Any] = {
        "validation": nats,
        "training": training,
        "bits_per_byte": score.bits_per_byte,
        "perplexity": score.perplexity,
        "tokens": score.tokens,
        "references": references,
    }
    if dataset.corpus.task == "arithmetic":
        scores["accuracy"] = show_accuracy(model, dataset, runtime.precision, problems, references)
    return scores


def show_accuracy(
    model: Transformer, dataset: Dataset, precision: str, problems: int | None, references: dict[str, Any]
) -> dict[str, Any]:
    """Greedy and sampled accuracy on the test problems, overall and per operation."""
    lines = problem_lines(dataset, "test", problems)
    found: dict[str, Any] = {}
    reference = (
        "reference",
        *(
            f"{references[name]:.4f}"
            for name in ("constant_char_accuracy_closed", "constant_char_accuracy", "constant_exact_match")
        ),
    )
    for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        answers = answer_problems(model, dataset.tokenizer, lines, temperature=temperature, precision=precision)
        by_operation = accuracy_by_operation(lines, answers)
        found[kind] = {key: value.to_dict() for key, value in by_operation.items()}
        rows = [
            (
                key,
                *(
                    with_interval(share)
                    for share in (value.char_accuracy_closed, value.char_accuracy, value.exact_match)
                ),
            )
            for key, value in by_operation.items()
        ]
        columns = ["", "characters with $", "characters", "whole answers"]
        console.print(table(f"{kind} answers to {len(lines):,} problems", columns, [*rows, reference]))
    console.print("references: the most frequent character of each place; the most common answer to every problem")
    return found


def with_interval(share: Proportion) -> str:
    low, high = share.interval()
    return f"{share.value:.4f} ({low:.4f}, {high:.4f})"
