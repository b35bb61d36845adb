"""How random models are written in wider types, and with outputs that count comparisons: the same as before."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import recorded
from sardonyx.ir import io
from sardonyx.verification.coverage import Bodies, Comparisons
from sardonyx.verification.double_precision import (
    _rounding_otherwise,  # pyright: ignore[reportPrivateUsage]
    without_convolutions,
)
from sardonyx.verification.exclusions import with_scores
from sardonyx.verification.upcast import constants_cast, narrow_types, new_constants, round_results, upcast

TYPES = (TensorProto.FLOAT16, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
UNARY = ("Relu", "Neg", "Identity", "Exp", "Transpose", "Softmax", "Sqrt", "Dropout")
BINARY = ("Add", "Mul", "Sub", "Max", "Min", "MatMul", "Pow")


class Writer:
    """Writes a graph of matrices of several types."""

    def __init__(self, seed: int) -> None:
        self.choose, self.nodes = Random(seed), list[onnx.NodeProto]()
        self.values: list[tuple[str, int]] = [
            (f"x{place}", kind) for place, kind in enumerate(self.choose.sample(TYPES, 2))
        ]
        self.inputs = [helper.make_tensor_value_info(name, kind, ["N", 4]) for name, kind in self.values]
        self.stored: list[TensorProto] = []
        self.extra: list[tuple[str, int]] = []

    def add(self, op: str, reads: list[str], kind: int, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        outputs = [name, f"{name}_i"] if op == "TopK" else [name]
        self.nodes.append(helper.make_node(op, reads, outputs, name=f"{op}{len(self.nodes)}", **attributes))
        self.values.append((name, kind))
        return name

    def weight(self, kind: int, shape: tuple[int, ...], number: float | None = None) -> str:
        array = np.full(shape, number) if number is not None else np.arange(1, 1 + np.prod(shape)).reshape(shape)
        name = f"w{len(self.stored)}_{len(self.nodes)}"
        tensor = numpy_helper.from_array(array.astype(ir.DataType(kind).numpy()), name)
        if self.choose.random() < 0.3:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.stored.append(tensor)
        return name

    def step(self) -> None:
        choose = self.choose
        source, kind = choose.choice(self.values[-4:])
        what = choose.randrange(12)
        if what < 3:
            op = choose.choice(UNARY)
            self.add(op, [source], kind, **({"perm": [1, 0]} if op == "Transpose" else {}))
        elif what < 5:
            same = [name for name, other in self.values if other == kind]
            other = choose.choice((choose.choice(same), self.weight(kind, choose.choice(((4,), (4, 4), (1,), ())))))
            self.add(choose.choice(BINARY), [source, other], kind)
        elif what == 5:
            to = choose.choice(TYPES)
            self.add("Cast", [source], to, to=to)
        elif what == 6:
            bound = [self.weight(kind, (), choose.choice((0.0, 6.0, 6e4))) for _ in range(2)]
            self.add(choose.choice(("Clip", "Clip")), [source, *bound[: choose.randrange(3)]], kind)
        elif what == 7:
            op = choose.choice(("Less", "Greater", "Equal"))
            test = self.add(op, [source, self.weight(kind, (), 1.0)], kind)
            self.values.pop()
            self.add("Where", [test, source, self.weight(kind, (1,), 2.0)], kind)
        elif what == 8:
            self.chosen(source, kind)
        elif what == 9:
            self.body(source, kind)
        elif what == 10:
            table = self.weight(kind, (8, 4))
            index = self.add("ArgMax", [source], kind, axis=1, keepdims=0)
            self.values.pop()
            self.add("Gather", [table, index], kind)
        else:
            value = numpy_helper.from_array(np.ones(1, ir.DataType(kind).numpy()), "value")
            shape = self.add("Shape", [source], kind)
            self.values.pop()
            self.add("ConstantOfShape", [shape], kind, value=value)

    def chosen(self, source: str, kind: int) -> None:
        k = f"k{len(self.nodes)}"
        self.stored.append(numpy_helper.from_array(np.array([2]), k))
        name = self.add("TopK", [source, k], kind)
        index = f"{name}_i"
        if self.choose.random() < 0.5:
            index = self.add("Cast", [index], kind, to=TensorProto.INT32)
            self.values.pop()
        self.extra.append((index, TensorProto.INT64))

    def body(self, source: str, kind: int) -> None:
        inner = helper.make_node("Neg", [source], ["inner"], name="inside")
        cast = helper.make_node("Cast", ["inner"], ["made"], to=kind)
        other = helper.make_node("Abs", [source], ["made"], name="beside")
        graphs = [
            helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("made", kind, None)])
            for nodes in ([inner, cast], [other])
        ]
        condition = f"c{len(self.nodes)}"
        self.inputs.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
        self.add("If", [condition], kind, then_branch=graphs[0], else_branch=graphs[1])

    def model(self) -> onnx.ModelProto:
        for _ in range(self.choose.randint(4, 10)):
            self.step()
        outputs = dict.fromkeys([self.values[-1], self.choose.choice(self.values), *self.extra[-2:]])
        declared = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, declared, self.stored)
        opset = self.choose.choice((11, 13, 18, 21))
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


def text_of(model: ir.Model | None) -> object:
    """The number of nodes, and a sum over what is written."""
    if model is None:
        return None
    proto = io.to_proto(model)
    return [len(proto.graph.node), zlib.crc32(proto.SerializeToString(deterministic=True))]


@pytest.mark.parametrize("part", range(4))
def test_models_are_widened_as_before(part: int) -> None:
    found: dict[str, object] = {}
    for seed in range(part * 20, part * 20 + 20):
        choose, proto = Random(seed), Writer(seed).model()
        model = io.from_proto(proto)
        told: list[object] = [sorted(kind.name for kind in narrow_types(model))]
        for to in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            for constants in ("keep", "round", "widen"):
                single = choose.choice(((), ("Softmax", "Exp"), ("MatMul", "If")))
                wide = upcast(model, constants=constants, to=to, without_kernel=single)
                told.append(text_of(wide))
                if wide is not None:
                    names = constants_cast(wide)
                    told += [names, text_of(_rounding_otherwise(wide, names[::2]))]
        changed = Writer(seed).model()
        for tensor in changed.graph.initializer[::2]:
            tensor.raw_data = bytes(len(tensor.raw_data))
        told.append(sorted(new_constants(io.from_proto(changed), model)))
        rounded = io.from_proto(proto)
        round_results(rounded)
        scores, counted, bodies = with_scores(model), Comparisons(model), Bodies(model)
        told += [text_of(rounded), text_of(scores.model) if scores else None, list(scores.axes) if scores else None]
        told += [text_of(counted.counting), text_of(bodies.marked), bodies.never_entered(frozenset())]
        count = len(counted._tests)  # pyright: ignore[reportPrivateUsage]
        for numbers in ([1, 0], [0, 1], [1, 1], [0, 0]):
            told.append(counted.notes([[*map(np.array, numbers * count)]] * 2))
        assert text_of(model) == text_of(io.from_proto(proto))  # which stays as it is
        found[f"{seed}"] = [len(told), zlib.crc32(repr(told).encode()), told[0], told[-4]]
    recorded.check("widened", found)


@pytest.mark.parametrize("opset", [11, 12, 18])
@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        ((6, 2, 3), {"group": 1}), ((6, 1, 3), {"group": 6}), ((6, 2, 3), {"group": 3}), ((12, 1, 3), {"group": 6}),
        ((6, 6, 3), {"auto_pad": "SAME_UPPER"}), ((6, 6, 3), {"auto_pad": "NOTSET", "pads": [1, 2]}),
        ((6, 6, 128), {}), ((6, 6, 129), {}), ((6, 6, 2, 2), {"strides": [2, 1], "dilations": [1, 2]}),
        ((6, 6, 1, 1, 1), {}), ((6, 6, 1, 1, 1, 1), {}), ((6, 6), {}), ((6, 2, 3), {"group": 6}),
    ],
)  # fmt: skip
def test_convolutions_become_products_as_before(
    weight: tuple[int, ...], attributes: dict[str, Any], opset: int
) -> None:
    found: dict[str, object] = {}
    for bias in (False, True):
        for is_known in (True, False):
            reads = ["x", "w", *(["b"] if bias else [])]
            inputs = [helper.make_tensor_value_info(name, 1, None) for name in (reads if not is_known else ["x"])]
            arrays = {"w": np.ones(weight, np.float32), "b": np.ones(weight[0], np.float32)}
            stored = [numpy_helper.from_array(arrays[name], name) for name in (reads[1:] if is_known else ())]
            node = helper.make_node("Conv", reads, ["y"], **attributes)
            graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)], stored)
            model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", opset)])
            made = io.to_proto(without_convolutions(io.from_proto(model)))
            kinds = [each.op_type for each in made.graph.node]
            key = f"{list(weight)} {attributes} {opset}{' with bias' if bias else ''}{'' if is_known else ', unknown'}"
            found[key] = [len(kinds), "Conv" in kinds, zlib.crc32(made.SerializeToString(deterministic=True))]
    recorded.check("taps", found)
