"""The JSON Schema of `results.json`, docs/results.schema.json."""

import json

from partwise.comparison.results.results import Results

HASH = {"description": "The hash of all other keys, in the file alone.", "title": "Sha256", "type": "string"}


def schema_text() -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Results.model_json_schema()}
    schema["properties"] = {**schema["properties"], "sha256": HASH}
    return json.dumps(schema, indent=1) + "\n"
