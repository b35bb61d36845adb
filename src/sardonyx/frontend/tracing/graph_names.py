"""Gives an exported graph the user's names: of inputs, outputs and dynamic dimensions (`batch` in place of `s27`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.frontend.tracing.adapter import Axes, FixedDim, ModuleCall
from sardonyx.ir.metadata import CONDITION
from sardonyx.ir.origins import set_origins
from sardonyx.ir.scopes import scopes
from sardonyx.records.provenance import UNKNOWN
from sardonyx.records.run import How

Ranges = Mapping[str, tuple[object, object]]  # torch's symbol -> smallest and largest size
_SYMBOL = re.compile(r"\bs\d+\b")
_SUM = re.compile(r"[\w*]+( \+ [\w*]+)+")  # without brackets and differences
_GUARDED = re.compile(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]")  # a size in torch's guards
_MOST_RELATED = 3  # dimensions in a guard that is tried
_UNBOUNDED = 1 << 31
_AT_MOST = re.compile(r"(?P<dim>.+) at most (?P<size>\d+)\b")


def settle(model: ir.Model, axes: Axes, ranges: Ranges, guards: Iterable[str] = ()) -> list[str]:
    """Rename torch's symbols to the requested names; return notes on limits and relations that torch derived for them.

    Args:
        axes: The requested names.
        ranges: The limits of torch's symbols.
        guards: Conditions on the sizes of the inputs under which the graph is right, as torch writes them.

    Raises:
        FixedDim: If torch fixed the size of a requested dimension.
    """
    names: dict[str, str] = {}
    notes: list[str] = []
    for value in model.graph.inputs:
        for axis, name in axes.get(value.name or "", {}).items():
            dim = _plain(value.shape[axis]) if value.shape is not None else None
            if isinstance(dim, int):
                raise FixedDim(f"{value.name}:{axis}", name, dim)
            symbol = dim or ""
            if not _SYMBOL.fullmatch(symbol):  # a formula of other dimensions
                continue
            if names.setdefault(symbol, name) != name:
                notes.append(f"{name} is always equal to {names[symbol]} and gets that name")
    limits: dict[str, list[int]] = {}  # sizes of each dimension: all small ones, and some large ones
    for symbol, name in names.items():  # inputs that nothing relates may have symbols of their own for one dimension
        bounds = map(str, ranges.get(symbol, (None, None)))  # torch's own integers, and infinities
        low, high = (int(bound) if bound.isdecimal() else None for bound in bounds)
        if high is not None and high < _UNBOUNDED:
            notes.append(f"{name} at most {high}")
        if low is not None and low > 2 * len(name.split(" + ")):  # torch assumes that every dimension is at least two
            notes.append(f"{name} at least {low}")
        sizes = [s for s in (*range(2, 66), 100, 511, 512, 4097) if (low or 2) <= s <= (high or _UNBOUNDED)]
        limits[name] = [size for size in limits.get(name, sizes) if size in sizes]
    notes += filter(None, (_relation(model, axes, guard, limits) for guard in guards))
    written = (value for scope in scopes(model) for node in scope.graph for value in node.outputs)
    for value in (*model.graph.inputs, *written):
        if value.shape is not None and any(not isinstance(dim, int) for dim in value.shape):
            value.shape = ir.Shape([_renamed(dim, names) for dim in value.shape])
    return list(dict.fromkeys(notes))


def _relation(model: ir.Model, axes: Axes, guard: str, limits: Mapping[str, Sequence[int]]) -> str | None:
    """Return a note on a condition that not all sizes within the limits meet, or None; equal sizes have one name."""
    dims: list[str] = []

    def symbols(match: re.Match[str]) -> str:
        value, axis = model.graph.inputs[int(match[1])], int(match[2])
        name = axes.get(value.name or "", {}).get(axis)
        if name is None:
            return str(value.shape[axis] if value.shape is not None else None)
        terms = name.split(" + ")
        dims.extend(term for term in terms if term not in dims)
        formula = " + ".join(f"d{dims.index(term)}" for term in terms)
        return formula if len(terms) == 1 else f"({formula})"

    code = _GUARDED.sub(symbols, guard)
    if not 0 < len(dims) <= _MOST_RELATED or re.fullmatch(r"d\d == d\d", code):
        return None
    condition = compile(code, "<guard>", "eval")
    functions: dict[str, Any] = {"__builtins__": {}, "max": max, "min": min}
    for sizes in itertools.product(*(limits.get(dim, range(2, 66)) for dim in dims)):
        if not eval(condition, functions, {f"d{index}": size for index, size in enumerate(sizes)}):  # torch wrote it
            named = re.sub(r"d(\d)", lambda match: dims[int(match[1])], code)
            return f"{CONDITION}{named}"
    return None


def with_lowest_limits(notes: Sequence[str]) -> tuple[str, ...]:
    """Return each note once, and one limit for each dimension: running the module may find a lower one than torch."""
    lowest: dict[str, tuple[int, str]] = {}
    for note in notes:
        if limit := _AT_MOST.match(note):
            this = int(limit["size"]), note
            lowest[limit["dim"]] = min(lowest.get(limit["dim"], this), this, key=lambda found: found[0])
    kept = {note for _, note in lowest.values()}
    return tuple(dict.fromkeys(note for note in notes if note in kept or not _AT_MOST.match(note)))


def _plain(dim: int | ir.SymbolicDim) -> int | str | None:
    """Return a size, a formula of symbols, or None; torch may write a late-decided size as a symbol."""
    if isinstance(dim, int) or dim.value is None:
        return dim if isinstance(dim, int) else None
    return int(dim.value) if dim.value.isdecimal() else dim.value


def _renamed(dim: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | str | None:
    plain = _plain(dim)
    if not isinstance(plain, str):
        return plain
    formula = _SYMBOL.sub(lambda match: names.get(match[0], match[0]), plain)
    # torch writes equal sums in different orders, which would read as two dimensions
    return " + ".join(sorted(formula.split(" + "))) if _SUM.fullmatch(formula) else formula


def name_interface(model: ir.Model, call: ModuleCall) -> None:
    """Name inputs and outputs; an output that is also an input, an initializer or another output is copied."""
    inputs, outputs = model.graph.inputs, model.graph.outputs
    for index, name in enumerate(call.outputs):
        value = outputs[index]
        if value in (*inputs, *list(outputs)[:index]) or value.is_initializer():
            copy = ir.node("Identity", [value], name=f"{name}_copy")
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            set_origins(copy, UNKNOWN, How.ROOT)
            model.graph.append(copy)
            outputs[index] = copy.outputs[0]
    named = dict(zip((*inputs, *outputs), (*call.inputs, *call.outputs), strict=True))
    reserved = set(named.values())  # other values with these names are renamed
    taken = {value.name for value in _inner_values(model)} | reserved
    for value in list(_inner_values(model)):
        if value not in named and value.name in reserved:
            numbered = (f"{value.name}_{number}" for number in itertools.count(1))
            value.name = next(name for name in numbered if name not in taken)
            taken.add(value.name)
    for value, name in named.items():
        value.name = name


def _inner_values(model: ir.Model) -> Iterator[ir.Value]:
    for scope in scopes(model):
        yield from scope.graph.initializers.values()
        for node in scope.graph:
            yield from node.outputs
