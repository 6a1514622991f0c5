"""The table of claims: for each study the published result, ours with its interval, and the outcome."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partwise.comparison.report.cells import decimal_places, with_interval
from partwise.comparison.results import Results
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.families import decide
from partwise.studies.study import NOT_SEEN, OPPOSITE, SEEN, TOO_NOISY, Study, StudyResults, is_direct, outcome

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Finding:
    """What became of one claim: the comparison's key, the effect and the outcome, '' without a prediction."""

    key: str
    effect: Effect
    outcome: str


def find_outcomes(studies: Sequence[Study]) -> dict[str, list[Finding]]:
    """Of every claim that was tested, by the name of its study. Claims of studies with one protocol are judged together."""
    tested = [(study, key, results, effect) for study in studies for key, results, effect in tested_claims(study)]
    decided = {index: effect for index, (*_, effect) in enumerate(tested)}
    for protocol in {study.protocol for study in studies if study.protocol}:
        family = [index for index, (study, *_) in enumerate(tested) if study.protocol == protocol]
        if family:
            alpha = tested[family[0]][2].protocol.alpha
            decided |= dict(zip(family, decide([tested[index][3] for index in family], alpha), strict=True))
    found: dict[str, list[Finding]] = {study.name: [] for study in studies}
    for index, (study, key, results, effect) in enumerate(tested):
        entry = study.entries.get(key)
        expected = entry.expected(effect.arm) if entry and is_direct(effect, results) else None
        found[study.name].append(Finding(key, decided[index], outcome(expected, decided[index])))
    return found


def tested_claims(study: Study) -> Iterator[tuple[str, Results, Effect]]:
    """The key and the results of each comparison that has been run, with the effect of each of its claims."""
    comparisons = StudyResults.from_json(study.results).comparisons if study.results else {}
    for key, results in comparisons.items():
        for claim in results.claims:
            if claim.role == "claim":
                yield key, results, claim.effect


def overall(findings: Sequence[Finding]) -> str:
    """The outcomes for all arms with a prediction, counted."""
    outcomes = [finding.outcome for finding in findings if finding.outcome]
    if not outcomes:
        return NOT_RUN
    kinds = [kind for kind in (SEEN, NOT_SEEN, OPPOSITE, TOO_NOISY) if kind in outcomes]
    if len(kinds) == 1:
        return kinds[0]
    return ", ".join(f"{outcomes.count(kind)} of {len(outcomes)} {kind}" for kind in kinds)


def step_counts(study: Study) -> list[int]:
    """The numbers of training steps that its comparisons set."""
    words = {word for request in study.comparisons.values() for word in request.common}
    return sorted(int(word.removeprefix("train.steps=")) for word in words if word.startswith("train.steps="))


def scope(study: Study) -> str:
    """The setting that the outcome covers. A broader claim needs at least two corpora and two numbers of steps."""
    corpora = sorted({request.data or "shakespeare" for request in study.comparisons.values()})
    steps = step_counts(study)
    setting = f"{' and '.join(corpora)}, {' and '.join(f'{number:,}' for number in steps) or 'the preset'} steps"
    return setting if len(corpora) > 1 and len(steps) > 1 else f"{setting} only"


def markdown(studies: list[Study]) -> str:
    """The table of claims."""
    found = find_outcomes(studies)
    lines = ["# Published claims, tested", "", INTRODUCTION, ""]
    lines += ["| study | claim | published result | outcome | scope |", "|---|---|---|---|---|"]
    for study in studies:
        cells = (
            f"[{study.name}](#{study.name})",
            study.claim,
            study.published,
            f"**{overall(found[study.name])}**",
            scope(study),
        )
        lines.append(f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |")
    for study in studies:
        lines += [
            "",
            f"## {study.name}",
            "",
            f"{' '.join(study.claim.split())} Source: {' '.join(study.source.split())}",
        ]
        if study.changed:
            lines += ["", " ".join(study.changed.split())]
        if study.history:
            lines += ["", f"Changed after a first answer: {' '.join(' '.join(study.history).split())}"]
        shared = (
            f", under the protocol `{study.protocol}`, whose claims are judged as one family" if study.protocol else ""
        )
        lines += ["", f"`partwise study run {study.name}`{shared}", ""]
        lines += [
            "| comparison | difference | seeds | mean (interval) | verdict | claim |",
            "|---|---|---:|---:|---|---|",
        ]
        for finding in found[study.name]:
            effect = finding.effect
            n = str(effect.n) if effect.paired else f"{effect.n_arm}, {effect.n_against}"
            name, interval = f"{effect.arm} − {effect.against}", with_interval(effect, decimal_places(effect))
            outcomes = f"{verdict_cell(effect)} | {finding.outcome or '–'}"
            lines.append(f"| {finding.key} | {name} | {n} | {interval} | {outcomes} |")
        if not found[study.name]:
            lines.append(f"| {NOT_RUN} | | | | | |")
    return "\n".join(lines) + "\n"


def verdict_cell(effect: Effect) -> str:
    """The verdict; with *equivalent*, whether the interval excludes zero, as it does for a small but certain difference."""
    if effect.verdict is None:
        return "none: not bracketed" if effect.not_bracketed else f"{effect.failed_arm} of {effect.n_arm} failed"
    excludes = effect.low is not None and effect.high is not None and not effect.low <= 0 <= effect.high
    return f"{effect.verdict}, excludes 0" if effect.verdict == "equivalent" and excludes else effect.verdict


PICTURE = "images/studies.svg"
"""The forest plot of all claims, beside the page."""

INTRODUCTION = f"""![Forest plot: the difference and interval of every claim, with its margin and outcome]({PICTURE})

A diamond is the mean difference over paired seeds (each seed trains both arms on the same data), the line its interval, and
the band the margin: the largest difference that does not matter, fixed before the first run. Differences up to 0.05 are
drawn to scale, larger ones logarithmically. The words on the right say what became of the claim:

- **seen here**: the verdict is the one that the claim predicts;
- **not seen here**: the verdict is another, such as *equivalent* where the claim predicts *better*;
- **opposite here**: *worse* where the claim predicts *better*, or the reverse;
- **too noisy here**: the planned seeds did not decide the question at this size, or a run failed.

These studies are small: models of 0.1 million parameters, mostly 300 steps (a third of one pass over the text) at one
learning rate, and every model on text is worse than counting 4-grams. Their history is part of the evidence: once the noise
was measured, the margins of ten studies were doubled to what eight seeds can decide, and where a first answer was
*undecided* some studies were changed and run again; each says so below. Nine comparisons share one baseline configuration,
and seven of them its four runs, so their errors are not independent; Holm's method corrects within a comparison only.

Generated by `partwise study table --out docs/studies.md` from the stored results of every study;
`partwise study run NAME` reproduces them. Differences are in nats per token of validation loss (cross-entropy with natural
logarithms; a token is a character here) or in character accuracy. Each interval is the one that its verdict follows from,
adjusted for the interim looks (judgments planned before the last seed) and the number of arms. No outcome extends beyond the
model size, number of steps and corpus of its study."""
