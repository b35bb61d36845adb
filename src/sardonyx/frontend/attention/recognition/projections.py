"""What lies around the core of an attention: heads split and merged, and the projections."""

from __future__ import annotations

from collections.abc import Iterable, Set

from torch import fx

from sardonyx.frontend.attention.recognition.facts import is_number
from sardonyx.frontend.attention.recognition.softmax_walk import is_metadata
from sardonyx.frontend.attention.recognition.vocabulary import ARRANGING, Call, read
from sardonyx.frontend.attention.roles import Role

_OF_HEADS = ARRANGING | {"repeat"}


def roles_around(
    query: fx.Node, key: fx.Node, value: fx.Node, result: fx.Node, core: Iterable[fx.Node] = ()
) -> dict[fx.Node, Role]:
    """Roles of the nodes that lead to the three operands of an attention, and of those that take its result.

    A projection counts where all that it gives goes into this attention. One that gives all three operands at once
    is named after the first of them. What leaves the core, as weights that are returned, is not followed.
    """
    roles: dict[fx.Node, Role] = {}
    for operand, role in ((query, Role.PROJECT_Q), (key, Role.PROJECT_K), (value, Role.PROJECT_V)):
        _inward(operand, role, {*core, result}, roles)
    _outward(result, roles)
    return roles


def is_projection(call: Call | None) -> bool:
    """Whether the call multiplies an activation by a weight of the model."""
    if call is None:
        return False
    weight = {"matmul": call.get("y"), "addmm": call.get("z")}.get(call.does)
    return call.does == "linear" or (weight is not None and _is_weight(weight))


def _is_weight(node: object) -> bool:
    call = read(node)
    while call is not None and call.does in _OF_HEADS:
        node = call.get("x")
        call = read(node)
    return isinstance(node, fx.Node) and node.op == "get_attr"


def _inward(operand: fx.Node, role: Role, core: Set[fx.Node], roles: dict[fx.Node, Role]) -> None:
    """Follow an operand back to the projection that it comes from."""
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
        elif call is not None and call.does in _OF_HEADS:
            roles.setdefault(node, Role.SPLIT_HEADS)


def _arranged_back(operand: fx.Node) -> Iterable[fx.Node]:
    call = read(operand)
    while call is not None and call.does in _OF_HEADS:
        yield call.node
        call = read(call.get("x"))


def _ends_in(projection: fx.Node, core: Set[fx.Node]) -> bool:
    """Whether all that the projection gives ends in the core, but for sizes and what the model returns (caches)."""
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


def _outward(result: fx.Node, roles: dict[fx.Node, Role]) -> None:
    """Follow the result to the projection that takes it."""
    node = result
    while len(node.users) == 1:
        node = next(iter(node.users))
        call = read(node)
        if is_projection(call):
            roles.setdefault(node, Role.PROJECT_OUT)
            return
        if call is None or call.does not in _OF_HEADS:
            return
        roles.setdefault(node, Role.MERGE_HEADS)
