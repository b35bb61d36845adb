"""Raises the opset of a model as a fusion does: with a pass that needs a newer opset and then rewrites nothing."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Log, Rewriter
from sardonyx.ir.rules import Builder, Match, NodeRule, Replacement
from sardonyx.ir.scopes import scopes
from sardonyx.records.run import Accuracy


def raising(op_types: Iterable[str], opset: int) -> NodeRule:
    """Return a rule that matches nodes with these operators until the model has this opset."""

    class Raising(NodeRule):
        name, roots, needs = "raising", tuple(dict.fromkeys(op_types)), opset
        accuracy = Accuracy.EXACT

        def match(self, node: ir.Node, graph: Facts) -> Match | None:
            return Match((node,)) if graph.opset(node) < self.needs and not graph.scope(node).in_function else None

        def rewrite(self, match: Match, op: Builder) -> Replacement:
            raise AssertionError("the model has the opset, so nothing matches")

    return Raising()


def raise_model(model: ir.Model, opset: int) -> Log:
    """Raise a model in place where possible."""
    model.graph.sort()
    origins.attach(model)
    roots = [node.op_type for scope in scopes(model) for node in scope.graph if not node.domain]
    return Rewriter(Facts(model), [raising(roots, opset)]).run()


def raised(proto: onnx.ModelProto, opset: int) -> tuple[onnx.ModelProto | None, str]:
    """Return the model in a newer opset, or None and the reason if it cannot be raised."""
    model = io.from_proto(proto)
    log = raise_model(model, opset)
    if not log.events:
        return None, log.refusals[0].reason if log.refusals else "nothing asked"
    return io.to_proto(model), ""
