"""ONNX in memory and on disk, without torch and without a runtime.

What onnx_ir imports and hardly any run needs is deferred while onnx_ir is imported. A stand-in module takes the place
of sympy, which it needs for arithmetic on dimensions only and which takes 0.4 s, and forwards later uses to the real
one. It is removed from `sys.modules` right after, so torch and user code import the real package. Parts of onnx and
protobuf are executed when one of their names is first read.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

_DEFERRED = frozenset(
    f"{package}.{name}"
    for package, names in {
        "google.protobuf": "json_format text_format internal.python_message",  # texts, and protobuf in pure Python
        "onnx": "compose gen_proto parser printer serialization utils version_converter",
    }.items()
    for name in names.split()
)


class _Deferring(MetaPathFinder):
    """Finds modules whose import is deferred to the first use."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


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
    stand_in, finder = _StandIn("sympy"), _Deferring()
    sys.modules["sympy"] = stand_in
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("onnx_ir")
    finally:
        sys.meta_path.remove(finder)
        del sys.modules["sympy"]
        stand_in.importing = False


_import_onnx_ir()  # before anything here imports it
