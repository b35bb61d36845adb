"""Writes the published JSON Schemas into the package anew from the types.

python tests/schemas.py      after a change to a type that is published
"""

from __future__ import annotations

import json
from pathlib import Path

from sardonyx import (
    analysis_record,
    bench_record,
    comparison,
    export_record,
    extraction_record,
    inspection,
    module_graphs,
    profile_record,
    record,
    study_record,
)

SCHEMAS = {
    "run.schema.json": record.json_schema,
    "export.schema.json": export_record.json_schema,
    "inspection.schema.json": inspection.json_schema,
    "module.schema.json": inspection.module_json_schema,
    "extraction.schema.json": extraction_record.json_schema,
    "dag.schema.json": module_graphs.json_schema,
    "comparison.schema.json": comparison.json_schema,
    "opportunities.schema.json": inspection.opportunities_json_schema,
    "adoption.schema.json": inspection.adoption_json_schema,
    "bench.schema.json": bench_record.json_schema,
    "profile.schema.json": profile_record.json_schema,
    "study.schema.json": study_record.json_schema,
    "analysis.schema.json": analysis_record.json_schema,
    "decomposed.schema.json": analysis_record.decomposed_schema,
}
PLACE = Path(__file__).parent.parent / "src" / "sardonyx" / "schemas"


def published(name: str) -> str:
    """The text of one schema as it should be on disk."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SCHEMAS[name]()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        (PLACE / name).write_text(published(name), encoding="utf-8")
