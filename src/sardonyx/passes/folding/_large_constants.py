"""Fold nodes that read large weights, one at a time.

Each is evaluated once to check that it can be. A large result is then discarded and computed again whenever it is read,
so that memory depends on the largest weight and not on their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Evaluate, Facts
from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.rules import Match, Proposal, Refused
from sardonyx.ir.tensors import ComputedTensor
from sardonyx.passes._foldable import (
    FAILED,
    GROWS,
    LARGE,
    OUTPUT,
    Budget,
    divides_safely,
    freed_bytes,
    give_up,
    grown_constants,
    is_foldable,
)
from sardonyx.passes.folding._evaluation import ConstantModel, Constants, Form, as_tensor

LARGEST = 1 << 27  # bytes of inputs and results of one node; larger nodes are not evaluated
TOO_LARGE = "it is too large to evaluate"

_NOT_EVALUATED = KEEPS_ORDER | {"Transpose"}  # other passes fold these without reading the constant


def fold_large(graph: Facts, engine: Evaluate, budget: Budget) -> Iterator[Proposal | Refused]:
    """Propose every node of the model that reads a large constant and constants only."""
    for node in _readers_of_large_constants(graph):
        if node.op_type in _NOT_EVALUATED or not is_foldable(node, graph) or not _reads_constants(node, graph):
            continue
        wanted = {value: _form(value, graph) for value in node.outputs if value.uses() or value.is_graph_output()}
        if wanted:  # otherwise the node is dead and removed as such
            yield _folded(node, wanted, graph, engine, budget)


def _readers_of_large_constants(graph: Facts) -> dict[ir.Node, None]:
    readers: dict[ir.Node, None] = {}
    for scope in graph.live_scopes():
        for value in scope.graph.initializers.values():
            if value.const_value is not None and value.const_value.nbytes > LARGE:
                readers.update(dict.fromkeys(value.consumers()))
    return readers


def _reads_constants(node: ir.Node, graph: Facts) -> bool:
    constants = (value is None or graph.tensor(value) is not None for value in node.inputs)
    return all(constants) and divides_safely(node, graph)


def _form(value: ir.Value, graph: Facts) -> Form:
    return Form(graph.dtype(value), graph.static_shape(value))


def _folded(
    node: ir.Node, wanted: Mapping[ir.Value, Form], graph: Facts, engine: Evaluate, budget: Budget
) -> Proposal | Refused:
    if any(value.is_graph_output() for value in wanted):
        return Refused(OUTPUT, (node,))
    results = [form.bytes for form in wanted.values()]
    size = sum(result for result in results if result is not None)
    inputs = dict.fromkeys(node.inputs)
    input_bytes = sum(tensor.nbytes for value in inputs if (tensor := graph.tensor(value)) is not None)
    if None in results or size + input_bytes > LARGEST:
        return Refused(TOO_LARGE, (node,))
    growth = size - sum(freed_bytes(value, {node}, graph) for value in inputs)
    if not budget.take(growth):
        return Refused(GROWS, (node,))
    model = ConstantModel((node,), Constants(graph))
    arrays = model.evaluate(wanted, engine)
    if arrays is None:
        give_up(node)
        return Refused(FAILED, (node,))
    results_by_value = zip(wanted.items(), arrays, strict=True)
    tensors = [_stored(model, value, form, array, engine) for (value, form), array in results_by_value]
    return Proposal(Match((node,), outputs=tuple(wanted)), partial(grown_constants, tensors, growth))


def _stored(
    model: ConstantModel, value: ir.Value, form: Form, array: np.ndarray, engine: Evaluate
) -> ir.TensorProtocol:
    """Return a small result as a tensor, and a large one as a lazy tensor."""
    assert form.dtype is not None
    assert form.shape is not None
    if array.nbytes <= LARGE:
        return as_tensor(array, form.dtype)

    def compute() -> np.ndarray:
        arrays = model.evaluate({value: form}, engine)
        if arrays is None:
            raise AssertionError(f"{value.name} was computed once but cannot be computed again")
        return arrays[0]

    return ComputedTensor(form.dtype, form.shape, compute)
