"""The JSON Schema of `results.json`: `python -m partwise.comparison.results.schema` writes docs/results.schema.json."""

import json
from pathlib import Path

from partwise.comparison.results.results import Results

SCHEMA = Path("docs") / "results.schema.json"


HASH = {"description": "The hash of all other keys, in the file alone.", "title": "Sha256", "type": "string"}


def schema_text() -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Results.model_json_schema()}
    schema["properties"] = {**schema["properties"], "sha256": HASH}
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
