"""Studies: a published claim as a list of comparisons in one YAML file, run in order and resumably.

claim: what was claimed
source: where
comparisons:
  shakespeare: {preset: mingpt, change: [ffn=swiglu], data: shakespeare, seeds: 3, common: [train.steps=5000]}
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from partwise.checkpoint import write_json
from partwise.comparison.experiment import Comparison, plan_comparison
from partwise.config import Config, ConfigError, did_you_mean
from partwise.reading import read_yaml
from partwise.train.names import run_name


class StudyComparison(Config):
    """The arguments of one `partwise compare`."""

    preset: str
    change: list[str] = Field(default_factory=list)
    arms: list[str] = Field(default_factory=list)
    data: str | None = None
    common: list[str] = Field(default_factory=list)
    seeds: int = Field(5, gt=0)
    margin: float = Field(0.005, gt=0)


Watcher = Callable[[Comparison], None]


@dataclass(frozen=True)
class Study:
    """A claim and the comparisons that check it; results stand in a folder beside the YAML file."""

    path: Path
    claim: str
    source: str
    comparisons: dict[str, StudyComparison]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def folder(self) -> Path:
        return self.path.with_suffix("")

    def plan(self) -> Iterator[tuple[str, Comparison]]:
        """Each comparison, checked but not begun, in `runs/study-NAME-KEY`."""
        for key, entry in self.comparisons.items():
            yield (
                key,
                plan_comparison(
                    entry.preset,
                    *entry.change,
                    data=entry.data,
                    arms=entry.arms,
                    common=entry.common,
                    seeds=entry.seeds,
                    margin=entry.margin,
                    name=run_name(f"study-{self.name}-{key}"),
                ),
            )

    def run(self, watching: Callable[[Comparison], AbstractContextManager[Watcher]]) -> Path:
        """Run what is missing, each comparison within its own `watching`, and gather `results.json` and the reports."""
        results: dict[str, Any] = {}
        path = self.folder / "results.json"
        for key, comparison in list(self.plan()):
            with watching(comparison) as watch:
                results[key] = comparison.run(watch)
            self.folder.mkdir(exist_ok=True)
            for suffix in ("html", "md"):
                shutil.copyfile(comparison.path / f"report.{suffix}", self.folder / f"{key}.{suffix}")
            # after each comparison: a study that is stopped shows what it has
            write_json(path, {"claim": self.claim, "source": self.source, "comparisons": results})
        return path


def find_study(name: str) -> Study:
    """A study by its name (`studies/NAME.yaml` below the working folder) or its file. Raises ConfigError."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else Path("studies") / f"{name}.yaml"
    if not path.exists():
        known = [file.stem for file in Path("studies").glob("*.yaml")]
        raise ConfigError(f"there is no study {name!r} in {Path('studies').resolve()}{did_you_mean(name, known)}")
    values = read_yaml(path)
    entries = values.get("comparisons")
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"{path}: it lists no comparisons")
    comparisons = {
        str(key): StudyComparison.from_dict(entry or {}, prefix=f"comparisons.{key}") for key, entry in entries.items()
    }
    return Study(path, str(values.get("claim", "")), str(values.get("source", "")), comparisons)
