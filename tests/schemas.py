"""Regenerates the published JSON Schemas in the package from the types.

python tests/schemas.py      after a change to a type that is published
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sardonyx.records import reading

SCHEMAS = {f"{tag}.schema.json": kind for tag, kind in reading.kinds().items()}
PLACE = Path(__file__).parent.parent / "src" / "sardonyx" / "records" / "schemas"


def published(name: str) -> str:
    """The text of one schema as it should be on disk."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SCHEMAS[name].json_schema()
    schema = json.loads(json.dumps(schema), object_hook=_null_last)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _null_last(part: dict[str, Any]) -> dict[str, Any]:
    """The part with null as the last alternative; msgspec 0.20 writes it first."""
    part.get("anyOf", []).sort(key={"type": "null"}.__eq__)
    return part


if __name__ == "__main__":
    for name in SCHEMAS:
        (PLACE / name).write_text(published(name), encoding="utf-8")
