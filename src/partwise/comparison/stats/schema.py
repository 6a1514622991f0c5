"""The JSON Schema of `verdict --json`, docs/verdict.schema.json."""

import json

from pydantic import BaseModel, ConfigDict

from partwise.comparison.stats.effect import Effect


class VerdictDocument(BaseModel):
    """What `partwise verdict --json` prints, and `Verdicts.to_dict` returns."""

    model_config = ConfigDict(extra="forbid")

    effects: tuple[Effect, ...]
    exploratory: tuple[Effect, ...]
    notes: tuple[str, ...]
    read: str | None


def schema_text() -> str:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **VerdictDocument.model_json_schema(mode="serialization"),
    }
    return json.dumps(schema, indent=1) + "\n"
