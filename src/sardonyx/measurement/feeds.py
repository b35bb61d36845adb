"""Generate inputs to time a model on, at chosen sizes, in the same way as verification does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.runtime import Feeds
from sardonyx.verification.input_sizes import DynamicDims
from sardonyx.verification.inputs import Inputs, Plan, Style

BATCH, LENGTH = 1, 128  # default sizes of dynamic dimensions: of the first one of an input, and of all others


def dynamic_dims(model: ir.Model) -> dict[str, int]:
    """Return the dynamic dimensions of the inputs by name, with their default sizes.

    A dimension without a name is called by its position: "input_ids[1]". Formulas ("past + seq") are not listed.
    """
    dims = DynamicDims(_required(model))
    return dict.fromkeys(dims.batch, BATCH) | dict.fromkeys(dims.others, LENGTH)


def at_size(model: ir.Model, sizes: Mapping[str, int] | None = None, *, seed: int = 0) -> Feeds:
    """Return feeds for a model whose dynamic dimensions have these sizes; the model is not changed.

    Raises:
        UsageError: A size is given for a dimension that no input has.
    """
    defaults = dynamic_dims(model)
    for name in sizes or ():
        if name not in defaults:
            hint = f"the dynamic dimensions are {', '.join(defaults)}" if defaults else "all its sizes are static"
            raise UsageError(f"no input has a dynamic dimension {name!r}", hint=hint)
    required, chosen = _required(model), defaults | dict(sizes or {})
    dims = DynamicDims(required)
    shapes = [value.shape for value in required]
    try:
        for value in required:
            if value.shape is not None:
                value.shape = ir.Shape(dims.shape(value.name or "", chosen))
        return Inputs(model).generate(Plan(seed, 0, Style.NORMAL)).feeds
    finally:
        for value, shape in zip(required, shapes, strict=True):
            value.shape = shape


def sizes_of(model: ir.Model, feeds: Feeds) -> dict[str, int]:
    """Return the sizes that the dynamic dimensions have in these feeds."""
    dynamic = dynamic_dims(model)
    sizes: dict[str, int] = {}
    for value in _required(model):
        array = feeds.get(value.name or "")
        if isinstance(array, np.ndarray):
            for axis, (dim, size) in enumerate(zip(value.shape or (), array.shape, strict=False)):
                name = dim if isinstance(dim, int) else dim.value or f"{value.name}[{axis}]"
                if name in dynamic:
                    sizes.setdefault(str(name), size)
    return sizes


def _required(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that have no default."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]
