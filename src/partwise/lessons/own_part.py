"""The check of a reader's own part: what `partwise check` finds, explained. It imports the one file that the reader names."""

import sys
from pathlib import Path

from partwise.config import REGISTRY, ConfigError, import_parts
from partwise.torch_extra import require_torch

PRESET = "mingpt"
EXPLAINED = {
    "no position sees later ones": "The loss of a model that sees its target means nothing. Does a mean, a maximum or a "
    "shift run over positions? Let each use itself and those before it, or the features of one token alone.",
    "evaluations repeat": "Draw random numbers only if self.training, and change no buffer in evaluation.",
    "rows are independent": "Other rows are other texts. Take statistics over the last dimension, not over the batch.",
    "cached = uncached": "In generation a layer gets the new tokens alone. Does yours need the earlier ones?",
    "every parameter has a gradient": "Does forward use it? detach(), round() and comparisons stop gradients.",
}
"""By the name of a check that did not pass; the likelier cause first, since a layer that fails one may fail the next."""


def check_own_part(text: str) -> str | None:
    """None if each part that the file defines passes every check; else what is wrong."""
    path = Path(text.strip())
    if path.suffix != ".py" or len(text) > 500:
        return "Answer with the path of the Python file that defines your part, such as my_part.py."
    require_torch("this exercise")
    import partwise.parts  # noqa: F401  # a plain nn.Module becomes a part only with the others

    try:
        import_parts(str(path))
    except ConfigError as error:
        return str(error).removeprefix("--import ")
    except SystemExit:
        return f"{path} exits when it is imported: put what it runs below if __name__ == '__main__'."
    parts = defined_in(path.resolve())
    if not parts:
        return f'{path} defines no part: write @partwise.part("mine", family="ffn") above a class.'
    return next(filter(None, map(failed_check, parts)), None)


def defined_in(path: Path) -> list[str]:
    """The parts that a file has registered: `ffn=mine`."""
    return [
        f"{family}={name}"
        for family, recipes in REGISTRY.items()
        for name, recipe in recipes.items()
        if Path(getattr(sys.modules.get(recipe.__module__), "__file__", None) or ".").resolve() == path
    ]


def failed_check(part: str) -> str | None:
    """The first check that a part does not pass in the preset."""
    from partwise.train.config import run_config
    from partwise.train.loop import Run

    try:
        run = Run(run_config(PRESET, part))
        run.check_parts(allow_leak=True)
    except ConfigError as error:
        return str(error)
    order = list(EXPLAINED)
    for each in sorted(run.findings or [], key=lambda each: order.index(each.check) if each.check in order else 0):
        if each.outcome != "passed":
            return " ".join([f"{part}: {each.check}: {each.measured}.", EXPLAINED.get(each.check, "")]).strip()
    return None
