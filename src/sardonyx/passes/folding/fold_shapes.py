"""Shape(x: [2, 3]) => [2, 3].

Also Size, and Gather or Slice of a Shape where the dims they pick are numbers although others are not. Leaves symbolic
dims alone. Helps because exporters compute sizes at run time that were known all along, and views wait for them.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Facts, Shape
from sardonyx.graph.rules import Match, Refused, Replacement
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.shared.matching import ints, maker, operand
from sardonyx.record import Accuracy


class FoldShapes(NodePass):
    """Sizes that are known before the model runs."""

    name = "fold-shapes"
    accuracy = Accuracy.EXACT
    roots = ("Shape", "Size", "Gather", "Slice")
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 last = {-1}> {
                s = Shape(x)  d = Gather(s, last)  f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 last = {-1}, int64 d = {4}> {
                f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <int64 first = {0}> {
                s = Shape(x)  d = Gather(s, first)  f = Cast <to = 1> (d)  y = Mul(x, f)
            }
        """,
        refusal="dynamic",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A size, whole or in part, made of numbers only."""
        if node.op_type == "Size":
            shape = graph.static_shape(node.inputs[0])
            return None if shape is None else Match((node,), {"value": np.array(math.prod(shape), np.int64)})
        source = node if node.op_type == "Shape" else maker(node, 0, ("Shape",))
        if source is None:
            return None
        dims = _dims(source, graph)
        picked = dims if source is node or dims is None else _picked(node, dims, graph)
        if picked is None:
            return None
        if not all(isinstance(dim, int) for dim in picked.reshape(-1).tolist()):
            return None if source is node else Refused("the dims it picks are dynamic", (source, node))
        nodes = (node,) if source is node else (source, node)
        return Match(nodes, {"value": picked.astype(np.int64)})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The numbers."""
        return op.constant(match.found["value"], "size")


def _dims(node: ir.Node, graph: Facts) -> np.ndarray | None:
    """What a Shape gives: numbers, names, None for the unknown; bounds are clamped as the standard says."""
    shape = graph.shape(node.inputs[0])
    if shape is None:
        return None
    start = _clamped(node.attributes.get_int("start", 0), len(shape))
    end = _clamped(node.attributes.get_int("end", len(shape)), len(shape))
    return _as_objects(shape[start:end])


def _clamped(bound: int, rank: int) -> int:
    return min(max(bound + rank if bound < 0 else bound, 0), rank)


def _as_objects(dims: Shape) -> np.ndarray:
    array = np.empty(len(dims), dtype=object)
    array[:] = list(dims)
    return array


def _picked(node: ir.Node, dims: np.ndarray, graph: Facts) -> np.ndarray | None:
    """The dims a Gather or Slice takes out of a Shape's result."""
    if node.op_type == "Slice":
        return _sliced(node, dims, graph)
    indices = graph.array(operand(node, 1))
    if indices is None or indices.size == 0 or node.attributes.get_int("axis", 0) not in (0, -1):
        return None
    if indices.min() < -len(dims) or indices.max() >= len(dims):
        return None
    return np.asarray(dims[indices], dtype=object).reshape(indices.shape)


def _sliced(node: ir.Node, dims: np.ndarray, graph: Facts) -> np.ndarray | None:
    starts, ends = ints(node, "starts", 1, graph), ints(node, "ends", 2, graph)
    steps = (1,) if operand(node, 4) is None else graph.ints(operand(node, 4))
    if not starts or not ends or not steps or len(starts) != 1 or steps[0] < 1:
        return None
    return dims[starts[0] : ends[0] : steps[0]]
