"""Repeat trials of a certificate in a temporary folder, and compare their values with those it states."""

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.ablation.part_checks import check_arm, check_trial
from partwise.ablation.run_trial import RunTrial, prepare_run
from partwise.ablation.run_workload import origin_of
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.ledger.project import code_version
from partwise.comparison.trials.executor import run_trials
from partwise.comparison.trials.job import RUNS
from partwise.comparison.trials.local import LocalExecutor
from partwise.compute.runtime import Runtime, machine_info
from partwise.config import ConfigError
from partwise.kernels.library import kernel_build
from partwise.train.config import RunConfig
from partwise.train.own_parts import has_own, leaks


@dataclass(frozen=True)
class Repeat:
    """A trial that was repeated: the value that the certificate states, and the one found; None if the run diverged."""

    arm: str
    seed: int
    stated: float | None
    found: float | None
    leak: str = ""
    """How its model sees the tokens that it predicts, if a part of the user's own does."""

    @property
    def equal(self) -> bool:
        """Whether the values are the same, bit for bit."""
        return self.stated == self.found


def rerun(
    certificate: Certificate,
    trials: int,
    imports: Sequence[str] = (),
    on_progress: Callable[[Sequence[RunTrial]], None] = print,
) -> list[Repeat]:
    """Repeat `trials` trials, drawn at random, so that the choice cannot be predicted.

    Custom parts must be imported by the caller, with their sources in `imports`: nothing is imported because a certificate
    names it. Raises ConfigError if the data have changed, or a part or backend is not available.
    """
    check_repeatable(certificate)
    every = [(arm, seed) for arm, runs in certificate.values.items() for seed in runs]
    drawn = sorted(random.sample(every, min(trials, len(every))))
    if RunConfig.from_stored(certificate.arms[certificate.baseline]).prepare().hash != certificate.data:
        raise ConfigError(
            f"the data of {certificate.name} differs from that of the certificate: restore it to repeat its trials"
        )
    with tempfile.TemporaryDirectory(prefix="partwise-rerun-") as folder:
        repeated = [
            make_trial(certificate, Path(folder) / str(number), *each, imports) for number, each in enumerate(drawn)
        ]
        with LocalExecutor(1, executed_by=RUNS) as executor:
            run_trials(executor, repeated, lambda: on_progress(repeated))
        values = [trial.outcome(certificate.protocol.metric).value for trial in repeated]
        seen = [find_leak(certificate, trial) for trial in repeated]
    return [
        Repeat(arm, seed, certificate.values[arm][seed], value, leak)
        for (arm, seed), value, leak in zip(drawn, values, seen, strict=True)
    ]


def find_leak(certificate: Certificate, trial: RunTrial) -> str:
    """How a repeated trial's model sees the tokens that it predicts, before training or after it; '' if it does not."""
    config = RunConfig.from_stored(certificate.arms[trial.arm]).with_seed(trial.seed)
    if not has_own(config) or trial.status != "done":
        return ""
    dataset = config.prepare()
    found = [*check_arm(config, dataset), *check_trial(trial.folder, config, dataset)]
    return next(iter(leaks(found)), "")


def check_own_arms(certificate: Certificate) -> dict[str, str]:
    """By arm with a part of the user's own, how its model sees the tokens that it predicts before training; '' if it does
    not.

    The parts must be imported by the caller. Raises ConfigError.
    """
    check_repeatable(certificate)
    configs = {name: RunConfig.from_stored(stored) for name, stored in certificate.arms.items()}
    return {
        name: next(iter(leaks(check_arm(config, config.prepare()))), "")
        for name, config in configs.items()
        if has_own(config)
    }


def check_repeatable(certificate: Certificate) -> None:
    """Raise ConfigError unless the trials are training runs of ours."""
    if "train" not in certificate.arms[certificate.baseline]:
        raise ConfigError(
            f"--rerun: {certificate.name} compares commands or functions, which only their own code can repeat: run the "
            "comparison again under another --name"
        )


def make_trial(certificate: Certificate, folder: Path, arm: str, seed: int, imports: Sequence[str]) -> RunTrial:
    config = RunConfig.from_stored(certificate.arms[arm]).with_seed(seed)
    plan: Any = certificate.computation[origin_of(arm, certificate.computation)]
    runtime: dict[str, Any] = {
        **certificate.runtime,
        "kernel_build": "",
    }  # another build is a difference, as another machine is
    return prepare_run(
        folder, arm, seed, config, Runtime(**runtime), plan, imports, "partwise verify", certificate.protocol.metric
    )


def differences_here(certificate: Certificate, imports: Sequence[str] = ()) -> list[str]:
    """The differences from the machine that ran the trials; without any, repeated values are equal bit for bit."""
    here, there = machine_info(), certificate.machine
    found = [f"{name} {here[name]}, not {there.get(name)}" for name in here if here[name] != there.get(name)]
    if (built := certificate.runtime.get("kernel_build")) and built != kernel_build():
        found.append(f"build {kernel_build() or 'none'} of the kernels, not {built}")
    code = code_version(imports)
    if code["sources"] != certificate.code.sources or code["imports"] != certificate.code.imports:
        found.append("other source files")
    if certificate.seeds_per_process > 1:
        found.append(f"one seed per process, not {certificate.seeds_per_process}")
    if certificate.processes_per_run > 1:
        found.append(f"one process per run, not {certificate.processes_per_run}")
    return found
