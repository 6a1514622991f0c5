"""Parts of a report as plain tables, figures and paragraphs, which HTML and Markdown render."""

import math
from collections.abc import Iterator
from statistics import median

from partwise.baselines.scale import ngram_name, place_loss
from partwise.comparison.report.backends import missing_kernels
from partwise.comparison.report.cells import (
    decimal_places,
    number,
    seed_counts,
    with_interval,
    with_relative_change,
)
from partwise.comparison.report.reversals import reversals
from partwise.comparison.results import ArmResult, Facts, Results, mean
from partwise.comparison.stats.verdict_text import explanations
from partwise.plots.blocks import Figure, Paragraph, Table, without_empty_columns
from partwise.plots.cells import NONE, capitalize_first, count, format_value
from partwise.plots.colors import ARM_COLORS
from partwise.plots.curves import Line, draw_views, numbers_of

REFERENCES_NOTE = "A model with a higher loss has not beaten n-gram counting."

BATCH_SETTINGS = {"batch_size", "seq_len", "grad_accumulation", "context_length"}
"""Settings that change the content of a batch."""


def reversal_sentences(results: Results) -> Iterator[Paragraph]:
    yield from map(Paragraph, reversals(results))


def sample_table(results: Results) -> Iterator[Table]:
    rows = [[arm.name, "\n".join(arm.samples)] for arm in results.arms if arm.samples]
    if rows:
        note = "By the model of each arm's first seed; no verdict depends on them. Of answers, the truth is in parentheses."
        yield Table(["arm", "sample"], rows, note=note, left=2, kind="facts")


def seed_table(results: Results) -> Iterator[Table]:
    arms, effects = results.arms, results.effects
    rows = []
    for seed in results.seeds:
        cells = [str(seed)]
        for trial in (arm.trial(seed) for arm in arms):
            value = trial.value if trial else None
            cells.append("failed" if trial and trial.failed else number(value))
        for effect in effects:
            differences = dict(zip(effect.seeds, effect.differences, strict=True)) if effect.paired else {}
            cells.append(number(differences.get(seed), decimal_places(effect)))
        rows.append(cells)
    if rows:
        head = ["seed", *(arm.name for arm in arms), *(f"{effect.arm} − {effect.against}" for effect in effects)]
        rows.append(["mean", *(number(arm.mean) for arm in arms)])
        rows[-1] += [number(effect.mean, decimal_places(effect)) for effect in effects]
        added = any("judged" in cell for cell in seed_counts(results))
        note = "Means of arms are over all seeds, those of differences over the seeds of the verdict." if added else ""
        yield Table(head, rows, title=f"{capitalize_first(results.protocol.metric_with_unit)} by seed", note=note)


def training_curves(results: Results) -> Iterator[Figure]:
    yield from loss_figure(results, "training", [], "t")


def validation_curves(results: Results) -> Iterator[Figure]:
    references = [(name, value) for name, value, _ in loss_references(results)]
    yield from loss_figure(results, "validation", references, "v")


def loss_figure(results: Results, kind: str, references: list[tuple[str, float]], key: str) -> Iterator[Figure]:
    """The `training` or `validation` loss of every trial, against steps, tokens and seconds as far as they are known."""
    arms, training = results.arms, kind == "training"
    colors = [ARM_COLORS[index % len(ARM_COLORS)] for index in range(len(arms))]
    lines = []
    for color, arm in zip(colors, arms, strict=True):
        scales = steps_per_axis(results, arm)
        for trial in arm.trials:
            points = trial.training_curve if training else trial.evaluations
            lines.append(Line(color, points, (arm.name, trial.seed), smoothed=training, scales=scales))
    views = draw_views(lines, references, key)
    if not views:
        return
    note = f"One line per seed{', smoothed over a twentieth of the run' if training else ''}. "
    note += "The y axis is scaled to the run after its first tenth."
    if references:
        names = ", ".join(f"{name} {number(value)}" for name, value in references)
        note += f" References, dashed if within the range: {names}."
    if "seconds" in views:
        note += " Tokens and seconds follow from the tokens per step and the median throughput of each arm."
    legend = [(color, arm.name) for color, arm in zip(colors, arms, strict=True)]
    unit = results.protocol.unit if results.metric_is_loss else ""
    title = ", ".join(filter(None, (f"{kind.capitalize()} loss", unit)))
    if results.task is None:
        title = capitalize_first(results.protocol.metric_with_unit)
    columns, rows = numbers_of(lines, ["arm", "seed"], list(views))
    yield Figure(title, note=note, legend=legend, columns=columns, rows=rows, views=views)


def steps_per_axis(results: Results, arm: ArmResult) -> dict[str, float]:
    """The tokens and the seconds of one step of an arm, as far as they are known."""
    planned = results.task.steps if results.task else None
    steps = max(
        [trial.evaluations[-1][0] for trial in arm.trials if trial.evaluations and not trial.diverged], default=planned
    )
    if not arm.budget or not steps:
        return {}
    totals = {"tokens": arm.budget.tokens, "seconds": arm.budget.seconds}
    return {name: total / steps for name, total in totals.items() if total}


def step_table(results: Results, most: int = 12) -> Iterator[Table]:
    claims = [claim for claim in results.claims if claim.effect_over_training]
    steps = sorted({point.step for claim in claims for point in claim.effect_over_training})
    stride = math.ceil(len(steps) / most) or 1
    rows = []
    for step in [step for index, step in enumerate(reversed(steps)) if index % stride == 0][::-1]:
        cells = [count(step)]
        for claim in claims:
            points = [point for point in claim.effect_over_training if point.step == step]
            cells.append(with_interval(points[0], decimal_places(claim.effect)) if points else NONE)
        rows.append(cells)
    if rows:
        head = ["step", *(f"{claim.effect.arm} − {claim.effect.against}" for claim in claims)]
        yield Table(head, rows, title="Mean difference and interval at each step", kind="folded")


def arm_table(results: Results) -> Iterator[Table]:
    arms = results.arms
    rows, counts = [], seed_counts(results)
    for index, arm in enumerate(arms):
        sizes = [
            with_relative_change(arm.parameters, arms[0].parameters),
            with_relative_change(arm.trainable_parameters, arms[0].trainable_parameters),
            with_relative_change(arm.flops_per_token, arms[0].flops_per_token),
            with_relative_change(arm.tokens_per_second, arms[0].tokens_per_second),
        ]
        memory = arm.peak_memory
        row = [
            arm.name,
            counts[index] if counts else NONE,
            *sizes,
            NONE if memory is None else f"{memory / 2**20:,.0f} MiB",
        ]
        training = mean(tuple(trial.training_loss for trial in arm.trials))
        row += [number(arm.mean), number(arm.sd), number(training)]
        validation = mean(tuple(trial.validation_loss for trial in arm.trials))
        row += [number(None if training is None or validation is None else validation - training)]
        seconds = [trial.seconds for trial in arm.trials if trial.seconds is not None]
        row.append(f"{median(seconds):.1f}" if seconds else NONE)
        rows.append([*row, str(len(arm.failed))])
    head = [
        "arm",
        "seeds",
        "parameters",
        "trainable",
        "FLOPs per token",
        "tokens/s",
        "peak memory",
        results.protocol.metric,
    ]
    head += ["seed SD", "training loss", "gap", "seconds", "failed"]
    if not any(arm.failed for arm in arms):
        head, rows = head[:-1], [row[:-1] for row in rows]
    note = "Percentages are relative to the first arm. FLOPs are those of the model's matmuls. Tokens per second are "
    note += (
        "medians over steps. Losses are means over seeds, omitted if a run failed; arms whose claims closed early have "
    )
    note += "fewer seeds, so differences of these means may deviate from the paired differences. The gap is validation minus "
    note += "training loss"
    epochs = results.task.epochs if results.task else None
    note += f", after {epochs:.3g} epochs." if epochs else "."
    if any(arm.trainable_parameters is not None for arm in arms):
        note += " FLOPs leave out the gradients that frozen parameters spare."
    if results.task is None:
        note = "Means over the seeds, omitted if a trial failed; seconds are those of one trial, the median."
    if any("judged" in cell for cell in counts):
        note += " Means are over all seeds, also those that were added after the verdict."
    if rows:
        yield Table(*without_empty_columns(head, rows, NONE), note=note)


def config_tables(results: Results) -> Iterator[Table | Paragraph]:
    arms = results.arms
    changed = False
    for arm in arms[1:]:
        rows = [[path, format_value(old), format_value(new)] for path, old, new in arm.config_changes]
        if rows:
            overrides = " ".join(arm.overrides)
            note = f"Overrides: {overrides}." if overrides != arm.name else ""
            yield Table(["setting", arms[0].name, arm.name], rows, title=arm.name, note=note, left=3)
            changed = True
    if changed:
        yield Paragraph(f"All other settings are equal. {NONE} means unset, or not an option of the arm's part.")


def pairing(results: Results) -> Iterator[Table | Paragraph]:
    arms = results.arms
    for arm in arms[1:]:
        if arm.n_tensors:
            text = f"{arm.name}: {count(arm.n_paired_tensors)} of {count(arm.n_tensors)} tensors have the same "
            text += f"initial weights as in {arms[0].name}"
            names = list(arm.unpaired_tensors)
            yield Paragraph(f"{text}; the others are:" if names else f"{text}.", names)
    for arm in arms:
        if arm.new_tensors:
            text = f"{arm.name}: {count(len(arm.new_tensors))} tensors are absent from the starting weights, or have another "
            yield Paragraph(f"{text}shape there, and were initialized at random:", list(arm.new_tensors))
    if any(arm.n_tensors for arm in arms[1:]):
        changed = [path for arm in arms for path, _, _ in arm.config_changes]
        paths = {path.rpartition(".")[2] for path in changed}
        if any(path.startswith("data.") for path in changed):
            yield Paragraph("The arms use different forms of the data, so their batches differ at equal seeds.")
        elif paths & BATCH_SETTINGS:
            yield Paragraph("The arms differ in the shape of their batches, so their batches differ at equal seeds.")
        else:
            yield Paragraph("At equal seeds, all arms also see the same batches in the same order.")


def statistics_table(results: Results) -> Iterator[Table | Paragraph]:
    from partwise.comparison.design.plan import mixed_changes
    from partwise.comparison.report.explanations import statistics_rows

    rows = list(statistics_rows(results))
    if rows:
        head = ["quantity", *(f"{effect.arm} − {effect.against}" for effect in results.effects)]
        yield Table(head, [[label, *cells] for label, _, cells in rows], hints=[hint for _, hint, _ in rows])
    if results.tuning_note and not results.tuning:
        yield Paragraph(f"Tuning: {results.tuning_note}. Tuning each arm's learning rate could change the answer.")
    for text in explanations(results.effects):
        yield Paragraph(text)
    for warning in results.warnings:
        yield Paragraph(f"Warning: {warning}")
    overrides = {arm.name: arm.overrides for arm in results.arms}
    claims = [(claim.effect.arm, claim.effect.against) for claim in results.claims if claim.role == "claim"]
    for sentence in mixed_changes(overrides, claims):
        yield Paragraph(f"Note: {sentence}.")
    for sentence in missing_kernels(results):
        yield Paragraph(sentence)


def reference_table(results: Results) -> Iterator[Table]:
    arms = results.arms
    rows = []
    for name, value, hint in loss_references(results):
        gaps = [None if arm.mean is None else arm.mean - value for arm in arms]
        rows.append([f"{name}: {hint}", number(value), *(NONE if gap is None else f"{gap:+.4f}" for gap in gaps)])
    if rows:
        head = ["reference", results.protocol.unit or "loss", *(f"{arm.name} − reference" for arm in arms)]
        yield Table(head, rows, note=REFERENCES_NOTE)


def run_details(results: Results) -> Iterator[Table | Paragraph]:
    task: Facts = results.task.to_dict() if results.task else {}
    for title, facts in (
        ("Task", {name: value for name, value in task.items() if value is not None}),
        ("Runtime, the same for every run", results.provenance.runtime),
        ("Machine", results.provenance.machine),
    ):
        rows = [
            [name.replace("_", " "), f"{v:.3g}" if isinstance(v, float) else format_value(v)]
            for name, v in facts.items()
        ]
        if rows:
            yield Table(["", ""], rows, title=title, left=2, kind="facts")
    if results.provenance.workers:
        kinds = "one kind of machine" if len(results.provenance.workers) == 1 else "these machines"
        yield Paragraph(
            f"Workers ran the trials on {kinds}, both trials of a pair always on the same kind of processor: "
            f"{'; '.join(results.provenance.workers)}."
        )
    if results.provenance.command:
        yield Paragraph("Command, which also resumes or repeats this comparison:")
        yield Paragraph(results.provenance.command, kind="verbatim")


def loss_references(results: Results) -> list[tuple[str, float, str]]:
    """(name, value, explanation) of the references of a loss, in its unit."""
    if not results.metric_is_loss:
        return []
    fitted = results.references.fitted_tokens
    smoothing = "modified Kneser-Ney" + (f", fitted on {count(fitted)} training tokens" if fitted else "")
    return [
        (ngram_name(n), loss, "token frequencies" if n == 1 else smoothing) for n, loss in results.references.ngrams
    ]


def reference_sentence(results: Results) -> str:
    """How the arms compare with the best n-gram reference; '' without one."""
    rows = loss_references(results)
    losses = [arm.mean for arm in results.arms if arm.mean is not None]
    if not rows or not losses:
        return ""
    name, reference, _ = min(rows, key=lambda row: row[1])
    ngrams = dict(results.references.ngrams)
    baseline = results.arms[0]
    place = "" if baseline.mean is None else f"{baseline.name} is {place_loss(baseline.mean, ngrams)}. "
    above = sum(value > reference for value in losses)
    every = "Every arm" if len(losses) == len(results.arms) else "Every arm without a failed run"
    if above in (0, len(losses)):
        where, what = ("above", "has not beaten") if above else ("below", "beats")
        outcome = f"{every} is {where} it and {what} n-gram counting."
    else:
        outcome = f"{above} of {len(losses)} arms are above it and have not beaten n-gram counting."
    return f"For scale: {place}The best n-gram model, the {name} model, has a loss of {number(reference)}. {outcome}"
