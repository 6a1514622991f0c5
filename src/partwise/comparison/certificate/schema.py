"""The JSON Schema of certificates, docs/certificate.schema.json."""

import json

from partwise.comparison.certificate.certificate import Certificate


def schema_text() -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Certificate.model_json_schema()}
    return json.dumps(schema, indent=1) + "\n"
