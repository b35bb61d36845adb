"""Everything that runs a model: ONNX Runtime where it can, the reference evaluator of onnx where it cannot.

Only here is onnxruntime imported (`library.py`). Importing this room costs nothing: the runtime is loaded with the
first model.
"""

from __future__ import annotations

from sardonyx.runtime.sessions import ReferenceSession, Session, evaluate
from sardonyx.runtime.values import Array, Choice, Engine, Feeds, Source, Value

__all__ = [
    "Array",
    "Choice",
    "Engine",
    "Feeds",
    "ReferenceSession",
    "Session",
    "Source",
    "Value",
    "evaluate",
]
