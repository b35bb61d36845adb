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

from sardonyx.passes._matching import (
    consumer_of,
    other_operand,
    producer_of,
    require,
    require_closed,
    required,
    value_and_factor,
    value_and_scalar,
)
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Replacement
from sardonyx.passes.norms._arithmetic import bounds, factored, fits_single, near, to_single


class _Product(Struct, frozen=True, eq=False):
    """factor * the clipped value, times another value if there is one, and the nodes that multiply."""

    factor: float
    other: ir.Value | None
    nodes: tuple[ir.Node, ...]


class FuseHardSigmoid(NodePass):
    """Decomposed piecewise linear sigmoid."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Clip",)
    opset = 7  # before, operands broadcast only with an attribute
    example = Example(
        before="""
            (float[N, 4] x) => (float[N, 4] y) <float three = {3}, float zero = {0}, float six = {6}>
            { a = Add(x, three)  b = Clip(a, zero, six)  c = Mul(x, b)  y = Div(c, six) }
        """,
        after="{ a = HardSigmoid <alpha = 0.166666666666666667, beta = 0.5> (x)  y = Mul(x, a) }",
        near_miss="""
            <float three = {3}, float zero = {0}, float six = {6}, float four = {4}> {
                a = Add(x, three)  b = Clip(a, zero, six)  y = Div(b, four)
            }
        """,
        refusal="not divided by its upper bound",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        added = required(producer_of(node.inputs[0], node, ("Add",)))
        shifted, offset = required(value_and_scalar(added, graph))
        limits = required(bounds(node, graph))
        high = limits.high
        require(0 < high < math.inf and limits.low == 0 and math.copysign(1.0, limits.low) > 0)  # -0.0 would become 0.0
        *_, line = factored(shifted, added, graph)
        dtype = graph.dtype(line.source)
        products = list(_products(node, graph))
        product = next((candidate for candidate in products if near(candidate.factor * high, 1.0, dtype)), None)
        refusal = "it is not divided by its upper bound" if len(products) > 1 else ""
        product = required(product, refusal, added, node)
        nodes = (*line.nodes, added, node, *product.nodes)
        name = dtype.name if dtype else "an unknown type"
        require(dtype == ir.DataType.FLOAT, f"the runtime has no kernel for {name}", *nodes)
        require_closed(nodes)
        alpha, beta = line.factor / high, offset / high
        is_normal = fits_single(alpha) and fits_single(beta)
        require(is_normal, "slope or offset is out of the range of single precision", *nodes)

        def build(op: Builder) -> Replacement:
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
            *_, term = factored(other, user, graph)
            nodes = (*product.nodes, *reversed(term.nodes), user)
            product = _Product(product.factor * term.factor, term.source, nodes)
        else:
            return
        value = user.outputs[0]
        yield product
