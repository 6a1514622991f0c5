"""The ledger's entries about a comparison, as sentences."""

from collections.abc import Iterator, Sequence

from partwise.comparison.results import OnlineLevel, RepeatedQuestion, Results
from partwise.comparison.stats.number_format import format_percent
from partwise.messages import times
from partwise.plots.blocks import Paragraph

MOST_NAMES = 5


def record(results: Results) -> Iterator[Paragraph]:
    """The section of the report."""
    for sentence in ledger_sentences(results):
        yield Paragraph(sentence)
    if results.asked_before and not any(question.times or question.same_seeds for question in results.asked_before):
        yield Paragraph("The ledger of this project has no earlier comparison that asked the same question.")


def ledger_sentences(results: Results) -> list[str]:
    """The level in the online sequence, and every question that was asked before; empty if there is nothing to say."""
    sentences = [changes_sentence(results.provenance.value_changes)] if results.provenance.value_changes else []
    sentences += [families_sentence(results)] if results.provenance.extends else []
    sentences += [online_sentence(results.online)] if results.online else []
    sentences += [repetition_sentence(question) for question in results.asked_before if question.times]
    return sentences + list(same_seeds_sentences(results.asked_before))


def changes_sentence(changes: int) -> str:
    return (
        f"After the first verdict, which stands, trials were repeated with other values ({times(changes)}): estimates from "
        "those are exploratory."
    )


def families_sentence(results: Results) -> str:
    """The family of the comparison to which this one has added arms, and its own."""
    earlier = results.provenance.extends
    assert earlier is not None
    own = [claim.effect.arm for claim in results.claims if claim.role == "claim"]
    verdicts = ", ".join(f"{arm} {verdict or 'no verdict'}" for arm, verdict in earlier.verdicts.items())
    where = earlier.folder + (f" (record {earlier.record} of the ledger)" if earlier.record else "")
    return (
        f"{where} judged one family, and its verdicts stand: {verdicts or 'its certificate is gone'}. This comparison adds "
        f"arms to it, reuses its trials, and judges another family together: {', '.join(own)}."
    )


def online_sentence(online: OnlineLevel) -> str:
    discoveries = f"{online.discoveries} discover{'y' if online.discoveries == 1 else 'ies'}"
    return (
        f"Comparison {online.number} of this project's online sequence, started after {discoveries}: tested at alpha = "
        f"{online.level:.2g}, so that on average at most {format_percent(online.alpha)} of the comparisons "
        "that call an arm better are wrong."
    )


def repetition_sentence(question: RepeatedQuestion) -> str:
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(question.outcomes.items()))
    names = ", ".join(question.names[-MOST_NAMES:])
    more = "latest: " if len(question.names) > MOST_NAMES else ""
    asked = f"{question.arm} against {question.against} was asked {times(question.times)} before in this project"
    return f"{asked}: {outcomes} ({more}{names})."


def same_seeds_sentences(questions: Sequence[RepeatedQuestion]) -> Iterator[str]:
    """One sentence for every earlier comparison that judged seeds of this one, with the claims in question."""
    from partwise.comparison.design.plan import listed  # plans load the registry of parts, which a report does without

    claims: dict[tuple[str, tuple[int, int]], list[str]] = {}
    for question in questions:
        for folder, seeds in question.same_seeds.items():
            claims.setdefault((folder, seeds), []).append(f"{question.arm} against {question.against}")
    for (folder, (first, last)), names in claims.items():
        span = f"Seed {first}" if first == last else f"Seeds {first} to {last}"
        were = "was" if first == last else "were"
        yield (
            f"{span} of {listed(names)} {were} judged before, in {folder}: the verdicts are not independent; "
            "--first-seed gives fresh seeds."
        )
