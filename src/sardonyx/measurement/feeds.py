"""Inputs to time a model on, at sizes that one chooses, drawn as the proof draws them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.runtime import Feeds
from sardonyx.verification.input_sizes import DynamicDims
from sardonyx.verification.inputs import Inputs, Plan, Style

BATCH, LENGTH = 1, 128  # of open dims nobody gave a size: the first dim of an input, and all others


def open_dims(model: ir.Model) -> dict[str, int]:
    """The dims that inputs leave open, by name, with the sizes they get where none is given.

    A dim without a name goes by its place: "input_ids[1]". A formula of others ("past + seq") is none of its own.
    """
    dims = DynamicDims(_required(model))
    return dict.fromkeys(dims.batch, BATCH) | dict.fromkeys(dims.others, LENGTH)


def at_size(model: ir.Model, sizes: Mapping[str, int] | None = None, *, seed: int = 0) -> Feeds:
    """Feeds for a model whose open dims get these sizes; the model is left as it is.

    Raises:
        UsageError: for a size of a dim that no input has.
    """
    known = open_dims(model)
    for name in sizes or ():
        if name not in known:
            hint = f"the open dims are {', '.join(known)}" if known else "all its sizes are fixed"
            raise UsageError(f"no input has an open dim {name!r}", hint=hint)
    required, chosen = _required(model), known | dict(sizes or {})
    dims = DynamicDims(required)
    kept = [value.shape for value in required]
    try:
        for value in required:
            if value.shape is not None:
                value.shape = ir.Shape(dims.shape(value.name or "", chosen))
        return Inputs(model).generate(Plan(seed, 0, Style.NORMAL)).feeds
    finally:
        for value, shape in zip(required, kept, strict=True):
            value.shape = shape


def sizes_of(model: ir.Model, feeds: Feeds) -> dict[str, int]:
    """The sizes that feeds give to the open dims."""
    known = open_dims(model)
    found: dict[str, int] = {}
    for value in _required(model):
        fed = feeds.get(value.name or "")
        if isinstance(fed, np.ndarray):
            for axis, (dim, size) in enumerate(zip(value.shape or (), fed.shape, strict=False)):
                name = dim if isinstance(dim, int) else dim.value or f"{value.name}[{axis}]"
                if name in known:
                    found.setdefault(str(name), size)
    return found


def _required(model: ir.Model) -> list[ir.Value]:
    """The inputs that have no default."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]
