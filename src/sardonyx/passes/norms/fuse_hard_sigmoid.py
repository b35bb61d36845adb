"""Clip(a * x + b, 0, c) / c => HardSigmoid(x), with alpha a / c and beta b / c.

Also if the result is multiplied by another value before it is divided. Refuses if the divisor is not the upper bound,
if an inner value is read elsewhere, and for types other than float, for which ONNX Runtime has no kernel. Helps because
three passes over the data become one: a decomposed hard swish then takes three quarters of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir
from msgspec import Struct

from sardonyx.passes._matching import consumer_of, other_operand, producer_of
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.norms._arithmetic import (
    bounds,
    escaping_value,
    fits_single,
    near,
    to_single,
    value_and_factor,
    value_and_scalar,
    without_factors,
)


class _Product(Struct, frozen=True, eq=False):
    """factor * the clipped value, times another value if there is one, and the nodes that multiply."""

    factor: float
    other: ir.Value | None
    nodes: tuple[ir.Node, ...]


class FuseHardSigmoid(NodePass):
    """Decomposed piecewise linear sigmoid."""

    name = "fuse-hard-sigmoid"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Clip",)
    opset = 7  # before, operands broadcast only with an attribute
    example = Example(
        before="""
            agraph (float[N, 4] x) => (float[N, 4] y)
            <float three = {3}, float zero = {0}, float six = {6}> {
                a = Add(x, three)  b = Clip(a, zero, six)  c = Mul(x, b)  y = Div(c, six)
            }
        """,
        after="""
            agraph (float[N, 4] x) => (float[N, 4] y) {
                a = HardSigmoid <alpha = 0.166666666666666667, beta = 0.5> (x)  y = Mul(x, a)
            }
        """,
        near_miss="""
            agraph (float[N, 4] x) => (float[N, 4] y)
            <float three = {3}, float zero = {0}, float six = {6}, float four = {4}> {
                a = Add(x, three)  b = Clip(a, zero, six)  y = Div(b, four)
            }
        """,
        refusal="not divided by its upper bound",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        added = producer_of(node.inputs[0], node, ("Add",))
        shifted, limits = (None if added is None else value_and_scalar(added, graph)), bounds(node, graph)
        if added is None or shifted is None or limits is None or not 0 < limits.high < math.inf:
            return None
        if limits.low != 0 or math.copysign(1.0, limits.low) < 0:  # -0.0 would become 0.0
            return None
        line, high = without_factors(shifted[0], added, graph), limits.high
        dtype = graph.dtype(line.source)
        products = list(_products(node, graph))
        product = next((candidate for candidate in products if near(candidate.factor * high, 1.0, dtype)), None)
        if product is None:
            return Refused("it is not divided by its upper bound", (added, node)) if len(products) > 1 else None
        nodes = (*reversed(line.nodes), added, node, *product.nodes)
        if dtype != ir.DataType.FLOAT:
            return Refused(f"the runtime has no kernel for {dtype.name if dtype else 'an unknown type'}", nodes)
        if escaping_value(nodes, nodes[-1]) is not None:
            return Refused("a value inside is read elsewhere", nodes)
        alpha, beta = line.factor / high, shifted[1] / high
        if not (fits_single(alpha) and fits_single(beta)):
            return Refused("slope or offset is out of the range of single precision", nodes)

        def build(op: Builder) -> Replacement:
            """Build one HardSigmoid, and the product with the other value if there is one."""
            result = op.HardSigmoid(line.source, alpha=to_single(alpha), beta=to_single(beta))
            if product.other is None:
                return result
            return op.Mul(product.other, op.learn(result, ir.DataType.FLOAT, graph.shape(node.outputs[0])))

        return Match(nodes, build=build)


def _products(node: ir.Node, graph: Facts) -> Iterator[_Product]:
    """Yield what the result becomes by each following multiplication by numbers and by one other value."""
    value, product = node.outputs[0], _Product(1.0, None, ())
    yield product
    while (user := consumer_of(value, graph, ("Mul", "Div"))) is not None:
        scaled, other = value_and_factor(user, graph), other_operand(user, value)
        if scaled is not None:
            product = _Product(product.factor * scaled[1], product.other, (*product.nodes, user))
        elif user.op_type == "Mul" and product.other is None and other is not None and other is not value:
            term = without_factors(other, user, graph)
            product = _Product(product.factor * term.factor, term.source, (*product.nodes, *term.nodes, user))
        else:
            return
        value = user.outputs[0]
        yield product
