"""Max(Where(c, 0, -inf), -9) => Where(c, 0, -9).

Any operator that treats every element alike, on a choice between two numbers beside a third: done on the numbers before
the model runs. Refuses where the choice has other consumers, where a branch is or becomes -0.0, of which ONNX Runtime's
Where loses the sign, and for Max or Min of 0.0 and -0.0, of which the kernel returns either. Helps because masks are
bounded, scaled and cast after they were made, each time over every pair of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import maker, operand
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy

# Those that every engine rounds alike, on floating-point numbers
_WORK: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "Max": np.maximum,
        "Min": np.minimum,
    }
)


class FoldWhereBranches(NodePass):
    """Arithmetic on a choice between two numbers."""

    name = "fold-where-branches"
    accuracy = Accuracy.EXACT
    roots = tuple(_WORK)
    opset = 9  # from which on there is Where
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (bool[B, S] x) => (float[B, S] y) <float zero = {0}, float low = {-9}, float[1] least = {-3}> {
                a = Not(x)  b = Where(a, zero, low)  y = Max(b, least)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (bool[B, S] x) => (float[B, S] y) <float zero = {0}, float least = {-3}> {
                a = Not(x)  y = Where(a, zero, least)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (bool[B, S] x) => (float[B, S] y, float[B, S] b)
            <float zero = {0}, float low = {-9}, float[1] least = {-3}> {
                a = Not(x)  b = Where(a, zero, low)  y = Max(b, least)
            }
        """,
        refusal="read elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A Where between numbers as one operand, a number as the other."""
        for index in (0, 1) if len(node.inputs) == 2 else ():
            choice = maker(node, index, ("Where",))
            number = operand(node, 1 - index)
            if choice is None or not _is_number(number, graph):
                continue
            if not graph.same_shape(choice.inputs[0], node.outputs[0]):  # a number might have given it its shape
                continue
            if not all(_is_number(operand(choice, branch), graph) for branch in (1, 2)):
                continue
            if graph.sole_user(choice.outputs[0]) is not node:
                return Refused("the choice is read elsewhere", (choice, node))
            done = [_done(node, index, operand(choice, branch), number, graph) for branch in (1, 2)]
            if any(each is None for each in done):
                return Refused("the sign of a zero may change", (choice, node))
            return Match((choice, node), {"branches": done})
        return None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The same choice between what comes of both."""
        one, two = (op.constant(number, "branch") for number in match.found["branches"])
        return op.Where(match.nodes[0].inputs[0], one, two)


def _is_number(value: ir.Value | None, graph: Facts) -> bool:
    """Whether it is a single number of floating point, of no more axes than one, so that it shapes no result."""
    return (
        graph.scalar(value) is not None
        and (graph.rank(value) or 0) <= 1
        and graph.dtype(value) in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
    )


def _done(
    node: ir.Node, index: int, branch: ir.Value | None, number: ir.Value | None, graph: Facts
) -> np.ndarray | None:
    """The operator on the two numbers; None where the runtime may give a zero of the other sign."""
    one, two = graph.array(branch), graph.array(number)
    assert one is not None
    assert two is not None
    chosen, beside = one.reshape(()), two.reshape(())
    with np.errstate(all="ignore"):
        result = np.asarray(_WORK[node.op_type](*((chosen, beside) if index == 0 else (beside, chosen))), one.dtype)
    opposite = node.op_type in ("Max", "Min") and chosen == 0 and _is_negative_zero(beside)
    return None if opposite or _is_negative_zero(chosen) or _is_negative_zero(result) else result


def _is_negative_zero(number: np.ndarray) -> bool:
    return bool(number == 0 and np.signbit(number))
