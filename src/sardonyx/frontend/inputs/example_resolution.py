"""Resolves the user's example inputs and dynamic dimensions to what the exporters take."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from msgspec import Struct
from torch import nn

from sardonyx.frontend.inputs.candidates import Role, role_of
from sardonyx.frontend.inputs.dynamic import find_dynamic, position_limit
from sardonyx.frontend.inputs.examples import Example, derive
from sardonyx.frontend.models.resolve import Resolved, converted_tensor
from sardonyx.frontend.running import Probe, probe
from sardonyx.frontend.tracing.adapter import Call, Feeds
from sardonyx.frontend.tracing.engine import UnattendedRows
from sardonyx.frontend.tracing.graph_names import Axes
from sardonyx.frontend.tracing.structure import Flat
from sardonyx.records.input_specs import Constant, DynamicRequest, Spec, resolve_axes

Inputs: TypeAlias = "torch.Tensor | Sequence[Any] | Mapping[str, Any] | None"
Dims: TypeAlias = 'Axes | Literal["auto"] | DynamicRequest | None'


class DynamicDims(Struct, frozen=True):
    """Dynamic dimensions, those that the user named, and notes on them."""

    axes: Axes
    named: Axes
    notes: tuple[str, ...] = ()


def call_arguments(inputs: Inputs, kwargs: Mapping[str, Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword arguments of a call."""
    keywords = dict(kwargs or {})
    if isinstance(inputs, Mapping):
        return (), {**inputs, **keywords}
    if inputs is None:
        return (), keywords
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), keywords


def example_for(
    module: nn.Module,
    resolved: Resolved,
    inputs: Inputs,
    kwargs: Mapping[str, Any] | None,
    seed: int,
    probe: Probe = probe,
) -> Example:
    """Return the user's example inputs, those of the source's factory, or derived ones.

    If the module was converted to another type, the inputs are converted as well.
    """
    example = _example(module, resolved, inputs, kwargs, seed, probe)
    if resolved.dtype == "keep":
        return example
    flat = Flat([list(example.args), example.kwargs])
    args, keywords = flat.rebuilt([converted_tensor(leaf.tensor, resolved.dtype) for leaf in flat.leaves])
    return Example(tuple(args), keywords, example.notes)


def _example(
    module: nn.Module,
    resolved: Resolved,
    inputs: Inputs,
    kwargs: Mapping[str, Any] | None,
    seed: int,
    probe: Probe,
) -> Example:
    if isinstance(inputs, Mapping) and any(
        isinstance(value, (Spec, Constant, np.ndarray)) for value in inputs.values()
    ):
        return derive(module, given={name: _tensor(value) for name, value in inputs.items()}, seed=seed, probe=probe)
    if inputs is not None or kwargs:
        return Example(*call_arguments(inputs, kwargs))
    if resolved.args is not None or resolved.kwargs is not None:
        return Example(resolved.args or (), resolved.kwargs or {})
    return derive(module, seed=seed, probe=probe)


def _tensor(value: Any) -> Any:
    if isinstance(value, Constant):
        return value.value
    return torch.from_numpy(cast(Any, value)) if isinstance(value, np.ndarray) else value  # pyright: ignore[reportUnknownMemberType]  (torch)


def resolve_dynamic(call: Call, dynamic: Dims) -> DynamicDims:
    """Return the dynamic dimensions that the user named, and with "auto" those that the module accepts."""
    request = dynamic if isinstance(dynamic, DynamicRequest) else DynamicRequest(dynamic == "auto", {})
    if isinstance(dynamic, Mapping):
        request = DynamicRequest(False, dynamic)
    leaves = dict(zip(call.inputs, call.tensors, strict=True))
    named = resolve_axes(request, {name: tuple(tensor.shape) for name, tensor in leaves.items()})
    named = {**call.state_axes, **named}  # what changes from call to call cannot be static
    if not request.auto:
        return DynamicDims(named, named)
    arguments, state = {name: leaves[name] for name in call.arguments}, call.tensors[len(call.arguments) :]
    detected = find_dynamic(
        lambda tensors: call.run([*tensors, *state]), arguments, longest=position_limit(call.module)
    )
    axes = {name: {axis: dim for axis, dim in spec.items() if _has_name(dim)} for name, spec in detected.axes.items()}
    other = [(name, axis) for name, spec in detected.axes.items() for axis, dim in spec.items() if not _has_name(dim)]
    notes = [
        f"axis {axis} of '{name}' may be dynamic too: `dynamic={{'{name}': {{{axis}: 'NAME'}}}}` requests it"
        for name, axis in other
    ]
    merged = {name: {**axes.get(name, {}), **named.get(name, {})} for name in leaves}
    return DynamicDims(merged, named, (*detected.notes, *notes))


def _has_name(dim: str) -> bool:
    """Return whether a dimension has a name other than its axis; exporters rarely support those without one."""
    return not dim.rpartition("_")[2].isdecimal()


def unpadded(call: Call) -> Feeds | None:
    """Return the example with masks that keep every position; None if it has no padding, or the module needs it.

    These are the most ordinary inputs: code that handles padding may fail where there is none.

    Ones keep a position in most masks and hide it in some, where a row then attends to nothing.
    """
    example = call.feeds
    masks = [name for name, tensor in example.items() if role_of(name) is Role.MASK and _is_partial(tensor)]
    for kept in itertools.islice((1, 0), 2 if masks else 0):
        feeds = {name: torch.full_like(tensor, kept) if name in masks else tensor for name, tensor in example.items()}
        try:
            with UnattendedRows() as rows:
                outputs = call.run(list(feeds.values()))
        except Exception:  # a forward may raise anything
            continue
        if not rows.found and all(bool(torch.isfinite(output).all()) for output in outputs):
            return feeds
    return None


def _is_partial(mask: torch.Tensor) -> bool:
    """Return whether a mask of zeros and ones has both."""
    kept = mask == 1
    return mask.dim() > 1 and bool((kept | (mask == 0)).all()) and bool(kept.any()) and not bool(kept.all())
