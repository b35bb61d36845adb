"""The standard's Attention as ONNX Runtime's own attention operators could take it over: heads, scale and mask.

They take operands as [batch, length, heads * width]; where the standard node has heads apart, the transposes on both
sides belong to it. They add a mask [1 or batch, 1 or heads, queries, keys], and repeat no other axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Dim, Facts
from sardonyx.ir.rules import Refused
from sardonyx.passes._mask_values import leaves_every_row
from sardonyx.passes._matching import maker, operand

_MASK, _PAST = 3, 4
_HEADS_APART = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """An Attention node, and what stands between it and operands and result of three axes."""

    node: ir.Node
    operands: tuple[ir.Value, ...]
    readers: tuple[ir.Node, ...]  # who reads each operand
    before: tuple[ir.Node, ...]
    after: tuple[ir.Node, ...]
    count: int
    scale: float | None
    is_causal: bool
    mask: ir.Value | None

    def mask_refusal(self, batch: Dim, queries: Dim, keys: Dim, graph: Facts) -> str | None:
        """Why the kernels cannot take the mask."""
        if self.is_causal and queries != keys:
            return "queries and keys are not known to be equally many, so that causal is not clear"
        if self.mask is None:
            return None
        shape = graph.shape(self.mask)
        if graph.dtype(self.mask) != ir.DataType.FLOAT:
            return "its mask is no sum in single precision"
        if shape is None or not 2 <= len(shape) <= 4:
            return "the shape of its mask is not known"
        wanted = (batch, self.count, queries, keys)[-len(shape) :]
        spread = [dim == 1 for dim in shape[:-2]]
        fits = [dim == size for dim, size in zip(shape, wanted, strict=True)]
        if not all(fits[-2:]) or not all(one or fit for one, fit in zip(spread, fits, strict=False)):
            return "its mask is not known to have a row for every query and a column for every key"
        if not leaves_every_row(self.mask, graph, causal=self.is_causal):
            return "its mask may hide all keys of a row, of which the kernels do not make the same"
        return None

    def runtime_mask(self, op: Builder, graph: Facts) -> ir.Value | None:
        """The mask with four axes."""
        missing = 0 if self.mask is None else 4 - (graph.rank(self.mask) or 4)
        if self.mask is None or not missing:
            return self.mask
        return op.Unsqueeze(self.mask, op.constant(np.arange(missing, dtype=np.int64), "axes"))


def read_heads(node: ir.Node, graph: Facts) -> Heads | Refused | None:
    """What an Attention node does, where the runtime's own operators can do it; near misses told."""
    given = node.attributes
    if graph.dtype(node.inputs[0]) != ir.DataType.FLOAT or len(node.inputs) < 3:
        return None
    if given.get_float("softcap", 0.0) or given.get_int("softmax_precision", 1) != 1:
        return Refused("has a softcap or another precision inside", (node,))
    if any(value is not None for value in node.inputs[_PAST:]) or any(
        v.uses() or v.is_graph_output() for v in node.outputs[1:]
    ):
        return Refused("keeps a past", (node,))
    rank = graph.rank(node.inputs[0])
    found = _merged(node) if rank == 3 else _apart(node, graph) if rank == 4 else None
    if found is None:
        return None
    operands, readers, before, after, counts = found
    if len(set(counts)) != 1:
        return Refused("queries and keys have different numbers of heads", (node,))
    scale = given.get_float("scale", 0.0) or None
    causal = given.get_int("is_causal", 0) == 1
    return Heads(node, operands, readers, before, after, counts[0], scale, causal, operand(node, _MASK))


_Found = tuple[tuple[ir.Value, ...], tuple[ir.Node, ...], tuple[ir.Node, ...], tuple[ir.Node, ...], tuple[int, ...]]


def _merged(node: ir.Node) -> _Found | None:
    """Operands that have three axes already."""
    operands = tuple(value for value in node.inputs[:3] if value is not None)
    counts = node.attributes.get_int("q_num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    return None if len(operands) < 3 or 0 in counts else (operands, (node,) * 3, (), (), counts)


def _apart(node: ir.Node, graph: Facts) -> _Found | None:
    """Operands whose heads are split off and moved before their length, and a result with that undone."""
    operands: list[ir.Value] = []
    readers: list[ir.Node] = []
    before: list[ir.Node] = []
    counts: list[int] = []
    for index in range(3):
        turn = maker(node, index, ("Transpose",))
        view = None if turn is None else maker(turn, 0, ("Reshape",))
        source = None if view is None else view.inputs[0]
        if turn is None or view is None or source is None or not _is_heads_apart(turn):
            return None
        if graph.sole_user(turn.outputs[0]) is not node or graph.sole_user(view.outputs[0]) is not turn:
            return None
        whole, split = graph.shape(source), graph.shape(view.outputs[0])
        if whole is None or split is None or len(whole) != 3 or len(split) != 4 or whole[:2] != split[:2]:
            return None
        if not isinstance(split[2], int):
            return None
        operands.append(source)
        readers.append(view)
        before += [view, turn]
        counts.append(split[2])
    after = _merging(node, graph)
    return None if after is None else (tuple(operands), tuple(readers), tuple(before), after, tuple(counts))


def _merging(node: ir.Node, graph: Facts) -> tuple[ir.Node, ...] | None:
    """The transpose and the view that merge the heads of the result again."""
    turn = graph.sole_user(node.outputs[0])
    if turn is None or (turn.domain, turn.op_type) != ("", "Transpose") or not _is_heads_apart(turn):
        return None
    view = graph.sole_user(turn.outputs[0])
    if view is None or (view.domain, view.op_type) != ("", "Reshape") or view.inputs[0] is not turn.outputs[0]:
        return None
    split, whole = graph.shape(turn.outputs[0]), graph.shape(view.outputs[0])
    if split is None or whole is None or len(whole) != 3 or whole[:2] != split[:2]:
        return None
    return turn, view


def _is_heads_apart(turn: ir.Node) -> bool:
    return tuple(turn.attributes.get_ints("perm", ())) == _HEADS_APART
