"""Keys and values whose heads are repeated for several heads of the queries: the call can share them (`enable_gqa`)."""

from __future__ import annotations

import operator
from typing import Any, cast

from torch import fx

from sardonyx.attention.recognition.facts import rank_of, same_sizes, shape_of
from sardonyx.attention.recognition.vocabulary import read
from sardonyx.attention.spelled import leaves


def shared_heads(query: fx.Node, key: fx.Node, value: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Keys and values before both were repeated alike, where the heads of the queries are then a multiple of theirs."""
    keys, values = _unrepeated(query, key), _unrepeated(query, value)
    if keys is None or values is None or keys[1] != values[1]:
        return None
    return keys[0], values[0]


def _unrepeated(query: fx.Node, node: fx.Node) -> tuple[fx.Node, Any] | None:
    """What is repeated, and how often."""
    call = read(node)
    if call is None:
        return None
    if call.does == "repeat" and call.node.target != "repeat" and _is_heads(call.get("dim"), node):
        times, inner = call.get("repeats"), call.get("x")
        if isinstance(times, fx.Node) and times.target is leaves.heads_per_group and times.args == (query, inner):
            return inner, "as many as it takes"
        return _if_it_fits(query, inner, node) if isinstance(times, int) else None
    inner = _before_expansion(node)
    return None if inner is None else _if_it_fits(query, inner, node)


def _is_heads(dim: Any, node: fx.Node) -> bool:
    rank = rank_of(node)
    return isinstance(dim, int) and (dim == -3 or (rank.exact and dim % rank.least == rank.least - 3))


def _if_it_fits(query: fx.Node, inner: fx.Node, node: fx.Node) -> tuple[fx.Node, Any] | None:
    """Only where the sizes are known, and every dim but the heads is the same for all."""
    asking, few, many = shape_of(query), shape_of(inner), shape_of(node)
    if asking is None or few is None or many is None or {len(asking), len(few), len(many)} != {4}:
        return None
    heads, groups = asking[1], few[1]
    whole = isinstance(heads, int) and isinstance(groups, int) and heads == many[1] and heads % groups == 0
    return (inner, heads // groups) if whole and same_sizes(asking[:1], few[:1]) else None


def _before_expansion(node: fx.Node) -> fx.Node | None:
    """x of x[:, :, None].expand(b, groups, times, n, d).reshape(b, groups * times, n, d)."""
    call = read(node)
    while call is not None and call.does == "same":
        call = read(call.get("x"))
    merged = call if call is not None and call.does == "view" else None
    spread = _skip_same(merged.get("x")) if merged is not None else None
    call = read(spread)
    if merged is None or call is None or call.does != "expand":
        return None
    last, wide, thin = shape_of(merged.node), shape_of(call.node), shape_of(call.get("x"))
    if last is None or wide is None or thin is None:
        return None
    if len(last) != 4 or len(wide) != 5 or not same_sizes((*wide[:2], 1, *wide[3:]), thin):
        return None
    if not same_sizes((wide[0], wide[3], wide[4]), (last[0], last[2], last[3])):
        return None
    return _before_new_axis(call.get("x"), (*wide[:2], *wide[3:]))


def _skip_same(node: Any) -> Any:
    while (call := read(node)) is not None and call.does == "same":
        node = call.get("x")
    return node


def _before_new_axis(node: Any, shape: tuple[Any, ...]) -> fx.Node | None:
    """Walk back through slices that take everything, to the tensor that has no axis for the repetition yet."""
    while isinstance(node, fx.Node) and (call := read(node)) is not None and call.does in ("unsqueeze", "part", "same"):
        if node.target is operator.getitem and not _takes_everything(call.get("index")):
            return None
        node = call.get("x")
        if same_sizes(shape_of(node), shape):
            return node
    return None


def _takes_everything(index: Any) -> bool:
    parts = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or part == slice(None) for part in parts)
