"""Attention(x Wq + bq, x Wk + bk, x Wv + bv, mask) => Attention(x, [Wq Wk Wv], [bq bk bv], mask), of ONNX Runtime.

The projections may already be one product that is split. Refuses projections of different states, weights that are not
constant or read elsewhere (packing would store them twice), grouped heads, a past, a softcap, a condition as mask, a
mask whose shape the kernel does not take, and one that may mask all keys of a row by -inf or the lowest number: the
standard operator returns 0 there, the runtime's NaN or a mean. Refuses batches known to be larger than one, such as
windows: the kernel projects each separately, which measured 4 to 12 % slower. Helps because nothing is moved between
the projections and the heads; for one sequence at a time it measured no slower than any other form.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, Refused, Replacement
from sardonyx.passes.ort._attention_operands import Heads, Packed, packed, read_heads
from sardonyx.passes.ort._contrib import DOMAIN, OrtPass, on_ort

BATCHES = "the batch is larger than one, and the kernel projects each element separately, which is slower"


class FusePackedAttention(OrtPass):
    """Attention with its projections."""

    name = "fuse-packed-attention"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Attention",)
    opset = 23
    example = Example(
        before="""
            agraph (float[N, S, 2] x, bool[N, 1, S, S] keep) => (float[N, S, 4] y)
            <float[2, 4] wq = {1, 2, 3, 4, -5, 6, 7, -8}, float[2, 4] wk = {0.1, 0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8},
             float[2, 4] wv = {3, 1, 4, 1, 5, -9, 2, 6}, float[4] bq = {1, 2, 3, 4}, float[4] bv = {5, 6, -7, 8},
             float zero = {0}, float hidden = {-3.0e38}> {
                mask = Where(keep, zero, hidden)
                q0 = MatMul(x, wq)  q = Add(q0, bq)  k = MatMul(x, wk)  v0 = MatMul(x, wv)  v = Add(bv, v0)
                y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, mask)
            }
        """,
        after="""
            <ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]>
            agraph (float[N, S, 2] x, bool[N, 1, S, S] keep) => (float[N, S, 4] y)
            <float[2, 12] w = {1, 2, 3, 4, 0.1, 0.2, 0.3, 0.4, 3, 1, 4, 1, -5, 6, 7, -8, 0.5, -0.6, 0.7, 0.8, 5, -9, 2,
             6},
             float[12] b = {1, 2, 3, 4, 0, 0, 0, 0, 5, 6, -7, 8}, float zero = {0}, float hidden = {-3.0e38}> {
                mask = Where(keep, zero, hidden)
                y = com.microsoft.Attention <num_heads = 2> (x, w, b, , , mask)
            }
        """,
        near_miss="""
            agraph (float[N, S, 2] x, float[N, S, 2] z) => (float[N, S, 4] y)
            <float[2, 4] wq = {1, 2, 3, 4, -5, 6, 7, -8}, float[2, 4] wk = {0.1, 0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8},
             float[2, 4] wv = {3, 1, 4, 1, 5, -9, 2, 6}> {
                q = MatMul(x, wq)  k = MatMul(z, wk)  v = MatMul(z, wv)
                y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)
            }
        """,
        refusal="projections of different states",
        opset=23,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match the attention of projections of the same states."""
        heads = read_heads(node, graph)
        if heads is None or isinstance(heads, Refused):
            return heads
        projections = packed(heads.operands, heads.readers, graph)
        if projections is None:
            return None
        nodes = (*heads.before, node, *heads.after)
        if isinstance(projections, str):
            return Refused(projections, nodes)
        source = graph.shape(projections.source)
        if source is None or graph.dtype(projections.source) != ir.DataType.FLOAT:
            return None
        if isinstance(source[0], int) and source[0] > 1:
            return Refused(BATCHES, nodes)
        refusal = heads.mask_refusal(source[0], source[1], source[1], graph)
        if refusal is not None:
            return Refused(refusal, nodes)
        details = {"heads": heads, "packed": projections, "graph": graph}
        match = Match((*projections.nodes, *nodes), details, outputs=(nodes[-1].outputs[0],))
        return on_ort(match, "Attention", graph)

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the runtime's operator on the states and the packed projections."""
        heads: Heads = match.details["heads"]
        projections: Packed = match.details["packed"]
        graph: Facts = match.details["graph"]
        widths = projections.widths
        attributes = {
            "num_heads": heads.count,
            "scale": heads.scale,
            "unidirectional": 1 if heads.is_causal else None,
            "qkv_hidden_sizes": list(widths) if len(set(widths)) > 1 else None,
        }
        bias = heads.runtime_mask(op, graph)
        inputs = (projections.source, projections.weight(op, graph), projections.bias(op, graph), None, None, bias)
        return op.node("Attention", inputs, attributes, domain=DOMAIN)
