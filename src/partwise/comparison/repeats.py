"""`--retry-failed`: repeat trials that the machine ended, in every arm by the same rule, and record it."""

from collections import Counter
from collections.abc import Sequence

from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.trials.trial import Trial
from partwise.messages import print_message, quantity


def machine_failures(trials: Sequence[Trial]) -> dict[str, int]:
    """Reason -> the number of trials that the machine has ended for it."""
    return dict(Counter(reason for trial in trials if (reason := trial.machine_failure)))


def repeat_failed(trials: Sequence[Trial], entries: LedgerEntries) -> None:
    """Set aside the outcomes of all trials that the machine ended, of any arm, and record which."""
    failed = [(trial, reason) for trial in trials if (reason := trial.machine_failure)]
    if not failed:
        return
    repeated = [{"arm": trial.arm, "seed": trial.seed, "reason": reason} for trial, reason in failed]
    entries.append({"kind": "repeated", "trials": repeated})
    for trial, _ in failed:
        trial.repeat()
    print_message(f"repeating {quantity(len(failed), 'trial')} that the machine had ended")
