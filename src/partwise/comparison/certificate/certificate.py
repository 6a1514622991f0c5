"""The certificate of a comparison, `certificate.json`: all that its verdicts follow from. Nothing here imports torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue

from partwise.comparison.design.plan import Plan
from partwise.comparison.ledger.values import hash_values
from partwise.comparison.plan_file import PlanFile
from partwise.comparison.results import (
    Facts,
    LedgerEntry,
    OnlineLevel,
    Protocol,
    Results,
    Value,
    read_json,
    with_nan,
)
from partwise.comparison.stats.effect import Effect, Verdict
from partwise.comparison.stats.methods import find_method
from partwise.comparison.stats.protocol import Claim, Values, first_seeds
from partwise.config import ConfigError, Neutral, digest
from partwise.json_files import write_json

CERTIFICATE_FILE = "certificate.json"
FORMAT = 1


class CertifiedVerdict(Value):
    """The verdict on one claim, with the numbers that it follows from."""

    claim: Claim
    verdict: Verdict | None
    n: int
    mean: float | None
    low: float | None
    high: float | None
    equivalence_low: Annotated[float | None, Neutral(None)] = None
    equivalence_high: Annotated[float | None, Neutral(None)] = None
    p_adjusted: float | None
    p_equivalence_adjusted: float | None

    @classmethod
    def from_effect(cls, claim: Claim, effect: Effect) -> Self:
        values = effect.to_dict()
        return cls(claim=claim, **{name: values[name] for name in cls.model_fields if name != "claim"})


class Code(Value):
    """The code that ran."""

    version: str
    commit: str | None = None
    sources: str
    """SHA-256 of the package's source files."""
    imports: dict[str, str | None] = Field(default_factory=dict)
    """File of custom parts -> SHA-256."""


class Certificate(Value):
    """Plan, code, data, machine, values and verdicts of one comparison.

    `hash` covers everything else in the file, so that an edit shows. It is no signature: an editor of the file can also
    compute a new hash, and nothing here proves that the values come from training runs.
    """

    format: Literal[1] = 1
    name: str
    created: str
    question: str
    plan: dict[str, JsonValue]
    """Everything that was fixed before the first run."""
    plan_hash: str
    online: OnlineLevel | None = None
    protocol: Protocol
    baseline: str
    arms: dict[str, dict[str, JsonValue]]
    """Name -> configuration, after matching and tuning."""
    predictions: dict[str, tuple[str, str]] = Field(default_factory=dict)
    """For interactions: name of the sum of two effects -> the two arms."""
    values: dict[str, dict[int, float | None]]
    """Arm -> seed -> value in the metric; None if the run has none."""
    judged: int | None = None
    """Without planned looks: the number of seeds that the verdicts use, if more were added later."""
    verdicts: tuple[CertifiedVerdict, ...]
    data: str
    """Hash of the prepared data."""
    code: Code
    imports: tuple[str, ...] = ()
    machine: Facts
    runtime: Facts
    computation: dict[str, JsonValue] = Field(default_factory=dict)
    """Arm -> which backend computes each layer."""
    seeds_per_process: int = 1
    processes_per_run: Annotated[int, Neutral(1)] = 1
    ledger: LedgerEntry | None = None
    judged_values: Annotated[str, Neutral("")] = ""
    """SHA-256 of the values that the verdicts use, as the ledger has it; '' in certificates that older versions wrote."""
    changes: Annotated[int, Neutral(0)] = 0
    """How often trials were repeated with other values afterwards, which are exploratory and not in this file."""
    hash: str = ""

    @property
    def judged_seeds(self) -> int:
        """The number of seeds of the verdicts."""
        counts = [len(runs) // self.runs_per_seed(arm) for arm, runs in self.values.items()]
        return self.judged or max(counts, default=0)

    def runs_per_seed(self, arm: str) -> int:
        """Runs of an arm per judged seed: several of the baseline, in some designs."""
        return self.protocol.baseline_runs if arm == self.baseline else 1

    def first(self, values: Values, seeds: int) -> Values:
        """The values of the first seeds, with the further ones of the baseline."""
        return first_seeds(values, seeds, self.baseline, self.protocol.baseline_runs)

    @property
    def computed_values_hash(self) -> str:
        """SHA-256 of the values that the verdicts use."""
        return hash_values(self.first(self.numbers, self.judged_seeds))

    @property
    def numbers(self) -> Values:
        """The values, nan for a run that has none."""
        return with_nan(self.values)

    @property
    def computed_hash(self) -> str:
        """SHA-256 of everything but `hash`."""
        return digest({key: value for key, value in self.to_dict().items() if key != "hash"})

    def write(self, folder: Path) -> Path:
        """Write `certificate.json` atomically, with its hash."""
        path = folder / CERTIFICATE_FILE
        write_json(path, self.model_copy(update={"hash": self.computed_hash}).to_dict())
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a certificate. Raises ConfigError for another version or a damaged file; an edit is not damage."""
        return cls.from_json(read_json(path / CERTIFICATE_FILE if path.is_dir() else path), str(path))

    @classmethod
    def from_json(cls, values: Any, source: str) -> Self:
        """A certificate from the JSON value of its file, which messages call `source`. Raises ConfigError as `read`."""
        if not isinstance(values, Mapping) or "plan_hash" not in values:
            raise ConfigError(f"{source} is not a certificate: give the {CERTIFICATE_FILE} of a comparison")
        if values.get("format") != FORMAT:
            raise ConfigError(f"{source} has the format {values.get('format')}, and this version reads {FORMAT}")
        certificate = cls.from_dict(values, source)
        try:
            find_method(certificate.protocol.method)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
        return certificate


def certify(
    results: Results,
    plan: Plan,
    identity: Mapping[str, Any],
    file: PlanFile,
    code: Mapping[str, Any],
    imports: Sequence[str],
    ledger: LedgerEntry | None = None,
) -> Certificate:
    """The certificate of judged results: `plan` has the tuned arms, `identity` is what was fixed before the first run."""
    provenance, setup = results.provenance, file.setup
    certificate = Certificate(
        name=provenance.name or "",
        created=provenance.created or "",
        question=results.question,
        plan=dict(identity),
        plan_hash=digest(identity),
        online=file.online,
        protocol=results.protocol,
        baseline=results.arms[0].name,
        arms={arm.name: arm.config.to_stored() for arm in plan.arms},
        predictions=plan.additive_predictions,
        values=results.values_by_seed,
        judged=None if results.protocol.looks else file.judged,
        verdicts=tuple(map(CertifiedVerdict.from_effect, plan.claims, results.effects)),
        data=file.data,
        code=Code(**code),
        imports=tuple(imports),
        machine=file.machine,
        runtime=file.runtime,
        computation=setup.get("computation", {}),
        seeds_per_process=setup.get("seeds_per_process", 1),
        processes_per_run=setup.get("processes_per_run", 1),
        ledger=ledger,
        changes=provenance.value_changes,
    )
    return certificate.model_copy(update={"judged_values": certificate.computed_values_hash})
