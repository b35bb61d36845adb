"""x * cos + rotate_half(x) * sin => RotaryEmbedding(x, cos, sin).

Turns pairs of elements, half a head apart or next to each other, of all of each head or of its first part. Refuses
where cosines or sines may differ between the two of a pair, where there is not certainly one row of them a position,
and where an inner value is read elsewhere. Helps because seven passes over the queries and keys become one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._matching import maker, operand
from sardonyx.passes._pieces import halves, is_last, pair_of, piece_of, width
from sardonyx.passes._sizes import merged_last, split_last
from sardonyx.passes.attention._rotary_tables import RANK, Table, built, head_axis, table_of
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy

_KERNELS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Rotation:
    """What is turned, by which angles, and by which nodes."""

    states: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    doubled: bool  # the angles are as wide as the states, each of them twice
    nodes: tuple[ir.Node, ...]
    turned: int | None = None  # how many of each head's elements are turned, where not all


class FuseRotaryEmbedding(NodePass):
    """Rotary position embeddings, however spelled."""

    name = "fuse-rotary-embedding"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Add", "Concat", "Reshape")
    needs = 23
    example = Example(
        before="""
            <ir_version: 11, opset_import: ["" : 23]>
            agraph (float[B, 2, S, 8] x, float[B, S, 4] angle) => (float[B, 2, S, 8] y)
            <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {3}, int64[1] one = {1}> {
                c = Cos(angle)  cc = Concat <axis = -1> (c, c)  cos = Unsqueeze(cc, one)
                s = Sin(angle)  ss = Concat <axis = -1> (s, s)  sin = Unsqueeze(ss, one)
                left = Slice(x, zero, half, last)  right = Slice(x, half, end, last)
                minus = Neg(right)  turned = Concat <axis = -1> (minus, left)
                a = Mul(x, cos)  b = Mul(turned, sin)  y = Add(a, b)
            }
        """,
        after="""
            <ir_version: 11, opset_import: ["" : 23]>
            agraph (float[B, 2, S, 8] x, float[B, S, 4] angle) => (float[B, 2, S, 8] y)
            <int64[1] one = {1}> {
                c = Cos(angle)  cc = Concat <axis = -1> (c, c)  cos = Unsqueeze(cc, one)
                s = Sin(angle)  ss = Concat <axis = -1> (s, s)  sin = Unsqueeze(ss, one)
                y = RotaryEmbedding(x, c, s)
            }
        """,
        near_miss="""
            <ir_version: 11, opset_import: ["" : 23]>
            agraph (float[B, 2, S, 8] x, float[B, S, 8] angle) => (float[B, 2, S, 8] y)
            <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] last = {3}, int64[1] one = {1}> {
                c = Cos(angle)  cos = Unsqueeze(c, one)  s = Sin(angle)  sin = Unsqueeze(s, one)
                left = Slice(x, zero, half, last)  right = Slice(x, half, end, last)
                minus = Neg(right)  turned = Concat <axis = -1> (minus, left)
                a = Mul(x, cos)  b = Mul(turned, sin)  y = Add(a, b)
            }
        """,
        refusal="not certainly the same for the two elements of a pair",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A rotation whose angles can be had as the operator wants them."""
        found = _full_width(node, graph) if node.op_type == "Add" else _half_width(node, graph)
        if found is None:
            return None
        inner = [each for each in found.nodes if each.op_type not in ("Slice", "Split")]
        if any(not _only_read_by(each, found.nodes, graph) for each in inner[:-1]):
            return Refused("a value inside the rotation is read elsewhere", found.nodes)
        if graph.dtype(found.states) not in _KERNELS:
            return Refused("its type is not one that RotaryEmbedding takes", found.nodes)
        shape = graph.shape(found.states)
        if shape is None or len(shape) != RANK:
            return Refused("it does not turn [batch, heads, length, size]", found.nodes)
        heads = head_axis(shape, graph.shape(found.cos))
        if heads is None or heads != head_axis(shape, graph.shape(found.sin)):
            return Refused("there is not certainly one row of angles for each position", found.nodes)
        pairs = (width(found.states, graph) or 0) // 2
        tables = tuple(
            table_of(each, doubled=found.doubled, interleaved=found.interleaved, heads=heads, graph=graph)
            for each in (found.cos, found.sin)
        )
        if any(each is None or each.shape[-1] != pairs for each in tables):
            return Refused("angles are not certainly the same for the two elements of a pair", found.nodes)
        if heads == 2 and not isinstance(shape[2], int):
            return Refused("the number of heads is not known", found.nodes)
        found = _partial(found, graph) or found
        return Match(found.nodes, {"found": found, "tables": tables, "heads": heads, "count": shape[2], "graph": graph})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """One operator; states with the heads third are seen as [batch, length, heads x size] around it."""
        found: Rotation = match.found["found"]
        tables: tuple[Table, ...] = match.found["tables"]
        heads: int = match.found["heads"]
        graph: Facts = match.found["graph"]
        cos, sin = built(tables, found.states, heads, op, graph)
        options = {"interleaved": 1 if found.interleaved else None, "rotary_embedding_dim": found.turned}
        if heads == 1:
            return op.RotaryEmbedding(found.states, cos, sin, **options)
        flat = merged_last(found.states, op, graph)
        turned = op.RotaryEmbedding(flat, cos, sin, num_heads=match.found["count"], **options)
        return split_last(turned, match.replaced[0], op, graph)


def _full_width(node: ir.Node, graph: Facts) -> Rotation | None:
    """x * cos + turned * sin, where turned has the elements of each pair of x exchanged, one of them negated."""
    for straight, crossed in ((0, 1), (1, 0)):
        one, two = maker(node, straight, ("Mul",)), maker(node, crossed, ("Mul",))
        if one is None or two is None or one is two:
            continue
        for at, with_sin in ((0, 1), (1, 0)):
            turned = _exchanged(operand(two, at), graph)
            if turned is None:
                continue
            source, interleaved, nodes = turned
            sin, cos = operand(two, with_sin), _other(one, source)
            if sin is not None and cos is not None:
                return Rotation(source, cos, sin, interleaved, True, (*nodes, one, two, node))
    return None


def _exchanged(value: ir.Value | None, graph: Facts) -> tuple[ir.Value, bool, tuple[ir.Node, ...]] | None:
    """(-b, a) where x is (a, b): what x is, and how its pairs lie."""
    pair = pair_of(value, graph)
    negation = None if pair is None else pair.first.producer()
    if pair is None or negation is None or negation.op_type != "Neg" or negation.domain:
        return None
    found = halves(pair.second, negation.inputs[0], graph)
    if found is None or found[1].interleaved != pair.interleaved:
        return None
    return found[0], pair.interleaved, (*found[1].nodes, negation, *pair.nodes)


def _half_width(node: ir.Node, graph: Facts) -> Rotation | None:
    """(a * cos - b * sin, b * cos + a * sin) where x is (a, b)."""
    pair = pair_of(node.outputs[0], graph)
    if pair is None:
        return None
    minus, plus = pair.first.producer(), pair.second.producer()
    if minus is None or plus is None or (minus.op_type, plus.op_type) != ("Sub", "Add") or minus.domain or plus.domain:
        return None
    products = [maker(each, index, ("Mul",)) for each in (minus, plus) for index in (0, 1)]
    if None in products:
        return None
    a_cos, b_sin, one, two = (each for each in products if each is not None)
    for b_cos, a_sin in ((one, two), (two, one)):
        for a, cos in ((0, 1), (1, 0)):
            for b, sin in ((0, 1), (1, 0)):
                found = halves(operand(a_cos, a), operand(b_sin, b), graph)
                if found is None or found[1].interleaved != pair.interleaved:
                    continue
                by_cos, by_sin = operand(a_cos, cos), operand(b_sin, sin)
                same = _other(b_cos, found[1].second) is by_cos and _other(a_sin, found[1].first) is by_sin
                if same and by_cos is not None and by_sin is not None:
                    nodes = (*found[1].nodes, a_cos, b_sin, one, two, minus, plus, *pair.nodes)
                    return Rotation(found[0], by_cos, by_sin, pair.interleaved, False, nodes)
    return None


def _partial(found: Rotation, graph: Facts) -> Rotation | None:
    """The rotation together with the Concat that puts the rest of each head, left as it was, behind what was turned."""
    piece = piece_of(found.states, graph)
    user = graph.sole_user(found.nodes[-1].outputs[0])
    if piece is None or user is None or user.op_type != "Concat" or user.domain or len(user.inputs) != 2:
        return None
    rest, total = piece_of(operand(user, 1), graph), width(piece.source, graph)
    if rest is None or user.inputs[0] is not found.nodes[-1].outputs[0] or rest.source is not piece.source:
        return None
    whole = (piece.start, piece.stop, rest.stop) == (0, rest.start, total) and piece.step == rest.step == 1
    if not whole or not is_last(user.attributes.get_int("axis", 0), user.outputs[0], graph):
        return None
    nodes = (*dict.fromkeys((piece.node, rest.node)), *found.nodes, user)
    return replace(found, states=piece.source, nodes=nodes, turned=piece.stop)


def _other(product: ir.Node, factor: ir.Value) -> ir.Value | None:
    """What a Mul multiplies a value with."""
    one, two = operand(product, 0), operand(product, 1)
    return two if one is factor else one if two is factor else None


def _only_read_by(node: ir.Node, nodes: tuple[ir.Node, ...], graph: Facts) -> bool:
    return all(
        not graph.is_output(output) and all(use.node in nodes for use in output.uses()) for output in node.outputs
    )
