"""A question that a page asks, checked against the registry, and the commands that it stands for."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from partwise.ablation.request import Request
from partwise.ablation.small_model import SMALL_MODEL
from partwise.comparison.ledger.predictions import Prediction
from partwise.config import REGISTRY, ConfigError, did_you_mean
from partwise.config.overrides import parse_overrides
from partwise.run_names import check_run_name, default_run_name

SMALL = "small"
"""The size of `partwise demo`: a model that trains in seconds."""
SIZES = ("preset", SMALL)
OWN_DATA = ("shakespeare", "arithmetic", "python")

MAX_WORDS, MAX_LENGTH = 40, 200
REFUSED_TRAIN = ("log", "parallel")
"""Settings of `train` that a page may not change: the first sends losses to other machines."""

KEYS = {"preset", "change", "data", "size", "common", "seeds", "first_seed", "margin", "looks", "steps", "name"}


@dataclass(frozen=True)
class Allowed:
    """What the studio was started with: nothing else is read, imported or run."""

    imports: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    """Files and folders of text, besides the corpora of the package."""
    experiments: tuple[str, ...] = ()
    """YAML files of experiments."""


@dataclass(frozen=True)
class Question:
    """A request of the command line, whose fields come from a page."""

    request: Request
    name: str
    allowed: Allowed

    @classmethod
    def from_page(
        cls, values: Mapping[str, Any], allowed: Allowed, is_taken: Callable[[str], bool] = lambda name: False
    ) -> "Question":
        """The question of a page's fields; without a name, one that is not taken. Raises ConfigError."""
        if unknown := set(values) - KEYS:
            raise ConfigError(f"{sorted(unknown)[0]!r}: no field of a question")
        preset, data = text_of(values, "preset"), text_of(values, "data")
        check_preset(preset)
        if data not in (*OWN_DATA, *allowed.data):
            raise ConfigError(
                f"data {data!r}: the studio reads {', '.join((*OWN_DATA, *allowed.data))}; start it with "
                "--data FILE for another one"
            )
        change, common = words_of(values, "change"), words_of(values, "common")
        if not change:
            raise ConfigError("choose a change")
        for word in (*change, *common):
            check_override(word)
        shared = common_words(values, change, common)
        looks = [int_of(each, "looks") for each in list_of(values, "looks")]
        fields: dict[str, Any] = {"preset": preset, "change": change, "data": data, "common": shared}
        fields |= {"looks": looks} if looks else {"seeds": int_of(values.get("seeds"), "seeds")}
        if values.get("first_seed"):
            fields["first_seed"] = int_of(values["first_seed"], "first_seed")
        fields["margin"] = number_of(values.get("margin"), "margin")
        request = Request.from_dict(fields)
        size = [SMALL] if values.get("size") == SMALL else []
        return cls(request, name_of(values, [preset, *change, Path(data).stem, *size], is_taken), allowed)

    def compare_words(self, prediction: Prediction | None) -> list[str]:
        """The words of `partwise compare`, without the program."""
        return shlex.split(self.request.command(self.name, self.allowed.imports))[1:] + predict_words(prediction)

    def plan_words(self) -> list[str]:
        """The words of `partwise plan`: the seeds are for it to vary."""
        request = self.request
        looks = ["--looks", ",".join(map(str, request.looks))] if request.looks else []
        common = [word for each in request.common for word in ("--common", each)]
        data = ["--data", request.data] if request.data else []
        change = [request.preset, *request.change]
        return ["plan", *change, *data, *common, *looks, "--margin", f"{request.margin:g}", "--json"]


def name_of(values: Mapping[str, Any], words: Sequence[str], is_taken: Callable[[str], bool]) -> str:
    """The name that a page gives, else one of words, `mingpt_ffn=swiglu`, or `...-2` if that is taken. Raises ConfigError."""
    first = default_run_name([*words])
    names = (f"{first}-{number}" if number > 1 else first for number in count(1))
    name = text_of(values, "name") if values.get("name") else next(each for each in names if not is_taken(each))
    return check_run_name(name)


def predict_words(prediction: Prediction | None) -> list[str]:
    return [f"--predict={prediction.low:g},{prediction.high:g}"] if prediction else []


def common_words(values: Mapping[str, Any], change: Sequence[str], common: Sequence[str]) -> list[str]:
    """The overrides of every arm: those of the size, of the steps, and those that were typed, which come last."""
    size = values.get("size", "preset")
    if size not in SIZES:
        raise ConfigError(f"size {size!r}: expected {' or '.join(SIZES)}")
    words: list[str] = []
    if size == SMALL:
        words += SMALL_MODEL
    if values.get("steps") is not None:
        words.append(f"train.steps={int_of(values['steps'], 'steps')}")
    words += common
    last = {word.partition("=")[0]: word for word in words}
    changed = {word.partition("=")[0] for word in change}
    return [word for key, word in last.items() if key not in changed]


def check_preset(name: str) -> None:
    from partwise.presets.lookup import PRESETS

    if name not in PRESETS:  # a path would be a YAML file
        raise ConfigError(f"unknown preset {name!r}{did_you_mean(name, PRESETS)}")


def check_override(word: str) -> None:
    """Raise ConfigError for an override that is none of the model's or of training's: others name files or programs."""
    from partwise.model.options import ModelOptions

    [(path, value)] = parse_overrides([word])
    first = path[0]
    known = first in (*ModelOptions.model_fields, "optimizer", "schedule", "train")
    if not known or (first == "train" and len(path) > 1 and path[1] in REFUSED_TRAIN):
        names = (*ModelOptions.model_fields, "optimizer", "schedule", "train")
        raise ConfigError(f"{word}: the studio changes models and training only{did_you_mean(first, names)}")
    if first in REGISTRY and len(path) == 1 and isinstance(value, str) and value not in REGISTRY[first]:
        raise ConfigError(f"{word}: unknown part{did_you_mean(value, REGISTRY[first])}")


def list_of(values: Mapping[str, Any], key: str) -> list[Any]:
    found = values.get(key, [])
    if not isinstance(found, list) or len(found) > MAX_WORDS:
        raise ConfigError(f"{key}: expected a list of at most {MAX_WORDS}")
    return found


def words_of(values: Mapping[str, Any], key: str) -> list[str]:
    """Overrides, each one word. Raises ConfigError."""
    found = list_of(values, key)
    for word in found:
        if not isinstance(word, str) or len(word) > MAX_LENGTH or word.startswith("-") or "=" not in word:
            raise ConfigError(f"{str(word)[:MAX_LENGTH]}: expected KEY=VALUE, such as ffn.expansion=4")
    return found


def text_of(values: Mapping[str, Any], key: str) -> str:
    found = values.get(key)
    if not isinstance(found, str) or not found or found.startswith("-") or len(found) > MAX_LENGTH:
        raise ConfigError(f"{key}: expected a name")
    return found


def int_of(value: Any, key: str) -> int:
    if type(value) is not int or not 0 < value <= 10**9:
        raise ConfigError(f"{key} {value}: expected a whole number above 0")
    return value


def number_of(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e9:
        raise ConfigError(f"{key} {value}: expected a number above 0")
    return float(value)


def prediction_of(values: Any) -> Prediction:
    """The prediction of a page. Raises ConfigError."""
    if not isinstance(values, dict) or not all(type(values.get(end)) in (int, float) for end in ("low", "high")):
        raise ConfigError("prediction: expected the two ends of a range")
    return Prediction.parse(f"{values['low']!r},{values['high']!r}")
