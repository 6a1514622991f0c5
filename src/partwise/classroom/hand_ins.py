"""One hand-in: its certificate, and what was handed in with it."""

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from partwise.classroom.files import LEDGER_FILES, RESULTS_FILE, Files, read_files
from partwise.classroom.ledger_files import read_ledger
from partwise.comparison.certificate.certificate import CERTIFICATE_FILE, Certificate
from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.messages import CONTROLS
from partwise.records import parse

MAX_CERTIFICATE = 1 << 20
LONGEST_NAME = 80


@dataclass(frozen=True)
class HandIn:
    """What one student handed in. Faults say why a file that is there could not be used."""

    name: str
    path: Path
    certificate: Certificate
    content: bytes
    """The certificate's file."""
    results: Results | None = None
    results_fault: str = ""
    ledger: list[ChainEntry] | None = None
    ledger_fault: str = ""
    sources: dict[str, bytes] = field(default_factory=dict)
    """Name of a Python file -> its content."""


def read_hand_in(path: Path, name: str) -> HandIn:
    """Read a certificate, a folder or a zip file. Raises ConfigError with the reason, without the name."""
    files = read_files(path)
    found = one_of(files, CERTIFICATE_FILE)
    if found is None:
        raise ConfigError(f"it has no {CERTIFICATE_FILE}: hand in that of a comparison")
    content = files[found]
    if len(content) > MAX_CERTIFICATE:
        raise ConfigError(f"its {CERTIFICATE_FILE} has more than {MAX_CERTIFICATE >> 20} MiB")
    certificate = Certificate.from_json(parse(content, "the certificate"), "the certificate")
    results, results_fault = read_results(files)
    ledger, ledger_fault = read_records(files)
    sources = {PurePosixPath(each).name: files[each] for each in sorted(files) if each.endswith(".py")}
    return HandIn(name, path, certificate, content, results, results_fault, ledger, ledger_fault, sources)


def one_of(files: Files, *names: str) -> str | None:
    """The path of the file with one of these names, if there is one. Raises ConfigError for several."""
    found = [each for each in files if PurePosixPath(each).name in names]
    if len(found) > 1:
        raise ConfigError(f"it has {' and '.join(sorted(found)[:2])}: hand in one")
    return found[0] if found else None


def read_results(files: Files) -> tuple[Results | None, str]:
    try:
        found = one_of(files, RESULTS_FILE)
        if found is None:
            return None, ""
        values = parse(files[found], RESULTS_FILE)
        if not isinstance(values, dict):
            raise ConfigError(f"{RESULTS_FILE} does not contain a JSON object")
        return Results.from_content(values, RESULTS_FILE), ""
    except ConfigError as error:
        return None, str(error)


def read_records(files: Files) -> tuple[list[ChainEntry] | None, str]:
    try:
        found = one_of(files, *LEDGER_FILES)
        return (None, "") if found is None else (read_ledger(files[found]), "")
    except (ConfigError, DamagedLedgerError) as error:
        return None, str(error)


def shown(text: object, longest: int = LONGEST_NAME) -> str:
    """A text of others on one line, without control characters."""
    line = " ".join(str(text).translate(CONTROLS).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
