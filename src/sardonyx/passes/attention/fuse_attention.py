"""MatMul(Softmax(scale * MatMul(Q, K^T) + mask), V) => Attention(Q, K, V, mask).

The scale may be split over Q, K and the product. There may be a softcap, several masks or a condition, and heads of K
and V that are repeated for groups of queries; the repetition is removed. Refuses if scores or weights are read
elsewhere or cast to a type that does not hold them, if the scale is not a constant, if a mask could enlarge the scores,
if the result of a fully masked row would change, and for types without a kernel in the runtime. A row masked entirely
by -inf becomes zero, as the standard defines, instead of NaN; one masked by the lowest finite number stays the mean of
the values, for which the mask is kept above that number. Helps because the scores are no longer scaled and masked by
separate nodes, and because heads then need no transpose.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Dim
from sardonyx.ir.scopes import has_references
from sardonyx.passes._dtypes import preserves_values
from sardonyx.passes._matching import operand_producer
from sardonyx.passes.attention._axis_parts import Conversion
from sardonyx.passes.attention._masks import read_masks
from sardonyx.passes.attention._operands import read_layout
from sardonyx.passes.attention._scores import NearMiss, Scores, read_scores
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
CLOSE = 1e-6  # relative; a scale this close to the default is the default
READ_ELSEWHERE = "its weights are read elsewhere"
_SCALES = (float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max))
_SOFTMAX_OF_ONE_AXIS = 13  # before, Softmax flattened its input, which is the same for the last axis


class FuseAttention(NodePass):
    """Decomposed scaled dot-product attention."""

    name = "fuse-attention"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Softmax",)
    opset = 7  # before, sums and products broadcast only with an attribute
    needs = 23
    example = Example(
        before="""
            agraph (float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v, float[2, 1, 5, 3] m)
                => (float[2, 2, 5, 4] y)
            <float c = {0.3}> {
                kt = Transpose <perm = [0, 1, 3, 2]> (k)
                qc = Mul(q, c)
                s = MatMul(qc, kt)
                a = Add(m, s)
                p = Softmax <axis = -1> (a)
                y = MatMul(p, v)
            }
        """,
        after="""
            agraph (float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v, float[2, 1, 5, 3] m)
                => (float[2, 2, 5, 4] y)
            <float below_one = {0.99999994}> { b = Mul(m, below_one)  y = Attention <scale = 0.3> (q, k, v, b) }
        """,
        near_miss="""
            agraph (float[2, 2, 5, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v)
                => (float[2, 2, 5, 4] y, float[2, 2, 5, 3] p)
            {
                kt = Transpose <perm = [0, 1, 3, 2]> (k)
                s = MatMul(q, kt)
                p = Softmax <axis = -1> (s)
                y = MatMul(p, v)
            }
        """,
        refusal="weights are read elsewhere",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match a Softmax over the last axis between two products."""
        rank = graph.rank(node.inputs[0])
        if has_references(node):
            return None
        axis = node.attributes.get_int("axis", -1 if graph.opset(node) >= _SOFTMAX_OF_ONE_AXIS else 1)
        if rank not in (3, 4) or axis not in (-1, rank - 1):
            return None
        product = _weighted_sum(node, graph)
        if product is None:
            return None
        nodes: tuple[ir.Node, ...] = (node, product)
        try:
            scores = read_scores(node, graph)
            if scores is None:
                return None
            nodes = (*reversed(scores.nodes), node, product)
            return _matched(node, product, scores, graph)
        except NearMiss as reason:
            return Refused(str(reason), nodes)

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build one Attention, and the conversions of its operands and result."""
        details = match.details
        dtype: ir.DataType = details["dtype"]
        q, k, v = (operand.steps.write(operand.stage.value, op, dtype) for operand in details["operands"])
        with op.separate():
            mask = details["masks"].write(q, op, dtype)
        value = op.Attention(q, k, v, mask, **details["attributes"])
        op.learn(value, dtype, details["shape"])
        back: Conversion = details["back"]
        return back.write(value, op, dtype)


def _weighted_sum(softmax: ir.Node, graph: Facts) -> ir.Node | None:
    """Return the product of the weights and the values, looking through a Cast and a guard against NaN."""
    pending = [softmax.outputs[0]]
    while pending:
        weights = pending.pop()
        for user, index in weights.uses():
            if user.domain or user.graph is not softmax.graph:
                continue
            if user.op_type == "MatMul" and index == 0:
                return user
            if user.op_type == "Cast" or _is_guard(user, weights, graph):
                pending.append(user.outputs[0])
    return None


def _is_guard(node: ir.Node, weights: ir.Value, graph: Facts) -> bool:
    """Match Where(IsNaN(weights), 0, weights)."""
    test = operand_producer(node, 0, ("IsNaN",))
    if node.op_type != "Where" or test is None or test.inputs[0] is not weights:
        return False
    is_zero = graph.scalar(node.inputs[1]) == 0 and graph.same_shape(weights, node.outputs[0])
    return is_zero and node.inputs[2] is weights


def _between(softmax: ir.Node, product: ir.Node, graph: Facts) -> tuple[ir.Node, ...]:
    """Return the nodes between the Softmax and the product; refuse if anything else reads the weights."""
    nodes: list[ir.Node] = []
    weights = product.inputs[0]
    reader = product
    while weights is not None and weights is not softmax.outputs[0]:
        producer = weights.producer()
        assert producer is not None
        if graph.sole_consumer(weights) is not reader:
            raise NearMiss(READ_ELSEWHERE)
        guard = producer.op_type == "Where"
        source = producer.inputs[2 if guard else 0]
        test = operand_producer(producer, 0, ("IsNaN",)) if guard else None
        readers = {producer} if test is None else {producer, test}
        if source is None or source.is_graph_output() or {use.node for use in source.uses()} != readers:
            raise NearMiss(READ_ELSEWHERE)
        if test is not None and graph.sole_consumer(test.outputs[0]) is not producer:
            raise NearMiss(READ_ELSEWHERE)
        nodes = [*([] if test is None else [test]), producer, *nodes]
        weights, reader = source, producer
    if not nodes and graph.sole_consumer(softmax.outputs[0]) is not product:
        raise NearMiss(READ_ELSEWHERE)
    return tuple(nodes)


def _check_casts(between: tuple[ir.Node, ...], scores: Scores, dtype: ir.DataType, graph: Facts) -> None:
    """Refuse casts that change the weights, except the one back from the precision of the Softmax."""
    for cast in between:
        source, to = graph.dtype(cast.inputs[0]), cast.attributes.get_int("to", 0)
        if cast.op_type != "Cast" or preserves_values(source, to):
            continue
        if source != scores.precision or to != dtype:
            raise NearMiss("its weights are cast to a type that does not hold them")


def _has_half_kernel(width: Dim) -> bool:
    """Return whether the half-precision kernel writes all columns: on some processors it omits a remainder of 4."""
    return isinstance(width, int) and width % 8 != 4


def _matched(softmax: ir.Node, product: ir.Node, scores: Scores, graph: Facts) -> Match:
    between = _between(softmax, product, graph)
    queries, keys, values = scores.product.inputs[0], scores.product.inputs[1], product.inputs[1]
    dtype = graph.dtype(values)
    if dtype is None or dtype not in TYPES:
        raise NearMiss("the runtime has no kernel of Attention for this type")
    if graph.dtype(queries) != dtype or graph.dtype(keys) != dtype:
        raise NearMiss("its operands have different types")
    _check_casts(between, scores, dtype, graph)
    layout = read_layout(queries, keys, values, scores.product, product, graph)
    operands = layout.operands
    if dtype == ir.DataType.FLOAT16 and not _has_half_kernel(layout.shape[-1]):
        raise NearMiss("the runtime's half-precision kernel is wrong for values of this width")
    scale = scores.scale * operands[0].stage.factor * operands[1].stage.factor
    if not _SCALES[0] <= scale <= _SCALES[1]:
        raise NearMiss("its scale is not a positive number in single precision")
    masks = read_masks(scores, layout, dtype, graph)
    taken_over = [*masks.nodes, *(node for operand in operands for node in operand.unused)]
    nodes = [*taken_over, *reversed(scores.nodes), softmax, *between, product]
    return Match(
        tuple(dict.fromkeys(nodes)),
        {
            "operands": operands,
            "masks": masks,
            "dtype": dtype,
            "attributes": {**layout.attributes, **_attributes(scores, scale, layout.width)},
            "shape": layout.shape,
            "back": layout.back,
        },
        separate=frozenset(masks.nodes),
    )


def _attributes(scores: Scores, scale: float, width: Dim) -> dict[str, Any]:
    """Return the attributes that differ from their defaults."""
    default = isinstance(width, int) and abs(scale * math.sqrt(width) - 1) < CLOSE
    return {
        "scale": None if default else float(scale),
        "softcap": scores.softcap or None,
        "softmax_precision": None if scores.precision is None else int(scores.precision),
    }
