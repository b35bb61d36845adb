"""What a written model declares in its metadata: how it was made, the sizes that it is for, its state.

There is no time and no path in it, so that the same input gives the same bytes. A runtime does not know the sizes:
beyond a limit a file may answer what its module would not. The state are inputs that are outputs of the run before,
with their first values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.scopes import scopes
from sardonyx.records.environment import environment
from sardonyx.records.input_specs import StateTensor

VERSION = "sardonyx.version"
OPTIONS = "sardonyx.options"  # a JSON object: the options of each command that wrote the model, without those not given


def write_options(model: ir.Model, command: str, options: Mapping[str, Any]) -> None:
    """Add a command with its options to the metadata of a model; those of earlier commands stay."""
    model.metadata_props[VERSION] = environment().sardonyx
    given = {name: value for name, value in options.items() if value is not None and value is not False and value != ()}
    commands = {**read_options(model.metadata_props.get(OPTIONS, "")), command: given}
    model.metadata_props[OPTIONS] = json.dumps(commands, sort_keys=True, separators=(",", ":"))


def read_options(text: str) -> dict[str, Any]:
    """Return the options of each command from the metadata; none if another program wrote something else there."""
    try:
        commands = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", commands) if isinstance(commands, dict) else {}


LIMITS = "sardonyx.sizes"  # a JSON object: the limits of each dimension or sum of dimensions, and further conditions
CONDITION = "exported for sizes with "
_LIMIT = re.compile(r"(?P<dim>.+) at (?P<side>most|least) (?P<size>\d+)\b")


class _Limit(Struct, frozen=True, omit_defaults=True):
    min: int | None = None
    max: int | None = None


class _Sizes(Struct, frozen=True, omit_defaults=True):
    limits: dict[str, _Limit] = msgspec.field(default_factory=dict[str, _Limit])
    conditions: tuple[str, ...] = ()


def write_limits(model: ir.Model, notes: Iterable[str]) -> None:
    """Declare the limits that notes of an export name ("batch at most 4"), if there are any."""
    limits: dict[str, _Limit] = {}
    conditions: list[str] = []
    for note in notes:
        if limit := _LIMIT.match(note):
            side = {"max" if limit["side"] == "most" else "min": int(limit["size"])}
            limits[limit["dim"]] = msgspec.structs.replace(limits.get(limit["dim"], _Limit()), **side)
        elif note.startswith(CONDITION):
            conditions.append(note.removeprefix(CONDITION))
    if limits or conditions:
        model.metadata_props[LIMITS] = msgspec.json.encode(_Sizes(limits, tuple(conditions))).decode()


def outside_limits(model: ir.Model, sizes: Mapping[str, int]) -> str | None:
    """Return the first limit of the model that these sizes do not keep, or None."""
    try:
        declared = msgspec.json.decode(model.metadata_props.get(LIMITS, "{}"), type=_Sizes)
    except (msgspec.DecodeError, RecursionError):  # another program wrote something else there
        return None
    for dim, limit in declared.limits.items():
        terms = dim.split(" + ")
        if not sizes.keys() >= set(terms):
            continue
        size = sum(sizes[term] for term in terms)
        if limit.max is not None and size > limit.max:
            return f"{dim} is {size}, at most {limit.max}"
        if limit.min is not None and size < limit.min:
            return f"{dim} is {size}, at least {limit.min}"
    return None


STATE = "sardonyx.state"  # a JSON object: the declaration of each state by the name of its input
_MOST_STORED = 1 << 16  # elements that are written as numbers


def declared_state(name: str, output: str, first: npt.NDArray[Any]) -> StateTensor:
    """Return the declaration of a state by its value in the first run."""
    return StateTensor(name, output, first.dtype.name, first.shape, _initial(first))


def _initial(first: npt.NDArray[Any]) -> Any:
    """Return one number if all elements are equal, otherwise nested lists; None if these are too long."""
    numbers = first.astype(np.float64) if first.dtype.kind not in "biu" else first
    if first.size and not bool(np.all((numbers == numbers.flat[0]) | (np.isnan(numbers) & np.isnan(numbers.flat[0])))):
        return None if first.size > _MOST_STORED else _plain(numbers.tolist())
    return _plain(numbers.flat[0].item() if first.size else 0)


def _plain(value: Any) -> Any:
    """Return numbers as JSON has them: infinities and NaN as texts, which numpy reads."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_state(model: ir.Model, states: tuple[StateTensor, ...]) -> None:
    """Declare the state of a model in its metadata."""
    if states:
        fields = {state.name: {**msgspec.to_builtins(state)} for state in states}
        for each in fields.values():
            del each["name"]
        model.metadata_props[STATE] = json.dumps(fields, separators=(",", ":"))


def read_state(model: ir.Model) -> dict[str, StateTensor]:
    """Return the declared state by input; none of what does not fit the model's inputs and outputs."""
    outputs = {value.name for value in model.graph.outputs}
    inputs = {value.name for value in model.graph.inputs}
    try:
        fields = json.loads(model.metadata_props.get(STATE, "{}"))
        states = [msgspec.convert({"name": name, **each}, StateTensor) for name, each in fields.items()]
    except (ValueError, TypeError, AttributeError, RecursionError, msgspec.ValidationError):
        return {}
    return {state.name: state for state in states if state.name in inputs and state.output in outputs}


def first_value(state: StateTensor, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the value of a state in the first run, in the type and shape of an array."""
    try:
        return np.broadcast_to(np.array(state.initial, like.dtype), like.shape).copy()
    except (TypeError, ValueError):  # not stored, or of another shape
        return np.zeros_like(like)


def in_a_row(model: ir.Model, first: Mapping[str, npt.NDArray[Any]], calls: int) -> ir.Model:
    """Return a model that runs another several times, each run with the state of the one before.

    Its inputs and outputs are those of all runs, in order, without the state; then follows the state after the last.

    Args:
        model: A model with declared state.
        first: The state of the first run.
        calls: The number of runs.
    """
    whole, *copies = [model.clone() for _ in range(calls)]
    states = read_state(model)
    del whole.metadata_props[STATE]
    _forget_shapes(whole)
    for value in list(whole.graph.inputs):
        if value.name in states:
            whole.graph.inputs.remove(value)
            value.const_value = ir.tensor(first[value.name], name=value.name)
            value.shape = ir.Shape(first[value.name].shape)
            whole.graph.register_initializer(value)
    continued = {state.output: name for name, state in states.items()}
    held = {continued[value.name]: value for value in whole.graph.outputs if value.name in continued}
    results = [value for value in whole.graph.outputs if value.name not in continued]
    for number, copy in enumerate(copies, 1):
        outputs = list(copy.graph.outputs)
        after = {continued[value.name]: value for value in outputs if value.name in continued}
        results += [value for value in outputs if value.name not in continued]
        _append(whole.graph, copy, held, number)
        held = after
    whole.graph.outputs[:] = [*results, *held.values()]
    return whole


def numbered(name: str, number: int) -> str:
    """Return the name of a value in one of several runs in a row."""
    return f"{name}.run{number + 1}" if number else name


def _append(graph: ir.Graph, copy: ir.Model, held: Mapping[str, ir.Value], number: int) -> None:
    """Append the nodes of a copy, which shares the weights and continues a state."""
    _forget_shapes(copy)
    nodes, inputs = list(copy.graph), list(copy.graph.inputs)
    copy.graph.outputs.clear()
    copy.graph.inputs.clear()
    for name, value in list(copy.graph.initializers.items()):
        value.replace_all_uses_with(graph.initializers[name])
    for value in inputs:
        name = value.name or ""
        if name in held:
            value.replace_all_uses_with(held[name])
        else:
            value.name = numbered(name, number)
            graph.inputs.append(value)
    copy.graph.remove(nodes)
    for node in nodes:
        node.name = numbered(node.name, number) if node.name else node.name
        for value in node.outputs:
            value.name = numbered(value.name, number) if value.name else value.name
    graph.extend(nodes)


def _forget_shapes(model: ir.Model) -> None:
    """Remove the shapes of computed values: the names of sizes mean another size in every run."""
    for scope in scopes(model):
        for node in scope.graph:
            for value in node.outputs:
                value.shape = None
