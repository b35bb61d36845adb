"""Creates the new nodes and constants of one rewrite; the rewriter inserts them into the graph."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.expressions import Expression, literal
from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.naming import Names
from sardonyx.ir.precision import rounded
from sardonyx.ir.scopes import Scope, label

# The IR version since which an initializer need not be a graph input, and is overridable by callers if it is one.
BARE_INITIALIZERS = 4


class Builder:
    """Creates nodes, as in `op.Conv(x, w, strides=[2, 2])`, and constants, as in `op.constant(array)`."""

    def __init__(self, root: ir.Node, facts: Facts, names: Names) -> None:
        """Build at the position of `root`."""
        self.nodes: list[ir.Node] = []
        self.separate_nodes: set[ir.Node] = set()
        self._building_separate = False
        self.constants: list[ir.Value] = []
        self._facts = facts
        self._names = names
        self._base = label(root)
        self.scope: Scope = facts.scope(root)

    @contextmanager
    def separate(self) -> Generator[None, None, None]:
        """Attribute the nodes created inside to the `separate` nodes of the match.

        A mask that many layers share belongs to none of them.
        """
        self._building_separate = True
        try:
            yield
        finally:
            self._building_separate = False

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        """Return a function that creates a node of this operator of the default domain."""
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
        """Create a node and return its outputs. Attributes are Python values or `ir.Attr`; None omits one."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        present = {key: value for key, value in (attributes or {}).items() if value is not None}
        node = ir.node(op_type, list(inputs), present, domain=domain, num_outputs=outputs)
        node.name = self._names.fresh(f"{self._base}_{op_type}")
        for output in node.outputs:
            output.name = self._names.fresh(f"{node.name}_out")
        self.nodes.append(node)
        if self._building_separate:
            self.separate_nodes.add(node)
        return tuple(node.outputs)

    def like(self, node: ir.Node, inputs: tuple[ir.Value | None, ...], **changed: Any) -> ir.Value:
        """Create the same operator on other inputs, with the same attributes except `changed` (None removes one)."""
        attributes: dict[str, Any] = {**node.attributes, **changed}
        return self.node(node.op_type, inputs, attributes, domain=node.domain, outputs=len(node.outputs))[0]

    def constant(self, data: np.ndarray | ir.TensorProtocol, hint: str = "const") -> ir.Value:
        """Create a constant, which takes over the tensor.

        It is an initializer, or a Constant node in functions and in old files, where an initializer must also be an
        input.
        """
        tensor = ir.Tensor(data) if isinstance(data, np.ndarray) else data  # ir.tensor() is slow
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

    def folded(self, exact: Expression | np.ndarray, dtype: ir.DataType, hint: str = "const") -> ir.Value:
        """Create a constant that is computed in double precision; refuse the rewrite if `dtype` cannot hold it."""
        return self.constant(rounded(literal(exact) if isinstance(exact, np.ndarray) else exact, dtype), hint)

    def learn(self, value: ir.Value, dtype: ir.DataType | None, shape: Shape | None) -> ir.Value:
        """State the type and shape of an intermediate value, so that later matches do not have to infer them."""
        self._facts.learn(value, dtype, shape)
        return value
