"""Models one change away from a given one: an attribute, an operand, an operator, a constant or a size is another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

_SIMILAR = (
    ("Add", "Sub", "Mul", "Div"),
    ("Max", "Min"),
    ("ReduceMean", "ReduceSum", "ReduceMax"),
    ("Relu", "Neg", "Abs", "Exp", "Sigmoid", "Tanh", "Erf", "Identity"),
    ("Sqrt", "Reciprocal", "Exp"),
    ("Cos", "Sin"),
    ("And", "Or"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
    ("Softmax", "LogSoftmax"),
)
_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32)


def near_models(model: ModelProto, values: int = 5) -> Iterator[tuple[str, ModelProto]]:
    """Return what is changed, and the changed model, whose outputs have no declared shapes; it may be invalid.

    The last `values` before a node, which are close to it, take the place of each of its operands.
    """
    return _changed(model, _changes(model.graph, values))


def opened_models(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """Yield models in which an inner value is an input, with a shape or without one, or an input has no shape."""
    return _changed(model, _openings(model.graph, onnx.shape_inference.infer_shapes(model).graph.value_info))


def foreign_models(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """Yield models in which one node is of another domain, so that nothing is known about it."""
    for place, node in enumerate(model.graph.node):
        for what, changed in _changed(model, [(f"{place}: {node.op_type}", lambda g, p=place: _leave(g.node[p]))]):
            changed.opset_import.add(domain="org.else", version=1)
            yield what, changed


def _leave(node: NodeProto) -> None:
    node.domain = "org.else"


def _changed(model: ModelProto, changes: Iterable[tuple[str, Change]]) -> Iterator[tuple[str, ModelProto]]:
    for what, change in changes:
        changed = ModelProto()
        changed.CopyFrom(model)
        change(changed.graph)
        for output in changed.graph.output:
            output.type.tensor_type.ClearField("shape")
        del changed.graph.value_info[:]
        yield what, changed


Change = Callable[[GraphProto], object]


def _changes(graph: GraphProto, values: int) -> Iterator[tuple[str, Change]]:
    known = [*(v.name for v in graph.input), *(t.name for t in graph.initializer)]
    for index, node in enumerate(graph.node):
        where = f"{index}: {node.op_type}"
        for place, attribute in enumerate(node.attribute):
            for new in _attributes(attribute):
                what = f"{where}.{attribute.name} = {onnx.helper.printable_attribute(new)[:60]}"
                yield what, lambda g, i=index, p=place, a=new: g.node[i].attribute[p].CopyFrom(a)
            yield f"{where} without {attribute.name}", lambda g, i=index, p=place: g.node[i].attribute.__delitem__(p)
        for names in _operands(node, known[-values:]):
            yield f"{where}({', '.join(names)})", lambda g, i=index, n=names: _rewire(g.node[i], n)
        for group in _SIMILAR:
            for op_type in group if node.op_type in group else ():
                if op_type != node.op_type:
                    yield f"{where} → {op_type}", lambda g, i=index, t=op_type: setattr(g.node[i], "op_type", t)
        known += node.output
    for place, tensor in enumerate(graph.initializer):
        for what, array in _arrays(numpy_helper.to_array(tensor)):
            new = numpy_helper.from_array(array, tensor.name)
            yield f"{tensor.name} {what}", lambda g, p=place, t=new: g.initializer[p].CopyFrom(t)
    for place, value in enumerate(graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            size = dim.dim_value
            for other in (1, size + 2) if size else (1, 3):
                what = f"{value.name}'s axis {axis} has {other}"
                yield what, lambda g, p=place, a=axis, n=other: _dim(g, p, a).__setattr__("dim_value", n)
            if size:
                yield f"{value.name}'s axis {axis} is free", lambda g, p=place, a=axis: _free(g, p, a)


def _openings(graph: GraphProto, inferred: Iterable[ValueInfoProto]) -> Iterator[tuple[str, Change]]:
    for place, value in enumerate(graph.input):
        yield f"{value.name} has no shape", lambda g, p=place: g.input[p].type.tensor_type.ClearField("shape")
    for value in inferred:
        for has_shape in (True, False):
            what = f"{value.name} is an input{'' if has_shape else ' without a shape'}"
            yield what, lambda g, v=value, s=has_shape: _open(g, v, has_shape=s)


def _open(graph: GraphProto, value: ValueInfoProto, *, has_shape: bool) -> None:
    new = graph.input.add()
    new.CopyFrom(value)
    new.name = f"given_{value.name}"
    if not has_shape:
        new.type.tensor_type.ClearField("shape")
    for node in graph.node:
        node.input[:] = [new.name if name == value.name else name for name in node.input]


def _dim(graph: GraphProto, place: int, axis: int) -> onnx.TensorShapeProto.Dimension:
    return graph.input[place].type.tensor_type.shape.dim[axis]


def _free(graph: GraphProto, place: int, axis: int) -> None:
    _dim(graph, place, axis).dim_param = f"free{place}{axis}"


def _rewire(node: NodeProto, names: Sequence[str]) -> None:
    node.input[:] = names


def _operands(node: NodeProto, known: Sequence[str]) -> Iterator[list[str]]:
    """Operands in another order, one fewer, and another value in place of each."""
    names = list(node.input)
    if len(names) > 1:
        yield [names[1], names[0], *names[2:]]
        yield names[:-1]
    for place in range(len(names)):
        for other in known:
            if other != names[place]:
                yield [*names[:place], other, *names[place + 1 :]]


def _attributes(attribute: AttributeProto) -> Iterator[AttributeProto]:
    def changed(**fields: object) -> AttributeProto:
        new = AttributeProto()
        new.CopyFrom(attribute)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(new, name)[:] = value
            else:
                setattr(new, name, value)
        return new

    match attribute.type:
        case AttributeProto.INT if attribute.name == "to":
            yield from (changed(i=dtype) for dtype in _TYPES if dtype != attribute.i)
        case AttributeProto.INT:
            yield from (changed(i=attribute.i + step) for step in (-1, 1))
        case AttributeProto.FLOAT:
            yield changed(f=attribute.f * 1.5 + 0.125)
        case AttributeProto.INTS:
            ints = list(attribute.ints)
            yield from (changed(ints=new) for new in (ints[::-1], ints[:-1], [*ints, len(ints)]) if new != ints)
            for place in range(len(ints)):
                for step in (-1, 1):
                    yield changed(ints=[*ints[:place], ints[place] + step, *ints[place + 1 :]])
        case AttributeProto.STRING if attribute.s in (b"none", b"tanh"):
            yield changed(s=b"tanh" if attribute.s == b"none" else b"none")
        case AttributeProto.TENSOR:
            for _, array in _arrays(numpy_helper.to_array(attribute.t)):
                new = changed()
                new.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
                yield new
        case _:
            pass


def _arrays(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """One element changed, all of them, one fewer, and one more axis."""
    if array.dtype.kind not in "fiub":
        return
    flat = array.reshape(-1)
    for place in sorted({0, flat.size - 1} if flat.size else ()):
        for step in (-1, 1) if array.dtype.kind in "iu" else (None,):
            new = flat.copy()
            old = flat[place]
            with np.errstate(over="ignore"):
                new[place] = ~old if array.dtype == np.bool_ else old + step if step else 1.5 * old + 0.1
            yield f"changed at {place}", new.reshape(array.shape)
    if array.ndim == 1 and array.size > 1:
        yield "shorter", array[:-1]
        yield "one number", array[:1]
        yield "reversed", array[::-1].copy()
    if array.dtype.kind == "f":
        yield "negative", -array
        yield "zero", np.zeros_like(array)
        yield "with one more axis", array[None]
