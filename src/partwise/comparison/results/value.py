"""The base class of everything in the results, and reading JSON. Nothing here imports torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from partwise.config import ConfigError, without_neutral
from partwise.records import DamagedFileError, Record, read_record

Facts = dict[str, str | int | float | bool | None]
"""Names and values that are stored and shown, and that nothing computes with."""


class Value(BaseModel):
    """A frozen part of the results that rejects unknown keys.

    A key that is added later declares a `Neutral` value, which is its default, and is left out at it: hashes from before it
    existed stay valid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_serializer(mode="wrap")
    def _without_neutral_values(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_neutral(serialize(self), type(self))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values: dict[str, Any] = self.model_dump(mode="json")
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "results") -> Self:
        """The inverse of `to_dict`. Raises ConfigError naming `source` and the path of the first invalid value."""
        try:
            return cls.model_validate_json(json.dumps(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, first["loc"]))
            message = f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}".removeprefix(": ")
            raise ConfigError(f"{source} is damaged ({message}): restore it, or run the comparison again") from None


def read_json(path: Path) -> Record:
    try:
        return read_record(path)
    except DamagedFileError as error:
        raise ConfigError(f"{error}: restore it, or run the comparison again") from None
