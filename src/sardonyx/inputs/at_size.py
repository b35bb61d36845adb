"""Generate inputs for a run at chosen sizes, in the same way as for verification."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.common.errors import UsageError
from sardonyx.inputs.generator import Inputs, Plan, Style
from sardonyx.inputs.sizes import DynamicDims
from sardonyx.runtime import Feeds

BATCH, LENGTH = 1, 128  # default sizes of dynamic dimensions: of the first one of an input, and of all others


def dynamic_dims(model: ir.Model, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the dynamic dimensions of the inputs by name, with the given sizes, and sizes for the others.

    These are 1 and 128, or the next ones found if the graph shows that the model rejects them, such as a window of 512
    samples. A dimension without a name is called by its position: "input_ids[1]". Formulas ("past + seq") are not
    listed.

    Raises:
        UsageError: A size is given for a dimension that no input has.
    """
    dims, given = DynamicDims(_required(model)), given or {}
    usual = dict.fromkeys(dims.batch, BATCH) | dict.fromkeys(dims.others, LENGTH)
    for name in given:
        if name not in usual:
            hint = f"the dynamic dimensions are {', '.join(usual)}" if usual else "all its sizes are static"
            raise UsageError(f"no input has a dynamic dimension {name!r}", hint=hint)
    if usual.keys() == given.keys():
        return usual | dict(given)
    return Inputs(model).sizes_near(usual | dict(given), given)


def at_size(model: ir.Model, sizes: Mapping[str, int] | None = None, *, seed: int = 0) -> Feeds:
    """Return feeds for a model whose dynamic dimensions have these sizes; the model is not changed.

    Raises:
        UsageError: A size is given for a dimension that no input has.
    """
    required, chosen = _required(model), dynamic_dims(model, sizes)
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
    dynamic = DynamicDims(_required(model)).names
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
