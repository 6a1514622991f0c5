"""`eval`: losses and accuracies of a run, next to n-gram and constant references."""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from partwise.baselines.scale import far_below, ngram_name, place_loss
from partwise.cli.json_output import end_json
from partwise.cli.terminal import console, print_json, progress_bar, table
from partwise.compute.runtime import Runtime
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, flatten
from partwise.data import Dataset, build_examples, parse_data_option, problem_lines
from partwise.data.arithmetic import ProblemSpec
from partwise.data.corpora import SyntheticProblems
from partwise.drafts import write_output
from partwise.evaluate.arithmetic import CorrectCount, accuracy_by_operation, answer_problems
from partwise.evaluate.digits import SIGN, accuracy_by_place
from partwise.evaluate.loss import SplitLoss, mean_loss
from partwise.evaluate.references import dataset_references, is_plain_text
from partwise.messages import quantity
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer
from partwise.train.config import RunConfig
from partwise.train.evaluation import Evaluation
from partwise.train.trained_model import open_trained


def evaluate_run(
    name: str,
    max_problems: int | None,
    data: str | None = None,
    precision: str | None = None,
    as_json: bool = False,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    seq_len: int | None = None,
) -> None:
    """Evaluate a run and print its scores next to the references; as JSON on standard output, or in a file.

    `data` names other data than the run's; they are encoded by the run's tokenizer. `precision` is the run's by default.
    `overrides` and `seq_len` are those of `open_trained`.
    """
    check_json(name, as_json, file)
    trained = open_trained(name, precision, overrides, seq_len)
    config, tokenizer = trained.config, trained.tokenizer
    dataset = config.prepare() if data is None else prepare_other(config, data, tokenizer)
    if data is None and trained.metadata["data"]["hash"] not in (None, dataset.hash):
        raise ConfigError(f"the data of {name} has changed since training: train it again with --fresh")
    scores = show_scores(trained.model, dataset, config.seq_len, trained.runtime, max_problems)
    changes = {"seq_len": seq_len, "overrides": list(overrides)}
    scores |= {key: value for key, value in changes.items() if value}
    if as_json:
        write_scores(scores, file)


def split_words(run: str, words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of the document, which may have `=` in its name if that ends with .json, and the overrides."""
    overrides = [word for word in words if "=" in word and not word.endswith(".json")]
    files = [word for word in words if word not in overrides]
    if len(files) > 1:
        raise ConfigError(f"eval {run} {' '.join(files)}: evaluate one run at a time, into one file")
    return (Path(files[0]) if files else None), overrides


def check_json(name: str, as_json: bool, file: Path | None) -> None:
    """Raises ConfigError for a file without --json."""
    if file and not as_json:
        raise ConfigError(f"eval {name} {file}: a file needs --json; evaluate one run at a time")
    if file:
        end_json()


def write_scores(scores: Any, file: Path | None) -> None:
    """Write JSON to a file, or to standard output. Raises ConfigError."""
    if file is None:
        print_json(scores)
        return
    write_output(file, json.dumps(scores, indent=1) + "\n")


def prepare_other(config: RunConfig, data: str, tokenizer: Tokenizer) -> Dataset:
    """Other data, encoded by a run's tokenizer. Raises ConfigError."""
    with TemporaryDirectory() as folder:
        tokenizer.save(Path(folder) / "tokenizer.json")
        masks = config.data.masked_share
        overrides = [
            *flatten({"data": parse_data_option(data)}),
            *(flatten({"data": {"mask_rate": masks}}) if masks else []),
            *flatten({"tokenizer": {"part": "bpe", "path": folder}}),
        ]
        return RunConfig.from_dict(apply_overrides(config.to_dict(), overrides)).prepare()


def show_scores(
    model: Transformer,
    dataset: Dataset,
    seq_len: int,
    runtime: Runtime,
    max_problems: int | None,
    known: Evaluation | None = None,
) -> dict[str, Any]:
    """Print and return losses on the full validation split and on as much training text; for arithmetic, accuracies too.

    `known` holds the losses of this model on these splits if they are already computed.
    """
    train, validation = (
        build_examples(dataset, name, seq_len, model.config.context_length) for name in ("train", "val")
    )
    nats = known.validation if known else mean_loss(model, validation.eval_batches(), runtime.precision)
    tokens = sum(batch.n_targets for batch in validation.eval_batches())
    answers_only = dataset.corpus.answers_only
    masked = dataset.corpus.masked_share > 0
    unscored = 0 if dataset.corpus.paired else dataset.tokenizer.count_bytes(dataset.split("val")[:1])
    n_bytes = dataset.bytes("val") - unscored
    if masked:
        n_bytes = sum(dataset.tokenizer.count_bytes(batch.target_ids) for batch in validation.eval_batches())
    # each character of a problem is one byte
    score = SplitLoss(nats, tokens, tokens if answers_only else n_bytes)
    train_subset = train.truncate_like(validation)
    training = (
        known.training
        if known
        else mean_loss(model, train_subset.eval_batches(), runtime.precision, training_text=True)
    )
    with console.status("fitting the n-gram references") if console.is_terminal else nullcontext():
        references = dataset_references(dataset)
    unit = "character" if dataset.tokenizer.vocab_size == len(dataset.corpus.alphabet()) else "token"
    rows = [
        ("validation", f"{nats:.4f}", f"{score.bits_per_byte:.4f}", f"{score.perplexity:.3f}"),
        ("training (same size)", f"{training:.4f}", "", f"{math.exp(training):.3f}"),
        *(
            (f"reference: {ngram_name(n)}", f"{loss:.4f}", "", f"{math.exp(loss):.3f}")
            for n, loss in references["ngrams"]
        ),
    ]
    console.print(table("loss", ["", f"nats per {unit}", "bits per byte", "perplexity"], rows))
    if answers_only:
        scoring = "in answers given their problems"
    elif dataset.corpus.paired:
        scoring = "in targets given their sources"
    elif masked:
        scoring = f"in windows of {seq_len} from the tokens on both sides"
    else:
        scoring = f"in windows of {seq_len} without earlier context"
    console.print(f"the validation loss is {place_loss(nats, dict(references['ngrams']))}")
    if is_plain_text(dataset) and (note := far_below([nats], dict(references["ngrams"]))):
        console.print(note, style="bold", markup=False, soft_wrap=True)
    fitted = f"fitted on {references['fitted_tokens']:,} training tokens"
    console.print(
        f"{score.tokens:,} masked tokens, each scored once {scoring}; the reference, {fitted}, "
        "is scored on all validation tokens"
        if masked
        else f"{score.tokens:,} tokens, each scored once {scoring}; references {fitted}, from 2-gram on with Kneser-Ney "
        "smoothing"
    )
    console.print(f"computed in {runtime.precision} on {runtime.device}, with {quantity(runtime.threads, 'thread')}")
    scores: dict[str, Any] = {
        "validation": nats,
        "training": training,
        "bits_per_byte": score.bits_per_byte,
        "perplexity": score.perplexity,
        "tokens": score.tokens,
        "precision": runtime.precision,
        "device": runtime.device,
        "threads": runtime.threads,
        "references": references,
    }
    if dataset.corpus.task == "arithmetic":
        scores["accuracy"] = show_accuracy(model, dataset, runtime.precision, max_problems, references)
    return scores


def show_accuracy(
    model: Transformer, dataset: Dataset, precision: str, max_problems: int | None, references: dict[str, Any]
) -> dict[str, Any]:
    """Print and return greedy and sampled accuracy on the test problems, overall and per operation."""
    lines = problem_lines(dataset, "test", max_problems)
    accuracy: dict[str, Any] = {}
    reference = (
        "reference",
        *(
            f"{references[name]:.4f}"
            for name in ("constant_char_accuracy_closed", "constant_char_accuracy", "constant_exact_match")
        ),
    )
    for decoding, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        with progress_bar(f"{decoding} answers", len(lines)) as advance:
            answers = answer_problems(
                model,
                dataset.tokenizer,
                lines,
                temperature=temperature,
                precision=precision,
                on_progress=advance,
            )
        by_operation = accuracy_by_operation(lines, answers)
        accuracy[decoding] = {key: value.to_dict() for key, value in by_operation.items()}
        rows = [
            (
                key,
                *(
                    with_interval(proportion)
                    for proportion in (value.char_accuracy_closed, value.char_accuracy, value.exact_match)
                ),
            )
            for key, value in by_operation.items()
        ]
        columns = ["", "char accuracy with $", "char accuracy", "exact match"]
        console.print(table(f"{decoding} answers to {len(lines):,} problems", columns, [*rows, reference]))
        if decoding == "greedy" and isinstance(dataset.corpus, SyntheticProblems):  # their format is known
            for key, places in show_places(lines, answers, dataset.corpus.problem_spec()).items():
                accuracy[decoding][key]["by_place"] = places
    console.print("references: the most frequent character at each position, and the most common answer")
    return accuracy


def show_places(problems: list[str], answers: list[str], spec: ProblemSpec) -> dict[str, dict[str, Any]]:
    """Print and return the proportion of right digits per operation and place."""
    found = accuracy_by_place(problems, answers, spec)
    columns = [*dict.fromkeys(place for places in found.values() for place in places if place != SIGN), SIGN]
    rows = [
        (key, *(f"{places[place].value:.4f}" if place in places else "" for place in columns))
        for key, places in found.items()
    ]
    console.print(table("right digits of the greedy answers, by place", ["", *columns], rows))
    console.print("an answer that is not a number has no right digits")
    return {key: {place: each.to_dict() for place, each in places.items()} for key, places in found.items()}


def with_interval(proportion: CorrectCount) -> str:
    low, high = proportion.interval()
    return f"{proportion.value:.4f} ({low:.4f}, {high:.4f})"
