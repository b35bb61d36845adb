"""Makes dimensions static that `--dynamic auto` found but that cannot be exported, each with a note.

Code such as `list(tensor)` runs at any batch size, but torch exports it for the batch size of the example. `auto`
promises nothing about a particular dimension, so the export continues without it. A dimension that the user named is
not dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from msgspec.structs import replace

from sardonyx.errors import SardonyxError, VerificationFailed
from sardonyx.frontend.inputs.dynamic import dim_terms, places_of
from sardonyx.frontend.inputs.example_resolution import DynamicDims
from sardonyx.frontend.tracing.adapter import Call
from sardonyx.frontend.tracing.graph_names import Axes, FixedDim
from sardonyx.frontend.tracing.traced import NotExportable

Result = TypeVar("Result")


def with_fewer_dims(
    call: Call, dims: DynamicDims, attempt: Callable[[DynamicDims], Result]
) -> tuple[Result, DynamicDims]:
    """Return the result of an attempt with as many dynamic dimensions as possible, and those dimensions.

    Raises:
        SardonyxError: If the attempt fails even without the dimensions that `auto` found.
    """
    while True:
        try:
            return attempt(dims), dims
        except FixedDim as error:
            fixed = dim_terms(error.dim)
            if not _detected(dims) >= set(fixed):
                raise
            dims = _without(call, dims, fixed, error.why)
        except NotExportable as error:
            return _with_one_fewer(call, dims, attempt, error, f"torch cannot export it dynamic: {error.why}")
        except VerificationFailed as error:
            return _with_one_fewer(call, dims, attempt, error, "exported dynamic, the graph fails at other sizes")


def _with_one_fewer(
    call: Call, dims: DynamicDims, attempt: Callable[[DynamicDims], Result], error: SardonyxError, why: str
) -> tuple[Result, DynamicDims]:
    """Drop the first dimension without which the attempt succeeds, otherwise all; raise `error` if that fails too."""
    candidates = [dim for dim in _sizes(call, dims.axes) if dim in _detected(dims)]
    if not candidates:
        raise error
    static = _without(call, dims, candidates, why)
    try:
        result = attempt(static)
    except (NotExportable, VerificationFailed):
        raise error from None
    for dim in candidates if len(candidates) > 1 else ():
        fewer = _without(call, dims, [dim], why)
        try:
            return attempt(fewer), fewer
        except (FixedDim, NotExportable, VerificationFailed):
            continue
    return result, static


def _detected(dims: DynamicDims) -> set[str]:
    """Return the dimensions that only `auto` found."""
    return _names(dims.axes) - _names(dims.named)


def _names(axes: Axes) -> set[str]:
    return {term for _, dim in places_of(axes) for term in dim_terms(dim)}


def _sizes(call: Call, axes: Axes) -> dict[str, int]:
    """Return the size of each dimension in the example."""
    leaves = call.feeds
    return {dim: leaves[name].shape[axis] for (name, axis), dim in places_of(axes) if dim_terms(dim) == [dim]}


def _without(call: Call, dims: DynamicDims, fixed: Collection[str], why: str) -> DynamicDims:
    """Make some dimensions static; in a sum their sizes are substituted."""
    sizes = {dim: size for dim, size in _sizes(call, dims.axes).items() if dim in fixed}
    axes: dict[str, dict[int, str]] = {name: {} for name in dims.axes}
    for (name, axis), dim in places_of(dims.axes):
        if not _names({name: {axis: dim}}) <= set(fixed):
            axes[name][axis] = " + ".join(str(sizes.get(term, term)) for term in dim_terms(dim))
    notes = [f"{dim} stays {size}: {why}" for dim, size in sizes.items()]
    return replace(dims, axes=axes, notes=(*dims.notes, *notes))
