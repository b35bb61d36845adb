"""Decisions that are recorded in `data/recorded`: what is inferred about sizes, which comparisons fail and why.

Other tests show that decisions are right. The records show that they are the same as before, so that a rule that
concludes less, a bound that moved, or a condition that was lost is noticed. Where a change is meant to change them,
`SARDONYX_RECORD=1 pytest TESTS` writes them again; the difference belongs to the change.

The records are compared where the packages are those of `constraints.txt`, since others have other schemas, kernels and
random numbers.
"""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "onnx", "onnxruntime", "protobuf")
ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "data" / "recorded"


@functools.cache
def is_compared() -> bool:
    """Whether the packages and the processor are those of the records."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    same = all(metadata.version(name) == pins[name] for name in PACKAGES)
    return same and platform.machine() == "x86_64"


def check(name: str, found: Mapping[str, object]) -> None:
    """Compare decisions with those on record under the same keys."""
    if not is_compared():
        return
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
