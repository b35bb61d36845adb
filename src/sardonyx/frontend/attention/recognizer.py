"""Finds attention in a graph by its structure: a softmax between two products.

Before the softmax, casts, masks (added or filled), scales and regroupings of the leading axes lead back to the product
of queries and keys. After it, dropout and casts lead to the product with the values. Around this core are the
projections, and the splitting and merging of heads.
"""

from __future__ import annotations

from collections.abc import Set

import torch
from msgspec.structs import replace
from torch import fx

from sardonyx.frontend.attention.graph_calls import ARRANGING, GraphCall, is_number, read, writes_in_place
from sardonyx.frontend.attention.roles import AttentionMatch, Bias, Cast, Fill, NotAttention, Operand, Role, Scale, Step
from sardonyx.frontend.attention.softmax_walk import (
    ScoresPath,
    WeightsPath,
    cast_to,
    is_metadata,
    keys_of,
    softmax_axis,
    trace_scores,
    trace_weights,
)

_ARRANGING_HEADS = ARRANGING | {"repeat"}


def find_attentions(graph: fx.Graph) -> list[AttentionMatch]:
    """Return every attention of the graph in execution order."""
    return [site for site in survey(graph) if isinstance(site, AttentionMatch)]


def survey(graph: fx.Graph) -> list[AttentionMatch | NotAttention]:
    """Return for every softmax of the graph the attention it is in, or why it is in none."""
    live: set[fx.Node] = set()  # what the outputs depend on, and what has side effects
    for node in reversed(graph.nodes):
        if node.op == "output" or node.is_impure() or writes_in_place(node) or any(user in live for user in node.users):
            live.add(node)
    calls = [call for node in graph.nodes if node in live and (call := read(node)) is not None]
    return [_read_softmax(call, live) for call in calls if call.name in ("softmax", "safe_softmax")]


def _read_softmax(call: GraphCall, live: Set[fx.Node]) -> AttentionMatch | NotAttention:
    if reason := softmax_axis(call):
        return NotAttention(call.node, reason)
    scores_path = trace_scores(call.get("x"))
    if isinstance(scores_path, str):
        return NotAttention(call.node, scores_path)
    weights_path = trace_weights(call.node, live)
    if isinstance(weights_path, str):
        return NotAttention(call.node, weights_path)
    return _recognised(call, scores_path, weights_path, live)


def _recognised(
    call: GraphCall, scores_path: ScoresPath, weights_path: WeightsPath, live: Set[fx.Node]
) -> AttentionMatch:
    dtype = torch.float32 if call.get("half_to_float") else call.get("dtype")
    query_steps, query = _unscaled(scores_path.scores.query)
    key_steps, key = _unscaled(scores_path.scores.key)
    value = weights_path.product.value
    softmax_cast = (Cast(call.node, dtype),) if dtype is not None else ()
    steps = (*query_steps, *key_steps, *scores_path.steps, *softmax_cast)
    core = sorted({*scores_path.nodes, call.node, *weights_path.nodes})
    # A projection counts if its whole result goes into this attention. One that computes all three operands has the
    # role of the first. Other uses of the core, such as returned weights, are not followed.
    roles: dict[fx.Node, Role] = {}
    for operand, role in ((query, Role.PROJECT_Q), (key, Role.PROJECT_K), (value, Role.PROJECT_V)):
        _add_operand_roles(operand.node, role, {*core, weights_path.mix}, roles)
    _add_result_roles(weights_path.mix, roles)
    roles |= dict.fromkeys(_rearranging(scores_path.product, key.node), Role.SCORES)
    roles |= dict.fromkeys(scores_path.nodes, Role.SCORES) | dict.fromkeys(weights_path.nodes, Role.MIX)
    kinds: dict[type, Role] = {Scale: Role.SCALE, Bias: Role.MASK, Fill: Role.MASK}
    roles |= {step.node: kinds.get(type(step), Role.SCORES) for step in steps if step.node is not scores_path.product}
    if weights_path.dropout is not None:
        roles[weights_path.dropout.node] = Role.DROPOUT
    roles[call.node] = Role.SOFTMAX
    return AttentionMatch(
        query=query,
        key=key,
        value=value,
        steps=steps,
        softmax=call.node,
        after=weights_path.steps,
        dropout=weights_path.dropout,
        scores=scores_path.product,
        mix=weights_path.mix,
        result_perm=weights_path.product.perm,
        safe=call.name == "safe_softmax",
        roles=roles,
        core=tuple(core),
        read_elsewhere=tuple(
            node
            for node in core
            if node is not weights_path.mix
            and any(user in live and user not in core and not is_metadata(user, node) for user in node.users)
        ),
    )


def _rearranging(product: fx.Node, key: fx.Node) -> list[fx.Node]:
    """Return the nodes between the keys and their product: they rearrange the keys."""
    for node in product.all_input_nodes:
        path: list[fx.Node] = []
        while node is not key and (call := read(node)) is not None and isinstance(call.get("x"), fx.Node):
            path.append(node)
            node = call.get("x")
        if node is key:
            return path
    return []


def _unscaled(operand: Operand) -> tuple[list[Step], Operand]:
    """Remove scales and widening casts of queries or keys before their product, and return them as steps."""
    steps: list[Step] = []
    while (call := read(operand.node)) is not None:
        scaling = _scaling(call)
        if scaling is not None:
            steps.append(scaling[0])
            operand = replace(operand, node=scaling[1])
        elif operand.swap and not (unswapped := keys_of(operand.node)).swap:
            operand = unswapped
        else:
            break
    return steps[::-1], operand


def _scaling(call: GraphCall) -> tuple[Step, fx.Node] | None:
    """Read a call as a scale by a number or a cast to a wider dtype; return the step and its operand, or None."""
    left, right = call.get("x"), call.get("y")
    if writes_in_place(call.node):
        return None
    if call.name == "mul" and is_number(left) and isinstance(right, fx.Node):
        return Scale(call.node, left), right
    if not isinstance(left, fx.Node):
        return None
    if (
        call.name in ("mul", "div")
        and is_number(right)
        and not is_number(left)
        and "rounding_mode" not in call.arguments
    ):
        return Scale(call.node, right, divides=call.name == "div"), left
    dtype = cast_to(call) if call.name == "cast" else None
    return (Cast(call.node, dtype), left) if dtype in (torch.float32, torch.float64) else None


def is_projection(call: GraphCall | None) -> bool:
    """Return whether the call multiplies an activation by a weight of the model."""
    if call is None:
        return False
    weight: object = {"matmul": call.get("y"), "addmm": call.get("z")}.get(call.name)
    while (arranged := read(weight)) is not None and arranged.name in _ARRANGING_HEADS:
        weight = arranged.get("x")
    return call.name == "linear" or (isinstance(weight, fx.Node) and weight.op == "get_attr")


def _add_operand_roles(operand: fx.Node, role: Role, core: Set[fx.Node], roles: dict[fx.Node, Role]) -> None:
    """Follow an operand back to its projection."""
    visited: dict[fx.Node, None] = {}
    projections: list[fx.Node] = []
    waiting = [operand]
    while waiting:
        node = waiting.pop()
        if node in visited or node.op in ("placeholder", "get_attr") or is_number(node) or is_metadata(node):
            continue
        visited[node] = None
        if is_projection(read(node)):
            projections.append(node)
        else:
            waiting.extend(node.all_input_nodes)
    if len(projections) != 1 or not _ends_in(projections[0], core):
        projections, visited = [], {}
        call = read(operand)
        while call is not None and call.name in _ARRANGING_HEADS:
            visited[call.node] = None
            call = read(call.get("x"))
    for node in visited:
        call = read(node)
        if node in projections:
            roles.setdefault(node, role)
        elif call is not None and call.name in _ARRANGING_HEADS:
            roles.setdefault(node, Role.SPLIT_HEADS)


def _ends_in(projection: fx.Node, core: Set[fx.Node]) -> bool:
    """Return whether all uses of the projection end in the core, except sizes and outputs of the model (caches)."""
    inside, waiting = set[fx.Node](), [*core]
    while waiting:
        node = waiting.pop()
        if node not in inside and not node < projection:
            inside.add(node)
            waiting.extend(node.all_input_nodes)
    waiting, seen = [projection], {*core}
    while waiting:
        node = waiting.pop()
        if node in seen or node.op == "output" or is_metadata(node):
            continue
        if node not in inside:
            return False
        seen.add(node)
        waiting.extend(node.users)
    return True


def _add_result_roles(result: fx.Node, roles: dict[fx.Node, Role]) -> None:
    node = result
    while len(node.users) == 1:
        node = next(iter(node.users))
        call = read(node)
        if is_projection(call):
            roles.setdefault(node, Role.PROJECT_OUT)
            return
        if call is None or call.name not in _ARRANGING_HEADS:
            return
        roles.setdefault(node, Role.MERGE_HEADS)
