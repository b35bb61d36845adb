"""Makes the new nodes and constants of one rewrite; the driver puts them into the graph."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.naming import Names
from sardonyx.ir.precision import rounded
from sardonyx.ir.scopes import Scope, label

BARE_INITIALIZERS = 4  # the IR version since which an initializer need not be a graph input as well


class Builder:
    """`op.Conv(x, w, strides=[2, 2])` makes a node; `op.constant(array)` a constant."""

    def __init__(self, root: ir.Node, facts: Facts, names: Names) -> None:
        """Build at the place of `root`."""
        self.nodes: list[ir.Node] = []
        self.nodes_apart: set[ir.Node] = set()
        self._building_apart = False
        self.constants: list[ir.Value] = []
        self._facts = facts
        self._names = names
        self._base = label(root)
        self.scope: Scope = facts.scope(root)

    @contextmanager
    def apart(self) -> Generator[None, None, None]:
        """What is built inside takes over the `apart` nodes: a mask that many layers share is no layer's own."""
        self._building_apart = True
        try:
            yield
        finally:
            self._building_apart = False

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        """A maker of nodes of one operator of the default domain."""
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def make(*inputs: ir.Value | None, **attributes: Any) -> ir.Value:
            return self.node(op_type, inputs, attributes)[0]

        return make

    def node(
        self,
        op_type: str,
        inputs: tuple[ir.Value | None, ...],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> tuple[ir.Value, ...]:
        """A node with its outputs. Attributes are plain values or `ir.Attr`; None leaves one out."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        given = {key: value for key, value in (attributes or {}).items() if value is not None}
        node = ir.node(op_type, list(inputs), given, domain=domain, num_outputs=outputs)
        node.name = self._names.fresh(f"{self._base}_{op_type}")
        for output in node.outputs:
            output.name = self._names.fresh(f"{node.name}_out")
        self.nodes.append(node)
        if self._building_apart:
            self.nodes_apart.add(node)
        return tuple(node.outputs)

    def like(self, node: ir.Node, inputs: tuple[ir.Value | None, ...], **changed: Any) -> ir.Value:
        """The same operator on other inputs; attributes as they are but for those given (None drops one)."""
        attributes: dict[str, Any] = {**node.attributes, **changed}
        return self.node(node.op_type, inputs, attributes, domain=node.domain, outputs=len(node.outputs))[0]

    def constant(self, data: np.ndarray | ir.TensorProtocol, hint: str = "const") -> ir.Value:
        """A constant: an initializer, or a Constant node where there can be none. Takes the tensor over."""
        tensor = ir.Tensor(data) if isinstance(data, np.ndarray) else data  # ir.tensor looks at it for long
        name = self._names.fresh(f"{self._base}_{hint}")
        if self.scope.in_function or self._facts.model.ir_version < BARE_INITIALIZERS:
            (value,) = self.node("Constant", (), {"value": tensor})
        else:
            tensor.name = name
            shape = ir.Shape(tensor.shape.numpy())
            value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
            self.constants.append(value)
        self._facts.learn(value, tensor.dtype, tuple(int(dim) for dim in tensor.shape.numpy()))
        return value

    def folded(
        self, exact: np.ndarray, dtype: ir.DataType, hint: str = "const", *, beside: np.ndarray | float = 0.0
    ) -> ir.Value:
        """A constant computed in double precision; refuses the rewrite where `dtype` cannot hold it."""
        return self.constant(rounded(exact, dtype, beside), hint)

    def learn(self, value: ir.Value, dtype: ir.DataType | None, shape: Shape | None) -> ir.Value:
        """State the type of an inner value, so that later matches know it without a new inference."""
        self._facts.learn(value, dtype, shape)
        return value
