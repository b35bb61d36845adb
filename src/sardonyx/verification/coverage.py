"""Report which comparisons of a model had one result in all trials, and which bodies never ran.

A copy of the model counts in how many elements each comparison is true and false, as additional outputs. This covers
thresholds wherever they are, also behind a matrix product, where no analysis knows which inputs reach them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.inputs.roles import small_constant
from sardonyx.ir.facts import element_types
from sardonyx.ir.ops import COMPARISONS, READS_SHAPE
from sardonyx.ir.scopes import bodies, label, top_graphs, values_read
from sardonyx.runtime import Value
from sardonyx.runtime.observe import Observed

_BOUNDS: dict[str, tuple[tuple[int, str, str], ...]] = {  # per bound: operand, operator that is true beyond it, words
    "Clip": ((1, "Less", "below"), (2, "Greater", "above")),
    "Max": ((1, "Less", "below"),),
    "Min": ((1, "Greater", "above"),),
}
_FIRST_OPSET = 7  # in earlier versions the operators that count have other forms
_SQUARES = frozenset(("Mul", "Pow", "ReduceL2", "ReduceSumSquare"))
_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.FLOAT: 3.4e38}
_WIDER = {ir.DataType.FLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE), ir.DataType.FLOAT: (ir.DataType.DOUBLE,)}


class _Test(Struct, frozen=True):
    """What is true or false of each element: the result of a comparison, or whether it is beyond a bound."""

    value: ir.Value  # the result of a comparison, or the value that is compared
    never: str  # the note if it was false for all elements
    always: str = ""  # the note if it was true for all elements; "" if that is no gap
    operator: str = ""  # compares the value with `bound`; "" for a result
    bound: ir.Value | float | None = None  # a number is a bound of the magnitude


class Comparisons:
    """The comparisons in the main graph of one model."""

    def __init__(self, model: ir.Model) -> None:
        """Find the comparisons of `model`, which is not changed."""
        self._tests: list[_Test] = []
        self.counting: ir.Model | None = None  # a copy with two more outputs per comparison; None if there are none
        if model.opset_imports.get("", 0) >= _FIRST_OPSET and any(True for _ in _tests(model)):
            self.counting = model.clone()
            self._tests = list(_tests(self.counting))
            observed = Observed(self.counting)
            for test in self._tests:
                _count(observed, test)

    def notes(self, counts: Sequence[Sequence[Value]]) -> list[str]:
        """Return a note about the comparisons with one result, from the additional outputs of every trial."""
        if not counts:
            return []
        totals = np.array(counts, np.float64).sum(axis=0)
        notes: list[str] = []
        for test, true, false in zip(self._tests, totals[::2], totals[1::2], strict=True):
            if (true > 0) != (false > 0):  # neither: it was always empty
                notes += filter(None, [test.always if true else test.never])
        return [notes[0] + f" (and {len(notes) - 1} more of this kind)"] if len(notes) > 1 else notes


def _count(observed: Observed, test: _Test) -> None:
    """Add outputs with the number of elements for which the test is true, and for which it is false."""
    result = test.value
    if test.operator:  # in double precision, since not every type has a kernel that compares
        value, bound = observed.compute("Cast", result, to=ir.DataType.DOUBLE), test.bound
        if isinstance(bound, ir.Value):
            other = observed.compute("Cast", bound, to=ir.DataType.DOUBLE)
        else:
            value, other = observed.compute("Abs", value), observed.constant(np.float64(bound or 0.0))
        result = observed.compute(test.operator, value, other)
    for outcome in (result, observed.compute("Not", result)):
        counted = observed.compute("Cast", outcome, to=ir.DataType.FLOAT)
        observed.add(observed.compute("ReduceSum", counted, keepdims=0), ir.DataType.FLOAT)


def _tests(model: ir.Model) -> Iterator[_Test]:
    """Yield what the main graph tests of values; tests of sizes alone are left to the choice of sizes."""
    values: set[ir.Value | None] = {value for value in model.graph.inputs if not value.is_initializer()}
    types: dict[ir.Value, ir.DataType] | None = None
    for node in model.graph:
        if node.op_type in READS_SHAPE or not any(value in values for value in values_read(node)):
            continue
        values.update(node.outputs)
        if node.domain:
            continue
        if node.op_type in COMPARISONS:
            yield _comparison(node)
        elif node.op_type in _BOUNDS:
            yield from _bounds(node)
        elif node.op_type == "Cast" and any(map(_is_square, (use.node for use in node.outputs[0].uses()))):
            types = types or element_types(model)
            yield from _widened(node, types)


def _comparison(node: ir.Node) -> _Test:
    constants = [number for value in node.inputs if (number := _number(value)) is not None]
    what = f"{node.op_type} '{label(node)}'" + "".join(f" with {number:g}" for number in constants[:1])
    return _Test(node.outputs[0], f"{what} was false in all trials", f"{what} was true in all trials")


def _bounds(node: ir.Node) -> Iterator[_Test]:
    """Yield a test for each constant bound of Clip, Max or Min: whether it has an effect."""
    operands = list(node.inputs)
    if node.op_type != "Clip":
        operands.sort(key=lambda value: _number(value) is not None)  # the order of the operands is free
    for operand, operator, side in _BOUNDS[node.op_type] if node.op_type == "Clip" or len(operands) == 2 else ():
        bound = operands[operand] if operand < len(operands) else None
        number, value = _number(bound), operands[0]
        if number is not None and value is not None:
            never = f"no value of {node.op_type} '{label(node)}' was {side} {number:g}"
            yield _Test(value, never, operator=operator, bound=bound)


def _is_square(node: ir.Node) -> bool:
    return node.op_type in _SQUARES and (node.op_type != "Mul" or node.inputs[0] is node.inputs[1])


def _widened(node: ir.Node, types: dict[ir.Value, ir.DataType]) -> Iterator[_Test]:
    """Yield a test of a Cast to a type of larger range before a square: whether the square needs that range."""
    value = node.inputs[0]
    kind = types.get(value, value.dtype) if value is not None else None
    if value is None or kind is None or node.attributes.get_int("to", 0) not in _WIDER.get(kind, ()):
        return
    limit, name = float(np.sqrt(_LARGEST[kind])), np.dtype(kind.numpy()).name
    never = f"no value of Cast '{label(node)}' was above {limit:.2g}, whose square overflows in {name}"
    yield _Test(value, never, operator="Greater", bound=limit)


def _number(value: ir.Value | None) -> float | None:
    numbers = small_constant(value)
    return float(numbers[0]) if numbers is not None and numbers.size == 1 else None


# Which bodies of If, Loop and Scan ran: in a copy of the model every body gets a marker node without effect, and the
# runtime's profile lists the markers that were executed.

_MARK = "sardonyx.body."
_BRANCHES = {"then_branch": "then branch", "else_branch": "else branch"}


class Bodies:
    """The bodies of control-flow nodes of one model, in the main graph and in functions."""

    def __init__(self, model: ir.Model) -> None:
        """Find the bodies of `model`, which is not changed."""
        self._notes: dict[str, str] = {}  # the note about a body that never ran, by its marker
        self.marked: ir.Model | None = None  # a copy to be profiled; None if there are no bodies
        if any(True for graph in top_graphs(model) for _ in _bodies(graph)):
            self.marked = model.clone()
            self._mark(self.marked)

    def never_entered(self, executed: frozenset[str] | None) -> list[str]:
        """Return a note for each body that none of the executed nodes was in; nothing if there is no profile."""
        if executed is None:
            return []
        seen = {name[name.index(_MARK) :] for name in executed if _MARK in name}
        return [text for mark, text in self._notes.items() if mark not in seen]

    def _mark(self, model: ir.Model) -> None:
        for graph in top_graphs(model):
            for node, name, body in _bodies(graph):
                mark = f"{_MARK}{len(self._notes)}"
                self._notes[mark] = f"the {_BRANCHES.get(name, 'body')} of {node.op_type} '{label(node)}' never ran"
                one = ir.node("Constant", [], {"value": ir.tensor(np.zeros(1, np.float32))}, name=f"{mark}.one")
                one.outputs[0].name = f"{mark}.one"
                marker = ir.node("Identity", [one.outputs[0]], name=mark)
                marker.outputs[0].name = mark
                body.extend([one, marker])


def _bodies(graph: ir.Graph) -> Iterator[tuple[ir.Node, str, ir.Graph]]:
    """Yield every body below a graph, with its node and the name of the attribute that holds it."""
    for node in graph:
        for name, body in bodies(node):
            yield node, name, body
            yield from _bodies(body)
