"""Removes unused nodes, and makes nodes that read metadata of the scores read it from queries and keys."""

from __future__ import annotations

from torch import fx

from sardonyx.frontend.attention.recognition.calls import is_torch, read, writes_in_place
from sardonyx.frontend.attention.recognition.matches import AttentionMatch, Cast
from sardonyx.frontend.attention.recognition.softmax_walk import is_check, is_metadata

_KINDS = (("dtype",), ("device",))  # attributes that queries share with their scores


def prune(graph: fx.Graph) -> None:
    """Erase unused operations of torch without side effects."""
    for node in reversed(graph.nodes):
        if not node.users and _is_pure(node):
            graph.erase_node(node)


def erase_unread(graph: fx.Graph, node: fx.Node) -> None:
    """Erase an unused node, and recursively the operands that only it used."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not node.users and node in graph.nodes and (_is_pure(node) or node.op in ("call_module", "get_attr")):
            inputs = node.all_input_nodes
            graph.erase_node(node)
            waiting.extend(inputs)


def _is_pure(node: fx.Node) -> bool:
    return is_torch(node) and not writes_in_place(node) and not node.is_impure(impure_random=False)


def redirect_metadata(attention: AttentionMatch) -> None:
    """Make nodes that read sizes, dtype or device of the scores read those of queries and keys."""
    is_plain = all(operand.perm is None and not operand.swap for operand in (attention.query, attention.key))
    has_cast = any(isinstance(step, Cast) for step in (*attention.steps, *attention.after))
    for node in attention.core[:-1]:
        for user in [user for user in node.users if user not in attention.core and is_metadata(user, node)]:
            call = read(user)
            if is_check(user):
                user.graph.erase_node(user)
            elif call is not None and call.name == "size" and is_plain and call.get("dim") in (-1, -2):
                source = attention.query.node if call.get("dim") == -2 else attention.key.node
                user.args = (source, -2)
                user.kwargs = {}
            elif not has_cast and ((call is not None and call.name != "size") or user.args[1:] in _KINDS):
                user.replace_input_with(node, attention.query.node)
