"""The JSON Schemas of `verdict --json`, `results.json` and certificates, in docs/."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.results import Results
from partwise.comparison.stats.effect import Effect


class VerdictDocument(BaseModel):
    """What `partwise verdict --json` prints, and `Verdicts.to_dict` returns."""

    model_config = ConfigDict(extra="forbid")

    effects: tuple[Effect, ...]
    exploratory: tuple[Effect, ...]
    notes: tuple[str, ...]
    read: str | None


HASH = {"description": "The hash of all other keys, in the file alone.", "title": "Sha256", "type": "string"}


def verdict_schema() -> str:
    return schema_text(VerdictDocument.model_json_schema(mode="serialization"))


def results_schema() -> str:
    schema = Results.model_json_schema()
    schema["properties"]["sha256"] = HASH
    return schema_text(schema)


def certificate_schema() -> str:
    return schema_text(Certificate.model_json_schema())


def schema_text(schema: dict[str, Any]) -> str:
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"
