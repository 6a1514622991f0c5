"""The sections of a report as plain tables, figures and paragraphs, which HTML and Markdown render."""

import math
from collections.abc import Iterator
from typing import Any

from partwise.comparison.report import evidence
from partwise.comparison.report.blocks import Figure, Paragraph, Section, Table
from partwise.comparison.report.cells import (
    NONE,
    capitalize_first,
    confidence,
    count,
    decimal_places,
    format_value,
    fraction_interval,
    item_or_none,
    lower_is_better,
    mean,
    metric_with_unit,
    number,
    percent,
    sd,
    with_interval,
    with_relative_change,
)
from partwise.comparison.stats.number_format import format_percent

REFERENCES_NOTE = "A model with a higher loss has not beaten n-gram counting."

BATCH_SETTINGS = {"batch_size", "seq_len", "grad_accumulation", "context_length"}
"""Settings that change the content of a batch."""

ACCURACIES = {
    "char_accuracy_closed": "character accuracy, closing $ included",
    "char_accuracy": "character accuracy, without it",
    "exact_match": "exact match",
}


def sections(results: dict[str, Any]) -> list[Section]:
    """The non-empty sections, in order."""
    all_sections = [
        Section("The claim", [*evidence.claim(results)]),
        Section("All comparisons", [*evidence.forest(results)]),
        Section("Every seed", [*difference_figures(results), *seed_table(results)]),
        Section("Replication", [*evidence.replication(results)]),
        Section("Over training", [*curve_figures(results), *evidence.sign_table(results), *step_table(results)]),
        Section("The arms", [*arm_table(results)]),
        Section("Budgets", [*evidence.matched_budgets(results)]),
        Section("Tuning", [*evidence.tuning(results)]),
        Section("Activation statistics", [*evidence.activation_table(results)]),
        Section("The protocol", [*evidence.protocol(results)]),
        Section("Configuration changes", [*config_tables(results)]),
        Section("Shared initialization", [*pairing(results)]),
        Section("The statistics", [*statistics_table(results)]),
        Section("Arithmetic accuracy", [*accuracy_table(results)]),
        Section("References", [*reference_table(results)]),
        Section("How it was run", [*run_details(results)]),
    ]
    return [section for section in all_sections if section.blocks]


def difference_figures(results: dict[str, Any]) -> Iterator[Figure]:
    from partwise.comparison.report.figures import VERDICT_COLORS, draw_differences

    for index, row in enumerate(results.get("comparisons") or []):
        color = VERDICT_COLORS[row.get("verdict") or "none"]
        svg = draw_differences(row, color, results.get("margin") or 0.0, lower_is_better(results), f"d{index}")
        if svg:
            note = f"{capitalize_first(metric_with_unit(results))}. Each dot is one seed, trained once with each arm"
            note += "; the diamond is the mean" if row.get("mean") is not None else ""
            note += f" with its {confidence(row)} interval" if row.get("low") is not None else ""
            note += f"; the band is the margin of ±{results['margin']:g}." if results.get("margin") else "."
            yield Figure(f"{row['arm']} minus {row['against']}", svg, note)


def seed_table(results: dict[str, Any]) -> Iterator[Table]:
    arms, comparisons = results.get("arms") or [], results.get("comparisons") or []
    rows = []
    for index, seed in enumerate(results.get("seeds") or []):
        cells = [str(seed)]
        for arm in arms:
            value = item_or_none(arm.get("values"), index)
            cells.append("diverged" if value is None and seed in (arm.get("diverged") or ()) else number(value))
        for row in comparisons:
            differences = dict(zip(row.get("seeds") or [], row.get("differences") or [], strict=False))
            cells.append(number(differences.get(seed), decimal_places(row, results)))
        rows.append(cells)
    if rows:
        head = ["seed", *(arm["name"] for arm in arms), *(f"{row['arm']} − {row['against']}" for row in comparisons)]
        rows.append(["mean", *(number(mean(arm)) for arm in arms)])
        rows[-1] += [number(row.get("mean"), decimal_places(row, results)) for row in comparisons]
        yield Table(head, rows, title=f"{capitalize_first(metric_with_unit(results))} by seed")


def curve_figures(results: dict[str, Any]) -> Iterator[Figure]:
    from partwise.comparison.report.figures import ARM_COLORS, VERDICT_COLORS, draw_losses, draw_over_time

    arms = results.get("arms") or []
    colors = [ARM_COLORS[index % len(ARM_COLORS)] for index in range(len(arms))]
    legend = [(color, arm["name"]) for color, arm in zip(colors, arms, strict=True)]
    training, validation = [], []
    for color, arm in zip(colors, arms, strict=True):
        curves = arm.get("curves") or {}
        training += [(color, points) for points in curves.get("training") or []]
        validation += [(color, points) for points in curves.get("evaluations") or []]
    unit = results.get("unit") or ""
    references = [(name, value) for name, value, _ in loss_references(results)]
    axis_note = "The y axis is scaled to the run after its first tenth."
    if svg := draw_losses(training, [], True, "t"):
        note = f"One line per seed, smoothed over a twentieth of the run. {axis_note}"
        yield Figure(f"training loss, {unit}", svg, note, legend)
    if svg := draw_losses(validation, references, False, "v"):
        names = ", ".join(f"{name} {number(value)}" for name, value in references)
        note = f"One line per seed. {axis_note}" + (
            f" References, dashed if within the range: {names}." if names else ""
        )
        yield Figure(f"validation loss, {unit}", svg, note, legend)
    for index, row in enumerate(results.get("comparisons") or []):
        svg = draw_over_time(
            row, VERDICT_COLORS[row.get("verdict") or "none"], results.get("margin") or 0.0, f"o{index}"
        )
        if svg:
            note = "One thin line per seed"
            note += ", the mean in bold with the interval it would have had at that step" if row.get("verdict") else ""
            note += ". The verdict is for the last step only; the earlier steps are descriptive."
            yield Figure(f"{row['arm']} minus {row['against']}, over training", svg, note)


def step_table(results: dict[str, Any], most: int = 12) -> Iterator[Table]:
    comparisons = [row for row in results.get("comparisons") or [] if row.get("effect_over_training")]
    steps = sorted({point["step"] for row in comparisons for point in row["effect_over_training"]})
    stride = math.ceil(len(steps) / most) or 1
    rows = []
    for step in [step for index, step in enumerate(reversed(steps)) if index % stride == 0][::-1]:
        cells = [count(step)]
        for row in comparisons:
            points = [point for point in row["effect_over_training"] if point["step"] == step]
            cells.append(with_interval(points[0], decimal_places(row, results)) if points else NONE)
        rows.append(cells)
    if rows:
        head = ["step", *(f"{row['arm']} − {row['against']}" for row in comparisons)]
        yield Table(head, rows, title="Mean difference and interval at each step", kind="folded")


def arm_table(results: dict[str, Any]) -> Iterator[Table]:
    arms = results.get("arms") or []
    rows = []
    for arm in arms:
        sizes = [with_relative_change(arm.get(key), arms[0].get(key)) for key in ("parameters", "flops_per_token")]
        sizes.append(with_relative_change(arm.get("tokens_per_second"), arms[0].get("tokens_per_second")))
        memory = arm.get("peak_memory")
        row = [arm["name"], *sizes, NONE if memory is None else f"{memory / 2**20:,.0f} MiB"]
        training = mean({"values": arm.get("training_loss")})
        row += [number(mean(arm)), number(sd(arm)), number(training)]
        validation = mean({"values": arm.get("validation_loss")})
        row += [number(None if training is None or validation is None else validation - training)]
        rows.append([*row, str(len(arm.get("diverged") or []))])
    head = ["arm", "parameters", "FLOPs per token", "tokens/s", "peak memory", str(results.get("metric") or "mean")]
    head += ["seed SD", "training loss", "gap", "diverged"]
    if not any(arm.get("diverged") for arm in arms):
        head, rows = head[:-1], [row[:-1] for row in rows]
    note = "Percentages are relative to the first arm. Tokens per second are medians over steps. Losses are means over "
    note += (
        "seeds, omitted if a run diverged; arms whose claims closed early have fewer seeds, so differences of these "
    )
    note += "means may deviate from the paired differences. The gap is validation minus training loss"
    epochs = (results.get("task") or {}).get("epochs")
    note += f", after {epochs:.3g} epochs." if epochs else "."
    if rows:
        yield Table(head, rows, note=note)


def config_tables(results: dict[str, Any]) -> Iterator[Table | Paragraph]:
    arms = results.get("arms") or []
    changed = False
    for arm in arms[1:]:
        rows = [[str(path), format_value(old), format_value(new)] for path, old, new in arm.get("config_changes") or []]
        if rows:
            overrides = " ".join(arm.get("overrides") or [])
            note = f"Overrides: {overrides}." if overrides != arm["name"] else ""
            yield Table(["setting", arms[0]["name"], arm["name"]], rows, title=arm["name"], note=note, left=3)
            changed = True
    if changed:
        yield Paragraph(f"All other settings are equal. {NONE} means unset, or not an option of the arm's part.")


def pairing(results: dict[str, Any]) -> Iterator[Table | Paragraph]:
    arms = results.get("arms") or []
    for arm in arms[1:]:
        if arm.get("n_tensors"):
            text = f"{arm['name']}: {count(arm.get('n_paired_tensors'))} of {count(arm['n_tensors'])} tensors have the same "
            text += f"initial weights as in {arms[0]['name']}"
            names = list(arm.get("unpaired_tensors") or [])
            yield Paragraph(f"{text}; the others are:" if names else f"{text}.", names)
    if any(arm.get("n_tensors") for arm in arms[1:]):
        changed = [str(row[0]) for arm in arms for row in arm.get("config_changes") or []]
        paths = {path.rpartition(".")[2] for path in changed}
        if any(path.startswith("data.") for path in changed):
            yield Paragraph("The arms use different forms of the data, so their batches differ at equal seeds.")
        elif paths & BATCH_SETTINGS:
            yield Paragraph("The arms differ in the shape of their batches, so their batches differ at equal seeds.")
        else:
            yield Paragraph("At equal seeds, all arms also see the same batches in the same order.")


def statistics_table(results: dict[str, Any]) -> Iterator[Table | Paragraph]:
    from partwise.comparison.report.explanations import statistics_rows

    comparisons = results.get("comparisons") or []
    rows = list(statistics_rows(results))
    if rows:
        head = ["", *(f"{row['arm']} − {row['against']}" for row in comparisons)]
        yield Table(head, [[label, *cells] for label, _, cells in rows], hints=[hint for _, hint, _ in rows])
    if results.get("tuning_note") and not results.get("tuning"):
        yield Paragraph(f"Tuning: {results['tuning_note']}. Tuning each arm's learning rate could change the answer.")
    claims = [row for row in comparisons if row.get("role", "claim") == "claim"]
    if len(claims) > 1 and claims[0].get("alpha_spent"):
        each = [row.get("total_alpha") if row.get("looks") else row["alpha_spent"] for row in claims]
        total = format_percent(min(1.0, len(claims) * max(each)))
        yield Paragraph(
            f"{len(claims)} comparisons were judged together. Better and worse are adjusted for all of them (Holm); the "
            f"intervals are not, and the probability that at least one misses the true value is up to {total}."
        )
    for warning in results.get("warnings") or []:
        yield Paragraph(f"Warning: {warning}")


def accuracy_table(results: dict[str, Any]) -> Iterator[Table]:
    arms = [arm for arm in results.get("arms") or [] if arm.get("accuracy")]
    rows = []
    for kind in dict.fromkeys(kind for arm in arms for kind in arm["accuracy"]):
        for arm in arms:
            accuracies = arm["accuracy"].get(kind) or {}
            problems = (accuracies.get("exact_match") or {}).get("total")
            cells = [fraction_interval(accuracies.get(measure)) for measure in ACCURACIES]
            rows.append(["all" if kind == "all" else f"only {kind}", arm["name"], *cells, count(problems)])
    if not rows:
        return
    references = results.get("references") or {}
    for name, keys in (
        (
            "the most frequent character at each position",
            ("constant_char_accuracy_closed", "constant_char_accuracy", ""),
        ),
        ("one constant answer", ("", "", "constant_exact_match")),
    ):
        if any(references.get(key) is not None for key in keys):
            rows.append(["reference", name, *(percent(references.get(key)) for key in keys), ""])
    note = (
        "Pooled over the seeds, with Wilson 95% intervals. They treat characters as independent and ignore variation "
    )
    note += "between seeds, so they are too narrow. A constant reference ignores the problem."
    yield Table(["problems", "arm", *ACCURACIES.values(), "problems scored"], rows, note=note, left=2)


def reference_table(results: dict[str, Any]) -> Iterator[Table]:
    arms = results.get("arms") or []
    rows = []
    for name, value, hint in loss_references(results):
        gaps = [None if (loss := mean(arm)) is None else loss - value for arm in arms]
        rows.append([f"{name}: {hint}", number(value), *(NONE if gap is None else f"{gap:+.4f}" for gap in gaps)])
    if rows:
        head = ["reference", str(results.get("unit") or "loss"), *(f"{arm['name']} − reference" for arm in arms)]
        yield Table(head, rows, note=REFERENCES_NOTE)


def run_details(results: dict[str, Any]) -> Iterator[Table | Paragraph]:
    for title, key in (("Task", "task"), ("Runtime, the same for every run", "runtime"), ("Machine", "machine")):
        facts = (results.get(key) or {}).items()
        rows = [[name.replace("_", " "), f"{v:.3g}" if isinstance(v, float) else format_value(v)] for name, v in facts]
        if rows:
            yield Table(["", ""], rows, title=title, left=2, kind="facts")
    if results.get("command"):
        yield Paragraph("Command, which also resumes or repeats this comparison:")
        yield Paragraph(str(results["command"]), kind="verbatim")


def loss_references(results: dict[str, Any]) -> list[tuple[str, float, str]]:
    """(name, value, explanation) of the references of a loss, in its unit."""
    references = (results.get("references") or {}) if lower_is_better(results) else {}  # accuracies have no loss
    context, fitted = references.get("context"), references.get("fitted_tokens")
    name = f"{context + 1}-gram" if isinstance(context, int) else "n-gram"
    hint = "modified Kneser-Ney" + (f", {context} tokens of context" if isinstance(context, int) else "")
    hint += f", fitted on {count(fitted)} training tokens" if fitted else ""
    rows = [
        ("unigram", references.get("unigram"), "token frequencies"),
        (name, references.get("kneser_ney"), hint),
    ]
    return [(name, value, hint) for name, value, hint in rows if value is not None]


def reference_sentence(results: dict[str, Any]) -> str:
    """How the arms compare with the best n-gram reference; '' without one."""
    rows = loss_references(results)
    losses = [value for arm in results.get("arms") or [] if (value := mean(arm)) is not None]
    if not rows or not losses:
        return ""
    name, reference, _ = min(rows, key=lambda row: row[1])
    above = sum(value > reference for value in losses)
    every = "Every arm" if len(losses) == len(results["arms"]) else "Every arm without a diverged run"
    if above in (0, len(losses)):
        where, what = ("above", "has not beaten") if above else ("below", "beats")
        outcome = f"{every} is {where} it and {what} n-gram counting."
    else:
        outcome = f"{above} of {len(losses)} arms are above it and have not beaten n-gram counting."
    return f"For scale: the {name} reference has a loss of {number(reference)}. {outcome}"
