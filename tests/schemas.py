"""Writes the published JSON Schemas into the package anew from the types.

python tests/schemas.py      after a change to a type that is published
"""

from __future__ import annotations

import json
from pathlib import Path

from sardonyx.records import (
    analysis,
    bench,
    comparison,
    export,
    extraction,
    inspection,
    module_graph,
    profile,
    run,
    study,
)

SCHEMAS = {
    "run.schema.json": run.json_schema,
    "export.schema.json": export.json_schema,
    "inspection.schema.json": inspection.json_schema,
    "module.schema.json": inspection.module_json_schema,
    "extraction.schema.json": extraction.json_schema,
    "dag.schema.json": module_graph.json_schema,
    "comparison.schema.json": comparison.json_schema,
    "opportunities.schema.json": inspection.opportunities_json_schema,
    "adoption.schema.json": inspection.adoption_json_schema,
    "bench.schema.json": bench.json_schema,
    "profile.schema.json": profile.json_schema,
    "study.schema.json": study.json_schema,
    "analysis.schema.json": analysis.json_schema,
    "decomposed.schema.json": analysis.decomposed_schema,
}
PLACE = Path(__file__).parent.parent / "src" / "sardonyx" / "records" / "schemas"


def published(name: str) -> str:
    """The text of one schema as it should be on disk."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SCHEMAS[name]()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        (PLACE / name).write_text(published(name), encoding="utf-8")
