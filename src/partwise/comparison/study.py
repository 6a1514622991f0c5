"""Studies: a published claim as a list of comparisons in one YAML file, run in order and resumably.

claim: what was claimed
source: where
figure: the published figure
changed: what we change, and how it differs from the source
comparisons:
  shakespeare: {preset: mingpt, change: [ffn=swiglu], data: shakespeare, looks: [4, 8, 16], expect: better}

An entry holds the fields of a `Request`; `grid: [train.lr=1e-3,1e-2]` makes one comparison of each combination, and
`expect` says what the claim says of the arms: better, worse, equivalent or diverges, of all arms or of each by its name.
"""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.checkpoint import write_json
from partwise.comparison.experiment import Comparison, Watching, planned
from partwise.comparison.report import write_report
from partwise.comparison.request import Request
from partwise.config import ConfigError, did_you_mean
from partwise.overrides import parse_grid
from partwise.reading import read_yaml
from partwise.train.names import default_name, run_name

EXPECTED = ("better", "worse", "equivalent", "diverges")
LEFT_OUT = ("curves", "over_time", "insides")  # of the results that are kept beside the YAML file


@dataclass(frozen=True)
class Entry:
    """One comparison of a study, and what the claim says of its arms: of "" for all that are not named."""

    request: Request
    expect: dict[str, str]

    def expected(self, arm: str) -> str | None:
        return self.expect.get(arm, self.expect.get(""))

    def answers(self, results: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        """(arm, what was expected of it, what came of that) of every arm of which the claim says something."""
        for row in results["comparisons"]:
            expected = self.expected(row["arm"])
            if row["role"] == "claim" and expected and is_direct(row, results):
                yield f"{row['arm']} − {row['against']}", expected, answer(expected, row)


@dataclass(frozen=True)
class Study:
    """A claim and the comparisons that check it; results stand in a folder beside the YAML file."""

    path: Path
    claim: str
    source: str
    figure: str
    changed: str
    entries: dict[str, Entry]

    @property
    def comparisons(self) -> dict[str, Request]:
        return {key: entry.request for key, entry in self.entries.items()}

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def folder(self) -> Path:
        return self.path.with_suffix("")

    def plan(self) -> Iterator[tuple[str, Comparison]]:
        """Each comparison, checked but not begun, in `runs/study-NAME-KEY`."""
        for key, entry in self.entries.items():
            comparison = planned(entry.request, run_name(default_name([f"study-{self.name}-{key}"])))
            names = [claim.arm for claim in comparison.plan.claims]
            for arm in entry.expect:
                if arm and arm not in names:
                    raise ConfigError(f"{self.path}: expect names no arm of {key}: {arm!r}{did_you_mean(arm, names)}")
            yield key, comparison

    def run(self, watching: Watching) -> Path:
        """Run what is missing, each comparison within its own `watching`, and gather `results.json` and the reports."""
        results: dict[str, Any] = {}
        path = self.folder / "results.json"
        facts = {"text": self.claim, "source": self.source, "figure": self.figure, "changed": self.changed}
        for key, comparison in list(self.plan()):
            with watching(comparison) as watch:
                found = comparison.run(watch)
            found["claim"] = {**facts, "answers": list(self.entries[key].answers(found))}
            write_report(found, comparison.path)
            results[key] = kept(found) | {"expect": self.entries[key].expect}
            self.folder.mkdir(exist_ok=True)
            shutil.copyfile(comparison.path / "report.md", self.folder / f"{default_name([key])}.md")
            # after each comparison: a study that is stopped shows what it has
            write_json(path, {"claim": self.claim, **facts, "comparisons": results})
        return path


def is_direct(row: dict[str, Any], results: dict[str, Any]) -> bool:
    """Whether two arms are compared, and not a sum of changes, of which a claim says nothing."""
    return row["against"] in {arm["name"] for arm in results["arms"]}


def answer(expected: str | None, row: dict[str, Any]) -> str:
    """What one arm's verdict makes of the claim: reproduced, not reproduced, not testable here; "" where it is silent."""
    if expected is None:
        return ""
    diverged = 2 * row["diverged_arm"] > row["n_arm"] and not row["diverged_against"]
    if expected == "diverges":
        return "reproduced" if diverged else "not reproduced"
    if row["verdict"] in (None, "undecided"):
        return "not testable here"
    return "reproduced" if row["verdict"] == expected else "not reproduced"


def kept(results: Any) -> Any:
    """The results without their curves, which the report in the run's folder shows."""
    if isinstance(results, dict):
        return {key: kept(value) for key, value in results.items() if key not in LEFT_OUT}
    return [kept(value) for value in results] if isinstance(results, list) else results


def find_study(name: str) -> Study:
    """A study by its name (`studies/NAME.yaml` below the working folder) or its file. Raises ConfigError."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else Path("studies") / f"{name}.yaml"
    if not path.exists():
        known = [file.stem for file in Path("studies").glob("*.yaml")]
        raise ConfigError(f"there is no study {name!r} in {Path('studies').resolve()}{did_you_mean(name, known)}")
    values = read_yaml(path)
    given = values.get("comparisons")
    if not isinstance(given, dict) or not given:
        raise ConfigError(f"{path}: it lists no comparisons")
    entries: dict[str, Entry] = {}
    for key, entry in given.items():
        entries |= dict(read_entry(str(key), dict(entry or {}), path))
    claim, source, figure, changed = (str(values.get(word, "")) for word in ("claim", "source", "figure", "changed"))
    return Study(path, claim, source, figure, changed, entries)


def read_entry(key: str, entry: dict[str, Any], path: Path) -> Iterator[tuple[str, Entry]]:
    """An entry of the YAML file; one for each combination of its grid."""
    expect, grid = entry.pop("expect", {}), entry.pop("grid", [])
    expect = {"": expect} if isinstance(expect, str) else dict(expect)
    for word in expect.values():
        if word not in EXPECTED:
            raise ConfigError(f"{path}: expect={word!r} of {key}: give one of {', '.join(EXPECTED)}")
    for words in itertools.product(*parse_grid(grid)):
        common = [*entry.get("common", []), *words]
        request = Request.from_dict({**entry, "common": common}, prefix=f"comparisons.{key}")
        yield " ".join((key, *words)), Entry(request, expect)


def all_studies(folder: Path = Path("studies")) -> list[Study]:
    """Every study below the working folder, by name. Raises ConfigError where there is none."""
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise ConfigError(f"there are no studies in {folder.resolve()}: go to a folder with studies/*.yaml")
    return [find_study(str(file)) for file in files]
