"""Definitions at their edges: empty, unsigned, negative, out of range. They agree with the runtime, or refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx.parser
import pytest

from exact.evaluation import numbers, same, value
from sardonyx.ir.exact import Undecided
from sardonyx.ir.exact.call import Invalid
from sardonyx.ir.exact.evaluate import Evaluator
from sardonyx.runtime import Session

HUGE = np.array([2**63 + 7, 2**64 - 1, 5], np.uint64)
REALS = np.array([[-2.5, 0.0, 3.0, 0.5], [7.0, -0.5, -1.0, 2.0]], np.float32)
INTS = np.array([[-7, 5, 3, -4], [9, -1, 8, 2]], np.int64)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4) / 8
EDGES = {
    "division of large unsigned integers": ("uint64[3] x", "uint64 k = {3}", "Div(x, k)", HUGE),
    "division towards zero": ("int64[2, 4] x", "int64 k = {2}", "Div(x, k)", INTS),
    "division by a negative number": ("int64[2, 4] x", "int64 k = {-3}", "Div(x, k)", INTS),
    "the rest has the sign of the divisor": ("int64[2, 4] x", "int64 k = {-3}", "Mod(x, k)", INTS),
    "the rest has the sign of the dividend": ("int64[2, 4] x", "int64 k = {-3}", "Mod <fmod = 1> (x, k)", INTS),
    "the rest of numbers": ("float[2, 4] x", "float k = {-2}", "Mod <fmod = 1> (x, k)", REALS),
    "large unsigned integers as numbers": ("uint64[3] x", "", "Cast <to = 1> (x)", HUGE),
    "the least integer": ("int64[2, 4] x", "int64[1] a = {1}", "ReduceMin <keepdims = 0> (x, a)", INTS),
    "the largest integer": ("int64[2, 4] x", "int64[1] a = {0}", "ReduceMax(x, a)", INTS),
    "the least number": ("float[2, 4] x", "int64[1] a = {1}", "ReduceMin <keepdims = 0> (x, a)", REALS),
    "the largest number": ("float[2, 4] x", "int64[1] a = {0}", "ReduceMax(x, a)", REALS),
    "limits": ("float[2, 4] x", "float low = {-1}, float high = {2}", "Clip(x, low, high)", REALS),
    "a limit from above": ("float[2, 4] x", "float high = {0.5}", "Clip(x, , high)", REALS),
    "softmax of nothing": ("float[0, 4] x", "", "Softmax(x)", REALS[:0]),
    "the largest place": ("float[2, 4] x", "", "Hardmax(x)", REALS),
    "a function that is one at zero": ("float[2, 4] x", "", "Cos(x)", REALS),
    "a slice backwards to the front": (
        "float[2, 4] x", "int64[1] b = {-1}, int64[1] e = {-9}, int64[1] a = {1}", "Slice(x, b, e, a, b)", REALS,
    ),
    "a slice that ends at zero": (
        "float[2, 4] x", "int64[1] b = {3}, int64[1] e = {0}, int64[1] a = {1}, int64[1] s = {-1}",
        "Slice(x, b, e, a, s)", REALS,
    ),
    "a slice beyond both ends": (
        "float[2, 4] x", "int64[1] b = {-9}, int64[1] e = {9}, int64[1] a = {1}", "Slice(x, b, e, a)", REALS,
    ),
    "numbers without axes to reduce": ("float[2, 4] x", "", "ReduceMax <noop_with_empty_axes = 1> (x)", REALS),
    "a sum of products over two names": (
        "float[2, 4] x", "float[4, 2] k = {1, 2, 3, 4, 5, 6, 7, 8}", 'Einsum <equation = "ij,jk->i"> (x, k)', REALS,
    ),
    "a transposition by names": ("float[2, 4] x", "", 'Einsum <equation = "ij->ji"> (x)', REALS),
    "names of some axes": (
        "float[1, 1, 4, 4] x", "float[4, 2] k = {1, 2, 3, 4, 5, 6, 7, 8}",
        'Einsum <equation = "...ij,jk->...ik"> (x, k)', IMAGE,
    ),
    "names of some axes, without those of the result": (
        "float[1, 1, 4, 4] x", "float[4, 2] k = {1, 2, 3, 4, 5, 6, 7, 8}",
        'Einsum <equation = "...ij,jk"> (x, k)', IMAGE,
    ),
    "a sum over axes without names": ("float[1, 1, 4, 4] x", "", 'Einsum <equation = "...ij->ij..."> (x)', IMAGE),
    "a diagonal": ("float[1, 1, 4, 4] x", "", 'Einsum <equation = "abii->abi"> (x)', IMAGE),
    "a trace": ("float[1, 1, 4, 4] x", "", 'Einsum <equation = "abii->ab"> (x)', IMAGE),
    "three operands": ("float[2, 4] x", "", 'Einsum <equation = "ij,kj,kl->il"> (x, x, x)', REALS),
    "a sum of squares of integers": ("int64[2, 4] x", "int64[1] a = {1}", "ReduceSumSquare(x, a)", INTS),
    "a sum of integers": ("int64[2, 4] x", "int64[1] a = {1}", "ReduceSum <keepdims = 0> (x, a)", INTS),
    "a sum of all integers": ("int64[2, 4] x", "", "ReduceSum(x)", INTS),
    "no sum": ("int64[2, 4] x", "", "ReduceSum <noop_with_empty_axes = 1> (x)", INTS),
    "sums without names of the result": ("float[2, 4] x", "", 'Einsum <equation = "ij,kj"> (x, x)', REALS),
    "spread to the same size": (
        "float[1, 1, 4, 4] x", "float[1, 1, 1, 1] w = {2}", 'ConvTranspose <auto_pad = "SAME_UPPER"> (x, w)', IMAGE,
    ),
    "spread with more before": (
        "float[1, 1, 4, 4] x", "float[1, 1, 2, 2] w = {2, 3, 4, 5}", 'ConvTranspose <auto_pad = "SAME_LOWER"> (x, w)',
        IMAGE,
    ),
    "spread with more behind": (
        "float[1, 1, 4, 4] x", "float[1, 1, 2, 2] w = {2, 3, 4, 5}", 'ConvTranspose <auto_pad = "SAME_UPPER"> (x, w)',
        IMAGE,
    ),
    "an image of the same size": (
        "float[1, 1, 4, 4] x", "float[4] s = {1, 1, 1, 2}",
        'Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , s)', IMAGE,
    ),
    "counted steps": (
        "float[2, 4] x", "int64 n = {3}",
        "y = Loop (n, , x) <body = three (int64 i, bool c, float[2, 4] v) => (bool d, float[2, 4] w) "
        "{ d = Identity(c)  w = Add(v, v) }>", REALS,
    ),
    "no steps": (
        "float[2, 4] x", "int64 n = {3}, bool no = {0}",
        "y = Loop (n, no, x) <body = none (int64 i, bool c, float[2, 4] v) => (bool d, float[2, 4] w) "
        "{ d = Identity(c)  w = Add(v, v) }>", REALS,
    ),
    "numbers as truth values": ("float[2, 4] x", "", "Cast <to = 9> (x)", REALS),
    "the largest numbers": ("float[2, 4] x", "int64[1] k = {2}", "y, z = TopK(x, k)", REALS),
    "where the least are": ("float[2, 4] x", "int64[1] k = {3}", "z, y = TopK <largest = 0> (x, k)", REALS),
    "elements of some rows": ("float[2, 4] x", "int64[1, 2] k = {3, -4}", "GatherElements <axis = 1> (x, k)", REALS),
    "one branch of two": (
        "float[2, 4] x", "bool c = {0}",
        "y = If (c) <then_branch = one () => (float[2, 4] v) { v = Neg(x) }, "
        "else_branch = other () => (float[2, 4] w) { w = Abs(x) }>", REALS,
    ),
    "all but the last item": (
        "float[2, 4] x", "",
        "s = SequenceConstruct(x, x, x)  e = SequenceErase(s)  y = ConcatFromSequence <axis = 0> (e)", REALS,
    ),
    "all but one item": (
        "float[2, 4] x", "int64 n = {0}", "a = Neg(x)  s = SequenceConstruct(a, x)  e = SequenceErase(s, n)  "
        "y = ConcatFromSequence <axis = 0, new_axis = 1> (e)", REALS,
    ),
}  # fmt: skip


NUMBERS = "float[2, 4] x"
WHOLE = "int64[2, 4] x"
LAYER = "float[1, 8, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}"
LAYERS = f"{LAYER}, float[1, 8, 2] r = {{1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2}}"
CURRENT = "float[3, 2, 2] x"
BODIES = {
    "ever": "body = g (int64 i, bool c) => (bool d, int64 v) { d = Identity(c)  v = Identity(i) }",
    "pass": "body = g (float[4] row) => (float[4] out) { out = Identity(row) }",
}
# What is neither defined here nor valid: with the error, and an operator set if it matters.
REFUSED = {
    "the norm of integers": (WHOLE, "", "ReduceL1(x)", Undecided),
    "the mean of integers": (WHOLE, "", "ReduceMean(x)", Undecided),
    "integers as strings": (WHOLE, "", "Cast <to = 8> (x)", Undecided),
    "numbers as strings": (NUMBERS, "", "Cast <to = 8> (x)", Undecided),
    "numbers of eight bits": (WHOLE, "", "Cast <to = 17> (x)", Undecided),
    "strings as numbers": (NUMBERS, "string[1] k = {\"1\"}", "Cast <to = 1> (k)", Undecided),
    "a sine of integers": (WHOLE, "", "Sin(x)", Undecided),
    "a power beyond its type": (WHOLE, "int64 k = {99}", "Pow(x, k)", Undecided),
    "a sum of different types": (NUMBERS, "int64 k = {1}", "Add(x, k)", Invalid),
    "a sum of different sizes": (NUMBERS, "float[3] k = {1, 2, 3}", "Add(x, k)", Invalid),
    "an axis too far": (NUMBERS, "", "ArgMax <axis = 2> (x)", Invalid),
    "an axis too far from the end": (NUMBERS, "", "ArgMax <axis = -3> (x)", Invalid),
    "largest in no order": (NUMBERS, "int64[1] k = {2}", "y, z = TopK <sorted = 0> (x, k)", Undecided),
    "dropped elements": (NUMBERS, "float f = {0.5}, bool t = {1}", "Dropout(x, f, t)", Undecided),
    "a sparse constant": (NUMBERS, "", "Constant <value_nothing = 1> ()", Undecided),
    "a view without a target": (NUMBERS, "", "Reshape(x)", Invalid),
    "a view of another size": (NUMBERS, "int64[1] k = {7}", "Reshape(x, k)", Invalid),
    "a view of a negative size": (NUMBERS, "int64[2] k = {-2, -4}", "Reshape(x, k)", Invalid),
    "a computed size beside zero": ("float[0, 4] x", "int64[2] k = {0, -1}", "Reshape(x, k)", Invalid),
    "a long axis that is removed": (NUMBERS, "int64[1] k = {1}", "Squeeze(x, k)", Invalid),
    "an axis inserted twice": (NUMBERS, "int64[2] k = {0, -4}", "Unsqueeze(x, k)", Invalid),
    "parts that do not add up": (NUMBERS, "int64[2] k = {1, 2}", "y, z = Split <axis = 1> (x, k)", Invalid),
    "a slice without ends": (NUMBERS, "int64[1] k = {0}", "Slice(x, k)", Invalid),
    "a slice without steps": (NUMBERS, "int64[1] k = {0}", "Slice(x, k, k, k, k)", Invalid),
    "an expansion to another size": (NUMBERS, "int64[1] k = {3}", "Expand(x, k)", Invalid),
    "an index behind the end": (NUMBERS, "int64 k = {2}", "Gather(x, k)", Invalid),
    "an index before the start": (NUMBERS, "int64 k = {-3}", "Gather(x, k)", Invalid),
    "an unknown reduction": (NUMBERS, "int64[1, 1] k = {0}, float[1, 1] v = {1}",
        'ScatterElements <reduction = "mean"> (x, k, v)', Undecided),
    "updates of another type": (NUMBERS, "int64[1, 1] k = {0}, int64[1, 1] v = {1}", "ScatterElements(x, k, v)",
        Invalid),
    "a border of no width": (NUMBERS, "", "Pad(x)", Invalid),
    "depth in another order": ("float[1, 2, 4, 4] x", "", 'SpaceToDepth <blocksize = 2, mode = "CRD"> (x)', Undecided),
    "an item behind the end": (NUMBERS, "int64 k = {1}", "s = SequenceConstruct(x)  y = SequenceAt(s, k)", Invalid),
    "an item before the start": (NUMBERS, "int64 k = {-2}", "s = SequenceConstruct(x)  y = SequenceAt(s, k)", Invalid),
    "no items": (NUMBERS, "", "s = SequenceEmpty()  y = ConcatFromSequence <axis = 0> (s)", Invalid),
    "items of other sizes": (NUMBERS, "float[3] k = {1, 2, 3}", "Concat <axis = 0> (x, k)", Invalid),
    "a product of other sizes": (NUMBERS, "", "MatMul(x, x)", Invalid),
    "a product of integers of other sizes": (WHOLE, "", "MatMul(x, x)", Invalid),
    "a sum of products that repeats": (NUMBERS, "float[1, 4] k = {1, 2, 3, 4}", 'Einsum <equation = "ij,ij->j"> (x, k)',
        Undecided),
    "channels that do not fit": ("float[1, 2, 4, 4] x", "float[1, 1, 1, 1] w = {2}", "Conv(x, w)", Invalid),
    "a window larger than the image": ("float[1, 2, 4, 4] x", "", "MaxPool <kernel_shape = [5, 5]> (x)", Invalid),
    "the places of a maximum": ("float[1, 2, 4, 4] x", "", "y, z = MaxPool <kernel_shape = [2, 2]> (x)", Undecided),
    "spread to a larger image": ("float[1, 2, 4, 4] x", "float[2, 1, 1, 1] w = {2, 3}",
        "ConvTranspose <output_shape = [6, 6]> (x, w)", Undecided),
    "statistics of a batch": ("float[1, 2, 4, 4] x", "float[2] k = {2, 3}",
        "BatchNormalization <training_mode = 1> (x, k, k, k, k)", Undecided),
    "statistics as results": ("float[1, 2, 4, 4] x", "float[2] k = {2, 3}",
        "y, m, v = BatchNormalization(x, k, k, k, k)", Undecided),
    "steps of numbers": (NUMBERS, "float s = {2}", "DequantizeLinear(x, s)", Undecided),
    "steps of blocks": ("int8[2, 4] x", "float[2, 2] s = {2, 3, 4, 5}", "DequantizeLinear <block_size = 2> (x, s)",
        Undecided),
    "steps to numbers": (NUMBERS, "float s = {2}, float z = {0}", "QuantizeLinear(x, s, z)", Undecided),
    "steps in blocks": (NUMBERS, "float[2, 2] s = {2, 3, 4, 5}", "QuantizeLinear <block_size = 2> (x, s)", Undecided),
    "a layer of batches first": (CURRENT, LAYERS, "y, h = LSTM <hidden_size = 2, layout = 1> (x, w, r)", Undecided),
    "a layer with a limit": (CURRENT, LAYERS, "y, h = LSTM <hidden_size = 2, clip = 0.5> (x, w, r)", Undecided),
    "a layer with lengths": (CURRENT, f"{LAYERS}, int32[2] n = {{1, 2}}",
        "y, h = LSTM <hidden_size = 2> (x, w, r, , n)", Undecided),
    "a layer with activations": (CURRENT, LAYERS,
        'y, h = LSTM <hidden_size = 2, activations = ["Relu", "Relu", "Relu"]> (x, w, r)', Undecided),
    "coupled gates": (CURRENT, LAYERS, "y, h = LSTM <hidden_size = 2, input_forget = 1> (x, w, r)", Undecided),
    "a layer of no steps": ("float[0, 2, 2] x", LAYERS, "y, h = LSTM <hidden_size = 2> (x, w, r)", Undecided),
    "an image by weights": ("float[1, 2, 4, 4] x", "float[4] s = {1, 1, 2, 2}", 'Resize <mode = "linear"> (x, , s)',
        Undecided),
    "an image of half the size": ("float[1, 2, 4, 4] x", "float[4] s = {1, 1, 0.5, 0.5}", "Resize(x, , s)", Undecided),
    "an image of some axes": ("float[1, 2, 4, 4] x", "float[2] s = {2, 2}", "Resize <axes = [2, 3]> (x, , s)",
        Undecided),
    "an image by corners": ("float[1, 2, 4, 4] x", "float[4] s = {1, 1, 2, 2}",
        'Resize <coordinate_transformation_mode = "align_corners"> (x, , s)', Undecided),
    "an image by the next pixel": ("float[1, 2, 4, 4] x", "float[4] s = {1, 1, 2, 2}",
        'Resize <nearest_mode = "ceil"> (x, , s)', Undecided),
    "an image of the same shape": ("float[1, 2, 4, 4] x", "int64[4] s = {1, 2, 8, 8}",
        'Resize <keep_aspect_ratio_policy = "not_larger"> (x, , , s)', Undecided),
    "transposed batches": ("float[2, 2, 2] x", "", "com.microsoft.FusedMatMul <transBatchA = 1> (x, x)", Undecided),
    "transposed batches on the right": ("float[2, 2, 2] x", "", "com.microsoft.FusedMatMul <transBatchB = 1> (x, x)",
        Undecided),
    "attention in an order": ("float[1, 3, 2] x", "float[2, 6] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}",
        "com.microsoft.Attention <num_heads = 1, unidirectional = 1> (x, w)", Undecided),
    "attention with a rotation": ("float[1, 3, 2] x", "float[2, 6] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}",
        "com.microsoft.Attention <num_heads = 1, do_rotary = 1> (x, w)", Undecided),
    "attention with lengths": ("float[1, 3, 2] x",
        "float[2, 6] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, int32[1] n = {2}",
        "com.microsoft.Attention <num_heads = 1> (x, w, , n)", Undecided),
    "an endless loop": (NUMBERS, "bool c = {1}", f"y = Loop ( , c) <{BODIES['ever']}>", Undecided),
    "a loop without steps": (NUMBERS, "int64 n = {0}", f"y = Loop (n, ) <{BODIES['ever']}>", Undecided),
    "a scan of nothing": ("float[0, 4] x", "", f"y = Scan <num_scan_inputs = 1, {BODIES['pass']}> (x)", Undecided),
    "a scan of batches": (NUMBERS, "", f"y = Scan <num_scan_inputs = 1, {BODIES['pass']}> (x)", Undecided, 8),
    "a scan to another axis": (NUMBERS, "",
        f"y = Scan <num_scan_inputs = 1, scan_output_axes = [1], {BODIES['pass']}> (x)", Undecided),
    "boxes": (NUMBERS, "", "NonMaxSuppression(x, x)", Undecided),
    "an operator of another domain": (NUMBERS, "", "org.else.Add(x, x)", Undecided),
    "an unknown operator": (NUMBERS, "", "Nothing(x)", Undecided),
}  # fmt: skip


def model(port: str, constants: str, body: str, opset: int = 18) -> onnx.ModelProto:
    """One call, or nodes of which one returns y."""
    given = f"<{constants}>" if constants else ""
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "org.else" : 1]>'
    nodes = body if body.startswith(("y", "z,")) or "  y = " in body else f"y = {body}"
    proto = onnx.parser.parse_model(f"{head} agraph ({port}) => (float[A] y) {given} {{ {nodes} }}")
    proto.graph.output[0].ClearField("type")
    return proto


def exact(proto: onnx.ModelProto, array: np.ndarray) -> Any:
    """The result in exact arithmetic."""
    return Evaluator(proto, numbers()).run({"x": value(array)})[0]


@pytest.mark.parametrize("edge", EDGES)
def test_edges_agree_with_the_runtime(edge: str) -> None:
    port, constants, call, array = EDGES[edge]
    proto = model(port, constants, call)
    (expected,) = Session(proto, threads=1).run({"x": array})
    assert same(expected, exact(proto, array)), (expected, exact(proto, array))


@pytest.mark.parametrize("call", ["Div(k, x)", "Mod(k, x)"])
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_integers_are_not_divided_by_zero(call: str, kind: str) -> None:
    proto = model(f"{kind}[2] x", f"{kind} k = {{3}}", call)
    with pytest.raises(Invalid):
        exact(proto, np.array([1, 0], kind))


def test_the_largest_of_nothing_is_undecided() -> None:
    proto = model("float[0, 4] x", "int64[1] a = {0}", "ReduceMax(x, a)")
    with pytest.raises(Undecided):
        exact(proto, REALS[:0])


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_definition_is_refused(what: str) -> None:
    port, constants, body, error, *opset = REFUSED[what]
    kind, _, sizes = port.partition("[")
    shape = [int(size) for size in sizes.partition("]")[0].split(",")]
    array = np.full(shape, 2, {"float": "float32"}.get(kind, kind))
    with pytest.raises(error):
        exact(model(port, constants, body, *opset), array)


def test_a_value_that_is_too_large_is_undecided_unless_it_is_named() -> None:
    proto = model("float[2, 4] x", "", "a = Exp(x)  y = Neg(a)")
    for most, unlimited, fails in ((8, (), False), (7, (), True), (7, ("a", "y"), False), (7, ("a",), True)):
        evaluator = Evaluator(proto, numbers(), most=most, unlimited=frozenset(unlimited))
        with pytest.raises(Undecided) if fails else contextlib.nullcontext():
            evaluator.run({"x": value(REALS)})


def test_a_function_of_the_model_is_evaluated() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "own" : 1]> agraph (float[2, 4] x) => (float[2, 4] y) '
        '{ y = own.Add <by = 3.0> (x) } <domain: "own", opset_import: ["" : 18]> Add <by> (a) => (b) '
        "{ c = Constant <value_float: float = @by> ()  b = Mul(a, c) }"
    )
    assert same(3 * REALS, exact(proto, REALS))
