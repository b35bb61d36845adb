"""Finds attention in a graph by its structure: a softmax between two products.

Before the softmax, casts, masks (added or filled), scales and regroupings of the leading axes lead back to the product
of queries and keys. After it, dropout and casts lead to the product with the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

import torch
from torch import fx

from sardonyx.frontend.attention.recognition.calls import Call, read, writes_in_place
from sardonyx.frontend.attention.recognition.facts import is_number
from sardonyx.frontend.attention.recognition.matches import (
    AttentionMatch,
    Bias,
    Cast,
    Fill,
    NotAttention,
    Operand,
    Scale,
    Step,
)
from sardonyx.frontend.attention.recognition.products import keys_of
from sardonyx.frontend.attention.recognition.projections import roles_around
from sardonyx.frontend.attention.recognition.softmax_walk import (
    ScoresPath,
    WeightsPath,
    cast_to,
    is_metadata,
    softmax_axis,
    trace_scores,
    trace_weights,
)
from sardonyx.frontend.attention.roles import Role


def find_attentions(graph: fx.Graph) -> list[AttentionMatch]:
    """Return every attention of the graph in execution order."""
    return [site for site in survey(graph) if isinstance(site, AttentionMatch)]


def survey(graph: fx.Graph) -> list[AttentionMatch | NotAttention]:
    """Return for every softmax of the graph the attention it is in, or why it is in none."""
    live = _live(graph)
    calls = [call for node in graph.nodes if node in live and (call := read(node)) is not None]
    return [_read_softmax(call, live) for call in calls if call.name in ("softmax", "safe_softmax")]


def _live(graph: fx.Graph) -> Set[fx.Node]:
    """Return the nodes that the outputs depend on, and those with side effects."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node.is_impure() or writes_in_place(node) or any(user in live for user in node.users):
            live.add(node)
    return live


def _read_softmax(call: Call, live: Set[fx.Node]) -> AttentionMatch | NotAttention:
    if reason := softmax_axis(call):
        return NotAttention(call.node, reason)
    scores_path = trace_scores(call.get("x"))
    if isinstance(scores_path, str):
        return NotAttention(call.node, scores_path)
    weights_path = trace_weights(call.node, live)
    if isinstance(weights_path, str):
        return NotAttention(call.node, weights_path)
    return _recognised(call, scores_path, weights_path, live)


def _recognised(call: Call, scores_path: ScoresPath, weights_path: WeightsPath, live: Set[fx.Node]) -> AttentionMatch:
    dtype = torch.float32 if call.get("half_to_float") else call.get("dtype")
    query_steps, query = _unscaled(scores_path.scores.query)
    key_steps, key = _unscaled(scores_path.scores.key)
    value = weights_path.product.value
    softmax_cast = (Cast(call.node, dtype),) if dtype is not None else ()
    steps = (*query_steps, *key_steps, *scores_path.steps, *softmax_cast)
    core = sorted({*scores_path.nodes, call.node, *weights_path.nodes})
    roles = roles_around(query.node, key.node, value.node, weights_path.mix, core)
    roles |= dict.fromkeys(_rearranging(scores_path.product, key.node), Role.SCORES)
    roles |= dict.fromkeys(scores_path.nodes, Role.SCORES) | dict.fromkeys(weights_path.nodes, Role.MIX)
    roles |= {step.node: _role(step) for step in steps if step.node is not scores_path.product}
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
        read_elsewhere=tuple(node for node in core if node is not weights_path.mix and _is_read(node, core, live)),
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


def _scaling(call: Call) -> tuple[Step, fx.Node] | None:
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
