"""The page of claims: for each study the published result, ours with its interval, the compute saved, and the outcome."""

import math
from collections.abc import Iterator, Sequence

from partwise.comparison.design.plan import listed
from partwise.comparison.report.backends import describe_backends
from partwise.comparison.report.cells import confidence, decimal_places, number, with_interval
from partwise.comparison.report.horizons import factor_cell, in_words, why_not_computed
from partwise.comparison.results import ArmResult, Ratio, Results, Tuning
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.number_format import format_p
from partwise.plots.cells import NONE
from partwise.studies.claims import (
    NOT_RUN,
    ClaimOutcome,
    find_outcomes,
    overall,
    scope,
    shared_baselines,
    untested_claims,
)
from partwise.studies.growth import ALPHA, GROWTH, Change, Contrast, contrasts, growth_lines, settings_of
from partwise.studies.study import Study, StudyResults
from partwise.studies.trends import TRENDS

PICTURE = "images/studies.svg"
"""The forest plot of all claims, beside the page."""

MAX_DIFFERENCES = 4
"""In a row of the table of claims."""


def markdown(studies: Sequence[Study]) -> str:
    """The page: the table of claims, and a section for each study, those with a protocol under it."""
    found = find_outcomes(studies)
    lines = ["# The table of claims", "", INTRODUCTION, ""]
    lines += ["| study | claim | published result | here | outcome | scope |", "|---|---|---|---|---|---|"]
    for study in sorted(studies, key=lambda study: not found[study.name]):  # those that were run first
        cells = [f"[{study.name}](#{study.name})", study.claim, study.published, differences(study, found[study.name])]
        cells += [f"**{overall(study, found[study.name])}**", scope(study)]
        lines.append(row(cells))
    protocols = {study.protocol: study.about_protocol for study in studies if study.protocol}
    lines += ["", one_line(FAMILY)] if protocols else []
    for name, about in protocols.items():
        ours = [study for study in studies if study.protocol == name]
        lines += ["", f"## Protocol {name}", "", one_line(about)]
        if sharing := [listed(each) for each in shared_baselines(ours, found)]:
            lines += ["", f"These comparisons share runs of their baseline: {'; '.join(sharing)}."]
        if name == GROWTH[0]:
            lines += growth_section(studies)
        for study in ours:
            lines += section(study, found[study.name])
    alone = [study for study in studies if not study.protocol]
    lines += ["", "## Studies with a setting of their own"] if alone else []
    for study in alone:
        lines += section(study, found[study.name])
    return "\n".join(lines) + "\n"


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(one_line, cells))} |"


def one_line(text: str) -> str:
    return " ".join(text.split())


def differences(study: Study, findings: Sequence[ClaimOutcome]) -> str:
    """The mean difference of each claim, with the steps for the same loss; of a long study, where they are."""
    if len(findings) > MAX_DIFFERENCES:
        return f"[below](#{study.name})"
    names = [each.short_name for each in findings]
    named = [
        name if names.count(name) == 1 else f"{each.key}, {name}" for each, name in zip(findings, names, strict=True)
    ]
    return "<br>".join(f"{name}: {short_result(each)}" for each, name in zip(findings, named, strict=True)) or NONE


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
    if study.changed:
        yield from ("", one_line(study.changed))
    if study.history:
        yield from ("", f"Earlier answers: {one_line(' '.join(study.history))}")
    yield from ("", f"`partwise study run {study.name}`", "")
    yield from (
        "| comparison | difference | seeds | mean (interval) | level | verdict | predicted | outcome |",
        "|---|---|---:|---:|---:|---|---|---|",
    )
    # in full in the first row of a comparison
    labels = {key: label(study, key) for key in [*(finding.key for finding in findings), *study.entries]}
    for finding in findings:
        effect = finding.effect
        n = str(effect.n) if effect.paired else f"{effect.n_arm}, {effect.n_against}"
        name, interval = f"{effect.arm} − {effect.against}", with_interval(effect, decimal_places(effect))
        cells = [labels.pop(finding.key, finding.key), name, n, interval, confidence(effect), verdict_cell(effect)]
        yield row([*cells, finding.expected or NONE, finding.outcome or NONE])
    for key, claim, expected, seeds in untested_claims(study):
        cells = [labels.pop(key, key), f"{claim.arm} − {claim.against}", str(seeds)]
        yield row([*cells, NONE, NONE, NONE, expected or NONE, NOT_RUN])
    yield from horizon_table(study, findings)
    yield from not_computed(findings)
    if study.results and study.protocol:
        for key, results in StudyResults.from_json(study.results).comparisons.items():
            yield from ("", f"{label(study, key)}: {standing(results)}")
            if results.tuning:
                yield from ("", tuning_losses(results.tuning))


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
    """The difference at the end of runs of each length, and the compute saved.

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
    head += ["change", *(f"times fewer {measure}" for measure in measures)]
    yield ""
    yield row(head)
    yield row(["---", *["---:"] * (len(head) - 1)])
    for finding in findings:
        digits = decimal_places(finding.effect)
        ratios = finding.compute_saved.ratios if finding.compute_saved else {}
        known = {key for key in ratios if key != "seconds" or finding.results.timed_on or not study.protocol}
        saved = [factor_cell(ratios[key]) if key in known else NONE for key in map(str.lower, measures)]
        points = {point.step: point for point in finding.over_horizons}
        cells = [with_interval(points[step], digits) if step in points else NONE for step in steps]
        change = with_interval(finding.change, digits) if finding.change else NONE
        yield row([f"{finding.key}: {finding.short_name}", *cells, change, *saved])


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


def standing(results: Results) -> str:
    """The mean of every arm beside its references, the hash of the data, and how runs and seconds were computed.

    A loss stands beside those of n-gram models, an accuracy beside that of a constant answer.
    """
    means = [mean_with_sd(arm) for arm in results.arms]
    if results.metric_is_loss:
        references = [f"{n}-gram model {number(loss)}" for n, loss in results.references.ngrams if n > 1]
    else:
        constant = {
            "character accuracy": (
                "the most frequent character at each position",
                results.references.constant_char_accuracy,
            ),
            "exact match": ("the most frequent answer", results.references.constant_exact_match),
        }
        name, accuracy = constant.get(results.protocol.metric, ("", None))
        references = [] if accuracy is None else [f"{name} {number(accuracy)}"]
    data = f" Data: SHA-256 {results.task.hash[:16]}…" if results.task and results.task.hash else ""
    machine, runtime = results.provenance.machine, results.provenance.runtime
    cpu, device, precision = machine.get("cpu"), runtime.get("device", "cpu"), runtime.get("precision")
    place = cpu if device == "cpu" else machine.get("accelerator", device)
    host = f", in a machine with {cpu}" if cpu and device != "cpu" else ""
    trained = f" Trained on {place}{f' in {precision}' if precision else ''}{host}." if place else ""
    timed = f" Steps timed in turn on {results.timed_on}." if results.timed_on and results.metric_is_loss else ""
    parts = [", ".join(means), ", ".join(references)]
    baseline = results.arms[0]
    excluded = any(each.reasons for each in baseline.backends)  # by another arm, which costs the baseline seconds
    backends = f" Backends of {baseline.name}: {describe_backends(baseline)}." if excluded else ""
    facts = f"{data}{trained}{timed}{backends}"
    return f"mean {results.protocol.metric} {'; '.join(filter(None, parts))}.{facts}"


def mean_with_sd(arm: ArmResult) -> str:
    """`llama 1.5335 (seed SD 0.0047)`."""
    sd = f" (seed SD {number(arm.sd)})" if arm.sd is not None else ""
    return f"{arm.name} {number(arm.mean)}{sd}"


def tuning_losses(tuning: Tuning) -> str:
    """The mean loss of each arm's tuning runs at each value, with the chosen one in bold."""
    arms = []
    for arm in tuning.arms:
        tried = [(value, mean) for value, mean in zip(tuning.values, arm.means, strict=True) if mean is not None]
        losses = [
            f"**{value} {number(mean)}**" if value == arm.best else f"{value} {number(mean)}" for value, mean in tried
        ]
        arms.append(f"{arm.arm}: {', '.join(losses)}")
    return f"Tuned over {tuning.key}, mean loss of {len(tuning.seeds)} other seeds: {'; '.join(arms)}."


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


GROWTH_FIGURE = """Lines are mean differences, dots the seeds. Bars are 95% intervals over seeds, each by itself; one that is
cut off extends beyond the panel. The band is the margin. A size is the number of parameters of the baseline; the same steps
are the same number of tokens. Below, a change with size or corpus is that of the difference after the most steps that both
have (diamonds: not from the smallest model): its 95% interval is unpaired and includes the noise of tuning, and its p-value
in the table is adjusted for all parts by Holm's method, but not for the several changes. A change with the number of steps is
that of models that were trained for both numbers. Where the interval of a change includes 0, these runs cannot tell whether
the effect depends on the size, the corpus or the number of steps. A loss on another corpus has another scale, and the same
steps are another number of epochs: such a change has more causes than the kind of text."""

FAMILY = """Studies that share a protocol have one family of claims, judged together by Holm's method; claims that are not
run yet count as members. The first table of a study has the interval that its verdict follows from, and its level of
confidence after that adjustment. If rates were tuned, this interval includes the noise of tuning. It can still be a little
narrower than one without that noise, because the noise adds degrees of freedom, of which few seeds have few. The second table
gives the difference at each number of steps, its change from the first to the last (an interval without 0: it depends on the
number of steps), and the [compute saved](comparisons.md#several-horizons): the steps, floating-point operations or seconds of
the baseline divided by those that the arm needs for the same loss (below 1: it needs more), at the loss with which the worse
of the two ends. Tokens are proportional to steps here. The intervals of the second table ignore the noise of tuning and the
claims of other studies, and decide nothing. They are 95% intervals. If a comparison has several arms, that of the last
difference is adjusted for them by Holm's method, and the others by Bonferroni's. The table of claims repeats the ratios. A
rate is tuned with runs of one length and used for all lengths: a difference over steps contains how well that rate suits each
of them. Runs that several comparisons need, the baseline's above all, are trained once, so the errors of these differences
are correlated (a many-to-one design); Holm's method remains valid. Each protocol names the comparisons that share runs of
their baseline. Seconds follow from training steps of the arms that were timed in turn (`partwise study time`), not from the
runs, which were made at different times on machines that did other work as well."""

INTRODUCTION = f"""![Forest plot: the difference and interval of every claim that was run]({PICTURE})

A diamond is the mean difference over paired seeds (each seed trains both arms on the same data), the line its interval, and
the band the margin: the largest difference that counts as negligible, fixed before the first run. *Equivalent* means shown to
be smaller than the margin, not shown to be zero. Differences up to 0.05 are drawn to scale, larger ones logarithmically.
The words on the right say what became of the claim:

- **seen here**: the verdict is the one that the claim predicts;
- **not seen here**: the verdict is another, such as *equivalent* where the claim predicts *better*;
- **opposite here**: *worse* where the claim predicts *better*, or the reverse;
- **too noisy here**: the planned seeds did not decide the question at this size, or some runs failed;
- **tuning not bracketed**: the best rate of an arm is at an edge of those that were tried, so there is no verdict;
- **no prediction**: nothing published says what to expect in this setting.

A difference is that of the changed model minus the baseline, for losses: below 0, the change is better. Often the change is
what the claim speaks against, such as untied embeddings in a claim for tied ones: it then predicts *worse*. The ratio of
steps to the same loss needs runs of several lengths. So does the ratio of floating-point operations, which is given if it
differs by more than 5%. Compare each with what was published in the same unit. Their intervals have a level of their own
(95%, several arms of one comparison adjusted for each other) and decide nothing.

Generated from the stored results of every study, as `partwise study table` prints it;
`partwise study run NAME` reproduces them. Differences are in nats per token of validation loss (cross-entropy with natural
logarithms; a token is a character here), in character accuracy or in exact answers. No outcome extends beyond the model size,
number of steps and corpus of its study."""
