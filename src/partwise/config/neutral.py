"""Options that are added to classes whose values are stored."""

from contextvars import ContextVar
from dataclasses import dataclass
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
def neutral_values(cls: type[BaseModel]) -> dict[str, Any]:
    """The neutral value of each option that declares one."""
    fields = cls.model_fields.items()
    return {name: each.value for name, field in fields for each in field.metadata if isinstance(each, Neutral)}


reading_stored: ContextVar[bool] = ContextVar("reading_stored", default=False)
"""Whether absent options have their neutral values, rather than their defaults."""
