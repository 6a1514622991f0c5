"""The sections of a report, in order. An error in one part leaves the others: a line replaces that part."""

from collections.abc import Callable, Iterable, Iterator

from partwise.comparison.report import evidence
from partwise.comparison.report.accuracy import accuracy_table, task_table
from partwise.comparison.report.backends import backends
from partwise.comparison.report.differences import difference_figures, over_time_figures
from partwise.comparison.report.failures import code_changes, failures
from partwise.comparison.report.horizon_section import compute_saved, horizons
from partwise.comparison.report.ledger_sentences import record
from partwise.comparison.report.own_parts import findings_table
from partwise.comparison.report.tables import (
    arm_table,
    config_tables,
    pairing,
    reference_table,
    reversal_sentences,
    run_details,
    sample_table,
    seed_table,
    statistics_table,
    step_table,
    training_curves,
    validation_curves,
)
from partwise.comparison.results import Results
from partwise.plots.blocks import Block, Makers, Section, make_sections


def sections(results: Results) -> list[Section]:
    """The sections that are not empty."""
    return make_sections(results, SECTIONS, results.left_out)


def of_one(figures: Callable[[Results], Iterable[Block]]) -> Callable[[Results], Iterator[Block]]:
    """These figures if there is a single difference."""

    def make(results: Results) -> Iterator[Block]:
        if len(results.effects) == 1:
            yield from figures(results)

    return make


def of_several(figures: Callable[[Results], Iterable[Block]]) -> Callable[[Results], Iterator[Block]]:
    """These figures if there are several differences."""

    def make(results: Results) -> Iterator[Block]:
        if len(results.effects) > 1:
            yield from figures(results)

    return make


DETAILS = "Details"
"""The heading of the sentences that say more than a verdict's two lines, on the pages and in the terminal."""

SECTIONS: tuple[tuple[str, Makers[Results]], ...] = (
    ("At a glance", (of_one(difference_figures), of_one(over_time_figures), evidence.forest, reversal_sentences)),
    ("Samples", (sample_table,)),
    (DETAILS, (evidence.verdict_details,)),
    ("The claim", (evidence.claim,)),
    ("Every seed", (of_several(difference_figures), seed_table)),
    ("Trials without a value", (failures,)),
    ("Replication", (evidence.replication,)),
    ("The record", (record,)),
    (
        "Over training",
        (training_curves, validation_curves, of_several(over_time_figures), evidence.sign_table, step_table),
    ),
    ("Numbers of steps", (horizons,)),
    ("Compute saved", (compute_saved,)),
    ("The arms", (arm_table, backends)),
    ("Checks of your own parts", (findings_table,)),
    ("Budgets", (evidence.matched_budgets,)),
    ("Tuning", (evidence.tuning,)),
    ("Activation statistics", (evidence.activation_table,)),
    ("The protocol", (evidence.protocol,)),
    ("Configuration changes", (config_tables,)),
    ("Code changes", (code_changes,)),
    ("Shared initialization", (pairing,)),
    ("The statistics", (statistics_table,)),
    ("Task scores", (task_table,)),
    ("Arithmetic accuracy", (accuracy_table,)),
    ("References", (reference_table,)),
    ("How it was run", (run_details,)),
)
"""The title of each section, and what makes its parts."""
