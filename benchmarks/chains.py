"""Models made of equal units in a row: one unit more is that share more of the very same work, by construction.

    python benchmarks/chains.py KIND UNITS FILE

What a planted slowdown truly costs must not itself be measured: a chain of 103 units does 3 % more than one of 100, of
the same kernels at the same sizes, and the runtime has no way round it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

UNITS = 100  # small ones: weights that just fill a cache would show where they happen to lie, not what they cost
Weights = Callable[..., str]  # a new initializer of these sizes, drawn so that values neither fade nor grow; its name


def _dense(at: str, to: str, weights: Weights) -> list[NodeProto]:
    return [
        helper.make_node("MatMul", [at, weights(128, 128, gain=2 / 128)], [f"{to}.m"]),
        helper.make_node("Relu", [f"{to}.m"], [to]),
    ]


def _convolution(at: str, to: str, weights: Weights) -> list[NodeProto]:
    kernel = weights(16, 16, 3, 3, gain=2 / 144)
    return [
        helper.make_node("Conv", [at, kernel], [f"{to}.c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", [f"{to}.c"], [to]),
    ]


def _attention(at: str, to: str, weights: Weights) -> list[NodeProto]:
    def dense(value: str, name: str) -> NodeProto:
        return helper.make_node("MatMul", [value, weights(64, 64, gain=1 / 64)], [f"{to}.{name}"])

    return [
        *(dense(at, name) for name in "qkv"),
        helper.make_node("Transpose", [f"{to}.k"], [f"{to}.t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", [f"{to}.q", f"{to}.t"], [f"{to}.s"]),
        helper.make_node("Softmax", [f"{to}.s"], [f"{to}.p"], axis=-1),
        helper.make_node("MatMul", [f"{to}.p", f"{to}.v"], [f"{to}.a"]),
        dense(f"{to}.a", "o"),
        helper.make_node("Add", [at, f"{to}.o"], [f"{to}.r"]),
        helper.make_node("LayerNormalization", [f"{to}.r", weights(64, gain=0.0, about=1.0)], [to], axis=-1),
    ]


KINDS: dict[str, tuple[Callable[[str, str, Weights], list[NodeProto]], tuple[int, ...]]] = {
    "dense": (_dense, (128, 128)),
    "convolution": (_convolution, (1, 16, 32, 32)),
    "attention": (_attention, (1, 64, 64)),
}


def chain(kind: str, units: int) -> onnx.ModelProto:
    """So many units of a kind, each with weights of its own."""
    unit, shape = KINDS[kind]
    draw = np.random.default_rng(0)
    made: list[TensorProto] = []

    def weights(*sizes: int, gain: float, about: float = 0.0) -> str:
        values = (about + np.sqrt(gain) * draw.standard_normal(sizes)).astype(np.float32)
        made.append(numpy_helper.from_array(values, f"w{len(made)}"))
        return made[-1].name

    nodes = [node for at in range(units) for node in unit(f"x{at}", f"x{at + 1}", weights)]
    graph = helper.make_graph(
        nodes,
        f"{kind} {units}",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"x{units}", TensorProto.FLOAT, shape)],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(arguments: Sequence[str]) -> None:
    """Write one chain."""
    kind, units, path = arguments
    onnx.save(chain(kind, int(units)), Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
