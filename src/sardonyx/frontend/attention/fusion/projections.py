"""Merges linear layers of one attention that read the same input.

    linear(x, Wq, bq), linear(x, Wk, bk), linear(x, Wv, bv)  =>  split(linear(x, W, b))

If the weights are slices of one parameter, W is that parameter. Otherwise W is concatenated at every call: training
still works, but for small batches it costs more than it saves, so it is only done on request.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import Struct
from torch import fx, nn

from sardonyx.frontend.attention.fusion.writing import Writer, erase_unread
from sardonyx.frontend.attention.recognition.calls import module_of, overload_of, read, writes_in_place
from sardonyx.frontend.attention.recognition.facts import rank_of, same_sizes, shape_of
from sardonyx.frontend.attention.recognition.matches import AttentionMatch
from sardonyx.frontend.attention.roles import Role

_PROJECTIONS = (Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V)


class _Slice(Struct, frozen=True, eq=False):
    """Rows of a parameter."""

    source: fx.Node
    start: int
    rows: int

    @property
    def end(self) -> int:
        return self.start + self.rows


def parallel(attention: AttentionMatch) -> list[list[fx.Node]]:
    """Return the groups of projections that read the same input, in the order query, key, value."""
    by_input: dict[Any, list[fx.Node]] = {}
    for role in _PROJECTIONS:
        for node in sorted(node for node, its_role in attention.roles.items() if its_role is role):
            call = read(node)
            if call is not None and call.name == "linear" and all(_accepts_strides(user, node) for user in node.users):
                by_input.setdefault(call.get("x"), []).append(node)
    return [nodes for nodes in by_input.values() if len(nodes) > 1]


def pack(graph: fx.Graph, nodes: Sequence[fx.Node], *, separate: bool) -> bool:
    """Merge projections if their weights are adjacent slices, or if `separate` ones may be concatenated."""
    sliced = _sliced(nodes)
    if sliced is None and not separate:
        return False
    first = min(nodes)
    writer = Writer(graph, first)
    if sliced is not None:
        ordered, weight, bias = sliced[0], _rows(writer, sliced[1]), _rows(writer, sliced[2])
        sizes = [part.rows for part in sliced[1]]
    else:
        parts = _parts(graph, nodes, first)
        if parts is None:
            return False
        ordered, sizes = list(nodes), [cast("tuple[Any, ...]", shape_of(weight))[0] for weight, _ in parts]
        weight = writer.write("cat", [weight for weight, _ in parts])
        biases = [bias for _, bias in parts if bias is not None]
        bias = writer.write("cat", biases) if biases else None
    call = read(first)
    packed = writer.write("linear", call.get("x") if call is not None else None, weight, bias)
    pieces = writer.write("split", packed, sizes, -1)
    for index, node in enumerate(ordered):
        node.replace_all_uses_with(writer.call(operator.getitem, pieces, index))
    for node in ordered:
        erase_unread(graph, node)
    return True


def _accepts_strides(user: fx.Node, node: fx.Node) -> bool:
    """Return whether the user accepts a tensor with non-contiguous rows; a view may not."""
    call = read(user)
    if call is None or writes_in_place(user):
        return False
    name = str(user.target) if user.op == "call_method" else getattr(overload_of(user) or user.target, "__name__", "")
    if call.name != "view" or name.startswith("reshape"):
        return True
    old, new = shape_of(node), shape_of(user)
    if old is not None and new is not None:
        return same_sizes(old[:-1], new[:-2]) or same_sizes(old[:-1], new[:-1])
    return False


def _sliced(nodes: Sequence[fx.Node]) -> tuple[list[fx.Node], list[_Slice], list[_Slice] | None] | None:
    """Return nodes, weights and biases in the order of the slices if these are adjacent in one parameter, or None."""
    slices = [(_slice(call.get("weight")), _slice(call.get("bias")), node) for call, node in _linear(nodes)]
    weights = [(weight, bias, node) for weight, bias, node in slices if weight is not None]
    if len(weights) != len(nodes):
        return None
    weights.sort(key=lambda entry: entry[0].start)
    biases = [bias for _, bias, _ in weights if bias is not None]
    unbiased = all(call.get("bias") is None for call, _ in _linear(nodes))
    rows = [weight for weight, _, _ in weights]
    together = _are_adjacent(rows) and (unbiased or (len(biases) == len(rows) and _are_adjacent(biases)))
    same = unbiased or [bias.rows for bias in biases] == [weight.rows for weight in rows]
    return ([node for *_, node in weights], rows, None if unbiased else biases) if together and same else None


def _linear(nodes: Iterable[fx.Node]) -> list[tuple[Any, fx.Node]]:
    return [(read(node), node) for node in nodes]


def _are_adjacent(slices: Sequence[_Slice]) -> bool:
    pairs = itertools.pairwise(slices)
    return all(left.source.target == right.source.target and left.end == right.start for left, right in pairs)


def _slice(node: Any) -> _Slice | None:
    """Return the rows of a parameter that a `narrow` node reads, or None."""
    call = read(node)
    name = str(getattr(overload_of(node) or node.target, "__name__", node.target)) if call is not None else ""
    if call is None or not name.startswith("narrow") or not isinstance(call.get("x"), fx.Node):
        return None
    numbers: list[Any] = list(node.args[1:])
    source: fx.Node = call.get("x")
    if source.op != "get_attr" or len(numbers) != 3 or numbers[0] != 0:
        return None
    return _Slice(source, int(numbers[1]), int(numbers[2]))


def _rows(writer: Writer, slices: Sequence[_Slice] | None) -> fx.Node | None:
    if slices is None:
        return None
    source, shape = slices[0].source, shape_of(slices[0].source)
    if shape is not None and slices[0].start == 0 and slices[-1].end == shape[0]:
        return source
    return writer.write("narrow", source, 0, slices[0].start, slices[-1].end - slices[0].start)


def _parts(graph: fx.Graph, nodes: Sequence[fx.Node], first: fx.Node) -> list[tuple[fx.Node, fx.Node | None]] | None:
    """Return weight and bias of each as nodes before the first; None if one is computed later."""
    parts: list[tuple[fx.Node, fx.Node | None]] = []
    with graph.inserting_before(first):
        for call, node in _linear(nodes):
            module = module_of(node)
            if isinstance(module, nn.Linear):
                biased = cast(Any, module.bias) is not None  # torch declares that there always is one
                bias = graph.get_attr(f"{node.target}.bias") if biased else None
                parts.append((graph.get_attr(f"{node.target}.weight"), bias))
            else:
                parts.append((call.get("weight"), call.get("bias")))
    are_parameters = all(weight.op == "get_attr" and (bias is None or bias.op == "get_attr") for weight, bias in parts)
    are_before = all(part is None or part < first for pair in parts for part in pair)
    are_alike = len({bias is None for _, bias in parts}) == 1
    return parts if are_parameters and are_before and are_alike and rank_of(parts[0][0]).least == 2 else None
