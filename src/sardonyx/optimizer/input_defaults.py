"""Initializers that are also inputs of the graph, as all weights were before IR version 4.

A caller may pass other values for them, so that neither passes nor ONNX Runtime fold anything that reads one. On
request they are frozen: the inputs are dropped, and the initializers are constants.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx.ir import io
from sardonyx.optimizer.candidates import Source

_CONSTANTS = 4  # the first IR version in which an initializer need not be an input
_NAMED = 3  # inputs of a note


def frozen(source: Source) -> tuple[Source, tuple[str, ...]]:
    """Return a source whose initializers are no inputs, and a note about those that were; the source is not changed."""
    match source:
        case onnx.ModelProto():
            model = io.from_proto(source)
        case ir.Model():
            model = source.clone()
        case io.LoadedFile():
            model = source.model.clone()
        case _:
            model = io.load(Path(source))
    names = _defaults(model)
    if not names:
        return source, ("no initializer is an input: there is nothing to freeze",)
    model.graph.inputs[:] = [value for value in model.graph.inputs if not value.is_initializer()]
    model.ir_version = max(model.ir_version or 0, _CONSTANTS)
    path = source.path if isinstance(source, io.LoadedFile) else source
    result = io.LoadedFile(Path(path), model) if isinstance(path, (str, Path)) else model
    are = "is a constant and no input" if len(names) == 1 else "are constants and no inputs"
    return result, (f"{_counted(names)} {are} of the result",)


def unfrozen_notes(model: ir.Model) -> tuple[str, ...]:
    """Return a note about initializers that are also inputs, if there are any."""
    names = _defaults(model)
    if not names:
        return ()
    be = "is also an input" if len(names) == 1 else "are also inputs"
    return (
        f"{_counted(names)} {be}, for which callers may pass other values: nothing that reads them was folded; "
        "`freeze_inputs=True` makes them constants",
    )


def _defaults(model: ir.Model) -> list[str]:
    return [value.name or "" for value in model.graph.inputs if value.is_initializer()]


def _counted(names: list[str]) -> str:
    listed = ", ".join(map(repr, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
    return f"{len(names)} initializer{'s' if len(names) > 1 else ''} ({listed})"
