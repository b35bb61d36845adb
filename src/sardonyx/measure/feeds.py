"""Inputs to time a model on, at sizes that one chooses, drawn as the proof draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.proof.inputs import Inputs, Plan, Style
from sardonyx.runtime import Feeds

BATCH, LENGTH = 1, 128  # of open dims nobody gave a size: the first dim of an input, and all others


def open_dims(model: ir.Model) -> dict[str, int]:
    """The dims that inputs leave open, by name, with the sizes they get where none is given."""
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                found.setdefault(_name(dim), BATCH if axis == 0 else LENGTH)
    return found


def at_size(model: ir.Model, sizes: Mapping[str, int] | None = None, *, seed: int = 0) -> Feeds:
    """Feeds for a model whose open dims get these sizes; the model is left as it is.

    Raises:
        UsageError: for a size of a dim that no input has.
    """
    dims = open_dims(model)
    for name in sizes or ():
        if name not in dims:
            known = f"it leaves open {', '.join(dims)}" if dims else "all its sizes are fixed"
            raise UsageError(f"no input of the model has a dim {name!r}", hint=known)
    chosen = dims | dict(sizes or {})
    kept = [value.shape for value in model.graph.inputs]
    try:
        for value in model.graph.inputs:
            if value.shape is not None:
                value.shape = ir.Shape(dim if isinstance(dim, int) else chosen[_name(dim)] for dim in value.shape)
        return Inputs(model).draw(Plan(seed, 0, Style.NORMAL)).feeds
    finally:
        for value, shape in zip(model.graph.inputs, kept, strict=True):
            value.shape = shape


def _name(dim: Any) -> str:
    return str(getattr(dim, "value", None) or "?")
