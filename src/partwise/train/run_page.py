"""The page of a run: what it is, its losses, text by the model, and where it was trained."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from partwise.baselines.scale import far_below, ngram_name, place_loss
from partwise.checkpoint import load
from partwise.compute.backend_plan import BackendPlan
from partwise.config import ConfigError
from partwise.config.overrides import difference
from partwise.data import Dataset
from partwise.evaluate.references import dataset_references, is_plain_text
from partwise.messages import attempt
from partwise.plots.blocks import Cell, Figure, Makers, Paragraph, Section, Table, make_sections
from partwise.plots.cells import capitalize_first, count, format_value
from partwise.plots.colors import ARM_COLORS
from partwise.plots.curves import Line, draw_scale, draw_views, numbers_of
from partwise.plots.layout import render_page, write_text
from partwise.presets import PRESETS
from partwise.run_names import explain_write_errors
from partwise.train.config import RunConfig, preset_settings
from partwise.train.metrics import read_metrics
from partwise.train.own_parts import leak_sentence, stored_findings
from partwise.train.result import verified_result
from partwise.train.run_metadata import open_run, read_runtime
from partwise.train.samples import draw_sample

TRAINING, VALIDATION = ARM_COLORS[:2]


def write_run_page(name: str | Path) -> Path:
    """Write `report.html` into a run's folder and return its path. Raises ConfigError.

    Without the data, which may have moved, the page lacks the n-gram scale and the sample.
    """
    return write_page_of(StoredRun(*open_run(name)))


def write_page_of(run: "StoredRun") -> Path:
    """As `write_run_page`, of a run that is already open."""
    path = run.folder / "report.html"
    values = {
        "title": run.folder.resolve().name,
        "created": run.metadata.get("created", ""),
        "leak": leak_sentence(stored_findings(run.folder, run.metadata)),
        "what": describe(run),
        "outcome": outcome(run),
        "failed": "diverged" in run.result,
        "note": run.problem,
        "version": run.metadata["machine"].get("partwise", ""),
        "sections": run.sections,
    }
    with explain_write_errors(path):
        write_text(path, render_page("train/run_page.html.jinja", values))
    return path


@dataclass(frozen=True)
class StoredRun:
    """A run as its folder has it, finished or not."""

    folder: Path
    config: RunConfig
    metadata: dict[str, Any]

    @cached_property
    def result(self) -> dict[str, Any]:
        """Empty if the run has not ended."""
        return verified_result(self.folder, self.metadata["config"]) or {}

    @cached_property
    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of `metrics.jsonl` by their kind."""
        lines = read_metrics(self.folder)
        return {kind: [line for line in lines if line["kind"] == kind] for kind in ("step", "evaluation")}

    @cached_property
    def _prepared(self) -> tuple[Dataset | None, str]:
        try:
            dataset = self.config.prepare()
        except ConfigError as error:
            return None, str(error)
        if dataset.hash != self.metadata["data"].get("hash"):
            return None, "the data has changed since the run started"
        return dataset, ""

    @property
    def dataset(self) -> Dataset | None:
        return self._prepared[0]

    @property
    def problem(self) -> str:
        """Why there is no dataset; '' if there is one."""
        problem = self._prepared[1]
        return f"No n-gram scale and no sample: {problem}." if problem else ""

    @cached_property
    def ngrams(self) -> dict[int, float]:
        """n -> the loss of the n-gram model on the validation split; empty without data."""
        if (dataset := self.dataset) is None:
            return {}
        return attempt("the n-gram scale", lambda: dict(dataset_references(dataset)["ngrams"]), lambda reason: {})

    @cached_property
    def sections(self) -> list[Section]:
        """The sections of its page."""
        return make_sections(self, SECTIONS, {})

    @property
    def unit(self) -> str:
        tokens = {"characters": "character", "bytes": "byte"}
        return f"nats per {tokens.get(self.config.tokenizer.name, 'token')}"

    @property
    def preset(self) -> str | None:
        """The preset that its command names."""
        words = shlex.split(" ".join(map(str, self.metadata.get("command", []))))
        named = [word for word in words if word in PRESETS]
        return named[0] if named else "fast" if words[1:2] == ["train"] and not _names_file(words) else None


def _names_file(words: list[str]) -> bool:
    return any(word.endswith((".yaml", ".yml")) for word in words)


def describe(run: StoredRun) -> str:
    config = run.config
    changes = " ".join(f"{path}={format_value(new)}" for path, _, new in changed_parts(run))
    model = f"{run.preset or 'A model'}{f' with {changes}' if changes else ''}"
    return f"{model} on {config.data.label}: {config.count_parameters()}, {config.train.steps:,} steps"


def changed_parts(run: StoredRun) -> list[tuple[str, Any, Any]]:
    """The parts that differ from the preset's: `ffn`, but not `ffn.expansion`."""
    return [change for change in changes(run) if "." not in change[0] and isinstance(change[2], str)]


def changes(run: StoredRun) -> list[tuple[str, Any, Any]]:
    """[setting, value in the preset, value in the run], without the data; empty if the preset is unknown."""
    if run.preset is None:
        return []
    values = run.config.to_dict()
    same = {key: values[key] for key in ("vocab_size", "data", "tokenizer")}
    try:
        base = RunConfig.from_dict({**preset_settings(run.preset), **same})
    except ConfigError:  # the preset does not fit the run's data
        return []
    return list(difference(base.to_dict(), values))


def outcome(run: StoredRun) -> str:
    """How the run ended and its last validation loss, among those of n-gram models."""
    evaluations, steps = run.metrics["evaluation"], run.config.train.steps
    done = max((line["step"] for line in run.metrics["step"]), default=0)
    if "diverged" in run.result:
        return f"Diverged at {run.result['diverged']}."
    state = "" if run.result else f"Not finished: step {done:,} of {steps:,}. "
    if not evaluations:
        return state.strip() or "Finished without an evaluation."
    last = evaluations[-1]
    place = place_loss(last["validation"], run.ngrams)
    at = "" if run.result else f" at step {last['step']:,}"
    text = run.dataset is not None and is_plain_text(run.dataset)
    far = far_below([last["validation"]], run.ngrams) if text else ""
    return (
        f"{state}Validation loss {last['validation']:.4f} {run.unit}{at}{f': {place}' if place else ''}. {far}".strip()
    )


def loss_figures(run: StoredRun) -> Iterator[Figure]:
    """Training and validation loss against steps, tokens and seconds."""
    steps, evaluations = run.metrics["step"], run.metrics["evaluation"]
    scales: dict[str, Mapping[float, float] | float] = {}
    for name in ("tokens", "seconds"):
        totals = accumulate(line[name] for line in steps)
        places = {line["step"]: total for line, total in zip(steps, totals, strict=True)}
        if all(line["step"] in places for line in evaluations):
            scales[name] = places
    training = [(line["step"], line["loss"]) for line in steps]
    validation = [(line["step"], line["validation"]) for line in evaluations]
    lines = [
        Line(TRAINING, training, ("training",), smoothed=True, scales=scales),
        Line(VALIDATION, validation, ("validation",), scales=scales),
    ]
    views = draw_views(lines, [(ngram_name(n), loss) for n, loss in run.ngrams.items()], "l")
    if views:
        note = (
            "The training loss is smoothed over a twentieth of the run, and the y axis is scaled to the run after its "
        )
        note += "first tenth. Seconds are those of training steps, without evaluations."
        note += " Dashed: the losses of n-gram models of the same text." if run.ngrams else ""
        legend = [(TRAINING, "training"), (VALIDATION, "validation")]
        columns, rows = numbers_of(lines, ["loss of"], list(views))
        yield Figure(f"Loss, {run.unit}", note=note, legend=legend, columns=columns, rows=rows, views=views)


def scale_figure(run: StoredRun) -> Iterator[Figure]:
    """The last validation loss among those of n-gram models."""
    evaluations = run.metrics["evaluation"]
    if evaluations and run.ngrams:
        losses = {ngram_name(n): loss for n, loss in run.ngrams.items()} | {"this run": evaluations[-1]["validation"]}
        rows: list[list[Cell]] = [[name, loss] for name, loss in sorted(losses.items(), key=lambda row: -row[1])]
        note = f"Losses on the validation split, {run.unit}. A model with a higher loss has not beaten n-gram counting."
        svg = draw_scale(losses, "this run", "s")
        yield Figure("The n-gram scale", svg, note, columns=["model", "loss"], rows=rows)


def sample(run: StoredRun) -> Iterator[Table | Paragraph]:
    """Text by the newest checkpoint that verifies; nothing without a checkpoint or data."""
    if run.dataset is None or not list((run.folder / "checkpoints").glob("step-*")):
        return
    model, _ = load(run.folder)
    found = draw_sample(model, run.dataset, read_runtime(run.folder, run.metadata).precision)
    if found.rows:
        yield Table(list(found.columns), [list(row) for row in found.rows], title=capitalize_first(found.title), left=3)
    else:
        yield Paragraph("Prompt, from the validation text:")
        yield Paragraph(found.prompt, kind="verbatim")
        yield Paragraph("Generated by the model:")
        yield Paragraph(found.text, kind="verbatim")


def facts(run: StoredRun) -> Iterator[Table]:
    config, model, train = run.config, run.config.model, run.config.train
    tokens = sum(line["tokens"] for line in run.metrics["step"])
    parts = [
        (key, value["part"]) for key, value in config.to_dict().items() if isinstance(value, dict) and "part" in value
    ]
    splits = run.metadata["data"].get("splits", {})
    stacks = ((model.encoder_layers, "encoder layers"), (model.n_layers, "layers"))
    layers = " and ".join(f"{n} {name}" for n, name in stacks if n)
    rows = [
        ["preset", run.preset or "none named in the command"],
        ["parameters", config.count_parameters().replace(" parameters", "")],
        *([["initialized at random", ", ".join(new)]] if (new := run.metadata.get("new_tensors")) else []),
        ["size", f"{layers}, d_model {model.d_model}, context_length {model.context_length}"],
        ["training FLOPs per token", count(config.flops_per_token())],
        ["parts", ", ".join(f"{key}={name}" for key, name in parts if name != "none")],
        ["data", ", ".join([str(config.data), *(f"{name}: {size:,} tokens" for name, size in splits.items())])],
        ["vocabulary", f"{model.vocab_size:,} {config.tokenizer.name}"],
        ["steps", f"{len(run.metrics['step']):,} of {train.steps:,}, each {train.batch_size} x {config.seq_len}"],
        ["tokens trained on", count(tokens)],
        ["learning rate", f"{train.lr:g}, {config.schedule.name}, {config.optimizer.name}"],
        *([] if config.averaging.name == "none" else [["average of the weights", str(config.averaging)]]),
        ["seed", str(train.seed)],
    ]
    yield Table(["", ""], rows, left=2, kind="facts")


def change_table(run: StoredRun) -> Iterator[Table | Paragraph]:
    rows = [[path, format_value(old), format_value(new)] for path, old, new in changes(run)]
    if rows:
        note = "A dash means unset, or not an option of the part."
        yield Table(
            ["setting", run.preset or "", "this run"], rows, title=f"Changed from {run.preset}", note=note, left=3
        )
    elif run.preset:
        yield Paragraph(f"No setting differs from {run.preset}.")


def command(run: StoredRun) -> Iterator[Paragraph]:
    words = run.metadata.get("command") or []
    if words:
        text = str(words[0]) if len(words) == 1 else shlex.join(map(str, words))
        yield Paragraph("Command, which also resumes or repeats it:")
        yield Paragraph(text, kind="verbatim")


def evaluation_table(run: StoredRun) -> Iterator[Table]:
    placed, rows = bool(run.ngrams), []
    for line in run.metrics["evaluation"]:
        validation, training = line["validation"], line["training"]
        cells = [f"{validation:.4f}", f"{training:.4f}", f"{validation - training:+.4f}"]
        rows.append([count(line["step"]), *([place_loss(validation, run.ngrams)] if placed else []), *cells])
    if rows:
        columns = ["step", *(["on the n-gram scale"] if placed else []), "validation loss", "training loss", "gap"]
        note = f"In {run.unit}; the training loss is over as much training text as the validation split has."
        yield Table(columns, rows, note=note, left=1 + placed)


def environment(run: StoredRun) -> Iterator[Table | Paragraph]:
    rows = [[name.replace("_", " "), format_value(value)] for name, value in run.metadata["runtime"].items()]
    rows += [[name.replace("_", " "), format_value(value)] for name, value in run.metadata["machine"].items()]
    steps = run.metrics["step"]
    seconds = sum(line["seconds"] for line in steps)
    if seconds:
        rows.append(["training", f"{seconds:,.1f} s, {sum(line['tokens'] for line in steps) / seconds:,.0f} tokens/s"])
    if memory := run.result.get("peak_memory"):
        rows.append(["peak memory", f"{memory / 2**20:,.0f} MiB"])
    rows.append(["hash of the data", str(run.metadata["data"].get("hash", ""))])
    yield Table(["", ""], rows, left=2, kind="facts")
    plan = BackendPlan.from_dict(run.metadata.get("plan", []))
    backends = [
        f"{kind}: {', '.join(f'{n} {name}' for name, n in each.items())}"
        for kind, each in plan.counts().items()
        if each
    ]
    if backends:
        yield Paragraph(f"Backends: {'; '.join(backends)}.")


SECTIONS: tuple[tuple[str, Makers[StoredRun]], ...] = (
    ("At a glance", (loss_figures, scale_figure)),
    ("Sample", (sample,)),
    ("The run", (facts, change_table, command)),
    ("Evaluations", (evaluation_table,)),
    ("Environment", (environment,)),
)
"""The title of each section, and what makes its parts."""
