"""The page of claims: for each study the published result, ours with its interval, the compute saved, and the outcome."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from partwise.comparison.design.plan import listed
from partwise.comparison.report.cells import confidence, decimal_places, number, with_interval
from partwise.comparison.report.horizon_section import factor_cell, in_words, why_not_computed
from partwise.comparison.results import Ratio, Results
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.number_format import format_p
from partwise.plots.cells import NONE
from partwise.studies.claims import (
    NOT_RUN,
    ClaimOutcome,
    distinct_names,
    find_outcomes,
    overall,
    scope,
    shared_baselines,
    untested_claims,
)
from partwise.studies.growth import ALPHA, GROWTH, Change, Contrast, contrasts, growth_lines, settings_of
from partwise.studies.study import LIBRARY, Study, StudyResults
from partwise.studies.trends import TRENDS

PICTURE = "images/studies.svg"
"""The forest plot of all claims, beside the page."""

MAX_DIFFERENCES = 4
"""In a row of the table of claims."""


def markdown(studies: Sequence[Study]) -> str:
    """The page: the table of claims, and a section for each study, those with a protocol under it."""
    found = find_outcomes(studies)
    lines = ["# The table of claims", "", CAPTION, ""]
    lines += ["| study | claim | published result | here | outcome |", "|---|---|---|---|---|"]
    for study in sorted(studies, key=lambda study: not found[study.name]):  # those that were run first
        cells = [f"[{study.name}](#{study.name})", study.claim, study.published, differences(study, found[study.name])]
        lines.append(row([*cells, f"**{overall(study, found[study.name])}**"]))
    lines += ["", HOW_TO_READ]
    protocols = {study.protocol: study.about_protocol for study in studies if study.protocol}
    lines += ["", one_line(FAMILY)] if protocols else []
    for name, about in protocols.items():
        ours = [study for study in studies if study.protocol == name]
        settings = f"[Settings and history]({address(ours[0].path.parent / 'protocols' / f'{name}.yaml')})."
        lines += ["", f"## Protocol {name}", "", f"{one_line(about)} {settings}", *facts(ours)]
        if sharing := [listed(each) for each in shared_baselines(ours, found)]:
            lines += ["", f"These comparisons share runs of their baseline: {'; '.join(sharing)}."]
        if name == GROWTH[0]:
            lines += growth_section(studies)
        for study in ours:
            lines += section(study, found[study.name])
    alone = [study for study in studies if not study.protocol]
    lines += ["", "## Studies with a setting of their own"] if alone else []
    for study in alone:
        lines += [*section(study, found[study.name]), *facts([study])]
    return "\n".join(lines) + "\n"


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(one_line, cells))} |"


def one_line(text: str) -> str:
    return " ".join(text.split())


def differences(study: Study, findings: Sequence[ClaimOutcome]) -> str:
    """The mean difference of each claim, with the steps for the same loss; of a long study, where they are."""
    if len(findings) > MAX_DIFFERENCES:
        return f"[below](#{study.name})"
    named = zip(findings, distinct_names(findings), strict=True)
    return "<br>".join(f"{name}: {short_result(each)}" for each, name in named) or NONE


def short_result(finding: ClaimOutcome) -> str:
    effect, saved = finding.effect, finding.compute_saved
    text = number(effect.mean, 3) if effect.mean is not None else "failed"
    if effect.mean is not None and effect.mean > 0:
        text = f"+{text}"
    if saved and "steps" in saved.ratios:
        steps, flops = saved.ratios["steps"], saved.ratios.get("flops")
        text += f", {in_words(steps, 'steps')}"
        # a step of some arms has more or fewer operations than one of the baseline
        if flops and abs(math.log(known(flops) / known(steps))) > math.log(1.05):
            text += f", {in_words(flops, 'FLOPs')}"
    return text


def known(ratio: Ratio) -> float:
    """The ratio, or the only bound of it that is known."""
    return ratio.ratio or ratio.low or ratio.high or math.nan


def section(study: Study, findings: Sequence[ClaimOutcome]) -> Iterator[str]:
    """A study's claim, its command, and its comparisons."""
    yield from ("", f"### {study.name}", "", f"{one_line(study.claim)} Source: {one_line(study.source)}")
    changed = one_line(study.changed)
    if study.history:
        changed = f"{changed} {EARLIER.format(address(study.path))}".strip()
    yield from ("", changed, "") if changed else ("",)
    yield from (
        "| comparison | difference | seeds | baseline | mean (interval) | level | verdict | predicted | outcome |",
        "|---|---|---:|---:|---:|---:|---|---|---|",
    )
    # in full in the first row of a comparison
    labels = {key: label(study, key) for key in [*(finding.key for finding in findings), *study.entries]}
    for finding in findings:
        effect = finding.effect
        n = str(effect.n) if effect.paired else f"{effect.n_arm}, {effect.n_against}"
        name, interval = f"{effect.arm} − {effect.against}", with_interval(effect, decimal_places(effect))
        baseline = {arm.name: arm.mean for arm in finding.results.arms}.get(effect.against)
        cells = [labels.pop(finding.key, finding.key), name, n, number(baseline), interval, confidence(effect)]
        yield row([*cells, verdict_cell(effect), finding.expected or NONE, finding.outcome or NONE])
    for key, claim, expected, seeds in untested_claims(study):
        cells = [labels.pop(key, key), f"{claim.arm} − {claim.against}", str(seeds)]
        yield row([*cells, NONE, NONE, NONE, NONE, expected or NONE, NOT_RUN])
    yield from horizon_table(study, findings)
    yield from not_computed(findings)
    stored = StudyResults.from_json(study.results).comparisons if study.results else {}
    for key, results in stored.items():
        if any(each.reasons for each in results.arms[0].backends):
            which = f" of {key}" if len(stored) > 1 else ""
            yield from ("", f"All arms{which} ran without the kernels that one of them lacks, which costs seconds.")


def address(path: Path) -> str:
    """The file of a study or a protocol, for a link of the page in docs/."""
    return f"{SOURCES}/{path.relative_to(LIBRARY).as_posix()}" if path.is_relative_to(LIBRARY) else path.as_posix()


def growth_section(studies: Sequence[Study]) -> Iterator[str]:
    """The figure of the differences in all settings, and the table of their changes; nothing without results."""
    lines = growth_lines(studies)
    if not lines:
        return
    yield from ("", f"![The difference of each part against the number of steps, by size and corpus]({TRENDS})")
    yield from ("", one_line(GROWTH_FIGURE))
    found = contrasts(lines)
    if not found:
        return
    own, others = settings_of(lines)
    settings = [*own, *others]
    steps = {line.setting: line.most_steps for each in lines.values() for line in each}
    most = max(steps.values())
    names = [str(each) if steps[each] == most else f"{each}, {steps[each]:,} steps" for each in settings]
    yield from ("", row(["difference in", *names]), row(["---", *["---:"] * len(settings)]))
    for part, each in lines.items():
        means = {line.setting: number(line.effect.mean, 3) for line in each}
        yield row([part, *(means.get(setting, NONE) for setting in settings)])
    yield from ("", row(["change from", *lines]), row(["---", *["---:"] * len(lines)]))
    for one in found:
        yield row(
            [one.title, *(change_cell(one, one.changes[part]) if part in one.changes else NONE for part in lines)]
        )


def change_cell(contrast: Contrast, change: Change) -> str:
    """With both differences if they are not those of other columns."""
    ends = "" if contrast.at_end else f"{number(change.first, 3)} to {number(change.second, 3)}: "
    return f"{ends}{with_interval(change, 3)[:-1]}; p {format_p(change.p, ALPHA)})"


def label(study: Study, key: str) -> str:
    """The key of a comparison, with what its arms have in common beyond their protocol."""
    words = [word for word in study.own_common(key) if word not in key.split()]
    return f"{key}, all arms with {' '.join(words)}" if words else key


def horizon_table(study: Study, findings: Sequence[ClaimOutcome]) -> Iterator[str]:
    """The mean difference at the end of runs of each length, its change, and the compute saved.

    Runs that studies share were made at different times, perhaps on different machines: without steps timed in turn their
    seconds cannot be compared.
    """
    findings = [finding for finding in findings if finding.over_horizons]
    if not findings:
        return
    steps = sorted({point.step for finding in findings for point in finding.over_horizons})
    computed = any(finding.compute_saved and finding.compute_saved.ratios for finding in findings)
    measures = ("steps", "FLOPs", "seconds") if computed else ()
    head = ["difference after", *(f"{each:,} steps" for each in steps)]
    head += ["change", *(f"{measure}, baseline / arm" for measure in measures)]
    yield ""
    yield row(head)
    yield row(["---", *["---:"] * (len(head) - 1)])
    for finding in findings:
        digits = decimal_places(finding.effect)
        ratios = finding.compute_saved.ratios if finding.compute_saved else {}
        known = {key for key in ratios if key != "seconds" or finding.results.timed_on or not study.protocol}
        saved = [factor_cell(ratios[key]) if key in known else NONE for key in map(str.lower, measures)]
        points = {point.step: point for point in finding.over_horizons}
        cells = [number(points[step].mean, digits) if step in points else NONE for step in steps]
        change = with_interval(finding.change, digits) if finding.change else NONE
        key = f"{finding.key}: " if len(study.entries) > 1 else ""
        yield row([f"{key}{finding.short_name}", *cells, change, *saved])


def not_computed(findings: Sequence[ClaimOutcome]) -> Iterator[str]:
    """Why the compute saved is not known, for claims about a loss."""
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        saved = finding.compute_saved
        if finding.results.metric_is_loss and not (saved and saved.ratios):
            reason = why_not_computed(saved, finding.effect, finding.results)
            reasons.setdefault(reason, []).append(f"{finding.key}, {finding.short_name}")
    for reason, names in reasons.items():
        whose = "" if len(names) == len(findings) else f" of {'; '.join(names)}"
        yield from ("", f"Compute saved{whose}: not computed, because {reason}.")


def facts(studies: Sequence[Study]) -> Iterator[str]:
    """Their scope, the references of their metrics, and where they were trained and timed."""
    scopes: dict[str, str] = {}
    references: dict[str, str] = {}
    places: dict[str, str] = {}
    timed: dict[str, str] = {}
    for study in studies:
        scopes[study.name] = scope(study)
        stored = StudyResults.from_json(study.results).comparisons if study.results else {}
        for key, results in stored.items():
            name = study.name if len(stored) == 1 else f"{study.name}, {key}"
            references[name], places[name] = reference(results), place(results)
            timed[name] = (results.timed_on or "") if results.metric_is_loss else ""
    named = {"Scope": scopes, "References": references, "Trained on": places, "Steps timed in turn on": timed}
    found = [f"{title}: {text}." for title, values in named.items() if (text := grouped(values))]
    yield from ("", " ".join(found)) if found else ()


def grouped(values: Mapping[str, str]) -> str:
    """The most frequent value, and each other one with the names that have it: `one; two (a and b)`."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        if value:
            names.setdefault(value, []).append(name)
    most, *others = sorted(names, key=lambda value: -len(names[value])) or [""]
    return "; ".join([most, *(f"{value} ({listed(names[value])})" for value in others)])


def reference(results: Results) -> str:
    """The losses of n-gram models of the same text, or the accuracy of a constant answer."""
    if results.metric_is_loss:
        return ", ".join(f"{n}-gram {number(loss)}" for n, loss in results.references.ngrams if n > 1)
    constant = {
        "character accuracy": (
            "the most frequent character at each position",
            results.references.constant_char_accuracy,
        ),
        "exact match": ("the most frequent answer", results.references.constant_exact_match),
    }
    name, accuracy = constant.get(results.protocol.metric, ("", None))
    return "" if accuracy is None else f"{name} {number(accuracy)}"


def place(results: Results) -> str:
    """The device and the precision of the runs; '' if unknown."""
    machine, runtime = results.provenance.machine, results.provenance.runtime
    cpu, device, precision = machine.get("cpu"), runtime.get("device", "cpu"), runtime.get("precision")
    where = cpu if device == "cpu" else machine.get("accelerator", device)
    if not where:
        return ""
    host = f", in a machine with {cpu}" if cpu and device != "cpu" else ""
    return f"{where}{f' in {precision}' if precision else ''}{host}"


def verdict_cell(effect: Effect) -> str:
    """The verdict; with *equivalent*, whether the interval excludes zero, as it does for a small but certain difference."""
    if effect.verdict is None:
        if effect.not_bracketed:
            return "none: not bracketed"
        counts = (
            (effect.failed_arm, effect.n_arm, effect.arm),
            (effect.failed_against, effect.n_against, effect.against),
        )
        return ", ".join(f"{failed} of {n} failed ({name})" for failed, n, name in counts if failed) or NONE
    if effect.differences and all(each == 0 for each in effect.differences):
        return f"{effect.verdict}: all differences are 0"
    excludes = effect.low is not None and effect.high is not None and not effect.low <= 0 <= effect.high
    return f"{effect.verdict}, excludes 0" if effect.verdict == "equivalent" and excludes else effect.verdict


SOURCES = "../src/partwise/studies/library"
"""The studies of the package, from docs/."""

EARLIER = "Changed after a first answer: [history]({})."

GROWTH_FIGURE = """Lines are mean differences, dots the seeds, bars 95% intervals over seeds, each by itself (one that is cut
off extends beyond the panel); the band is the margin. Sizes are the parameters of the baseline. A change with size or corpus
(diamonds: not from the smallest model) is that of the difference after the most steps of both settings. Its 95% interval is
unpaired and includes the noise of tuning; its p is adjusted for all parts by Holm's method, not for the several changes. If
an interval includes 0, these runs cannot tell whether the effect changes. On another corpus the scale of the loss and the
number of epochs change too."""

FAMILY = """Studies of one protocol are one family of claims, adjusted together by Holm's method; claims that are not run yet
count. In a section, the first table has the interval that the verdict follows from, with the noise of tuning if rates were
tuned, and the mean of the baseline. The second table decides nothing: the difference after each number of steps, its change
from the first to the last with a 95% interval, and the [compute saved](comparisons.md#several-horizons), the steps, FLOPs or
seconds of the baseline divided by those of the arm, at the loss with which the worse of the two ends (below 1: the arm needs
more). Its intervals ignore the noise of tuning and the claims of other studies. A rate is tuned with runs of one length and
used for all. Comparisons that share runs of their baseline have correlated errors; Holm's method remains valid. Seconds
follow from training steps that were timed in turn (`partwise study time`). The losses of every seed and of every tuning run
are in the study's `results.json`."""

CAPTION = f"""![Forest plot: the difference and interval of every claim that was run]({PICTURE})

Each diamond is a mean difference over paired seeds with its interval, in nats per token (a character here), character
accuracy or exact match. A loss below 0 is better. The band is the margin. The axis is linear up to 0.05, then logarithmic."""

HOW_TO_READ = """## How to read the table

- **seen here**: the verdict is the one that the claim predicts;
- **not seen here**: the verdict is another, such as *equivalent* where the claim predicts *better*;
- **opposite here**: *worse* where the claim predicts *better*, or the reverse;
- **too noisy here**: the planned seeds did not decide at this size, or some runs failed;
- **tuning not bracketed**: the best rate of an arm is at an edge of those tried, so there is no verdict;
- **no prediction**: nothing published says what to expect here.

If the change is the opposite of the claim (untied embeddings where the claim is about tied ones), the claim predicts
*worse*. Ratios are at equal loss, from runs of several lengths; that of FLOPs is given if it differs from that of steps by
more than 5%. They have 95% intervals and decide nothing. *Equivalent* means shown to be within the margin, not zero. An
outcome holds for the model size, steps and corpus of its study. `partwise study run NAME` repeats a study, and
`partwise study table` writes this page."""
