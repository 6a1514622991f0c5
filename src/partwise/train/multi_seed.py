"""Train run folders that differ only in their seed in one process, vectorized where possible."""

from collections.abc import Callable, Sequence

from partwise.config import ConfigError
from partwise.train.loop import Diverged
from partwise.train.multi_seed_trainer import CannotVectorize, MultiSeedTrainer
from partwise.train.run_folder import Interrupted, RunFolder


def train_seeds(folders: Sequence[RunFolder], should_stop: Callable[[], bool]) -> list[str]:
    """Train runs that differ in their seed; the status of each: `done`, `diverged`, `interrupted` or `failed ...`.

    Runs at the same step are vectorized where possible. If `should_stop()` or if one fails, all are saved and stopped.
    """
    statuses: dict[RunFolder, str] = {}
    for step in sorted({folder.run.step for folder in folders}, reverse=True):
        group = [folder for folder in folders if folder.run.step == step]
        try:
            trainer = MultiSeedTrainer([folder.run for folder in group]) if len(group) > 1 else None
        except CannotVectorize as error:
            group[0].log(f"training one seed at a time: {error}")
            trainer = None
        for members in [group] if trainer else [[folder] for folder in group]:
            statuses |= _train_in_turns(members, trainer, should_stop)
    return [statuses[folder] for folder in folders]


def _train_in_turns(
    folders: Sequence[RunFolder], trainer: MultiSeedTrainer | None, should_stop: Callable[[], bool]
) -> dict[RunFolder, str]:
    """Advance the runs by one event each in turns, so that none requests a second step before another its first."""
    statuses: dict[RunFolder, str] = {}
    events = {folder: folder.events() for folder in folders}
    while events:
        stop = should_stop() or any(status.startswith("failed") for status in statuses.values())
        # once per round: a run that alone found its checkpoint due would save weights that another run has advanced
        due = any(folder.save_is_due for folder in events)
        for folder in events:
            folder.stop_requested, folder.save_requested = stop, due
        for folder in list(events):
            status = None
            try:
                next(events[folder])
            except StopIteration:
                status = "done"
            except Interrupted:
                status = "interrupted"
            except Diverged:
                status = "diverged"
            except ConfigError as error:  # such as a full disk; reported after the others are saved
                status = f"failed {error}"
            if status:
                statuses[folder] = status
                del events[folder]
                if trainer:
                    trainer.remove(folder.run)
                folder.run.optimizer.state.clear()  # free its memory for the other runs
    return statuses
