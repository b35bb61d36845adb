"""ONNX in memory and on disk, without torch and without a runtime.

The import of sympy is deferred, which onnx_ir needs for arithmetic on dimensions only and which takes 0.4 s. While
onnx_ir is imported, a stand-in module takes the place of sympy and forwards every later use to the real one. It is
removed from `sys.modules` right after, so torch and user code import the real package.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Deferred:
    """A function of sympy that onnx_ir imports by name; the real one is looked up when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module("sympy"), self._name)(*args, **kwargs)


class _StandIn(ModuleType):
    """A module that returns deferred functions during the import, and the real attributes afterwards."""

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


# before anything here imports onnx_ir: it keeps sympy out of start-up
