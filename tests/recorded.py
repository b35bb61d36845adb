"""Decisions that are recorded in `data/recorded`: what is inferred about sizes, which comparisons fail and why.

Other tests show that decisions are right. The records show that they are the same as before, so that a rule that
concludes less, a bound that moved, or a condition that was lost is noticed. Where a change is meant to change them,
`SARDONYX_RECORD=1 pytest TESTS` writes them again; the difference belongs to the change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "recorded"


def check(name: str, found: Mapping[str, object]) -> None:
    """Compare decisions with those on record under the same keys."""
    path = FOLDER / f"{name}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    found = json.loads(json.dumps(found))
    if os.environ.get("SARDONYX_RECORD"):
        lines = (f"{json.dumps(key)}: {json.dumps(each)}" for key, each in sorted({**record, **found}.items()))
        FOLDER.mkdir(exist_ok=True)
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    changed = [f"{key}: {each} was {record.get(key)}" for key, each in found.items() if record.get(key) != each]
    assert not changed, "\n".join([f"{len(changed)} of {name} are not as recorded:", *changed[:20]])
