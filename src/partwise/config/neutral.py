"""Options that are added to classes whose values are stored."""

from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class Neutral:
    """The value of an option that computes what was computed before the option existed, perhaps not its default.

    Declared once, with an option that is added to a class whose values are stored, and never changed:
    `head_scale: Annotated[float, Neutral(1.0)] = 0.5`. Stored values lack an option at its neutral value, so that hashes from
    before it existed stay valid.
    """

    value: Any


@cache
def neutral_values(cls: type) -> dict[str, Any]:
    """The neutral value of each option of a model or dataclass that declares one."""
    declared: dict[str, Any] = {}
    if issubclass(cls, BaseModel):
        declared = {name: field.metadata for name, field in cls.model_fields.items()}
    elif is_dataclass(cls):
        declared = {field.name: getattr(field.type, "__metadata__", ()) for field in fields(cls)}
    return {name: each.value for name, found in declared.items() for each in found if isinstance(each, Neutral)}


def without_neutral(values: dict[str, Any], cls: type) -> dict[str, Any]:
    """The values of an instance of `cls`, without options at their neutral values."""
    neutral = neutral_values(cls)
    return {name: value for name, value in values.items() if name not in neutral or value != neutral[name]}


reading_stored: ContextVar[bool] = ContextVar("reading_stored", default=False)
"""Whether absent options have their neutral values, rather than their defaults."""
