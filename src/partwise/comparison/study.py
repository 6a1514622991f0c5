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

from partwise.checkpoint import write_json
from partwise.comparison.experiment import Comparison, planned
from partwise.comparison.request import Request
from partwise.config import ConfigError, did_you_mean
from partwise.reading import read_yaml
from partwise.train.names import run_name

Watcher = Callable[[Comparison], None]


@dataclass(frozen=True)
class Study:
    """A claim and the comparisons that check it; results stand in a folder beside the YAML file."""

    path: Path
    claim: str
    source: str
    comparisons: dict[str, Request]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def folder(self) -> Path:
        return self.path.with_suffix("")

    def plan(self) -> Iterator[tuple[str, Comparison]]:
        """Each comparison, checked but not begun, in `runs/study-NAME-KEY`."""
        for key, entry in self.comparisons.items():
            yield key, planned(entry, run_name(f"study-{self.name}-{key}"))

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
        str(key): Request.from_dict(entry or {}, prefix=f"comparisons.{key}") for key, entry in entries.items()
    }
    return Study(path, str(values.get("claim", "")), str(values.get("source", "")), comparisons)
