"""Cut out what each operation of an exported program became in the ONNX graph, each different one once.

torch's exporter records on every ONNX node the operation that it was written for, and names the values of the graph
after the operations. The operands of an operation are the inputs of its excerpt; constants are part of it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, cast

import onnx
import onnx_ir as ir
import torch
from msgspec import Struct
from onnx_ir import serde
from torch.fx import Node
from torch.utils import _pytree as pytree

from sardonyx.frontend.tracing.adapter import INNER
from sardonyx.frontend.tracing.decompositions import is_overload
from sardonyx.ir.io import MAX_IR_VERSION
from sardonyx.ir.scopes import has_bodies
from sardonyx.ir.tensors import tensor_proto

TRANSLATIONS = "sardonyx.translations"  # the key in `ir.Model.meta`
_LARGE = 1 << 20  # bytes of a constant that is not cut out
_MOST_VALUES = 300  # of an excerpt
_TYPES: dict[torch.dtype, ir.DataType] = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.bool: ir.DataType.BOOL,
    torch.uint8: ir.DataType.UINT8,
    torch.int8: ir.DataType.INT8,
    torch.int16: ir.DataType.INT16,
    torch.int32: ir.DataType.INT32,
    torch.int64: ir.DataType.INT64,
}
_NUMBERS: dict[type, torch.dtype] = {
    torch.SymInt: torch.int64,
    torch.SymFloat: torch.float32,
    torch.SymBool: torch.bool,
}


class Operand(Struct, frozen=True):
    """A tensor that an operation reads, or a number that is computed from sizes."""

    name: str  # of the input of the excerpt
    dtype: int  # in ONNX
    shape: tuple[Any, ...] = ()  # integers, and expressions of sizes
    number: Any = None  # an expression of sizes, if it is one


class Operation(Struct, frozen=True):
    """An operation of the exported program, and the ONNX nodes it became."""

    name: str  # such as "aten.add.Tensor"
    args: tuple[Any, ...]  # constants, operands, and lists of them
    kwargs: Mapping[str, Any]
    results: tuple[int | None, ...]  # positions of the results that are read; None if it has one result
    excerpt: onnx.ModelProto | None  # None if the nodes are not known
    example: Mapping[str, int]  # sizes of the example, by symbol
    modules: list[str]  # one for each place where the operation occurs

    @property
    def operands(self) -> list[Operand]:
        """The operands, in the order of the arguments."""
        return list({each.name: each for each in _flat((self.args, tuple(self.kwargs.values())))}.values())


def _flat(value: Any) -> Iterator[Operand]:
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, tuple):
        for each in cast("tuple[Any, ...]", value):
            yield from _flat(each)


def recorded(model: ir.Model) -> list[Operation] | None:
    """Return the operations of a graph that torch.export gave, once; None for other graphs."""
    meta: Any = model.meta
    translations: Translations | None = meta.pop(TRANSLATIONS, None)
    return None if translations is None else translations.operations()


class _NotCut(Exception):
    """The nodes read what is neither an operand nor a constant, or a type is written in another way."""


def _type(dtype: torch.dtype) -> int:
    """Return a type in ONNX; complex numbers are pairs there."""
    if dtype not in _TYPES:
        raise _NotCut
    return int(_TYPES[dtype])


class Translations:
    """The operations of an exported program with the nodes of its ONNX graph."""

    def __init__(self, program: Any, model: ir.Model) -> None:
        """Note which value is which, before any is renamed."""
        self._program, self._opsets = program, dict(model.opset_imports)
        graph, signature = model.graph, program.graph_signature
        named = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
        self._values: dict[Any, ir.Value] = {value.name: value for value in named}
        stored: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._values.update((name, self._values[key]) for name, key in stored.items() if key in self._values)

    def operations(self) -> list[Operation]:
        """Return the different operations."""
        found: dict[Any, Operation] = {}
        for node in self._program.graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                operation = _Cut(self, node).operation(self._opsets)
                excerpt = operation.excerpt and operation.excerpt.SerializeToString(deterministic=True)
                key = (operation.name, repr((operation.args, operation.kwargs)), excerpt)
                found.setdefault(key, operation).modules.append(_module(node))
        return list(found.values())

    def value(self, node: Node) -> ir.Value | None:
        """Return the value of an operation; one that returned it unchanged has renamed it."""
        if node.name in self._values:
            return self._values[node.name]
        writers = (None, node, node.args[0] if node.target is operator.getitem else node)
        for value in filter(None, map(self.value, node.users)):
            producer: Any = value.producer()
            if (producer and producer.meta.get("node", producer)) in writers:
                return value
        return None

    def results(self, node: Node) -> dict[Any, ir.Value | None]:
        """Return the value of an operation, or those of its values that are read, by position."""
        if not isinstance(node.meta.get("val"), tuple | list) or node.name in self._values:  # or a sequence in ONNX
            return {None: self.value(node)}
        return {user.args[1]: self.value(user) for user in node.users if user.target is operator.getitem}


def _module(node: Node) -> str:
    """Return the name of the module that called an operation."""
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    return [*stack.values()][-1][0].removeprefix(INNER).removeprefix(".")


class _Cut:
    """Cuts out one operation: the nodes between its operands and its results."""

    def __init__(self, translations: Translations, node: Node) -> None:
        self._translations, self._node = translations, node
        self._names: dict[ir.Value | None, str] = {None: ""}
        self._example: dict[str, int] = {}
        self._model = onnx.ModelProto(ir_version=MAX_IR_VERSION)

    def operation(self, opsets: Mapping[str, int]) -> Operation:
        """Return the operation with its nodes."""
        model, results = self._model, self._translations.results(self._node)
        model.opset_import.extend(onnx.OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items())
        target: Any = self._node.target
        name = str(target) if is_overload(target) else f"builtin.{getattr(target, '__name__', target)}"
        try:
            args = self._converted(self._node.args)
            kwargs = {key: self._converted(each) for key, each in self._node.kwargs.items()}
            model.graph.input.extend(onnx.ValueInfoProto(name=each) for each in self._names.values() if each)
            for tensor in filter(torch.is_tensor, pytree.tree_leaves(self._node.meta.get("val"))):
                _type(tensor.dtype)
            for value in results.values():
                self._write(value)
                model.graph.output.append(onnx.ValueInfoProto(name=self._names[value]))
        except _NotCut:
            return Operation(name, (), {}, (), None, {}, [])
        return Operation(name, args, kwargs, tuple(results), model, self._example, [])

    def _write(self, value: ir.Value | None) -> None:
        """Write the nodes that compute a value."""
        if value is None or len(self._names) > _MOST_VALUES:
            raise _NotCut
        if value in self._names:
            return
        node, tensor = value.producer(), value.const_value
        if node is None:
            if tensor is None or tensor.nbytes > _LARGE:
                raise _NotCut
            self._names[value] = f"c{len(self._names)}"
            self._model.graph.initializer.append(tensor_proto(self._names[value], tensor))
            return
        if has_bodies(node):
            raise _NotCut
        for operand in filter(None, node.inputs):
            self._write(operand)
        self._names.update((result, f"v{len(self._names) + i}") for i, result in enumerate(node.outputs))
        proto = serde.serialize_node(node)
        written = onnx.NodeProto(op_type=proto.op_type, domain=proto.domain, attribute=proto.attribute)
        written.input.extend(self._names[operand] for operand in node.inputs)
        written.output.extend(self._names[result] for result in node.outputs)
        self._model.graph.node.append(written)

    def _converted(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self._operand(value)
        if isinstance(value, tuple | list):
            return tuple(map(self._converted, cast("tuple[Any, ...]", value)))
        if isinstance(value, torch.dtype):
            return _type(value)
        return value if isinstance(value, bool | int | float | str) else None

    def _operand(self, node: Node) -> Any:
        recorded, value = node.meta.get("val"), self._translations.value(node)
        if isinstance(recorded, bool | int | float):
            return recorded
        if value is None or not isinstance(recorded, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _NotCut
        name = self._names.setdefault(value, f"x{len(self._names)}")
        if isinstance(recorded, torch.Tensor):
            return Operand(name, _type(recorded.dtype), tuple(map(self._size, recorded.shape)))
        return Operand(name, int(_TYPES[_NUMBERS[type(recorded)]]), (), self._size(recorded))

    def _size(self, size: Any) -> Any:
        """Return an integer or an expression."""
        if isinstance(size, int | float):
            return size
        expression = size.node.expr
        if size.node.has_hint() and expression.is_Symbol:
            self._example[str(expression)] = int(size.node.hint)
        return expression
