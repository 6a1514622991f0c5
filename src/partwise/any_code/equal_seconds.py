"""Match the seconds of commands by their number of steps: short trials at two numbers of steps show the time of one."""

import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from partwise.any_code.command_plan import CommandArm, CommandPlan
from partwise.comparison.measures import check_residual
from partwise.comparison.results import Match, Matching
from partwise.comparison.trials.executor import Executor, run_short_trials
from partwise.comparison.trials.trial import Trial
from partwise.config import ConfigError

STEPS = "steps"
"""The setting with the number of training steps."""

SHORT, LONG = 1 / 20, 1 / 5
"""The lengths of the timed trials, as fractions of a whole one."""

ROUNDS = 3
"""Each arm is timed this often, in turn with the others."""


def matched_arms(plan: CommandPlan) -> list[CommandArm]:
    """The baseline and the arms with a claim; a control is left as it is."""
    claimed = {claim.arm for claim in plan.claims if claim.role == "claim"}
    return [arm for number, arm in enumerate(plan.arms) if number == 0 or arm.name in claimed]


def check_match(plan: CommandPlan, measure: str) -> None:
    """Raise ConfigError unless the arms can be matched in `measure`."""
    if measure != "seconds":
        raise ConfigError(
            f"--match {measure}: partwise cannot measure the {measure} of a command: use --match seconds; arms with the same "
            "{steps} already train for equally many steps"
        )
    for arm in matched_arms(plan):
        steps = arm.config.settings.get(STEPS)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1 / SHORT:
            raise ConfigError(
                f"--match seconds: arm {arm.name!r} has steps={steps}: give the command the placeholder {{steps}} and "
                f"`settings: {{steps: N}}` with N of at least {1 / SHORT:.0f}, so that its length can be changed"
            )


def measure_seconds_per_step(
    executor: Executor, short_trial: Callable[[CommandArm, int, Path], Trial], plan: CommandPlan, folder: Path
) -> dict[str, float]:
    """The seconds of one step of each arm, without the time a command takes to start. Raises ConfigError.

    The difference in time between a longer and a shorter trial, divided by their difference in steps: the median over
    rounds in which the arms alternate, with as many trials at a time as the comparison will run.
    """
    trials: list[Trial] = []
    lengths: list[tuple[str, int]] = []
    for round_ in range(ROUNDS):
        for arm in matched_arms(plan):
            for fraction in (SHORT, LONG):
                steps = math.ceil(steps_of(arm) * fraction)
                timed, number = with_steps(arm, steps), len(trials)
                trials.append(short_trial(timed, plan.first_seed + round_, folder / str(number)))
                lengths.append((arm.name, steps))
    run_short_trials(executor, trials, "--match seconds: a short trial")
    seconds = [seconds_of(trial) for trial in trials]
    shutil.rmtree(folder, ignore_errors=True)
    slopes: dict[str, list[float]] = {}
    for index in range(0, len(trials), 2):
        (name, short), (_, long) = lengths[index : index + 2]
        slopes.setdefault(name, []).append((seconds[index + 1] - seconds[index]) / (long - short))
    return {name: median_slope(name, each) for name, each in slopes.items()}


def seconds_of(trial: Trial) -> float:
    return trial.outcome("").seconds or 0.0


def median_slope(name: str, slopes: Sequence[float]) -> float:
    if min(slopes) <= 0:
        raise ConfigError(
            f"--match seconds: more steps of {name} took no more time: does the command use {{steps}}? If it does, the "
            "trials are too short to time: use more steps"
        )
    return statistics.median(slopes)


def match_seconds(plan: CommandPlan, seconds_per_step: Mapping[str, float]) -> tuple[CommandPlan, Matching]:
    """The plan with the steps of every claimed arm changed, so that they take the time of the baseline's steps.

    Raises ConfigError if arms still differ by over 1%.
    """
    base = plan.arms[0]
    target = steps_of(base) * seconds_per_step[base.name]
    arms, matches = {arm.name: arm for arm in plan.arms}, []
    for arm in matched_arms(plan)[1:]:
        own = seconds_per_step[arm.name]
        new = max(1, round(target / own))
        match = Match(arm=arm.name, key=STEPS, old=steps_of(arm), new=new, residual=new * own / target - 1)
        check_residual("seconds", arm.name, f"{STEPS}={new}", match.residual, "more steps")
        arms[arm.name] = with_steps(arm, new)
        matches.append(match)
    return replace(plan, arms=tuple(arms.values())), Matching(measure="seconds", arms=tuple(matches))


def steps_of(arm: CommandArm) -> int:
    steps = arm.config.settings[STEPS]
    assert isinstance(steps, int)
    return steps


def with_steps(arm: CommandArm, steps: int) -> CommandArm:
    return replace(arm, config=replace(arm.config, settings={**arm.config.settings, STEPS: steps}))
