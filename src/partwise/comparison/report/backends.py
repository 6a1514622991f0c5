"""How the operations of each arm were computed, which its speed depends on."""

from collections.abc import Iterator

from partwise.comparison.results import ArmResult, Results
from partwise.plots.blocks import Paragraph, Table

BACKENDS_NOTE = (
    "The number of operations that each backend computes in training, and why not a faster one. eager: plain torch "
    "operations, for blocks layer by layer. The layers of a block that another backend computes as a whole are not listed."
)


def backends(results: Results) -> Iterator[Table | Paragraph]:
    """The backends of each arm; one sentence if they are the same for all."""
    rows = [[arm.name, describe_backends(arm)] for arm in results.arms if arm.backends]
    if len(rows) > 1 and len(rows) == len(results.arms) and len({text for _, text in rows}) == 1:
        yield Paragraph(f"Backends of every arm: {rows[0][1]}. {BACKENDS_NOTE}")
    elif rows:
        yield Table(["arm", "backends"], rows, note=BACKENDS_NOTE, left=2)


def describe_backends(arm: ArmResult) -> str:
    """As in `block: 4 eager (cpp: ffn=mine is not supported); attention: 4 cpp`."""
    kinds = []
    for each in arm.backends:
        counts = ", ".join(f"{number} {backend}" for backend, number in each.counts.items())
        reasons = f" ({'; '.join(each.reasons)})" if each.reasons else ""
        kinds.append(f"{each.kind}: {counts}{reasons}")
    return "; ".join(kinds)


def missing_kernels(results: Results) -> Iterator[str]:
    """One sentence per arm that lacks a kernel: its speed is not that of its mathematics alone."""
    for arm in results.arms:
        if arm.missing_kernels:
            yield (
                f"{arm.name} lacks a kernel that another arm uses ({'; '.join(arm.missing_kernels)}), so its tokens per "
                "second are not those of its mathematics alone; `partwise doctor` with its preset, its overrides and --time "
                "measures what that costs."
            )
