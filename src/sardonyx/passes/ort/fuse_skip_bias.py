"""SkipLayerNormalization(x + b, skip) => SkipLayerNormalization(x, skip, bias = b), of ONNX Runtime.

Likewise for its simplified form, and for a bias on the skip. Refuses where the sum is read elsewhere. For biases that
came to stand before the norm only after it was fused. Helps because the sum is then done while it is normalised.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._channels import USED_ELSEWHERE
from sardonyx.passes._matching import maker, operand
from sardonyx.passes.base import Example, NodePass
from sardonyx.passes.ort._contrib import DOMAIN, Biased, as_biased, on_ort
from sardonyx.passes.ort._residuals import LAYER, RMS
from sardonyx.records.run import Accuracy


class FuseSkipBias(NodePass):
    """A bias before a fused residual norm into it."""

    name = "fuse-skip-bias"
    accuracy = Accuracy.REASSOCIATES
    roots = (f"{DOMAIN}::{LAYER}", f"{DOMAIN}::{RMS}")
    opset = 7
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
            agraph (float[N, S, 2] x, float[N, S, 2] skip) => (float[N, S, 2] y)
            <float[1, 1, 2] b = {1, -2}, float[2] scale = {2, 3}> {
                e = Sin(x)  a = Add(b, e)
                n, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.5> (a, skip, scale)  y = Mul(n, s)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
            agraph (float[N, S, 2] x, float[N, S, 2] skip) => (float[N, S, 2] y)
            <float[2] b = {1, -2}, float[2] scale = {2, 3}> {
                e = Sin(x)
                n, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.5> (e, skip, scale, , b)  y = Mul(n, s)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
            agraph (float[N, S, 2] x, float[N, S, 2] skip) => (float[N, S, 2] y)
            <float[2] b = {1, -2}, float[2] scale = {2, 3}> {
                a = Add(x, b)  n = com.microsoft.SkipLayerNormalization(a, skip, scale)  y = Mul(n, a)
            }
        """,
        refusal="used elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A norm that has no bias yet, of a sum with a vector."""
        if operand(node, _place(node)) is not None:
            return None
        refused: Refused | None = None
        for side in (0, 1):
            add = maker(node, side, ("Add",))
            found = None if add is None else as_biased(add, graph)
            if add is None or found is None:
                continue
            if graph.sole_user(add.outputs[0]) is not node:
                refused = Refused(USED_ELSEWHERE, (add, node))
                continue
            return on_ort(Match((add, node), {"biased": found, "side": side, "graph": graph}), node.op_type, graph)
        return refused

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The same norm with one more operand."""
        found: Biased = match.found["biased"]
        node = match.root
        inputs = [operand(node, index) for index in range(_place(node))]
        inputs[match.found["side"]] = found.source
        inputs.append(found.vector(op, match.found["graph"]))
        made = op.node(node.op_type, tuple(inputs), {**node.attributes}, domain=DOMAIN, outputs=len(node.outputs))
        for old, new in zip(node.outputs, made, strict=True):
            new.name = new.name if old.name else ""
        return [new if old.name else None for old, new in zip(node.outputs, made, strict=True)]


def _place(node: ir.Node) -> int:
    """Where the bias goes."""
    return 4 if node.op_type == LAYER else 3
