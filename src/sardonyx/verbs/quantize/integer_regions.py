"""Which values of a graph are stored in 8 bits, so that the nodes between quantized products compute in integers too.

A convolution computes in integers only if its result is stored in integers at once. What it feeds (sums, products,
pools, some activations, concatenations, rearrangements) then stays in integers as well, as far as another quantized
product follows. A matrix product can return float32, and does so unless quantized products alone read its result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import operand

MATRIX_PRODUCTS = ("MatMul", "Gemm")
PRODUCTS = (*MATRIX_PRODUCTS, "Conv")
ACTIVATIONS = ("Relu", "Clip")  # which the runtime merges into the conversion to integers
REARRANGEMENTS = (  # which keep the grid
    "DepthToSpace",
    "Expand",
    "Flatten",
    "MaxPool",
    "Reshape",
    "Resize",  # of the nearest element
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
HARD = ("HardSigmoid", "HardSwish")  # which the recipe builds from Add and Mul
_UNARY = ("AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu", *HARD)
_BINARY = ("Add", "Mul")


def data_inputs(node: ir.Node) -> tuple[int, ...]:
    """Return the operands of a node that are activations, if the node can be a part of a region; otherwise ()."""
    if node.domain not in ("", "ai.onnx"):
        return ()
    if node.op_type in (*PRODUCTS, *ACTIVATIONS, *REARRANGEMENTS, *_UNARY, "Pad"):
        return (0,)
    if node.op_type in _BINARY:
        return (0, 1)
    return tuple(range(len(node.inputs))) if node.op_type == "Concat" else ()


def stored_values(
    nodes: Collection[ir.Node],
    products: Collection[ir.Node],
    graph: Facts,
    ranges: Container[str],
    is_selected: Callable[[ir.Node], bool],
) -> frozenset[ir.Value]:
    """Return the values that are stored in integers for every node that reads them.

    Args:
        nodes: The nodes of the graph in order.
        products: Those that are quantized.
        graph: The facts about it.
        ranges: The names of the values whose range is known.
        is_selected: Whether a node may compute in integers.
    """
    stored: dict[ir.Value, ir.Node] = {}  # by the node whose result, before activations, it is
    for node in nodes:
        if node in products:
            joins = node.op_type == "Conv" or _feeds_products_alone(last_value(node, graph), products)
        else:
            joins = _is_integer(node, stored) and is_selected(node)
        value = last_value(node, graph)
        if joins and ((value.name or "") in ranges or (node.op_type in REARRANGEMENTS and value is node.outputs[0])):
            stored[value] = node
    return _without_ends(stored, products)


def last_value(node: ir.Node, graph: Facts) -> ir.Value:
    """Return the result of a node, after the activation that alone reads it if there is one."""
    value = node.outputs[0]
    user = graph.sole_consumer(value)
    if user is not None and user.op_type in ACTIVATIONS and operand(user, 0) is value:
        return user.outputs[0]
    return value


def _feeds_products_alone(value: ir.Value, products: Collection[ir.Node]) -> bool:
    uses = value.uses()
    return bool(uses) and not value.is_graph_output() and all(use.node in products and use.idx == 0 for use in uses)


def _is_integer(node: ir.Node, stored: Mapping[ir.Value, ir.Node]) -> bool:
    """Return whether all activations that a node reads are stored in integers, and it can compute with them."""
    indices = data_inputs(node)
    if not indices or node.op_type in (*PRODUCTS, *ACTIVATIONS, "Pad") or len(node.outputs) > 1:
        return False
    if node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") != "nearest":
        return False
    return all((value := operand(node, index)) is not None and value in stored for index in indices)


def _without_ends(stored: dict[ir.Value, ir.Node], products: Collection[ir.Node]) -> frozenset[ir.Value]:
    """Leave out nodes that no quantized product follows: their results need not be stored in integers."""
    kept: set[ir.Value] = set()
    joined: set[ir.Node] = set()
    for value, node in reversed(stored.items()):
        if node in products:
            kept.add(value)
        elif any(use.node in joined or (use.node in products and use.idx == 0) for use in value.uses()):
            kept.add(value)
            joined.add(node)
    return frozenset(kept)
