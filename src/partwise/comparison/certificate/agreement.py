"""Whether a certificate says the same as what is stored beside it: `results.json`, and the ledger of the project."""

from collections.abc import Iterator
from pathlib import Path

from partwise.comparison.certificate.certificate import Certificate, CertifiedVerdict
from partwise.comparison.certificate.verification import VerifiedPart, difference
from partwise.comparison.ledger.chain import DamagedLedgerError
from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.ledger.questions import starts_and_results
from partwise.comparison.results import Results
from partwise.config import ConfigError

RESULTS = "results.json"


def check_folder(certificate: Certificate, folder: Path) -> Iterator[VerifiedPart]:
    """The checks of a comparison's folder; nothing is checked that is not there."""
    if (folder / RESULTS).exists():
        statement = f"{RESULTS} has the same values and verdicts"
        try:
            fault = check_results(certificate, Results.from_json(folder / RESULTS))
        except ConfigError as error:
            fault = str(error)
        yield VerifiedPart(statement, fault)
    yield from check_ledger(certificate, folder)


def check_results(certificate: Certificate, results: Results) -> str | None:
    """The first verdict, number or value of the results that is another than the certificate's."""
    found = {(effect.arm, effect.against): effect for effect in results.effects}
    for stated in certificate.verdicts:
        effect = found.pop(stated.claim[:2], None)
        name = f"{stated.claim.arm} against {stated.claim.against}"
        if effect is None:
            return f"it has no verdict on {name}"
        if fault := difference(stated, CertifiedVerdict.from_effect(stated.claim, effect), "there"):
            return f"{name}: {fault}"
    if found:
        return f"it has another verdict, on {next(iter(found))[0]}"
    if certificate.changes == results.provenance.value_changes == 0:
        for name, values in results.values_by_seed.items():
            if certificate.values.get(name) != values:
                return f"the values of {name} are others there"
    return None


def check_ledger(certificate: Certificate, folder: Path) -> Iterator[VerifiedPart]:
    """Compare the verdicts with the first ones of this plan in this folder, if the project's ledger has any."""
    entries = LedgerEntries(folder)
    try:
        starts, results = starts_and_results(entries.ledger.read())
    except DamagedLedgerError as error:
        yield VerifiedPart("the ledger can be read", str(error))
        return
    place = entries.place()["folder"]
    same = [
        number
        for number, start in starts.items()
        if start["folder"] == place and start["plan"] == certificate.plan_hash and number in results
    ]
    if not same:
        return
    result, fault = results[same[-1]], None
    recorded = {(row["arm"], row["against"]): row["verdict"] for row in result["verdicts"]}
    for stated in certificate.verdicts:
        verdict = recorded.get(stated.claim[:2])
        if verdict != stated.verdict:
            fault = f"it has {verdict or 'no verdict'} for {stated.claim.arm} against {stated.claim.against}"
    if fault is None and result.get("values", certificate.judged_values) != certificate.judged_values:
        fault = "it has the hash of other values"
    yield VerifiedPart("the ledger has the same first verdicts", fault)
