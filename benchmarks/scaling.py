"""How the work of `optimize` grows with the length of a model: chains of every kind, at several lengths.

    python benchmarks/scaling.py                       # all kinds at 500 and 2000 units
    python benchmarks/scaling.py reshape diamond --lengths 500 2000 10000 --json growth.json

Each line gives the seconds at each length and the exponent between the first and the last: 1 is linear, 2 quadratic.
Kinds whose exponent is above the limit are listed at the end, with exit status 1. Verification is off: what is measured
is loading, rewriting and saving.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

LIMIT = 1.35  # exponent; constant costs make it lower than it is, sorting and caches a little higher
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@dataclass
class Graph:
    """A graph that is being written."""

    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    constants: dict[str, TensorProto] = field(default_factory=dict[str, TensorProto])
    count: int = 0

    def __call__(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; the name of its output, or the names."""
        self.count += 1
        names = [f"{op_type.lower()}{self.count}" + (f".{index}" if index else "") for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """An initializer, once for equal values."""
        array = np.array(values, dtype)
        name = f"c{array.dtype}{'x'.join(map(str, array.shape))}_{array.tobytes().hex()[:64]}"
        self.constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        """A list of integers."""
        return self.constant(values, np.int64)


Unit = Callable[[Graph, str, int], str]


def _split_concat(g: Graph, x: str, index: int) -> str:
    one, other = g("Split", x, g.ints(3, 5), outputs=2, axis=1)
    return g("Concat", other, one, axis=1)


def _if(g: Graph, x: str, index: int) -> str:
    bodies = [helper.make_graph([helper.make_node(op_type, [x], [f"{name}{index}"])], name, [],
                                [helper.make_tensor_value_info(f"{name}{index}", FLOAT, None)])
              for name, op_type in (("then", "Relu"), ("else", "Neg"))]  # fmt: skip
    return g("If", "flag", then_branch=bodies[0], else_branch=bodies[1])


def _window(g: Graph, x: str, index: int) -> str:
    filtered = g("Relu", g("Conv", x, g.constant(np.full((8, 8, 3), 0.1))))
    return g("Add", filtered, g("Slice", x, g.ints(1), g.ints(-1), g.ints(2)))


def _attend(g: Graph, x: str, index: int) -> str:
    scores = g("MatMul", x, g("Transpose", x, perm=[0, 2, 1]))
    return g("MatMul", g("Softmax", g("Add", scores, g("Mul", scores, g.constant(0.5))), axis=-1), x)


def _norm(g: Graph, x: str, index: int) -> str:
    centred = g("Sub", x, g("ReduceMean", x, axes=[-1]))
    variance = g("ReduceMean", g("Mul", centred, centred), axes=[-1])
    return g("Div", centred, g("Sqrt", g("Add", variance, g.constant(1e-5))))


def _rotate(g: Graph, x: str, index: int) -> str:
    one = g("Slice", x, g.ints(0), g.ints(4), g.ints(2))
    other = g("Slice", x, g.ints(4), g.ints(8), g.ints(2))
    turned = g("Concat", g("Neg", other), one, axis=2)
    return g("Add", g("Mul", x, g.constant(0.8)), g("Mul", turned, g.constant(0.6)))


def _viewed(g: Graph, x: str, index: int) -> str:
    return g("Reshape", x, g("Concat", g("Shape", x, start=0, end=1), g.ints(8, 8), axis=0))


def _of_size(*steps: tuple[str, int | None]) -> Unit:
    """Arithmetic on a size: operators with a number beside it, or (None) with itself."""

    def unit(g: Graph, x: str, index: int) -> str:
        for op_type, number in steps:
            x = g(op_type, x, x if number is None else g.constant(number, np.int64))
        return x

    return unit


def _steps(*steps: tuple[str, Sequence[Any], dict[str, Any]]) -> Unit:
    """Operators with constants beside the value."""

    def unit(g: Graph, x: str, index: int) -> str:
        for op_type, constants, attributes in steps:
            given = [c if isinstance(c, str) else g.constant(c.tolist(), c.dtype) for c in constants]
            x = g(op_type, x, *given, **attributes)
        return x

    return unit


def _f(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_HALF = np.array(0.5, np.float32)
FLOATS: dict[str, Unit] = {  # on a float tensor [N, 8, 8]
    "relu": _steps(("Relu", (), {})),
    "identity": _steps(("Identity", (), {})),
    "reshape": _steps(("Reshape", (_i(-1, 64),), {}), ("Reshape", (_i(-1, 8, 8),), {})),
    "reshape-computed": _viewed,
    "flatten": _steps(("Flatten", (), {}), ("Reshape", (_i(0, 8, 8),), {})),
    "unsqueeze": _steps(("Unsqueeze", (_i(1),), {}), ("Squeeze", (_i(1),), {})),
    "unsqueeze-apart": _steps(("Unsqueeze", (_i(1),), {}), ("Relu", (), {}), ("Squeeze", (_i(1),), {})),
    "transpose": _steps(("Transpose", (), {"perm": [0, 2, 1]})),
    "transpose-relu": _steps(("Transpose", (), {"perm": [0, 2, 1]}), ("Relu", (), {})),
    "reshape-relu": _steps(("Reshape", (_i(-1, 64),), {}), ("Relu", (), {}), ("Reshape", (_i(-1, 8, 8),), {})),
    "cast": _steps(("Cast", (), {"to": TensorProto.DOUBLE}), ("Cast", (), {"to": FLOAT})),
    "cast-like": lambda g, x, index: g("CastLike", g("Relu", x), "x"),
    "add-constant": _steps(("Add", (_HALF,), {})),
    "add-row": _steps(("Add", (_f(*range(8)),), {})),
    "mul-constant": _steps(("Mul", (_HALF,), {})),
    "mul-add": _steps(("Mul", (_HALF,), {}), ("Add", (_HALF,), {})),
    "clip": _steps(("Clip", (np.array(-1, np.float32), np.array(1, np.float32)), {})),
    "clip-relu": _steps(("Relu", (), {}), ("Clip", (np.array(0, np.float32), np.array(6, np.float32)), {})),
    "max-min": _steps(("Max", (_HALF,), {}), ("Min", (_HALF,), {})),
    "pad-slice": _steps(("Pad", (_i(0, 1, 0, 0, 1, 0),), {}), ("Slice", (_i(1), _i(-1), _i(1)), {})),
    "slice": _steps(("Slice", (_i(0), _i(100), _i(1)), {})),
    "slice-back": _steps(("Slice", (_i(-1), _i(-100), _i(1), _i(-1)), {})),
    "gather": _steps(("Gather", (_i(*reversed(range(8))),), {"axis": 1})),
    "expand": _steps(("Expand", (_i(1, 8, 8),), {})),
    "matmul": _steps(("MatMul", (np.eye(8, dtype=np.float32),), {})),
    "matmul-add": _steps(("MatMul", (np.eye(8, dtype=np.float32),), {}), ("Add", (_f(*range(8)),), {})),
    "softmax": _steps(("Softmax", (), {"axis": -1})),
    "where": lambda g, x, index: g("Where", "mask", x, g.constant(-1e9)),
    "split-concat": _split_concat,
    "concat-twice": lambda g, x, index: g("Slice", g("Concat", x, x, axis=1), g.ints(0), g.ints(8), g.ints(1)),
    "diamond": lambda g, x, index: g("Add", x, x),
    "diamond-scaled": lambda g, x, index: g("Add", x, g("Mul", x, g.constant(0.5))),
    "diamond-relu": lambda g, x, index: g("Add", g("Relu", x), g("Neg", x)),
    "attention": _attend,
    "norm": _norm,
    "rotate": _rotate,
    "gelu": lambda g, x, index: g("Mul", x, g("Sigmoid", g("Mul", x, g.constant(1.702)))),
    "if": _if,
    "crops": _window,
}
SIZES: dict[str, Unit] = {  # on a size of the input, an int64 scalar
    "size-square": _of_size(("Mul", None)),
    "size-double": _of_size(("Add", None)),
    "size-shift": _of_size(("Add", 1)),
    "size-divide": _of_size(("Div", 3), ("Add", 7)),
    "size-compare": _of_size(("Div", 3), ("Max", 5), ("Mul", 2), ("Min", 1000)),
    "size-shape": lambda g, x, index: g("Squeeze", g("Shape", g("ConstantOfShape", g("Unsqueeze", x, g.ints(0))))),
}
ENDS: dict[str, Callable[[Graph, str], str]] = {  # what stands behind a chain
    "diamond-scaled": lambda g, x: g("MatMul", g("Softmax", x, axis=-1), "x"),
    "where": lambda g, x: g("MatMul", g("Softmax", x, axis=-1), "x"),
    "add-row": lambda g, x: g("MatMul", g("Softmax", x, axis=-1), "x"),
}


def chain(kind: str, units: int) -> onnx.ModelProto:
    """So many units of a kind, one after another."""
    g = Graph()
    if kind == "integers":
        value = "i"
        for _ in range(units):
            value = g("Add", value, g.constant(1, np.int64))
        outputs = [helper.make_tensor_value_info(value, INT64, None)]
    elif kind in SIZES:
        value = g("Squeeze", g("Shape", "x", start=0, end=1))
        for index in range(units):
            value = SIZES[kind](g, value, index)
        value = g("Add", "x", g("Cast", value, to=FLOAT))
        outputs = [helper.make_tensor_value_info(value, FLOAT, None)]
    else:
        value = "x"
        for index in range(units):
            value = FLOATS[kind](g, value, index)
        value = ENDS[kind](g, value) if kind in ENDS else value
        outputs = [helper.make_tensor_value_info(value, FLOAT, None)]
    dims = ["N", 8, "T" if kind == "crops" else 8]
    inputs = [helper.make_tensor_value_info("x", FLOAT, dims), helper.make_tensor_value_info("flag", BOOL, [])]
    inputs += [helper.make_tensor_value_info("i", INT64, ["N"]), helper.make_tensor_value_info("mask", BOOL, [8, 8])]
    graph = helper.make_graph(g.nodes, f"{kind} {units}", inputs, outputs, list(g.constants.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


KINDS = (*FLOATS, *SIZES, "integers")


def seconds(kind: str, units: int) -> tuple[float, int]:
    """How long optimizing one chain takes without verification, and how many nodes it has."""
    import sardonyx

    model = chain(kind, units)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.onnx"
        source.write_bytes(model.SerializeToString())
        began = time.perf_counter()
        sardonyx.optimize(source, Path(folder) / "out.onnx", verify="off")
        return time.perf_counter() - began, len(model.graph.node)


def exponent(spent: Sequence[float], lengths: Sequence[int]) -> float:
    """The power of the length that the time grew with."""
    return math.log(spent[-1] / spent[0]) / math.log(lengths[-1] / lengths[0])


def main() -> int:
    """Measure, and say which kinds grow faster than their length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--lengths", nargs="+", type=int, default=[500, 2000], help="units in the chain")
    parser.add_argument("--json", help="where to write the figures")
    asked = parser.parse_args()
    seconds("relu", 10)  # imports
    found: dict[str, Any] = {}
    for kind in asked.kinds:
        results = [seconds(kind, units) for units in asked.lengths]
        spent = [each for each, _ in results]
        power = exponent(spent, asked.lengths)
        found[kind] = {"nodes": [nodes for _, nodes in results], "seconds": spent, "exponent": power}
        times = "  ".join(f"{nodes:6} nodes {each:7.2f} s" for each, nodes in results)
        print(f"{kind:18} {times}  exponent {power:5.2f}{'  superlinear' if power > LIMIT else ''}", flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps({"lengths": asked.lengths, "kinds": found}, indent=1) + "\n")
    slow = [kind for kind, each in found.items() if each["exponent"] > LIMIT]
    print(f"superlinear: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
