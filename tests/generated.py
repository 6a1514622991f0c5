"""Write every file that follows from the code and from stored measurements: `make generate`.

`FILES` is the list; tests/test_generated.py finds a file that is stale. What is measured has commands of its own.
"""

import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(ROOT / "benchmarks"))

# Functions import what they need: collecting the tests of this list must not import torch.


def completions() -> str:
    """The words that the shell completes."""
    from parts_page import built_in
    from partwise.presets import PRESETS
    from partwise.train.config import FROM, RunConfig, TrainConfig

    settings = {*RunConfig.model_fields, *RunConfig.model_fields["model"].annotation.model_fields}  # type: ignore[union-attr]
    families = built_in()
    recipes = {family: [*parts.values()] for family, parts in families.items()} | {"train": [TrainConfig]}
    words = {
        "presets": sorted(PRESETS),
        "settings": sorted(settings - {"model", "train", "initial_weights"} | {FROM}),
        "parts": {family: sorted(families[family]) for family in sorted(families)},
        "options": {
            name: sorted({key for kind in recipes[name] for key in kind.model_fields}) for name in sorted(recipes)
        },
    }
    return json.dumps(words, indent=1) + "\n"


def parts_reference() -> str:
    from parts_page import page

    return page()


def with_table(name: str, function: str) -> str:
    """A page of docs/ with its table made by a function of `parts_page`."""
    import parts_page

    text: str = getattr(parts_page, function)((DOCS / name).read_text(encoding="utf-8"))
    return text


def concepts_page(name: str) -> str:
    """The glossary, or the page of settings."""
    text: str = getattr(import_module("concepts_page"), name)()
    return text


def schema(kind: str) -> str:
    text: str = getattr(import_module("partwise.comparison.schemas"), f"{kind}_schema")()
    return text


def claims(module: str, function: str) -> str:
    """The page of all claims, or one of its figures."""
    text: str = getattr(import_module(f"partwise.studies.{module}"), function)(library())
    return text


@functools.cache
def library() -> Sequence[Any]:
    """The studies of the package, without results of a working folder."""
    from partwise.studies.study import LIBRARY, find_study

    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        return [find_study(str(path)) for path in sorted(LIBRARY.glob("*.yaml"), key=lambda path: path.stem)]


def nine_changes(name: str) -> str:
    """A picture of docs/nine-changes.md."""
    from nine_changes import draw

    return draw(name, nine_inputs())


@functools.cache
def nine_inputs() -> Any:
    from nine_changes import read_inputs

    return read_inputs(library())


def speed_chart(name: str = "benchmarks") -> str:
    from chart import draw

    return draw(stored(f"{name}.json")["rows"])


def growth_chart() -> str:
    from growth_figure import draw_growth

    return draw_growth(stored("benchmarks.json")["rows"])


def benchmarks_page(name: str) -> str:
    from table import page

    return page(name, stored(f"{name}.json"))


def error_rates_chart() -> str:
    from statistics_figure import draw

    return draw((DOCS / "statistics.md").read_text(encoding="utf-8"))


def accelerator_page() -> str:
    from accelerator_plan import page, read

    return page(read(DOCS))


def reliability_page() -> str:
    from reliability import PAGE, with_table

    return with_table(PAGE.read_text(encoding="utf-8"), stored("reliability.json"))


def lesson(function: str, number: int) -> str:
    """A lesson's page, its notebook, or its figure."""
    from partwise.lessons import findings, page
    from partwise.lessons.answers import read_answer
    from partwise.lessons.lesson import find_lesson

    if function in ("problem", "answer"):
        return findings.draw_picture(read_answer(find_lesson(number)), before=function == "problem")
    text: str = getattr(page, function)(find_lesson(number))
    return text


def teachers_page() -> str:
    from partwise.lessons import teaching

    return teaching.teachers_page()


def target_page() -> str:
    from target_errors import PAGE, with_section

    return with_section(PAGE.read_text(encoding="utf-8"))


def stored(name: str) -> Any:
    """What was measured: a JSON file of docs/."""
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


NINE = (
    *("activation", "positions", "attention", "norm", "wiring", "initialization", "tying", "kv-heads", "optimizer"),
)
"""The pictures of docs/nine-changes.md; tests/benchmarks/test_nine_changes.py compares the list with theirs."""

CLAIMS: dict[str, Callable[[], str]] = {
    "docs/studies.md": lambda: claims("claims_page", "markdown"),
    "docs/images/studies.svg": lambda: claims("forest", "draw_claims"),
    "docs/images/trends.svg": lambda: claims("trends", "draw_trends"),
    **{f"docs/images/nine-{name}.svg": functools.partial(nine_changes, name) for name in NINE},
    "docs/glossary.md": lambda: concepts_page("glossary"),
}
"""What follows from the stored results of all studies: judging and drawing them takes seconds."""

LESSONS: dict[str, Callable[[], str]] = {"docs/lessons/teaching.md": teachers_page}
for _path in sorted((DOCS / "lessons").glob("[0-9][0-9]-*.md")):
    _number = int(_path.name[:2])
    LESSONS |= {
        f"docs/lessons/{_path.name}": functools.partial(lesson, "page", _number),
        f"docs/images/lesson-{_number:02}.svg": functools.partial(lesson, "answer", _number),
        f"examples/notebooks/lessons/{_path.stem}.ipynb": functools.partial(lesson, "notebook", _number),
    }
    _problem = f"lesson-{_number:02}-problem.svg"
    if _problem in _path.read_text(encoding="utf-8"):
        LESSONS[f"docs/images/{_problem}"] = functools.partial(lesson, "problem", _number)

FILES: dict[str, Callable[[], str]] = {
    "src/partwise/cli/completions.json": completions,
    "docs/parts-reference.md": parts_reference,
    "docs/parts.md": lambda: with_table("parts.md", "with_parts"),
    "docs/presets.md": lambda: with_table("presets.md", "with_presets"),
    "docs/settings.md": lambda: concepts_page("settings"),
    "docs/certificate.schema.json": lambda: schema("certificate"),
    "docs/results.schema.json": lambda: schema("results"),
    "docs/verdict.schema.json": lambda: schema("verdict"),
    "docs/target.schema.json": lambda: schema("target"),
    "docs/try.schema.json": lambda: schema("try"),
    "docs/search.schema.json": lambda: schema("search"),
    "docs/any-time.schema.json": lambda: schema("any_time"),
    "docs/against-a-target.md": target_page,
    "docs/images/speed.svg": speed_chart,
    "docs/images/speed-avx2.svg": lambda: speed_chart("benchmarks-avx2"),
    "docs/images/speed-float32.svg": lambda: speed_chart("benchmarks-float32"),
    "docs/growth.svg": growth_chart,
    "docs/images/errors.svg": error_rates_chart,
    "docs/benchmarks.md": lambda: benchmarks_page("benchmarks"),
    "docs/benchmarks-avx2.md": lambda: benchmarks_page("benchmarks-avx2"),
    "docs/benchmarks-float32.md": lambda: benchmarks_page("benchmarks-float32"),
    "docs/accelerator.md": accelerator_page,
    "docs/reliability.md": reliability_page,
    **CLAIMS,
    **LESSONS,
}
"""Each file, by its path in the repository, and the function that returns its text."""


def is_current(name: str) -> bool:
    path = ROOT / name
    return path.exists() and path.read_text(encoding="utf-8") == FILES[name]()


def main() -> None:
    for name, text in FILES.items():
        if not is_current(name):
            (ROOT / name).parent.mkdir(exist_ok=True)
            (ROOT / name).write_text(text(), encoding="utf-8")
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
