"""Takes out of a graph what nothing reads any more, and lets questions about scores be answered without them."""

from __future__ import annotations

from torch import fx

from sardonyx.frontend.attention.recognition.matches import Cast, Recognised
from sardonyx.frontend.attention.recognition.softmax_walk import is_check, is_metadata
from sardonyx.frontend.attention.recognition.vocabulary import is_torch, read, writes_in_place

_KINDS = (("dtype",), ("device",))  # of attributes that the queries have in common with their scores


def prune(graph: fx.Graph) -> None:
    """Erase operations of torch's own that change nothing and that nothing reads."""
    for node in reversed(graph.nodes):
        if not node.users and _leaves_no_trace(node):
            graph.erase_node(node)


def erase_unread(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a node that is no longer read, and with it what only it read."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if (
            not node.users
            and node in graph.nodes
            and (_leaves_no_trace(node) or node.op in ("call_module", "get_attr"))
        ):
            inputs = node.all_input_nodes
            graph.erase_node(node)
            waiting.extend(inputs)


def _leaves_no_trace(node: fx.Node) -> bool:
    return is_torch(node) and not writes_in_place(node) and not node.is_impure(impure_random=False)


def hand_over(found: Recognised) -> None:
    """Let what asks for sizes, dtype or device of the scores ask queries and keys instead."""
    plain = all(operand.turn is None and not operand.swap for operand in (found.query, found.key))
    cast = any(isinstance(step, Cast) for step in (*found.steps, *found.after))
    for node in found.core[:-1]:
        for user in [user for user in node.users if user not in found.core and is_metadata(user, node)]:
            call = read(user)
            if is_check(user):
                user.graph.erase_node(user)
            elif call is not None and call.does == "size" and plain and call.get("dim") in (-1, -2):
                of = found.query.node if call.get("dim") == -2 else found.key.node
                user.args = (of, -2)
                user.kwargs = {}
            elif not cast and ((call is not None and call.does != "size") or user.args[1:] in _KINDS):
                user.replace_input_with(node, found.query.node)
