"""The models the mutants are made of: small real networks, and graphs written by hand for what those lack."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

import mutations

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # the small models are the tests' own

Feeds = dict[str, np.ndarray]

EXPORTED = (
    ("bert", "torchscript"),
    ("bert", "dynamo"),
    ("gpt2", "torchscript"),
    ("llama", "dynamo"),
    ("cnn", "torchscript"),
    ("cnn", "dynamo"),
    ("mobilenet", "torchscript"),
    ("swin", "dynamo"),
)

_BRANCHES = """
<ir_version: 9, opset_import: ["" : 18]>
branches (float[batch, 6] x, bool flip, float[6] gain, int64 steps) => (float[batch, 6] grown, float[batch, 6] mixed)
{
    shifted = Sub (x, gain)
    squashed = Tanh (shifted)
    grown = If (flip) <
        then_branch = then () => (float[batch, 6] a) { a = Mul (squashed, gain) },
        else_branch = other () => (float[batch, 6] b) { c = Add (squashed, x) b = Relu (c) }
    >
    keep_on = Constant <value = bool {1}> ()
    mixed = Loop (steps, keep_on, x) <
        body = turn (int64 i, bool go, float[batch, 6] state) => (bool more, float[batch, 6] next) {
            more = Identity (go)
            moved = Sub (state, squashed)
            soft = Softmax <axis = -1> (moved)
            next = Add (soft, shifted)
        }
    >
}
"""
_PAIR = """
<ir_version: 9, opset_import: ["" : 18]>
pair (float[batch, len, 8] x, float[batch, len] mask) => (float[batch, len, 8] left, float[batch, len, 8] right)
{
    qk = MatMul (x, wq)
    q = Add (qk, bq)
    k = MatMul (x, wk)
    kt = Transpose <perm = [0, 2, 1]> (k)
    raw = MatMul (q, kt)
    scale = Constant <value = float {0.3}> ()
    scores = Mul (raw, scale)
    one = Constant <value = float {1}> ()
    off = Sub (one, mask)
    large = Constant <value = float {-10000.0}> ()
    hidden = Mul (off, large)
    axis = Constant <value = int64[1] {1}> ()
    wide = Unsqueeze (hidden, axis)
    masked = Add (scores, wide)
    weights = Softmax <axis = -1> (masked)
    context = MatMul (weights, x)
    left = LayerNormalization <axis = -1, epsilon = 1e-5> (context, gamma, beta)
    summed = Add (left, x)
    gate = Sigmoid (summed)
    right = Div (summed, gate)
}
"""
_PICTURE = """
<ir_version: 9, opset_import: ["" : 17]>
picture (float[n, 3, height, width] x) => (float[n, 6] scores, float[n, 6] odds)
{
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
    norm = BatchNormalization <epsilon = 1e-5> (c, gamma, beta, mean, var)
    r = LeakyRelu <alpha = 0.1> (norm)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    d = Conv <kernel_shape = [1, 1]> (p, w2)
    both = Add (d, p)
    pooled = GlobalAveragePool (both)
    flat = Flatten (pooled)
    scores = Gemm <transB = 1> (flat, head, head_bias)
    odds = Softmax <axis = -1> (scores)
}
"""
_HALF = """
<ir_version: 9, opset_import: ["" : 17]>
half (float16[rows, 16] x) => (float16[rows, 16] y)
{
    up = MatMul (x, w1)
    biased = Add (up, b1)
    act = Tanh (biased)
    down = MatMul (act, w2)
    sum = Add (down, x)
    y = LayerNormalization <axis = -1, epsilon = 1e-5> (sum, gamma, beta)
}
"""


def handmade() -> dict[str, onnx.ModelProto]:
    """Graphs with bodies, two like outputs, dynamic pictures, half precision."""
    rng = np.random.default_rng(7)

    def weights(dtype: type = np.float32, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
        drawn = {name: rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}
        return {name: (np.abs(v) + 0.5 if name in ("var", "gamma") else v).astype(dtype) for name, v in drawn.items()}

    pair = weights(wq=(8, 8), wk=(8, 8), bq=(8,), gamma=(8,), beta=(8,))
    picture = weights(w=(6, 3, 3, 3), b=(6,), gamma=(6,), beta=(6,), mean=(6,), var=(6,), w2=(6, 6, 1, 1), head=(6, 6))
    half = weights(np.float16, w1=(16, 16), b1=(16,), w2=(16, 16), gamma=(16,), beta=(16,))
    return {
        "branches": _model(_BRANCHES, {}),
        "pair": _model(_PAIR, pair),
        "picture": _model(_PICTURE, picture | weights(head_bias=(6,))),
        "half": _model(_HALF, half),
    }


def exported(folder: Path) -> dict[str, onnx.ModelProto]:
    """The small real networks, exported anew."""
    import models

    found: dict[str, onnx.ModelProto] = {}
    for name, exporter in EXPORTED:
        path = folder / f"{name}.{exporter}.onnx"
        models.export(name, exporter, path)
        found[f"{name}.{exporter}"] = enlivened(onnx.load(path))
    return found


def enlivened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with weights of trained size, under which every layer reaches the output.

    A fresh initialization of a narrow network lets its signal die out: attention scores near zero, activations below
    the biases. There a fault changes nothing that single precision could show, in any verifier.
    """
    for _, node in mutations.nodes(model, "MatMul", "Gemm", "Conv", "ConvTranspose"):
        tensor = mutations.operand_constant(model, node.input[1])
        if tensor is None or len(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        inputs = values[0].size if node.op_type == "Conv" else values.size // max(values.shape)
        gain = 1.5 / (np.sqrt(inputs) * (values.std() or 1.0))
        tensor.CopyFrom(numpy_helper.from_array((values * gain).astype(values.dtype), tensor.name))
    return model


def _model(text: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model


def feeds(model: onnx.ModelProto, rng: np.random.Generator) -> Feeds:
    """Inputs drawn by what these models are known to need, without the verifier's own drawing."""
    sizes = {"batch": 3, "n": 2, "height": 12, "width": 10}
    found: Feeds = {}
    for value in model.graph.input:
        kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
        shape = tuple(sizes.get(d.dim_param, 9) if d.dim_param else d.dim_value for d in dims)
        if "mask" in value.name:
            drawn = rng.random(shape) < 0.7
            drawn[..., 0] = True
        elif kind == onnx.TensorProto.BOOL:
            drawn = np.asarray(rng.random(shape) < 0.5)
        elif kind == onnx.TensorProto.INT64:
            drawn = rng.integers(0, 2 if "type" in value.name else 900, shape) if shape else np.asarray(3)
        else:
            drawn = 2 * rng.standard_normal(shape)
        found[value.name] = np.asarray(drawn).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    return found
