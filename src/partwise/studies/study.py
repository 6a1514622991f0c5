"""Studies: a published claim and the comparisons that test it, in one YAML file; run in order and resumably.

claim: the published claim
source: where it was published
published: the published result
changed: how our setup differs from the source
history: [what was changed after a first answer was known; protocols have one too]
comparisons:
  shakespeare: {preset: mingpt, change: [ffn=swiglu], data: shakespeare, looks: [4, 8, 16], expect: better}

protocol: NAME           optional: what this study shares with others, `protocols/NAME.yaml` beside it

An entry holds the fields of a `Request`, and a protocol those that all entries of its studies have in common: each adds to
its `common`, and overrides nothing, except that `untuned: REASON` leaves out its tuning, for claims about the setting that is
tuned. Claims of one protocol are one family: `study table` judges them together, by Holm's method, and its comparisons share
the runs of configurations that they have in common. `grid: [train.lr=1e-3,1e-2]` expands to one comparison per combination.
`expect` is what the claim predicts: better, worse, equivalent or diverges, for all arms or by arm name.

`library/` holds the studies of the package with their results; `studies/` in the working folder holds the user's, and the
results of every study that was run there.
"""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from partwise.ablation.request import Request
from partwise.ablation.run_comparison import RunComparison, make_comparison
from partwise.ablation.run_plan import RunPlan
from partwise.comparison.experiment import ProgressDisplay
from partwise.comparison.report import show_report
from partwise.comparison.results import Answer, Results, StudyFacts, Value, read_json
from partwise.comparison.stats.effect import Effect
from partwise.comparison.tuning import parse_tune
from partwise.config import ConfigError, did_you_mean
from partwise.config.overrides import parse_grid
from partwise.config.yaml import read_yaml, show
from partwise.drafts import remove_leftovers
from partwise.json_files import check_hash, write_hashed
from partwise.run_names import FolderLock, check_run_name, default_run_name, explain_write_errors

LIBRARY, OWN = Path(__file__).parent / "library", Path("studies")
EXPECTED = ("better", "worse", "equivalent", "diverges")
SEEN, NOT_SEEN, OPPOSITE, TOO_NOISY = "seen here", "not seen here", "opposite here", "too noisy here"
NOT_BRACKETED = "tuning not bracketed"
OUTCOMES = (SEEN, NOT_SEEN, OPPOSITE, TOO_NOISY, NOT_BRACKETED)
"""The outcomes of a claim at the size, number of steps and data of its study."""


@dataclass(frozen=True)
class StudyComparison:
    """One comparison of a study and the claim's prediction by arm name; "" is the default for the other arms."""

    request: Request
    expect: dict[str, str]

    def expected(self, arm: str) -> str | None:
        """The prediction for an arm, also at the value that tuning chose for it."""
        untuned = arm.rpartition(f" {parse_tune(self.request.tune).key}=")[0] if self.request.tune else arm
        return self.expect.get(arm, self.expect.get(untuned, self.expect.get("")))

    def answers(self, results: Results) -> Iterator[Answer]:
        """The outcome for every arm that the claim makes a prediction about."""
        for claim in results.claims:
            effect, expected = claim.effect, self.expected(claim.effect.arm)
            if claim.role == "claim" and expected and is_direct(effect, results):
                difference = f"{effect.arm} − {effect.against}"
                yield Answer(difference=difference, prediction=expected, outcome=outcome(expected, effect))


class StudyResults(Value):
    """A claim and the results of the comparisons that test it: `NAME/results.json` beside the study."""

    claim: str
    source: str
    published: str
    changed: str
    comparisons: dict[str, Results]

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Read the file. Raises ConfigError for another version, or a damaged or changed file."""
        values = read_json(path)
        sha256 = values.pop("sha256", None)
        comparisons = values.get("comparisons")
        for key, results in comparisons.items() if isinstance(comparisons, dict) else ():
            Results.from_dict(results, f"{path}, {key}")  # names the comparison in its message
        stored = cls.from_dict(values, str(path))
        remedy = f"run `partwise study run {path.parent.name}` again, which writes it from its runs"
        check_hash(values, sha256, path, remedy)
        return stored


@dataclass(frozen=True)
class Study:
    """A claim and the comparisons that test it."""

    path: Path
    claim: str
    source: str
    published: str
    changed: str
    entries: dict[str, StudyComparison]
    history: tuple[str, ...] = ()
    """Changes made after a first answer was known, oldest first."""
    protocol: str = ""
    """The name of the protocol that it shares with other studies; '' if it has its own."""
    about_protocol: str = ""
    """The settings that the protocol holds equal, in words."""
    common: tuple[str, ...] = ()
    """The overrides that the protocol has for all arms."""

    @property
    def comparisons(self) -> dict[str, Request]:
        return {key: entry.request for key, entry in self.entries.items()}

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def own_results(self) -> Path:
        """Where a run writes: beside the YAML file, but never into the package."""
        folder = OWN if self.path.resolve().parent == LIBRARY.resolve() else self.path.parent
        return folder / self.name / "results.json"

    @property
    def results(self) -> Path | None:
        """The user's own results, else those of the package, else None."""
        stored = (self.own_results, self.path.with_suffix("") / "results.json")
        return next((path for path in stored if path.exists()), None)

    def plan(self, only: Collection[str] = (), workers: int | None = None) -> Iterator[tuple[str, RunComparison]]:
        """Each comparison, or `only` some, validated but not started, in `runs/study-NAME-KEY`. Raises ConfigError."""
        for key in only:
            if key not in self.entries:
                raise ConfigError(f"{self.name} has no comparison {key!r}{did_you_mean(key, self.entries)}")
        for key, entry in self.entries.items():
            if only and key not in only:
                continue
            name = check_run_name(default_run_name([f"study-{self.name}-{key}"]))
            comparison = make_comparison(entry.request, name, workers=workers)
            comparison.origin = {"study": f"{self.name}, {key}"}
            if self.protocol:
                comparison.shared_runs = Path("runs") / check_run_name(f"protocol-{self.protocol}")
            names = [claim.arm for claim in comparison.plan.claims]
            for arm in entry.expect:
                if arm and arm not in names:
                    raise ConfigError(f"{self.path}: expect names no arm of {key}: {arm!r}{did_you_mean(arm, names)}")
            yield key, comparison

    def own_common(self, key: str) -> tuple[str, ...]:
        """The overrides that a comparison adds to those of its protocol, for all arms; none without a protocol."""
        if not self.protocol or key not in self.entries:
            return ()
        return tuple(self.entries[key].request.common[len(self.common) :])

    @cached_property
    def plans(self) -> dict[str, RunPlan]:
        """The plan of each comparison."""
        return {key: comparison.plan for key, comparison in self.plan()}

    def run(self, show_progress: ProgressDisplay, only: Collection[str] = (), workers: int | None = None) -> Path:
        """Run the comparisons, each within its own `show_progress`, and write `results.json`; finished runs are kept.

        With `only`, the others keep the results that they have, whatever has changed in the study since. The reports are in
        the comparisons' own folders, `runs/study-NAME-KEY`. Raises ConfigError.
        """
        results: dict[str, Results] = {}
        if only and self.results:
            self.read()  # before any training: what cannot be read cannot be kept
        facts = {"claim": self.claim, "source": self.source, "published": self.published, "changed": self.changed}
        for key, comparison in list(self.plan(only, workers)):
            with show_progress(comparison) as on_progress:
                judged = comparison.run(on_progress)
            entry = self.entries[key]
            study = StudyFacts(**facts, expect=entry.expect, answers=tuple(entry.answers(judged)))
            judged = judged.model_copy(update={"study": study})
            show_report(judged, comparison.path)
            results[key] = without_curves(judged)
            # after each comparison, so that an interrupted study has partial results
            self._store(StudyResults(**facts, comparisons=results), keep_others=bool(only))
        return self.own_results

    def _store(self, results: StudyResults, keep_others: bool) -> None:
        """Write `own_results`, with the stored results of other comparisons or without."""
        runs = Path("runs")  # not the study's folder, where a user would find and commit the lock's file
        with explain_write_errors(runs):
            runs.mkdir(exist_ok=True)
        lock = FolderLock(runs, wait=True)  # two processes may run two comparisons of this study
        try:
            others = StudyResults.from_json(self.results).comparisons if keep_others and self.results else {}
            done = {**others, **results.comparisons}
            ordered = {each: done[each] for each in (*self.entries, *done) if each in done}
            self.write(results.model_copy(update={"comparisons": ordered}))
        finally:
            lock.release()

    def read(self) -> StudyResults:
        """The stored results. Raises ConfigError if there are none."""
        if self.results is None:
            raise ConfigError(f"{self.name} has no results: `partwise study run {self.name}`")
        return StudyResults.from_json(self.results)

    def write(self, results: StudyResults) -> None:
        """Write `own_results`."""
        with explain_write_errors(self.own_results.parent):
            self.own_results.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.own_results.parent)
            write_hashed(self.own_results, results.to_dict())


def is_direct(effect: Effect, results: Results) -> bool:
    """Whether the effect compares two arms, not an arm with a sum of effects, which no claim predicts."""
    return results.arm(effect.against) is not None


def outcome(expected: str | None, effect: Effect) -> str:
    """The outcome of one arm's verdict: one of `OUTCOMES`, or "" without a prediction."""
    if expected is None:
        return ""
    if effect.not_bracketed:
        return NOT_BRACKETED
    diverged = 2 * effect.failed_arm > effect.n_arm and not effect.failed_against
    if expected == "diverges":
        return NOT_SEEN if not diverged else SEEN if effect.verdict == "worse" else TOO_NOISY
    if effect.verdict in (None, "undecided"):
        return TOO_NOISY
    if effect.verdict == expected:
        return SEEN
    return OPPOSITE if {effect.verdict, expected} == {"better", "worse"} else NOT_SEEN


def without_curves(results: Results) -> Results:
    """The results without curves and activation statistics, which remain in the run's folder."""
    no_curves = {"training_curve": (), "evaluations": ()}
    arms = tuple(
        arm.model_copy(update={"trials": tuple(trial.model_copy(update=no_curves) for trial in arm.trials)})
        for arm in results.arms
    )
    claims = tuple(claim.model_copy(update={"differences_over_training": ()}) for claim in results.claims)
    return results.model_copy(update={"arms": arms, "claims": claims, "activation_statistics": ()})


def find_study(name: str) -> Study:
    """Load a study by file or by name: `studies/NAME.yaml` in the working folder, else the package's. Raises ConfigError."""
    files = study_files()
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else files.get(name)
    if path is None or not path.exists():
        raise ConfigError(f"no study {name!r} in the package or in {OWN.resolve()}{did_you_mean(name, files)}")
    values = read_yaml(path)
    comparisons = values.get("comparisons")
    if not isinstance(comparisons, dict) or not comparisons:
        raise ConfigError(f"{path}: no comparisons; list at least one under comparisons:")
    protocol = str(values.get("protocol") or "")
    shared = read_protocol(path, protocol) if protocol else {}
    about = str(shared.pop("about", ""))
    shared.pop("history", None)
    entries: dict[str, StudyComparison] = {}
    for key, entry in comparisons.items():
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: {key}: expected the fields of a comparison, such as preset: mingpt")
        entries |= dict(read_entry(str(key), with_protocol(dict(entry), shared, path), path))
    texts = (str(values.get(key, "")) for key in ("claim", "source", "published", "changed"))
    claim, source, published, changed = texts
    history = values.get("history") or []
    if not isinstance(history, list) or not all(isinstance(line, str) for line in history):
        raise ConfigError(f"{path}: history: expected a list of sentences")
    common = tuple(words_of(shared, "common", path))
    return Study(path, claim, source, published, changed, entries, tuple(history), protocol, about, common)


def read_protocol(study: Path, name: str) -> dict[str, Any]:
    """The fields that all entries of a protocol's studies share, and `about`, in words. Raises ConfigError."""
    path = study.parent / "protocols" / f"{name}.yaml"
    if not path.exists():
        known = [each.stem for each in path.parent.glob("*.yaml")]
        raise ConfigError(f"{study}: protocol: there is no {path}{did_you_mean(name, known)}")
    values = read_yaml(path)
    if given := next((key for key in ("looks", "change", "arms", "expect") if key in values), None):
        reason = "claims of several studies have no looks in common" if given == "looks" else "each study has its own"
        raise ConfigError(f"{path}: {given}: {reason}; delete this line")
    return values


TUNING = ("tune", "tune_seeds", "tune_steps", "tuned_only")
"""Fields of a request that `untuned` leaves out."""


def with_protocol(entry: dict[str, Any], protocol: dict[str, Any], path: Path) -> dict[str, Any]:
    """An entry with the fields of its protocol. Raises ConfigError if it changes one of them."""
    reason = entry.pop("untuned", None)
    for key in entry:
        if protocol and (key in protocol or key == "looks") and key != "common":
            raise ConfigError(f"{path}: {key}: its protocol sets this for all studies; delete this line")
    if reason is not None:
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"{path}: untuned: say why this comparison leaves out the tuning of its protocol")
        protocol = {key: value for key, value in protocol.items() if key not in TUNING}
    common = [*words_of(protocol, "common", path), *words_of(entry, "common", path)]
    return {**protocol, **entry, **({"common": common} if common else {})}


def read_entry(key: str, entry: dict[str, Any], path: Path) -> Iterator[tuple[str, StudyComparison]]:
    """Parse an entry of the YAML file, expanding its grid. Raises ConfigError."""
    expect, grid = entry.pop("expect", None) or {}, words_of(entry, "grid", path)
    if "variance" in entry:
        raise ConfigError(
            f"{path}: variance={entry['variance']} of {key} no longer exists, as it erred with unequal SDs: delete this line"
        )
    expect = {"": expect} if isinstance(expect, str) else expect
    if not isinstance(expect, dict) or not all(isinstance(arm, str) for arm in expect):
        raise ConfigError(f"{path}: expect of {key}: give a prediction, or one for each arm by its name")
    for word in expect.values():
        if word not in EXPECTED:
            raise ConfigError(f"{path}: expect={word!r} of {key}: choose one of {', '.join(EXPECTED)}")
    for words in itertools.product(*parse_grid(grid)):
        fields = {name: value for name, value in entry.items() if name != "grid"}
        common = [*entry.get("common", []), *words]
        request = Request.from_dict({**fields, "common": common}, prefix=f"comparisons.{key}")
        yield " ".join((key, *words)), StudyComparison(request, expect)


def words_of(fields: dict[str, Any], key: str, path: Path) -> list[str]:
    """A field that is a list of words, empty if it is absent. Raises ConfigError."""
    words = fields.get(key)
    if words is None:
        return []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{path}: {key}={show(words)}: expected a list of settings, such as [train.lr=1e-3]")
    return words


def study_files() -> dict[str, Path]:
    """The YAML file of each study by name; a file of the working folder hides one of the package."""
    return {path.stem: path for folder in (LIBRARY, OWN) for path in sorted(folder.glob("*.yaml"))}


def all_studies() -> list[Study]:
    """The studies of the package and of the working folder, sorted by name. Raises ConfigError for a damaged file."""
    return [find_study(str(path)) for _, path in sorted(study_files().items())]
