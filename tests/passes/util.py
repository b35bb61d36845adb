"""Helpers for tests of passes: models from text, runs of chosen passes, and a strict comparison.

Models run in ONNX Runtime with its own optimizations off. Exact passes are compared bit for bit, signs of zeros too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.parser
import onnx_ir as ir

from sardonyx.ir import origins
from sardonyx.ir.facts import Evaluate, Facts
from sardonyx.ir.rewriter import Log, Rewriter
from sardonyx.ir.rules import Rule
from sardonyx.runtime import ReferenceSession, Session

Feeds = Mapping[str, np.ndarray]
DIMS = ({"*": 2}, {"*": 5}, {"*": 1})  # sizes for symbolic dims; "*" is the size of all others
UNEVEN_SIZES = (
    {"B": 3, "S": 5, "N": 2},
    {"B": 1, "S": 4, "N": 3},
    {"B": 2, "S": 1, "N": 4},
    {"B": 4, "S": 3, "N": 1},
)  # different for every symbolic dim
UNDONE = ("would have another shape", "replaces a value by itself", "not in any graph", "ONNX Runtime has no")
HEAD = '<ir_version: 10, opset_import: ["" : %d]>\n'


def graph_text(body: str, opset: int = 18) -> str:
    """The text of a model with this graph: `agraph (float[N, 4] x) => (float[N, 4] y) { … }`."""
    return HEAD % opset + body


def parse(model: str | onnx.ModelProto) -> onnx.ModelProto:
    """A checked ModelProto from ONNX text, or the given proto."""
    proto = onnx.parser.parse_model(model) if isinstance(model, str) else model
    onnx.checker.check_model(proto)
    return proto


def run_passes(
    model: str | onnx.ModelProto,
    passes: Sequence[Rule],
    *,
    target: str = "portable",
    evaluate: Evaluate | None = None,
    may_undo: bool = False,
) -> tuple[ir.Model, Log]:
    """Run `passes` to their joint fixed point; the result must satisfy the checker and keep the interface.

    They propose nothing that the driver undoes, unless it may.
    """
    before = parse(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(before)
    result = ir.from_proto(copy)
    result.graph.sort()
    origins.attach(result)
    log = Rewriter(Facts(result, target=target, evaluate=evaluate), passes).run()
    assert may_undo or not undone(log)
    after = ir.to_proto(result)
    onnx.checker.check_model(after, full_check=True)
    assert _interface(after) == _interface(before)
    return result, log


def op_types(model: ir.Model) -> list[str]:
    """The operators of the main graph in order, without Constant nodes."""
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


def constant_of(value: ir.Value | None) -> np.ndarray:
    """The elements of a constant."""
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def undone(log: Log) -> list[str]:
    """What the driver says of rewrites that a pass should not propose."""
    return [reason for reason in reasons(log) if any(text in reason for text in UNDONE)]


def reasons(log: Log) -> list[str]:
    """The reasons of all refusals."""
    return [refusal.reason for refusal in log.refusals]


def assert_same(
    before: str | onnx.ModelProto,
    after: ir.Model,
    *,
    exact: bool = True,
    rtol: float = 1e-5,
    feeds: Feeds | None = None,
) -> None:
    """Both models compute the same on given inputs, or on random inputs with several sizes for every symbolic dim."""
    first, second = parse(before), ir.to_proto(after)
    for seed, dims in enumerate(DIMS):
        inputs = feeds if feeds is not None else draw(first, seed, dims)
        for output, wanted, got in zip(
            first.graph.output, outputs(first, inputs), outputs(second, inputs), strict=True
        ):
            compare(output.name, wanted, got, exact=exact, rtol=rtol)
        if feeds is not None:
            return


def assert_same_on_uneven_sizes(text: str, model: ir.Model, *, exact: bool = True, rtol: float = 1e-5) -> None:
    """Both models compute the same in the runtime for sizes B, S and N that differ from each other."""
    for seed, dims in enumerate(UNEVEN_SIZES):
        feeds = draw(parse(text), seed, dims)
        Session(ir.to_proto(model), threads=1).run(
            feeds
        )  # assert_same may fall back to the evaluator, which broadcasts more
        assert_same(text, model, exact=exact, rtol=rtol, feeds=feeds)


def compare(name: str, wanted: np.ndarray, got: np.ndarray, *, exact: bool, rtol: float = 1e-5) -> None:
    """Compare type, shape and values, bit for bit if `exact`."""
    assert (wanted.dtype, wanted.shape) == (got.dtype, got.shape), f"{name}: {got.dtype}{got.shape}"
    if exact:
        assert wanted.tobytes() == got.tobytes(), f"{name}: {wanted} became {got}"
    else:
        scale = float(np.max(np.abs(wanted.astype(np.float64)), initial=1.0))
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * scale, err_msg=name)


def outputs(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """The outputs of a model. The reference evaluator runs types and operators without a kernel in the runtime."""
    from sardonyx.errors import RuntimeFailure

    try:
        return [np.asarray(value) for value in Session(model, threads=1).run(feeds)]
    except RuntimeFailure:
        return [np.asarray(value) for value in ReferenceSession(model).run(feeds)]


def draw(model: onnx.ModelProto, seed: int, dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random signed values for every input without a default. Floats include zeros of both signs."""
    rng = np.random.default_rng(seed)
    defaults = {initializer.name for initializer in model.graph.initializer}
    return {
        value.name: _values(rng, value.type.tensor_type, dims)
        for value in model.graph.input
        if value.name not in defaults
    }


def _values(rng: np.random.Generator, tensor: onnx.TypeProto.Tensor, dims: Mapping[str, int]) -> np.ndarray:
    shape = [
        d.dim_value if d.HasField("dim_value") else dims.get(d.dim_param, dims.get("*", 3)) for d in tensor.shape.dim
    ]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)  # the runtime requires an array for a scalar
    if dtype.kind in "iu":
        low = -7 if dtype.kind == "i" else 0
        return rng.integers(low, 8, shape).astype(dtype)
    values = rng.standard_normal(shape)
    values = np.where(rng.random(shape) < 0.1, np.copysign(0.0, values), values)
    return np.asarray(values).astype(dtype)


def _interface(model: onnx.ModelProto) -> list[Any]:
    """Names, order, types and declared dims of inputs and outputs."""
    return [value.SerializeToString() for value in (*model.graph.input, *model.graph.output)]
