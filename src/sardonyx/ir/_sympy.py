"""Keep sympy out of start-up: onnx_ir imports it for dim arithmetic, which most runs never do, at 0.4 s a process.

While onnx_ir is imported it finds a stand-in for sympy, which forwards every later use to the real one. The stand-in
leaves `sys.modules` before anybody else could see it, so torch and users of sympy get the real package as ever.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Deferred:
    """A function of sympy that onnx_ir picks up while it is imported; the real one is found when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module("sympy"), self._name)(*args, **kwargs)


class _StandIn(ModuleType):
    """Answers with deferred functions during the import, and with the real attributes after it."""

    importing = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(name) if self.importing else getattr(importlib.import_module("sympy"), name)


def _import_onnx_ir() -> None:
    if "onnx_ir" in sys.modules or "sympy" in sys.modules:
        return
    stand_in = _StandIn("sympy")
    sys.modules["sympy"] = stand_in
    try:
        importlib.import_module("onnx_ir")
    finally:
        del sys.modules["sympy"]
        stand_in.importing = False


_import_onnx_ir()
