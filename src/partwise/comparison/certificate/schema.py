"""The JSON Schema of certificates: `python -m partwise.comparison.certificate.schema` writes docs/certificate.schema.json."""

import json
from pathlib import Path

from partwise.comparison.certificate.certificate import Certificate

SCHEMA = Path("docs") / "certificate.schema.json"


def schema_text() -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Certificate.model_json_schema()}
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
