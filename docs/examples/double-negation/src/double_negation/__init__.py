"""-(-x) => x.

Refuses where the inner value is read elsewhere, since its Neg would have to stay. Helps because exporters write `-(-x)`
where a model subtracts a difference.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx import Accuracy, Builder, Example, Facts, Match, NodePass, Refused


class EliminateDoubleNegation(NodePass):
    """Neg of Neg."""

    name = "eliminate-double-negation"
    accuracy = Accuracy.EXACT
    roots = ("Neg",)
    example = Example(
        before="agraph (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  c = Neg(b)  y = Relu(c) }",
        after="agraph (float[N] x) => (float[N] y) { a = Exp(x)  y = Relu(a) }",
        near_miss="agraph (float[N] x) => (float[N] y, float[N] b) { a = Exp(x)  b = Neg(a)  c = Neg(b)  y = Relu(c) }",
        refusal="inner value is read elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Return the two nodes if the operand of a Neg is a Neg."""
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        if inner is None or inner.op_type != "Neg" or inner.domain != "":
            return None
        if graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused("the inner value is read elsewhere", (inner, node))
        return Match((inner, node))

    def rewrite(self, match: Match, op: Builder) -> ir.Value:
        """Return the operand of the inner Neg."""
        source = match.nodes[0].inputs[0]
        assert source is not None
        return source


PASSES = (EliminateDoubleNegation(),)
