"""What a report says, section by section, as plain tables and drawings: HTML and Markdown are two views of it."""

import math
from collections.abc import Iterator
from typing import Any

from partwise.comparison.digits import percent
from partwise.comparison.report import evidence
from partwise.comparison.report.blocks import Drawing, Lines, Section, Table
from partwise.comparison.report.cells import (
    NONE,
    capital,
    confidence,
    count,
    lower,
    mean,
    measured,
    number,
    pick,
    places,
    plain,
    relative,
    sd,
    share,
    share_interval,
    with_interval,
)

FLOORS_SAY = "A table of counts scores this; a model above it has learned less than a table."

BATCHES = {"batch_size", "context", "accumulate", "max_len"}
"""Settings that change what a batch holds."""

MEASURES = {
    "characters_closed": "right characters, closing $ included",
    "characters": "right characters, without it",
    "exact": "right whole answers",
}


def sections(results: dict[str, Any]) -> list[Section]:
    """Every section that the results have something for, in the order of the report."""
    made = [
        Section("The claim", [*evidence.claim(results)]),
        Section("All comparisons", [*evidence.forest(results)]),
        Section("Every seed", [*difference_drawings(results), *seed_table(results)]),
        Section("Confirmed on fresh seeds", [*evidence.confirmation(results)]),
        Section("Over training", [*curve_drawings(results), *evidence.quarters(results), *horizon_table(results)]),
        Section("The arms", [*arm_table(results)]),
        Section("What was held equal", [*evidence.four_views(results)]),
        Section("Tuning", [*evidence.tuning(results)]),
        Section("Inside the models", [*evidence.insides(results)]),
        Section("The protocol", [*evidence.protocol(results)]),
        Section("What differs in the configuration", [*change_tables(results)]),
        Section("What starts equal", [*pairing(results)]),
        Section("The statistics", [*statistics_table(results)]),
        Section("Arithmetic accuracy", [*accuracy_table(results)]),
        Section("Floors", [*floor_table(results)]),
        Section("How it was run", [*circumstances(results)]),
    ]
    return [section for section in made if section.blocks]


def difference_drawings(results: dict[str, Any]) -> Iterator[Drawing]:
    from partwise.comparison.report.figures import TONES, draw_differences

    for index, row in enumerate(results.get("comparisons") or []):
        tone = TONES[row.get("verdict") or "none"]
        svg = draw_differences(row, tone, results.get("margin") or 0.0, lower(results), f"d{index}")
        if svg:
            note = f"{capital(measured(results))}. A dot is one seed, trained once with either arm"
            note += "; the diamond is the mean" if row.get("mean") is not None else ""
            note += f" with its {confidence(row)} interval" if row.get("low") is not None else ""
            note += f"; the band is the margin of ±{results['margin']:g}." if results.get("margin") else "."
            yield Drawing(f"{row['arm']} minus {row['against']}", svg, note)


def seed_table(results: dict[str, Any]) -> Iterator[Table]:
    arms, comparisons = results.get("arms") or [], results.get("comparisons") or []
    rows = []
    for index, seed in enumerate(results.get("seeds") or []):
        cells = [str(seed)]
        for arm in arms:
            value = pick(arm.get("values"), index)
            cells.append("diverged" if value is None and seed in (arm.get("diverged") or ()) else number(value))
        for row in comparisons:
            found = dict(zip(row.get("seeds") or [], row.get("differences") or [], strict=False))
            cells.append(number(found.get(seed), places(row, results)))
        rows.append(cells)
    if rows:
        head = ["seed", *(arm["name"] for arm in arms), *(f"{row['arm']} − {row['against']}" for row in comparisons)]
        rows.append(["mean", *(number(mean(arm)) for arm in arms)])
        rows[-1] += [number(row.get("mean"), places(row, results)) for row in comparisons]
        yield Table(head, rows, title=f"{capital(measured(results))}, seed by seed")


def curve_drawings(results: dict[str, Any]) -> Iterator[Drawing]:
    from partwise.comparison.report.figures import ARM_COLOURS, TONES, draw_losses, draw_over_time

    arms = results.get("arms") or []
    colours = [ARM_COLOURS[index % len(ARM_COLOURS)] for index in range(len(arms))]
    legend = [(colour, arm["name"]) for colour, arm in zip(colours, arms, strict=True)]
    training, validation = [], []
    for colour, arm in zip(colours, arms, strict=True):
        curves = arm.get("curves") or {}
        training += [(colour, points) for points in curves.get("training") or []]
        validation += [(colour, points) for points in curves.get("evaluations") or []]
    unit = results.get("unit") or ""
    floors = [(name, value) for name, value, _ in loss_floors(results)]
    late = "The frame fits what comes after the first tenth of the run."
    if svg := draw_losses(training, [], True, "t"):
        yield Drawing(
            f"training loss, {unit}", svg, f"A line per seed, smoothed over a twentieth of it. {late}", legend
        )
    if svg := draw_losses(validation, floors, False, "v"):
        named = ", ".join(f"{name} {number(value)}" for name, value in floors)
        note = f"A line per seed. {late}" + (f" Floors, dashed where they are near: {named}." if named else "")
        yield Drawing(f"validation loss, {unit}", svg, note, legend)
    for index, row in enumerate(results.get("comparisons") or []):
        svg = draw_over_time(row, TONES[row.get("verdict") or "none"], results.get("margin") or 0.0, f"o{index}")
        if svg:
            note = "A thin line per seed"
            note += ", the mean in bold with the interval that it would have had" if row.get("verdict") else ""
            note += ". The verdict speaks of the last step only: the others are to look at, not to choose from."
            yield Drawing(f"{row['arm']} minus {row['against']}, over training", svg, note)


def horizon_table(results: dict[str, Any], most: int = 12) -> Iterator[Table]:
    comparisons = [row for row in results.get("comparisons") or [] if row.get("horizons")]
    steps = sorted({point["step"] for row in comparisons for point in row["horizons"]})
    stride = math.ceil(len(steps) / most) or 1
    rows = []
    for step in [step for index, step in enumerate(reversed(steps)) if index % stride == 0][::-1]:
        cells = [count(step)]
        for row in comparisons:
            at = [point for point in row["horizons"] if point["step"] == step]
            cells.append(with_interval(at[0], places(row, results)) if at else NONE)
        rows.append(cells)
    if rows:
        head = ["step", *(f"{row['arm']} − {row['against']}" for row in comparisons)]
        yield Table(head, rows, title="Mean difference and interval at each step", kind="folded")


def arm_table(results: dict[str, Any]) -> Iterator[Table]:
    arms = results.get("arms") or []
    rows = []
    for arm in arms:
        sizes = [relative(arm.get(key), arms[0].get(key)) for key in ("parameters", "flops_per_token")]
        sizes.append(relative(arm.get("tokens_per_second"), arms[0].get("tokens_per_second")))
        memory = arm.get("peak_memory")
        row = [arm["name"], *sizes, NONE if memory is None else f"{memory / 2**20:,.0f} MiB"]
        trained = mean({"values": arm.get("training")})
        row += [number(mean(arm)), number(sd(arm)), number(trained)]
        validated = mean({"values": arm.get("validation")})
        row += [number(None if trained is None or validated is None else validated - trained)]
        rows.append([*row, str(len(arm.get("diverged") or []))])
    head = ["arm", "parameters", "FLOPs per token", "tokens/s", "peak memory", str(results.get("metric") or "mean")]
    head += ["seed SD", "training loss", "gap", "diverged"]
    if not any(arm.get("diverged") for arm in arms):
        head, rows = head[:-1], [row[:-1] for row in rows]
    note = "Tokens per second were measured with each arm alone, in turn, before the runs; the losses are means over "
    note += (
        "the seeds, and no mean is given for an arm that diverged; arms whose claims were closed earlier have fewer "
    )
    note += (
        "seeds, so that differences of these means are not those of the pairs. Percentages are against the first arm. "
    )
    note += "The gap is that between validation and training loss"
    epochs = (results.get("task") or {}).get("epochs")
    note += f", after {epochs:.3g} passes through the training text." if epochs else "."
    if rows:
        yield Table(head, rows, note=note)


def change_tables(results: dict[str, Any]) -> Iterator[Table | Lines]:
    arms = results.get("arms") or []
    found = False
    for arm in arms[1:]:
        rows = [[str(path), plain(old), plain(new)] for path, old, new in arm.get("difference") or []]
        if rows:
            words = " ".join(arm.get("overrides") or [])
            note = f"Given as: {words}." if words != arm["name"] else ""
            yield Table(["path", arms[0]["name"], arm["name"]], rows, title=arm["name"], note=note, left=3)
            found = True
    if found:
        yield Lines(
            f"All else is equal. {NONE} is a value that this side does not have: a swapped part drops its options."
        )


def pairing(results: dict[str, Any]) -> Iterator[Table | Lines]:
    arms = results.get("arms") or []
    for arm in arms[1:]:
        if arm.get("tensors"):
            text = f"{arm['name']}: {count(arm.get('paired'))} of {count(arm['tensors'])} tensors start with the same "
            text += f"values as in {arms[0]['name']}"
            names = list(arm.get("unpaired") or [])
            yield Lines(f"{text}, and these do not:" if names else f"{text}.", names)
    if any(arm.get("tensors") for arm in arms[1:]):
        changed = [str(row[0]) for arm in arms for row in arm.get("difference") or []]
        paths = {path.rpartition(".")[2] for path in changed}
        if any(path.startswith("data.") for path in changed):
            yield Lines("The arms learn from other forms of the data, so a seed does not show them the same batches.")
        elif paths & BATCHES:
            yield Lines("The arms differ in the shape of their batches, so a seed does not show them the same ones.")
        else:
            yield Lines("Every seed also sees the same batches in the same order in every arm.")


def statistics_table(results: dict[str, Any]) -> Iterator[Table | Lines]:
    from partwise.comparison.report.explanations import statistics_rows

    comparisons = results.get("comparisons") or []
    rows = list(statistics_rows(results))
    if rows:
        head = ["", *(f"{row['arm']} − {row['against']}" for row in comparisons)]
        yield Table(head, [[label, *cells] for label, _, cells in rows], hints=[hint for _, hint, _ in rows])
    if results.get("tuning") and not results.get("tuned"):
        yield Lines(f"Tuning: {results['tuning']}. Each arm's own best learning rate could change the answer.")
    claims = [row for row in comparisons if row.get("role", "claim") == "claim"]
    if len(claims) > 1 and claims[0].get("alpha_spent"):
        each = [row.get("total_alpha") if row.get("looks") else row["alpha_spent"] for row in claims]
        total = percent(min(1.0, len(claims) * max(each)))
        yield Lines(
            f"{len(claims)} comparisons were judged together. Better and worse hold for all of them at once (Holm); each "
            f"interval stands for itself, and the chance that at least one misses the truth is up to {total}."
        )
    for warning in results.get("warnings") or []:
        yield Lines(f"Warning: {warning}")


def accuracy_table(results: dict[str, Any]) -> Iterator[Table]:
    arms = [arm for arm in results.get("arms") or [] if arm.get("accuracy")]
    rows = []
    for kind in dict.fromkeys(kind for arm in arms for kind in arm["accuracy"]):
        for arm in arms:
            shares = arm["accuracy"].get(kind) or {}
            problems = (shares.get("exact") or {}).get("total")
            cells = [share_interval(shares.get(measure)) for measure in MEASURES]
            rows.append(["all" if kind == "all" else f"only {kind}", arm["name"], *cells, count(problems)])
    if not rows:
        return
    floors = results.get("floors") or {}
    for name, keys in (
        ("the most frequent character at each position", ("most_frequent_closed", "most_frequent", "")),
        ("one constant answer", ("", "", "constant_answer")),
    ):
        if any(floors.get(key) is not None for key in keys):
            rows.append(["floor", name, *(share(floors.get(key)) for key in keys), ""])
    note = "Pooled over the seeds, with Wilson 95 % intervals. They count every character as independent and no spread "
    note += "between seeds, so the truth is less certain than they are. A floor looks at no problem at all."
    yield Table(["problems", "arm", *MEASURES.values(), "problems scored"], rows, note=note, left=2)


def floor_table(results: dict[str, Any]) -> Iterator[Table]:
    arms = results.get("arms") or []
    rows = []
    for name, value, hint in loss_floors(results):
        gaps = [None if (found := mean(arm)) is None else found - value for arm in arms]
        rows.append([f"{name}: {hint}", number(value), *(NONE if gap is None else f"{gap:+.4f}" for gap in gaps)])
    if rows:
        head = ["floor", str(results.get("unit") or "loss"), *(f"{arm['name']} − floor" for arm in arms)]
        yield Table(head, rows, note=FLOORS_SAY)


def circumstances(results: dict[str, Any]) -> Iterator[Table | Lines]:
    for title, key in (("Task", "task"), ("Chosen once, equal for every run", "choices"), ("Machine", "machine")):
        facts = (results.get(key) or {}).items()
        rows = [[name.replace("_", " "), f"{v:.3g}" if isinstance(v, float) else plain(v)] for name, v in facts]
        if rows:
            yield Table(["", ""], rows, title=title, left=2, kind="facts")
    if results.get("command"):
        yield Lines("The command, which also continues or repeats this comparison:")
        yield Lines(str(results["command"]), kind="verbatim")


def loss_floors(results: dict[str, Any]) -> list[tuple[str, float, str]]:
    """(name, value, explanation) of the floors of a loss, in its unit."""
    floors = (results.get("floors") or {}) if lower(results) else {}  # of another metric than the loss
    context, fitted = floors.get("context"), floors.get("fitted_tokens")
    name = f"{context + 1}-gram" if isinstance(context, int) else "n-gram"
    hint = "modified Kneser-Ney" + (f", {context} tokens of context" if isinstance(context, int) else "")
    hint += f", fitted on {count(fitted)} training tokens" if fitted else ""
    found = [
        ("unigram", floors.get("unigram"), "how often each token occurs"),
        (name, floors.get("kneser_ney"), hint),
    ]
    return [(name, value, hint) for name, value, hint in found if value is not None]


def floor_sentence(results: dict[str, Any]) -> str:
    """How the arms stand to the best table of counts; '' without one."""
    found = loss_floors(results)
    scored = [value for arm in results.get("arms") or [] if (value := mean(arm)) is not None]
    if not found or not scored:
        return ""
    name, floor, _ = min(found, key=lambda row: row[1])
    above = sum(value > floor for value in scored)
    every = "Every arm" if len(scored) == len(results["arms"]) else "Every arm without a diverged run"
    if above in (0, len(scored)):
        where, what = ("above", "less") if above else ("below", "more")
        said = f"{every} lies {where} it: each has learned {what} than that table."
    else:
        said = f"{above} of {len(scored)} arms lie above it: those have learned less than that table."
    return f"For scale: a table of {name} counts scores {number(floor)}. {said}"
