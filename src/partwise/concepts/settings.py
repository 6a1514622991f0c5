"""Every setting of a run: `train.*`, the model's, and the options of all parts, with what their docstrings say."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from partwise.config import REGISTRY, Config, Part
from partwise.model import ModelConfig
from partwise.train.config import FROM, RunConfig, TrainConfig, default_settings
from partwise.train.source import InitialWeights


@dataclass(frozen=True)
class Setting:
    """One setting; an option that parts of a family declare together is one setting."""

    path: str
    """`train.lr`, `d_model` or `ffn.bias`."""
    kind: str
    """Its type and range: `number > 0`."""
    default: str
    about: str
    """What it does: its docstring; '' without one."""
    file: str
    """Where it is declared, in the repository."""
    parts: tuple[str, ...] = ()
    """The parts that have the option, such as `ffn=relu`."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def all_settings() -> list[Setting]:
    """The settings of a run, then the options of the registered parts, by family."""
    return [*run_settings(), *part_options()]


def run_settings() -> Iterator[Setting]:
    """`d_model` and the model's others, the families of parts, `train.*` and `from.*`."""
    for prefix, owner in (("", ModelConfig), ("", RunConfig), ("train.", TrainConfig), (f"{FROM}.", InitialWeights)):
        for name, field in owner.model_fields.items():
            if name not in ("model", "train", "initial_weights"):  # whose fields are settings
                yield new_setting(f"{prefix}{name}", owner, field)


def part_options() -> list[Setting]:
    """The options of the registered parts; equal declarations of one family are one setting."""
    found: dict[tuple[str, str, str, str], Setting] = {}
    for family, recipes in sorted(REGISTRY.items()):
        for name, recipe in sorted(recipes.items()):
            for option, field in recipe.model_fields.items():
                new = new_setting(f"{family}.{option}", recipe, field)
                key = (new.path, new.kind, new.default, new.about)
                known = found.get(key, new)
                found[key] = Setting(*key, known.file, (*known.parts, f"{family}={name}"))
    return list(found.values())


def new_setting(path: str, owner: type[Config], field: FieldInfo) -> Setting:
    name = path.rpartition(".")[2]
    source, about = declaration(owner, name)
    if path in REGISTRY:
        recipe = next(iter(REGISTRY[path].values()))
        family = next(each for each in recipe.__mro__ if "family" in each.__dict__)
        about = first_sentence(family).replace(f", `{path}=`", "")
        default = default_settings()[path]["part"] if field.is_required() else default_text(field)
        return Setting(path, "part", default, about, module_file(family))
    return Setting(path, kind_text(field), default_text(field), about, module_file(source))


def declaration(owner: type[Config], name: str) -> tuple[type, str]:
    """The class that declares a field, and the docstring below it, which a class may inherit."""
    declared = [each for each in owner.__mro__ if name in inspect.get_annotations(each)]
    about = next((doc for each in declared if (doc := docstrings(each).get(name))), "")
    return (declared or [owner])[0], about


@cache
def docstrings(owner: type) -> dict[str, str]:
    """The docstring below each field of a class, on one line; none if its source cannot be read."""
    try:
        [found] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # a class of a notebook, or one that a function made
        return {}
    if not isinstance(found, ast.ClassDef):
        return {}
    return {
        field.target.id: " ".join(after.value.value.split())
        for field, after in pairwise(found.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def option_defaults(recipe: type[Part]) -> str:
    """`bias=false, expansion=4.0`: the options of a part with their defaults."""
    return ", ".join(f"{name}={default_text(field)}" for name, field in recipe.model_fields.items())


def first_paragraph(documented: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())


def first_sentence(documented: type) -> str:
    """`x. y.` -> `x.`, of a docstring's first paragraph without its shapes."""
    return f"{first_paragraph(documented).partition('. ')[0].partition(': (')[0].rstrip('.')}."


def module_file(owner: type) -> str:
    """`src/partwise/parts/norms.py`, in the repository; of a class of another package, the module's path."""
    folder = "src/" if owner.__module__.startswith("partwise.") else ""
    return f"{folder}{owner.__module__.replace('.', '/')}.py"


WORDS: dict[Any, str] = {int: "integer", float: "number", bool: "true or false", str: "text"}
BOUNDS = {"gt": ">", "ge": ">=", "lt": "<"}
"""Limits that a reader needs; an upper limit that only rejects absurd values is left out."""


def kind_text(field: FieldInfo) -> str:
    """`number > 0, or none`, or the values to choose from."""
    options = get_args(field.annotation) if get_origin(field.annotation) is not Literal else [field.annotation]
    kinds = [each for each in options or [field.annotation] if each is not NoneType]
    words = [
        " or ".join(map(str, get_args(each))) if get_origin(each) is Literal else WORDS.get(each, "text")
        for each in kinds
    ]
    limits = [
        f"{sign} {getattr(item, name):g}"
        for item in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(item, name)
    ]
    return " ".join([" or ".join(dict.fromkeys(words)), " and ".join(limits)]).strip()


def default_text(field: FieldInfo) -> str:
    """The default as an override has it: `none`, `true`, `0.0003`, the name of a part."""
    if field.is_required():
        return "(required)"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, Part):
        return value.name
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.4g}"
    return json.dumps(value, default=str).strip('"')
