"""Checks of what runs leave on disk: power loss, races for one folder, and chains of resumes in several precisions."""

import os
import random
import time
from contextlib import suppress
from pathlib import Path

from faults import in_child
from partwise.ablation.run_list import list_runs
from partwise.checkpoint import list_checkpoints, read_latest, step_of
from partwise.config import ConfigError
from partwise.train.loop import Run, Step
from partwise.train.metrics import read_metrics
from partwise.train.run_folder import RunFolder
from power_loss import recorded
from reliability_runs import DROPOUT, SETTINGS, STEPS, Check, Trial, emptied, end_of, small, train, uninterrupted


def power_losses(folder: Path) -> Trial:
    """A power loss before any call that changes or syncs a file, with any part of what was not synced on disk."""
    config = small(folder, *DROPOUT)
    end = uninterrupted(folder, config)
    parent = emptied(folder / "recorded")
    parent.mkdir()
    saved: list[tuple[int, int]] = []  # calls made, and the step of the newest checkpoint by then
    with recorded(parent) as recorder:
        for event in RunFolder(parent / "run", config, log=lambda text: None).events():
            if isinstance(event, Step):
                steps = [step_of(path) for path in list_checkpoints(parent / "run" / "checkpoints")]
                saved.append((len(recorder.disks), max(steps, default=0)))
    disks = recorder.disks

    def trial(number: int) -> str:
        at, lost = number % len(disks), emptied(folder / "lost")
        disks[at].after_power_loss(lost, random.Random(number))
        promised = max((step for calls, step in saved if calls <= at), default=0)
        newest, _ = read_latest(lost / "run" / "checkpoints", step_of)
        assert (newest or 0) >= promised, f"before call {at}: step {promised} was saved, {newest} is on disk"
        train(lost / "run", config)
        assert end_of(lost / "run") == end, f"a power loss before call {at} ({disks[at].call}) changes the end"
        return "equal"

    return trial


def races(folder: Path) -> Trial:
    """Two processes start the same run at about the same time, while this one reads it."""
    config = small(folder)
    end = uninterrupted(folder, config)
    (folder / "runs").mkdir()

    def trial(number: int) -> str:
        draw, path = random.Random(number), emptied(folder / "runs" / "raced")
        outcomes = emptied(folder / "outcomes")
        outcomes.mkdir()

        def own(name: str, delay: float) -> None:
            trained: list[int] = []
            update = Run.update
            Run.update = lambda run: trained.append(run.step) or update(run)  # type: ignore[assignment,func-returns-value]
            time.sleep(delay)
            try:
                messages = train(path, config)
                outcome = f"trained {len(trained)} steps" if not messages else f"said {messages}"
            except ConfigError as error:
                outcome = f"refused: {error}"
            (outcomes / name).write_text(outcome)

        owners = [in_child(lambda name=name: own(name, draw.uniform(0, 0.05))) for name in "ab"]  # type: ignore[misc]
        while owners:
            read_latest(path / "checkpoints", lambda checkpoint: checkpoint)
            with suppress(FileNotFoundError):
                read_metrics(path)
            list_runs(folder / "runs")
            owners = [process for process in owners if os.waitpid(process, os.WNOHANG)[0] == 0]
        found = sorted((outcomes / name).read_text() for name in "ab")
        assert end_of(path) == end, f"the raced run ends differently: {found}"
        assert found[1] == f"trained {STEPS} steps", f"a step was trained twice or never: {found}"
        assert found[0].startswith("refused") or found[0] == "trained 0 steps", str(
            found
        )  # begun after the other's end
        assert "\n" not in found[0], found[0]
        return "one refused" if found[0].startswith("refused") else "one after the other"

    return trial


def chains(folder: Path) -> Trial:
    """Runs in both precisions, on one and two threads, stopped after three random steps."""

    def trial(number: int) -> str:
        draw = random.Random(number)
        name, words = draw.choice(SETTINGS)
        precision, threads = draw.choice(["float32", "bfloat16"]), draw.choice([1, 2])
        config = small(folder, *words, f"train.precision={precision}", f"train.threads={threads}")
        end = uninterrupted(folder, config)
        path = emptied(folder / "stopped")
        stops = sorted(draw.sample(range(1, STEPS), 3))
        for stop in stops:
            train(path, config, stop)
        train(path, config)
        assert end_of(path) == end, f"{name}, {precision}, {threads} threads, stopped at {stops}"
        return f"equal in {precision}"

    return trial


STORAGE_CHECKS = {
    "power": Check("After a power loss at any moment a run ends bitwise equal", 10_000, power_losses),
    "race": Check("Of two processes on one run one is refused; a third may read it", 500, races),
    "chain": Check(
        "A run stopped three times, in either precision, on one or two threads, ends bitwise equal", 400, chains
    ),
}
