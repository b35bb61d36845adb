"""Finds attention in a graph by its structure: softmax between two products, however each step is spelled.

The way back from a softmax goes through casts, masks (added or filled in), scales and regroupings of the leading dims
to the product of queries and keys; the way on, through dropout and casts, to the product with the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

import torch
from torch import fx

from sardonyx.frontend.attention.recognition.facts import is_number
from sardonyx.frontend.attention.recognition.matches import Bias, Cast, Fill, Operand, Recognised, Refused, Scale, Step
from sardonyx.frontend.attention.recognition.products import keys_of
from sardonyx.frontend.attention.recognition.projections import roles_around
from sardonyx.frontend.attention.recognition.softmax_walk import (
    After,
    Before,
    after,
    before,
    cast_to,
    is_metadata,
    softmax_axis,
)
from sardonyx.frontend.attention.recognition.vocabulary import Call, read, writes_in_place
from sardonyx.frontend.attention.roles import Role


def recognise(graph: fx.Graph) -> list[Recognised]:
    """Every attention of the graph, in the order in which they run."""
    return [found for found in survey(graph) if isinstance(found, Recognised)]


def survey(graph: fx.Graph) -> list[Recognised | Refused]:
    """Every softmax of the graph: the attention that it is in, or why it is in none."""
    live = _live(graph)
    calls = [call for node in graph.nodes if node in live and (call := read(node)) is not None]
    return [_read_softmax(call, live) for call in calls if call.does in ("softmax", "safe_softmax")]


def _live(graph: fx.Graph) -> Set[fx.Node]:
    """The nodes that the outputs depend on, and those that change something."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node.is_impure() or writes_in_place(node) or any(user in live for user in node.users):
            live.add(node)
    return live


def _read_softmax(call: Call, live: Set[fx.Node]) -> Recognised | Refused:
    if reason := softmax_axis(call):
        return Refused(call.node, reason)
    way_back = before(call.get("x"))
    if isinstance(way_back, str):
        return Refused(call.node, way_back)
    way_on = after(call.node, live)
    if isinstance(way_on, str):
        return Refused(call.node, way_on)
    return _recognised(call, way_back, way_on, live)


def _recognised(call: Call, way_back: Before, way_on: After, live: Set[fx.Node]) -> Recognised:
    dtype = torch.float32 if call.get("half_to_float") else call.get("dtype")
    on_query, query = _bared(way_back.scores.query)
    on_key, key = _bared(way_back.scores.key)
    value = way_on.product.value
    softened = (Cast(call.node, dtype),) if dtype is not None else ()
    steps = (*on_query, *on_key, *way_back.steps, *softened)
    core = sorted({*way_back.nodes, call.node, *way_on.nodes})
    roles = roles_around(query.node, key.node, value.node, way_on.mix, core)
    roles |= dict.fromkeys(_turning(way_back.product, key.node), Role.SCORES)
    roles |= dict.fromkeys(way_back.nodes, Role.SCORES) | dict.fromkeys(way_on.nodes, Role.MIX)
    roles |= {step.node: _role(step) for step in steps if step.node is not way_back.product}
    if way_on.dropout is not None:
        roles[way_on.dropout.node] = Role.DROPOUT
    roles[call.node] = Role.SOFTMAX
    return Recognised(
        query=query,
        key=key,
        value=value,
        steps=steps,
        softmax=call.node,
        after=way_on.steps,
        dropout=way_on.dropout,
        scores=way_back.product,
        mix=way_on.mix,
        result_turn=way_on.product.turn,
        safe=call.does == "safe_softmax",
        roles=roles,
        core=tuple(core),
        read_elsewhere=tuple(node for node in core if node is not way_on.mix and _is_read(node, core, live)),
    )


def _turning(product: fx.Node, key: fx.Node) -> list[fx.Node]:
    """The nodes between the keys and the product: they turn the keys for it."""
    for node in product.all_input_nodes:
        way: list[fx.Node] = []
        while node is not key and (call := read(node)) is not None and isinstance(call.get("x"), fx.Node):
            way.append(node)
            node = call.get("x")
        if node is key:
            return way
    return []


def _role(step: Step) -> Role:
    match step:
        case Scale():
            return Role.SCALE
        case Bias() | Fill():
            return Role.MASK
        case _:
            return Role.SCORES


def _is_read(node: fx.Node, core: Iterable[fx.Node], live: Set[fx.Node]) -> bool:
    return any(user in live and user not in core and not is_metadata(user, node) for user in node.users)


def _bared(operand: Operand) -> tuple[list[Step], Operand]:
    """Take off the scales and the widening of queries or keys before their product: they are steps of it."""
    steps: list[Step] = []
    while (call := read(operand.node)) is not None:
        taken = _scaling(call)
        if taken is not None:
            steps.append(taken[0])
            operand = replace(operand, node=taken[1])
        elif operand.swap and not (turned := keys_of(operand.node)).swap:
            operand = turned
        else:
            break
    return steps[::-1], operand


def _scaling(call: Call) -> tuple[Step, fx.Node] | None:
    """The call as a scale by a number or as a cast to a wider dtype, and what it is applied to."""
    left, right = call.get("x"), call.get("y")
    if writes_in_place(call.node):
        return None
    if call.does == "mul" and is_number(left) and isinstance(right, fx.Node):
        return Scale(call.node, left), right
    if not isinstance(left, fx.Node):
        return None
    if call.does in ("mul", "div") and is_number(right) and not is_number(left) and "rounding_mode" not in call.given:
        return Scale(call.node, right, divides=call.does == "div"), left
    dtype = cast_to(call) if call.does == "cast" else None
    return (Cast(call.node, dtype), left) if dtype in (torch.float32, torch.float64) else None
