"""Passes for the experiment on pass order: two that match the same node, and two independent ones."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Match
from sardonyx.passes import NodePass
from sardonyx.records.run import Accuracy


def fusing(title: str, first: str, then: str, result: str) -> NodePass:
    """Replaces two consecutive operators by one; not an equivalence, because the experiment verifies nothing."""

    class Fusing(NodePass):
        name, roots = title, (then,)
        accuracy = Accuracy.EXACT

        def match(self, node: ir.Node, graph: Facts) -> Match | None:
            producer = node.inputs[0].producer() if node.inputs[0] is not None else None
            return Match((producer, node)) if producer is not None and producer.op_type == first else None

        def rewrite(self, match: Match, op: Builder) -> ir.Value:
            return getattr(op, result)(match.nodes[0].inputs[0])

    return Fusing()


def replacing(title: str, root: str, result: str) -> NodePass:
    """Replaces an operator by another one."""

    class Replacing(NodePass):
        name, roots = title, (root,)
        accuracy = Accuracy.EXACT

        def match(self, node: ir.Node, graph: Facts) -> Match:
            return Match((node,))

        def rewrite(self, match: Match, op: Builder) -> ir.Value:
            return getattr(op, result)(match.root.inputs[0])

    return Replacing()


EARLY = fusing("takes-neg-abs", "Neg", "Abs", "Sigmoid")
LATE = fusing("takes-abs-relu", "Abs", "Relu", "Tanh")  # the first of the two rewrites the Abs
ASIDE = fusing("takes-exp-log", "Exp", "Log", "Softplus")
BEHIND = fusing("takes-sin-cos", "Sin", "Cos", "Softsign")
CHAIN = """<ir_version: 9, opset_import: ["" : 18]>
g (float[2,3] x) => (float[2,3] y) {
  a = Exp(x)
  b = Log(a)
  c = Neg(b)
  d = Abs(c)
  e = Relu(d)
  f = Sin(e)
  y = Cos(f)
}"""
