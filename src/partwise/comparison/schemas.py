"""The JSON Schemas, in docs/: `verdict --json` in its four forms, `try --json`, `results.json` and certificates."""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.results import Results
from partwise.comparison.search.answer import SearchState
from partwise.comparison.search.audit import Audit
from partwise.comparison.stats.any_time_verdicts import AnyTimeRow, Question
from partwise.comparison.stats.effect import Effect
from partwise.comparison.targets.contests import Rule
from partwise.comparison.targets.target import Entry, Target


class VerdictDocument(BaseModel):
    """What `partwise verdict --json` prints, and `Verdicts.to_dict` returns."""

    model_config = ConfigDict(extra="forbid")

    effects: tuple[Effect, ...]
    exploratory: tuple[Effect, ...]
    notes: tuple[str, ...]
    read: str | None


class TargetDocument(BaseModel):
    """What `partwise verdict --target --json` prints."""

    model_config = ConfigDict(extra="forbid")

    question: Literal["target"]
    target: Target
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    rule: Rule | None
    read: str | None


class SearchDocument(BaseModel):
    """What `partwise verdict --search --json` prints."""

    model_config = ConfigDict(extra="forbid")

    question: Literal["search"]
    search: Audit
    notes: tuple[str, ...]
    read: str


class AnyTimeDocument(BaseModel):
    """What `partwise verdict --any-time --json` prints."""

    model_config = ConfigDict(extra="forbid")

    question: Literal["any-time"]
    method: str
    asked: Question
    rows: tuple[AnyTimeRow, ...]
    notes: tuple[str, ...]
    read: str | None


HASH = {"description": "The hash of all other keys, in the file alone.", "title": "Sha256", "type": "string"}


def verdict_schema() -> str:
    return schema_text(VerdictDocument.model_json_schema(mode="serialization"))


def target_schema() -> str:
    return schema_text(TargetDocument.model_json_schema(mode="serialization"))


def try_schema() -> str:
    return schema_text(SearchState.model_json_schema())


def search_schema() -> str:
    return schema_text(SearchDocument.model_json_schema(mode="serialization"))


def any_time_schema() -> str:
    return schema_text(AnyTimeDocument.model_json_schema(mode="serialization"))


def results_schema() -> str:
    schema = Results.model_json_schema()
    schema["properties"]["sha256"] = HASH
    return schema_text(schema)


def certificate_schema() -> str:
    return schema_text(Certificate.model_json_schema())


def schema_text(schema: dict[str, Any]) -> str:
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"
