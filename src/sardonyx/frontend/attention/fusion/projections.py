"""Linear layers of one attention that read the same input become one, with their weights side by side.

    linear(x, Wq, bq), linear(x, Wk, bk), linear(x, Wv, bv)  =>  split(linear(x, W, b))

Where the weights are slices of one parameter, W is that parameter. Else it is put together at every call: training
goes on as before, but at small batches that costs more than it saves, so it is only done where it is asked for.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import fx, nn

from sardonyx.frontend.attention.fusion.metadata import erase_unread
from sardonyx.frontend.attention.fusion.writing import Writer
from sardonyx.frontend.attention.recognition.facts import rank_of, same_sizes, shape_of
from sardonyx.frontend.attention.recognition.matches import Recognised
from sardonyx.frontend.attention.recognition.vocabulary import module_of, overload_of, read, writes_in_place
from sardonyx.frontend.attention.roles import Role

_PROJECTIONS = (Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V)


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """Rows of a parameter."""

    source: fx.Node
    start: int
    rows: int

    @property
    def end(self) -> int:
        return self.start + self.rows


def parallel(found: Recognised) -> list[list[fx.Node]]:
    """The projections of the attention that read the same input, in the order query, key, value."""
    by_input: dict[Any, list[fx.Node]] = {}
    for role in _PROJECTIONS:
        for node in sorted(node for node, has in found.roles.items() if has is role):
            call = read(node)
            if call is not None and call.does == "linear" and all(_takes_strides(user, node) for user in node.users):
                by_input.setdefault(call.get("x"), []).append(node)
    return [nodes for nodes in by_input.values() if len(nodes) > 1]


def pack(graph: fx.Graph, nodes: Sequence[fx.Node], *, separate: bool) -> bool:
    """Make the projections one, if their weights lie side by side already or `separate` ones may be put together."""
    sliced = _sliced(nodes)
    if sliced is None and not separate:
        return False
    first = min(nodes)
    writer = Writer(graph, first)
    if sliced is not None:
        ordered, weight, bias = sliced[0], _rows(writer, sliced[1]), _rows(writer, sliced[2])
        sizes = [each.rows for each in sliced[1]]
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
    for place, node in enumerate(ordered):
        node.replace_all_uses_with(writer.call(operator.getitem, pieces, place))
    for node in ordered:
        erase_unread(graph, node)
    return True


def _takes_strides(user: fx.Node, node: fx.Node) -> bool:
    """Whether the user takes a tensor whose rows lie apart in memory: a view may not."""
    call = read(user)
    if call is None or writes_in_place(user):
        return False
    name = str(user.target) if user.op == "call_method" else getattr(overload_of(user) or user.target, "__name__", "")
    if call.does != "view" or name.startswith("reshape"):
        return True
    old, new = shape_of(node), shape_of(user)
    if old is not None and new is not None:
        return same_sizes(old[:-1], new[:-2]) or same_sizes(old[:-1], new[:-1])
    return False


def _sliced(nodes: Sequence[fx.Node]) -> tuple[list[fx.Node], list[_Slice], list[_Slice] | None] | None:
    """The nodes in the order of their weights, where these lie side by side in one parameter and the biases as well."""
    slices = [(_slice(call.get("weight")), _slice(call.get("bias")), node) for call, node in _linear(nodes)]
    weights = [(weight, bias, node) for weight, bias, node in slices if weight is not None]
    if len(weights) != len(nodes):
        return None
    weights.sort(key=lambda each: each[0].start)
    biases = [bias for _, bias, _ in weights if bias is not None]
    unbiased = all(call.get("bias") is None for call, _ in _linear(nodes))
    rows = [weight for weight, _, _ in weights]
    together = _adjoin(rows) and (unbiased or (len(biases) == len(rows) and _adjoin(biases)))
    same = unbiased or [bias.rows for bias in biases] == [weight.rows for weight in rows]
    return ([node for *_, node in weights], rows, None if unbiased else biases) if together and same else None


def _linear(nodes: Iterable[fx.Node]) -> list[tuple[Any, fx.Node]]:
    return [(read(node), node) for node in nodes]


def _adjoin(slices: Sequence[_Slice]) -> bool:
    pairs = itertools.pairwise(slices)
    return all(left.source.target == right.source.target and left.end == right.start for left, right in pairs)


def _slice(node: Any) -> _Slice | None:
    """The rows of a parameter that the node reads, where it reads no more and no less."""
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
    """Weight and bias of each as nodes before the first; None where they cannot all be had there."""
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
    known = all(weight.op == "get_attr" and (bias is None or bias.op == "get_attr") for weight, bias in parts)
    there = all(part is None or part < first for pair in parts for part in pair)
    alike = len({bias is None for _, bias in parts}) == 1
    return parts if known and there and alike and rank_of(parts[0][0]).least == 2 else None
