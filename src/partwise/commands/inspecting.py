"""`inspect`: what is inside a preset or a run."""

from importlib import import_module

from partwise.config import ConfigError, did_you_mean
from partwise.inspection.page import Look, write_page
from partwise.inspection.subject import find_subject
from partwise.terminal import console, table
from partwise.train.names import writing

LOOKS = ("activations", "attention", "coordinates", "cost", "gradients", "lens", "positions", "transfer")
"""Each is a module of `partwise.inspection` whose `look(subject)` returns what there is to see."""


def inspect_target(
    target: str, what: str, words: list[str], data: str | None, context: int | None, text: str | None
) -> None:
    """Print one look inside a preset or a run, and write it as a page."""
    if what not in LOOKS:
        raise ConfigError(f"unknown look {what!r}{did_you_mean(what, LOOKS)}: choose {', '.join(LOOKS)}")
    subject = find_subject(target, words, data, context, text)
    found: Look = import_module(f"partwise.inspection.{what}").look(subject)
    console.print(table(f"{subject.name}: {found.title}", found.columns, found.rows))
    console.print(found.about, style="dim", markup=False)
    path = subject.folder / f"inspect-{what}-{subject.name}.html"
    with writing(path):
        write_page(path, subject.name, found)
    console.print(f"page: {path}", markup=False)
