"""Small semantic faults to plant in a model: each kind finds its sites and changes one; the graph still runs.

They are the faults optimizers really have made: a rescaled weight, a forgotten residual, a swapped axis, a lost mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

Site = Callable[[], None]  # plants the fault
Kind = Callable[[ModelProto, np.random.Generator], Iterator[Site]]

_MOVES = ("Transpose", "Reshape", "Cast", "Identity", "Mul", "Div", "Squeeze", "Unsqueeze", "Expand", "Concat", "Add")


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and the bodies inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def nodes(model: ModelProto, *op_types: str) -> Iterator[tuple[GraphProto, NodeProto]]:
    """Every node of these operators, with its graph."""
    for graph in graphs(model.graph):
        for node in graph.node:
            if node.op_type in op_types:
                yield graph, node


def constants(model: ModelProto) -> dict[str, onnx.TensorProto]:
    """Constant tensors by the value they define, whether initializer or Constant node."""
    found: dict[str, onnx.TensorProto] = {}
    for graph in graphs(model.graph):
        found.update({tensor.name: tensor for tensor in graph.initializer})
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                found[node.output[0]] = node.attribute[0].t
    return found


def producers(model: ModelProto) -> dict[str, NodeProto]:
    """The node that makes each value."""
    return {output: node for graph in graphs(model.graph) for node in graph.node for output in node.output}


def _write(tensor: onnx.TensorProto, values: np.ndarray) -> None:
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((a for a in node.attribute if a.name == name), None)


def _insert(graph: GraphProto, before: NodeProto, new: list[NodeProto]) -> None:
    place = next(i for i, node in enumerate(graph.node) if node is before or node == before)
    rest = list(graph.node)
    rest[place:place] = new
    copies = [NodeProto.FromString(node.SerializeToString()) for node in rest]
    del graph.node[:]
    graph.node.extend(copies)


def _become_identity(node: NodeProto, operand: int) -> None:
    kept = node.input[operand]
    output = node.output[0]
    node.CopyFrom(helper.make_node("Identity", [kept], [output], name=node.name))


def operand_constant(model: ModelProto, name: str) -> onnx.TensorProto | None:
    """The constant behind an operand, seen through Transpose, Cast and Identity."""
    known, made = constants(model), producers(model)
    for _ in range(3):
        if name in known:
            return known[name]
        node = made.get(name)
        if node is None or node.op_type not in ("Transpose", "Cast", "Identity"):
            return None
        name = node.input[0]
    return None


_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_FILL = 1e3  # a constant of at least this magnitude hides a score


def weight_times(factor: float) -> Kind:
    """A weight times a factor that its type resolves: less than the spacing of bfloat16 is lost in storing it."""

    def kind(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
        for _, node in nodes(model, "MatMul", "Gemm", "Conv", "ConvTranspose"):
            tensor = operand_constant(model, node.input[1])
            coarse = tensor is not None and tensor.data_type == onnx.TensorProto.BFLOAT16 and abs(factor - 1) < 2.0**-7
            if tensor is not None and tensor.data_type in _FLOATS and not coarse:
                yield lambda t=tensor: _write(t, _times(numpy_helper.to_array(t), factor))

    return kind


def _times(values: np.ndarray, factor: float) -> np.ndarray:
    return (values.astype(np.float64) * factor).astype(values.dtype)


def bias_zeroed(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """The bias of one channel set to zero."""
    known = constants(model)
    for _, node in nodes(model, "Add", "Gemm", "Conv", "BatchNormalization"):
        for name in node.input[2:3] if node.op_type != "Add" else node.input:
            tensor = known.get(name)
            if tensor is None or len(tensor.dims) != 1 or tensor.data_type not in (1, 10) or tensor.dims[0] < 2:
                continue
            values = numpy_helper.to_array(tensor).copy()
            channel = int(rng.choice(np.flatnonzero(np.abs(values) >= np.median(np.abs(values)))))
            values[channel] = 0
            yield lambda t=tensor, v=values: _write(t, v)


def keys_times_1000(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """The K side of attention a thousand times larger: nothing changes where there is one key only."""
    made = producers(model)
    for graph, node in nodes(model, "Softmax"):
        value = node.input[0]
        while value in made and made[value].op_type in (*_MOVES, "Where"):
            value = made[value].input[1 if made[value].op_type == "Where" else 0]
        scores = made.get(value)
        if scores is None or scores.op_type != "MatMul":
            continue

        def plant(graph: GraphProto = graph, scores: NodeProto = scores) -> None:
            big = helper.make_node("Constant", [], ["mutant.k"], value=numpy_helper.from_array(np.float32(1000)))
            scale = helper.make_node("Mul", [scores.input[1], "mutant.k"], ["mutant.scaled"])
            scores.input[1] = "mutant.scaled"
            _insert(graph, scores, [big, scale])

        yield plant


def softmax_axis(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A softmax over the axis before."""
    for _, node in nodes(model, "Softmax"):
        axis = _attribute(node, "axis")
        if axis is None or axis.i in (-1, 1, 2, 3):
            yield lambda n=node: _set_axis(n)


def _set_axis(node: NodeProto) -> None:
    axis = _attribute(node, "axis")
    if axis is None:
        node.attribute.append(helper.make_attribute("axis", -2))
    else:
        axis.i -= 1


def epsilon_raised(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A normalization's epsilon raised to 1e-3."""
    known, made = constants(model), producers(model)
    for _, node in nodes(model, "LayerNormalization", "BatchNormalization", "InstanceNormalization"):
        present = _attribute(node, "epsilon")
        if present is None or present.f < 1e-4:
            yield lambda n=node: _set_float(n, "epsilon", 1e-3)
    for _, node in nodes(model, "Sqrt"):
        add = made.get(node.input[0])
        if add is not None and add.op_type == "Add":
            for name in add.input:
                tensor = known.get(name)
                if tensor is not None and 0 < float(numpy_helper.to_array(tensor).max()) < 1e-4:
                    yield lambda t=tensor: _write(t, np.full_like(numpy_helper.to_array(t), 1e-3))


def _set_float(node: NodeProto, name: str, value: float) -> None:
    attribute = _attribute(node, name)
    if attribute is None:
        node.attribute.append(helper.make_attribute(name, value))
    else:
        attribute.f = value


def residual_dropped(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """An addition of two computed values that forgets one of them."""
    made, known = producers(model), constants(model)
    for _, node in nodes(model, "Add"):
        computed = [n in made and n not in known for n in node.input]
        if all(computed):
            kept = int(rng.integers(2))
            yield lambda n=node, i=kept: _become_identity(n, i)


def perm_swapped(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A transpose with two axes exchanged."""
    for _, node in nodes(model, "Transpose"):
        perm = _attribute(node, "perm")
        if perm is not None and len(perm.ints) > 1:
            first = int(rng.integers(len(perm.ints) - 1))
            yield lambda p=perm, i=first: _swap(p.ints, i)


def _swap(values: object, index: int) -> None:
    values[index], values[index + 1] = values[index + 1], values[index]  # type: ignore[index]


def mask_ignored(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A mask taken as all ones."""
    for value in model.graph.input:
        if "mask" not in value.name:
            continue

        def plant(name: str = value.name, kind: int = value.type.tensor_type.elem_type) -> None:
            one = numpy_helper.from_array(np.ones(1, helper.tensor_dtype_to_np_dtype(kind)))
            for graph in graphs(model.graph):
                for node in graph.node:
                    for index, operand in enumerate(node.input):
                        if operand == name:
                            node.input[index] = "mutant.ones"
            shape = helper.make_node("Shape", [name], ["mutant.shape"])
            fill = helper.make_node("ConstantOfShape", ["mutant.shape"], ["mutant.ones"], value=one)
            _insert(model.graph, model.graph.node[0], [shape, fill])

        yield plant


def nan_below_zero(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A value that becomes NaN where it is negative: a square root too many."""
    for graph, node in nodes(model, "MatMul", "Gemm", "Conv", "Sub"):
        if graph is not model.graph:
            continue

        def plant(graph: GraphProto = graph, node: NodeProto = node) -> None:
            result, place = node.output[0], next(i for i, n in enumerate(graph.node) if n is node or n == node)
            node.output[0] = "mutant.raw"
            root = helper.make_node("Sqrt", ["mutant.raw"], ["mutant.root"])
            square = helper.make_node("Mul", ["mutant.root", "mutant.root"], [result])
            follower = graph.node[place + 1] if place + 1 < len(graph.node) else None
            if follower is None:
                graph.node.extend([root, square])
            else:
                _insert(graph, follower, [root, square])

        yield plant


def outputs_swapped(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """Two outputs of one type under each other's name."""
    outputs = list(model.graph.output)
    for i, first in enumerate(outputs):
        for second in outputs[i + 1 :]:
            same = first.type.tensor_type.elem_type == second.type.tensor_type.elem_type
            if same and len(first.type.tensor_type.shape.dim) == len(second.type.tensor_type.shape.dim):
                yield lambda a=first.name, b=second.name: _exchange(model.graph, a, b)


def _exchange(graph: GraphProto, a: str, b: str) -> None:
    """Rename the values inside the graph, so that each output name shows the other's value."""
    names = {a: b, b: a}
    for inner in graphs(graph):
        for node in inner.node:
            node.input[:] = [names.get(n, n) for n in node.input]
            node.output[:] = [names.get(n, n) for n in node.output]


def operands_swapped(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A subtraction, division, comparison or concatenation the wrong way round."""
    for _, node in nodes(model, "Sub", "Div", "Concat", "Less", "Greater"):
        if len(node.input) >= 2 and node.input[0] != node.input[1]:
            yield lambda n=node: _swap(n.input, 0)


_TWINS = {
    "Relu": "Identity", "Tanh": "Sigmoid", "Sigmoid": "Tanh", "Erf": "Tanh", "HardSigmoid": "Sigmoid",
    "Abs": "Identity", "HardSwish": "Relu", "ReduceMean": "ReduceMax", "ReduceMax": "ReduceMean",
    "GlobalAveragePool": "GlobalMaxPool", "LeakyRelu": "Relu", "Gelu": "Relu", "Less": "Greater", "Sin": "Cos",
    "Cos": "Sin",
}  # fmt: skip


def operator_replaced(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """An operator taken for a similar one."""
    for _, node in nodes(model, *_TWINS):
        yield lambda n=node: _retype(n)


def _retype(node: NodeProto) -> None:
    twin = _TWINS[node.op_type]
    node.op_type = twin
    if twin in ("Identity", "Sigmoid", "Relu", "Tanh"):
        del node.attribute[:]


def branches_swapped(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """An If that takes the other branch."""
    for _, node in nodes(model, "If"):
        yield lambda n=node: _swap_branches(n)


def _swap_branches(node: NodeProto) -> None:
    for attribute in node.attribute:
        attribute.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[attribute.name]


def constant_nudged(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A scalar factor (an attention scale, a momentum) that is one percent off."""
    known = constants(model)
    for _, node in nodes(model, "Mul", "Div"):
        for name in node.input:
            tensor = known.get(name)
            if tensor is not None and tensor.data_type in (1, 10) and int(np.prod(tensor.dims)) == 1:
                value = numpy_helper.to_array(tensor)
                if np.isfinite(value).all() and 0 < float(np.abs(value).max()) < 1e3:
                    yield lambda t=tensor, v=value: _write(t, np.asarray(v * 1.01, v.dtype))


def mask_changed(op_type: str, *bounds: float) -> Kind:
    """A float mask that goes through an operator first: a sign lost, a bound too many."""

    def kind(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
        for value in model.graph.input:
            if "mask" not in value.name or value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
                continue

            def plant(name: str = value.name) -> None:
                for graph in graphs(model.graph):
                    for node in graph.node:
                        node.input[:] = ["mutant.mask" if operand == name else operand for operand in node.input]
                constants = [
                    helper.make_node("Constant", [], [f"mutant.{i}"], value=numpy_helper.from_array(np.float32(bound)))
                    for i, bound in enumerate(bounds)
                ]
                operands = [name, *(node.output[0] for node in constants)]
                _insert(
                    model.graph, model.graph.node[0], [*constants, helper.make_node(op_type, operands, ["mutant.mask"])]
                )

            yield plant

    return kind


def fill_replaced(factor: float, to: float | None = None) -> Kind:
    """The constant that hides scores, of the other sign or too small to hide anything."""

    def kind(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
        for tensor in constants(model).values():
            if tensor.data_type not in _FLOATS or int(np.prod(tensor.dims)) != 1:
                continue
            values = numpy_helper.to_array(tensor)
            if float(values.reshape(-1)[0]) <= -_FILL:
                changed = _times(values, factor) if to is None else np.full_like(values, to)
                yield lambda t=tensor, v=changed: _write(t, v)

    return kind


def _scalars(model: ModelProto, op_types: tuple[str, ...], kinds: tuple[int, ...]) -> Iterator[onnx.TensorProto]:
    """Constant scalars that nodes of these operators take."""
    known = constants(model)
    for _, node in nodes(model, *op_types):
        for name in node.input:
            tensor = known.get(name)
            if tensor is not None and tensor.data_type in kinds and int(np.prod(tensor.dims)) == 1:
                yield tensor


def window_moved(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """An integer that is compared with, one larger: a window off by one."""
    for tensor in _scalars(model, _COMPARISONS, (onnx.TensorProto.INT64, onnx.TensorProto.INT32)):
        yield lambda t=tensor: _write(t, numpy_helper.to_array(t) + 1)


def threshold_moved(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A number that is compared with, or cut at, a fifth smaller."""
    for tensor in _scalars(model, (*_COMPARISONS, "Clip", "Min", "Max"), (*_FLOATS, onnx.TensorProto.INT64)):
        values = numpy_helper.to_array(tensor)
        if 1 < abs(float(values.reshape(-1)[0])) < _FILL * 100:
            yield lambda t=tensor, v=values: _write(t, _times(v, 0.8))


def branch_changed(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """One branch of an If with the sign of its result lost, taken or not."""
    for _, node in nodes(model, "If"):
        for attribute in node.attribute:
            yield lambda body=attribute.g: _negate_result(body)


def _negate_result(body: GraphProto) -> None:
    name = body.output[0].name
    for node in body.node:
        node.output[:] = ["mutant.result" if output == name else output for output in node.output]
    body.node.append(helper.make_node("Neg", ["mutant.result"], [name]))


def epsilon_times_100(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A normalization's epsilon a hundred times as large."""
    for _, node in nodes(model, "LayerNormalization", "BatchNormalization", "InstanceNormalization"):
        present = _attribute(node, "epsilon")
        old = 1e-5 if present is None else present.f
        yield lambda n=node, e=old: _set_float(n, "epsilon", 100 * e)


def factor_dropped(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """A constant scale, of the values of attention among others, that is forgotten."""
    known = constants(model)
    for _, node in nodes(model, "Mul"):
        for index, name in enumerate(node.input):
            tensor = known.get(name)
            if tensor is not None and tensor.data_type in _FLOATS and int(np.prod(tensor.dims)) == 1:
                yield lambda n=node, kept=1 - index: _become_identity(n, kept)


def row_zeroed(model: ModelProto, rng: np.random.Generator) -> Iterator[Site]:
    """One row of a table set to zero."""
    known = constants(model)
    for _, node in nodes(model, "Gather"):
        tensor = known.get(node.input[0])
        if tensor is not None and tensor.data_type in _FLOATS and len(tensor.dims) == 2:
            values = numpy_helper.to_array(tensor).copy()
            values[int(rng.integers(values.shape[0]))] = 0
            yield lambda t=tensor, v=values: _write(t, v)


KINDS: dict[str, Kind] = {
    "weight × 1.02": weight_times(1.02),
    "weight × 1.01": weight_times(1.01),
    "weight × 0.995": weight_times(0.995),
    "channel's bias zeroed": bias_zeroed,
    "K × 1000": keys_times_1000,
    "softmax axis": softmax_axis,
    "epsilon → 1e-3": epsilon_raised,
    "epsilon × 100": epsilon_times_100,
    "residual dropped": residual_dropped,
    "perm swapped": perm_swapped,
    "mask ignored": mask_ignored,
    "mask's sign lost": mask_changed("Abs"),
    "mask clipped at -1": mask_changed("Clip", -1.0, 0.0),
    "mask clipped at -1e4": mask_changed("Clip", -1e4, 0.0),
    "fill's sign": fill_replaced(-1.0),
    "fill of -2": fill_replaced(1.0, to=-2.0),
    "NaN below zero": nan_below_zero,
    "outputs swapped": outputs_swapped,
    "operands swapped": operands_swapped,
    "operator replaced": operator_replaced,
    "branches swapped": branches_swapped,
    "branch changed": branch_changed,
    "window moved": window_moved,
    "threshold moved": threshold_moved,
    "scalar × 1.01": constant_nudged,
    "scalar dropped": factor_dropped,
    "table row zeroed": row_zeroed,
}

# What a note must name for a mutant that passes to count as listed: one of these words.
_SIZES = ("length", "size", "dim ", "dimension", "longest", "positions", "rows of", "tried up to")
_VALUES = ("range", "beyond", "larger than", "magnitude", "values from", "threshold", "compared with")
_MASKS = ("mask", "hidden", "hides")
NAMED_BY: dict[str, tuple[str, ...]] = {
    "window moved": _SIZES + _VALUES,
    "table row zeroed": (*_SIZES, *_VALUES, "index", "row"),
    "threshold moved": _VALUES,
    "branch changed": ("branch", "never"),
    "branches swapped": ("branch", "never"),
    "operator replaced": ("branch", "never"),
    "operands swapped": ("branch", "never"),
    "mask ignored": _MASKS,
    "mask's sign lost": _MASKS,
    "mask clipped at -1": _MASKS,
    "mask clipped at -1e4": _MASKS,
    "fill's sign": _MASKS + _SIZES,
    "fill of -2": _MASKS + _SIZES,
    "epsilon → 1e-3": ("variance",),
    "epsilon × 100": ("variance",),
}
_ANY = ("weak evidence", "undecided", "half precision")


def listed(kind: str, notes: Sequence[str]) -> bool:
    """Whether the notes of a verdict name what would have shown a mutant of this kind."""
    words = (*NAMED_BY.get(kind, ()), *_ANY)
    return any(word in note.lower() for note in notes for word in words)
