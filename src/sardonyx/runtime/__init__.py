"""Everything that runs a model: ONNX Runtime if it can, otherwise the reference evaluator of onnx.

Only `library.py` imports onnxruntime, when the first model is loaded, so importing this package is cheap.
"""

from __future__ import annotations

from sardonyx.runtime.library import Array, Choice, Engine, Feeds, Source, Value
from sardonyx.runtime.sessions import ReferenceSession, Session, evaluate

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
