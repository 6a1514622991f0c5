"""What the studies found, claim by claim: published figure, ours with its interval, and an honest answer."""

import json
from collections.abc import Iterator
from typing import Any

from partwise.comparison.report.cells import places, with_interval
from partwise.comparison.study import Study, answer, is_direct

NOT_RUN = "not run yet"


def findings(study: Study) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(comparison, its row, answer) of everything that was run."""
    path = study.folder / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))["comparisons"] if path.exists() else {}
    for key, found in results.items():
        entry = study.entries.get(key)
        for row in found["comparisons"]:
            if row.get("role", "claim") == "claim":
                row = {**row, "margin": found["margin"], "metric": found["metric"]}
                expected = entry.expected(row["arm"]) if entry and is_direct(row, found) else None
                yield key, row, answer(expected, row)


def overall(study: Study) -> str:
    """The answers of all arms of which the claim says something, counted."""
    answers = [said for _, _, said in findings(study) if said]
    if not answers:
        return NOT_RUN
    kinds = [kind for kind in ("reproduced", "not reproduced", "not testable here") if kind in answers]
    if len(kinds) == 1:
        return kinds[0]
    return ", ".join(f"{answers.count(kind)} of {len(answers)} {kind}" for kind in kinds)


def horizons(study: Study) -> list[int]:
    """The numbers of steps that its comparisons name."""
    words = {word for request in study.comparisons.values() for word in request.common}
    return sorted(int(word.removeprefix("train.steps=")) for word in words if word.startswith("train.steps="))


def scope(study: Study) -> str:
    """What the answer speaks of. A sentence beyond one setting needs two corpora and two horizons, or more of each."""
    corpora = sorted({request.data or "shakespeare" for request in study.comparisons.values()})
    steps = horizons(study)
    where = f"{' and '.join(corpora)}, {' and '.join(f'{number:,}' for number in steps) or 'the preset'} steps"
    return where if len(corpora) > 1 and len(steps) > 1 else f"{where} alone"


def markdown(studies: list[Study]) -> str:
    """The table of claims."""
    lines = ["# Published claims, checked", "", INTRODUCTION, ""]
    lines += ["| study | claim | published | answer | speaks of |", "|---|---|---|---|---|"]
    for study in studies:
        cells = (f"[{study.name}](#{study.name})", study.claim, study.figure, f"**{overall(study)}**", scope(study))
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
        lines += ["", f"`partwise study run {study.name}`", ""]
        lines += [
            "| comparison | difference | seeds | mean (interval) | verdict | the claim |",
            "|---|---|---:|---:|---|---|",
        ]
        for key, row, said in findings(study):
            n = str(row["n"]) if row["paired"] else f"{row['n_arm']}, {row['n_against']}"
            name = f"{row['arm']} − {row['against']}"
            verdict = row["verdict"] or f"{row['diverged_arm']} of {row['n_arm']} diverged"
            lines.append(
                f"| {key} | {name} | {n} | {with_interval(row, places(row, row))} | {verdict} | {said or '–'} |"
            )
        if not list(findings(study)):
            lines.append(f"| {NOT_RUN} | | | | | |")
    return "\n".join(lines) + "\n"


INTRODUCTION = """Made by `partwise study table --out docs/studies.md` from the committed `studies/*/results.json`,
which `partwise study run NAME` makes again. Differences are in nats per token of validation loss unless said otherwise,
with intervals adjusted for the looks; *better* and *worse* are adjusted for the number of arms. *Not testable here*
means that the seeds planned did not decide it at this size, or that a run diverged. Nothing here speaks of another
size, horizon or corpus than the one named."""
