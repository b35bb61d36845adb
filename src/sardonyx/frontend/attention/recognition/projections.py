"""Finds what surrounds the core of an attention: its projections, and the splitting and merging of heads."""

from __future__ import annotations

from collections.abc import Iterable, Set

from torch import fx

from sardonyx.frontend.attention.recognition.calls import ARRANGING, Call, read
from sardonyx.frontend.attention.recognition.facts import is_number
from sardonyx.frontend.attention.recognition.softmax_walk import is_metadata
from sardonyx.frontend.attention.roles import Role

_ARRANGING_HEADS = ARRANGING | {"repeat"}


def roles_around(
    query: fx.Node, key: fx.Node, value: fx.Node, result: fx.Node, core: Iterable[fx.Node] = ()
) -> dict[fx.Node, Role]:
    """Return the roles of the nodes between the projections and the operands, and of those after the result.

    A projection counts if its whole result goes into this attention. One that computes all three operands has the role
    of the first. Other uses of the core, such as returned weights, are not followed.
    """
    roles: dict[fx.Node, Role] = {}
    for operand, role in ((query, Role.PROJECT_Q), (key, Role.PROJECT_K), (value, Role.PROJECT_V)):
        _add_operand_roles(operand, role, {*core, result}, roles)
    _add_result_roles(result, roles)
    return roles


def is_projection(call: Call | None) -> bool:
    """Return whether the call multiplies an activation by a weight of the model."""
    if call is None:
        return False
    weight = {"matmul": call.get("y"), "addmm": call.get("z")}.get(call.name)
    return call.name == "linear" or (weight is not None and _is_weight(weight))


def _is_weight(node: object) -> bool:
    call = read(node)
    while call is not None and call.name in _ARRANGING_HEADS:
        node = call.get("x")
        call = read(node)
    return isinstance(node, fx.Node) and node.op == "get_attr"


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
        projections = []
    for node in _arranged_back(operand) if not projections else visited:
        call = read(node)
        if node in projections:
            roles.setdefault(node, role)
        elif call is not None and call.name in _ARRANGING_HEADS:
            roles.setdefault(node, Role.SPLIT_HEADS)


def _arranged_back(operand: fx.Node) -> Iterable[fx.Node]:
    call = read(operand)
    while call is not None and call.name in _ARRANGING_HEADS:
        yield call.node
        call = read(call.get("x"))


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
    """Follow the result to the output projection."""
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
