"""Give a model additional outputs: inner values, or what the runtime computes from them beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from sardonyx.ir.scopes import bodies, scopes
from sardonyx.runtime.library import Array, Value

_PREFIX = "sardonyx.observed."
Attribute: TypeAlias = int | Sequence[int]


class Observed:
    """A model whose own outputs come first, and what is observed after them.

    Its own outputs stay, even where only the others are of interest (`support.ATTENTION_CACHE`).
    """

    def __init__(self, model: ir.Model) -> None:
        """Add to `model`, which is changed."""
        self.model = model
        self._own = len(model.graph.outputs)
        taken = sum((value.name or "").startswith(_PREFIX) for node in model.graph for value in node.outputs)
        self._names = (f"{_PREFIX}{number}" for number in itertools.count(taken))
        self._values: dict[str, ir.Value] = {}
        self._holders = {id(scope.graph): (scope.graph, scope.holder) for scope in scopes(model)}

    def value(self, name: str) -> ir.Value:
        """Return the input or inner value of the main graph with this name."""
        if not self._values:
            nodes = (value for node in self.model.graph for value in node.outputs)
            self._values = {value.name or "": value for value in (*self.model.graph.inputs, *nodes)}
        return self._values[name]

    def show(self, names: Iterable[str]) -> list[str]:
        """Make inner values outputs under their own names; return the names of those that were none before."""
        outputs = {value.name for value in self.model.graph.outputs}
        added = [name for name in dict.fromkeys(names) if name not in outputs]
        self.model.graph.outputs.extend(self.value(name) for name in added)
        return added

    def compute(self, op_type: str, *inputs: ir.Value, **attributes: Attribute) -> ir.Value:
        """Add a node to the graph that computes one of the inputs, or to the main graph, and return its result."""
        node = ir.node(op_type, list(inputs), attributes, name=next(self._names))
        node.outputs[0].name = node.name
        inner = (graph for value in inputs if (graph := self._graph_of(value)) is not self.model.graph)
        next(inner, self.model.graph).append(node)
        return node.outputs[0]

    def _graph_of(self, value: ir.Value) -> ir.Graph | ir.Function:
        producer = value.producer()
        return self.model.graph if producer is None or producer.graph is None else producer.graph

    def constant(self, array: Array | np.generic | float) -> ir.Value:
        """Add a constant and return it."""
        node = ir.node("Constant", [], {"value": ir.tensor(np.asarray(array))}, name=next(self._names))
        node.outputs[0].name = node.name
        self.model.graph.append(node)
        return node.outputs[0]

    def add(self, value: ir.Value, dtype: ir.DataType | None = None, shape: Sequence[int] = ()) -> None:
        """Make a computed value an output; without a type, that of the value is kept.

        A number that a branch computes becomes a result of its If, which is NaN if another branch is taken.
        """
        while (graph := self._graph_of(value)) is not self.model.graph:
            value = self._result_of_branch(value, graph)
        if dtype is not None:
            value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
        self.model.graph.outputs.append(value)

    def _result_of_branch(self, value: ir.Value, graph: ir.Graph | ir.Function) -> ir.Value:
        """Return a number that a branch computes as a result of its node."""
        _, holder = self._holders[id(graph)]
        assert holder is not None
        name = value.name
        for _, body in bodies(holder):
            result = value
            if body is not graph:
                missing = ir.node("Constant", [], {"value": ir.tensor(np.float32(np.nan))}, name=next(self._names))
                missing.outputs[0].name = missing.name
                body.append(missing)
                result = missing.outputs[0]
            result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
            body.outputs.append(result)
        value.name = next(self._names)
        holder.resize_outputs(len(holder.outputs) + 1)
        holder.outputs[-1].name = name
        return holder.outputs[-1]

    def remove_unused(self) -> None:
        """Remove nodes that no output needs."""
        RemoveUnusedNodesPass()(self.model)

    def split(self, results: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Return the model's own outputs, and those that were added."""
        return list(results[: self._own]), list(results[self._own :])
