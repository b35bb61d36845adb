"""Write convolutions as products of their taps, for double precision, in which the runtime has no Conv.

y = Σ w[..., t] · x[..., t : t + n : stride] over the taps t of the window, where x is padded: one Slice and one Einsum
(a Mul if every channel is a group of its own) for each tap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.scopes import nested_graphs

_FIRST_OPSET = 12  # of Einsum
_MOST_TAPS = 128  # of a window; more would be as many nodes
_TO_THE_END = np.iinfo(np.int64).max
_AXES = "xyz"


def without_convolutions(model: ir.Model) -> ir.Model:
    """Return a copy in which products of taps take the place of every Conv, as far as its form is covered."""
    copy = model.clone()
    if copy.opset_imports.get("", 1) < _FIRST_OPSET:
        return copy
    for number, node in enumerate([n for graph in nested_graphs(copy.graph) for n in graph if n.op_type == "Conv"]):
        weight, graph = node.inputs[1], node.graph
        shape = [dim for dim in (weight.shape or ()) if isinstance(dim, int)] if weight is not None else []
        nodes = _taps(node, shape, f"sardonyx.taps.{number}") if len(shape) > 2 else None
        if nodes is None or graph is None:
            continue
        graph.insert_before(node, nodes)
        result, total = node.outputs[0], nodes[-1].outputs[0]
        name, total.type, total.shape = result.name, result.type, result.shape
        for user, index in list(result.uses()):
            user.replace_input_with(index, total)
        for index, output in enumerate(graph.outputs):
            if output is result:
                graph.outputs[index] = total
        graph.remove(node)
        total.name = name
    return copy


def _taps(node: ir.Node, weight_shape: Sequence[int], name: str) -> list[ir.Node] | None:
    """Return nodes that compute what a Conv does, its result last; None if its form is not covered."""
    channels, per_group, *window = weight_shape
    group, rank = node.attributes.get_int("group", 1), len(window)
    if (group > 1 and (group != channels or per_group > 1)) or rank > len(_AXES):
        return None
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or np.prod(window) > _MOST_TAPS:
        return None
    pads = node.attributes.get_ints("pads") or (0,) * (2 * rank)
    strides = node.attributes.get_ints("strides") or (1,) * rank
    dilations = node.attributes.get_ints("dilations") or (1,) * rank
    nodes: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value, **attributes: str | ir.TensorProtocol) -> ir.Value:
        nodes.append(ir.node(op_type, list(inputs), attributes, name=f"{name}.{len(nodes)}"))
        nodes[-1].outputs[0].name = nodes[-1].name
        return nodes[-1].outputs[0]

    def constant(numbers: Sequence[int]) -> ir.Value:
        return op("Constant", value=ir.tensor(np.array(numbers, np.int64)))

    x, weight, *bias = (value for value in node.inputs if value is not None)
    if any(pads):
        x = op("Pad", x, constant((0, 0, *pads[:rank], 0, 0, *pads[rank:])))
    axes = constant(range(2, 2 + rank))
    steps, ones, by_channel = constant(strides), constant((1,) * rank), constant((1, channels, *(1,) * rank))
    letters, terms = _AXES[:rank], list[ir.Value]()
    for tap in itertools.product(*map(range, window)):
        starts = [place * dilation for place, dilation in zip(tap, dilations, strict=True)]
        left = [(size - 1) * dilation - start for size, dilation, start in zip(window, dilations, starts, strict=True)]
        ends = constant([-rest if rest else _TO_THE_END for rest in left])
        part = op("Slice", x, constant(starts), ends, axes, steps)
        factor = op("Slice", weight, constant(tap), constant([place + 1 for place in tap]), axes, ones)
        if group > 1:
            terms.append(op("Mul", part, op("Reshape", factor, by_channel)))
        else:
            factor = op("Reshape", factor, constant((channels, per_group)))
            terms.append(op("Einsum", part, factor, equation=f"nc{letters},mc->nm{letters}"))
    if bias:
        terms.append(op("Reshape", bias[0], by_channel))
    total = terms[0]
    for term in terms[1:]:
        total = op("Add", total, term)
    return nodes
