"""What is compared: arms, seeds, metric and margin, fixed before the first run."""

from dataclasses import dataclass, field
from typing import Any

from partwise.config import ConfigError
from partwise.overrides import difference, parse_overrides
from partwise.train.settings import RunConfig, run_config

# what an arm cannot vary, because the comparison holds it equal: given beside a change, it applies to every arm
SHARED_KEYS = ("data", "tokenizer", "vocab_size")
SHARED_NUMBERS = (
    "steps",
    "seed",
    "device",
    "precision",
    "attention_path",
    "ffn_path",
    "threads",
    "eval_every",
    "save_every",
    "estimator",
)


@dataclass(frozen=True)
class Arm:
    """One variant: its change, as a name, and the configuration of its first seed."""

    name: str
    overrides: tuple[str, ...]
    config: RunConfig

    def with_seed(self, seed: int) -> RunConfig:
        train = self.config.train.model_copy(update={"seed": seed})
        return self.config.model_copy(update={"train": train})


@dataclass(frozen=True)
class Plan:
    """Arms (the first is the baseline) over seeds 0 .. seeds - 1, judged by a margin in the metric's unit."""

    arms: tuple[Arm, ...]
    seeds: int
    margin: float = 0.005
    alpha: float = 0.05
    metric: str = "validation loss"
    common: tuple[str, ...] = field(default=())

    @property
    def question(self) -> str:
        others = [arm.name for arm in self.arms[1:]]
        changed = others[0] if len(others) == 1 else f"any of {', '.join(others)}"
        return f"Does {changed} change the {self.metric} of {self.arms[0].name}?"

    def identity(self) -> dict[str, Any]:
        """What a continued comparison must share with the one it continues; the number of seeds may grow."""
        return {
            "arms": [{"name": arm.name, "config": arm.config.to_dict()} for arm in self.arms],
            "margin": self.margin,
            "alpha": self.alpha,
            "metric": self.metric,
        }


def is_shared(word: str) -> bool:
    path = parse_overrides([word])[0][0] if "={" not in word else tuple(word.split("=", 1)[0].split("."))
    return path[0] in SHARED_KEYS or (path[0] == "train" and len(path) > 1 and path[1] in SHARED_NUMBERS)


def make_plan(
    preset: str,
    changes: list[list[str]],
    *,
    data: str | None = None,
    common: list[str] | None = None,
    seeds: int = 5,
    margin: float = 0.005,
    alpha: float = 0.05,
) -> Plan:
    """The baseline and one arm per list of overrides. Raises ConfigError for arms that are equal by accident."""
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give 1 or more")
    if not margin > 0:
        raise ConfigError(f"--margin {margin}: give a positive number of nats")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha={alpha}: give a number between 0 and 1")
    words = [word.removeprefix("--") for word in common or []]
    changes = [[word.removeprefix("--") for word in change] for change in changes]
    words += [word for change in changes for word in change if is_shared(word)]
    changes = [[word for word in change if not is_shared(word)] for change in changes]
    if not any(changes):
        raise ConfigError("nothing is changed: name a change, as in `partwise compare mingpt ffn=swiglu`")
    arms = [Arm(preset, (), run_config(preset, *words, data=data))]
    for change in changes:
        arm = Arm(" ".join(change), tuple(change), run_config(preset, *words, *change, data=data))
        for other in arms:
            if not difference(other.config.to_dict(), arm.config.to_dict()):
                raise ConfigError(
                    f"arm {arm.name!r} is the same configuration as {other.name!r}: change something else"
                )
        arms.append(arm)
    return Plan(tuple(arms), seeds, margin, alpha, common=tuple(words))
