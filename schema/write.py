"""Writes the published JSON Schemas anew from the types. Run it after a change to record.py or inspection.py."""

from __future__ import annotations

import json
from pathlib import Path

from sardonyx import inspection, record

SCHEMAS = {"run.schema.json": record.json_schema, "inspection.schema.json": inspection.json_schema}


def published(name: str) -> str:
    """The text of one schema as it should be on disk."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SCHEMAS[name]()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        (Path(__file__).parent / name).write_text(published(name), encoding="utf-8")
