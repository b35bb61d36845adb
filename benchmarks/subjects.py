"""The models the mutants are made of: small real networks, and graphs written by hand for what those lack."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from ml_dtypes import bfloat16
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
_WINDOW = """
<ir_version: 9, opset_import: ["" : 18]>
window (float[batch, len, 8] x, int64[batch, len] ids) => (float[batch, len, 8] y)
{
    shape = Shape (x)
    length = Gather (shape, one)
    places = Range (zero, length, one)
    across = Unsqueeze (places, first)
    down = Unsqueeze (places, second)
    distance = Sub (down, across)
    near = Less (distance, width)
    past = GreaterOrEqual (distance, zero)
    keep = And (near, past)
    bias = Where (keep, nothing, lowest)
    position = Gather (table, places)
    word = Gather (words, ids)
    placed = Add (x, position)
    h = Add (placed, word)
    q = MatMul (h, wq)
    kt = Transpose <perm = [0, 2, 1]> (h)
    scores = MatMul (q, kt)
    masked = Add (scores, bias)
    weights = Softmax <axis = -1> (masked)
    v = Mul (h, gain)
    y = MatMul (weights, v)
}
"""
_MASKED = """
<ir_version: 9, opset_import: ["" : 18]>
masked (float[batch, 2, len, 4] q, float[batch, 2, len, 4] k, float[batch, 2, len, 4] v,
        float[batch, 1, len, len] attention_mask) => (float[batch, 2, len, 4] y)
{
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    raw = MatMul (q, kt)
    scaled = Mul (raw, scale)
    scores = Add (scaled, attention_mask)
    weights = Softmax <axis = -1> (scores)
    value = Mul (v, gain)
    y = MatMul (weights, value)
}
"""
_GATED = """
<ir_version: 9, opset_import: ["" : 18]>
gated (float[n, 8] x, int64[n, 8] code) => (float[n, 8] y, float[n, 8] z)
{
    cut = Clip (x, low, high)
    mean = ReduceMean <keepdims = 0> (x)
    large = Greater (mean, level)
    y = If (large) <
        then_branch = above () => (float[n, 8] a) { a = Mul (cut, gain) },
        else_branch = below () => (float[n, 8] b) { b = Add (cut, gain) }
    >
    over = Greater (code, edge)
    minus = Neg (x)
    z = Where (over, x, minus)
}
"""
_NARROW = """
<ir_version: 9, opset_import: ["" : 18]>
narrow (float[n, 16] x) => (bfloat16[n, 16] y)
{
    w = Cast <to = 1> (stored)
    h = MatMul (x, w)
    t = Tanh (h)
    scaled = Mul (t, gain)
    y = Cast <to = 16> (scaled)
}
"""
_DEPTH = 8
_WINDOW_CONSTANTS = {
    "one": np.int64(1), "zero": np.int64(0), "width": np.int64(16), "first": np.array([0]), "second": np.array([1]),
    "nothing": np.float32(0), "lowest": np.finfo(np.float32).min, "gain": np.float32(1.3),
}  # fmt: skip
_GATED_CONSTANTS = {
    "low": np.float32(-40), "high": np.float32(255), "level": np.float32(10), "gain": np.float32(2),
    "edge": np.int64(1000),
}  # fmt: skip


def _deep() -> str:
    """Layers of product, tanh, residual and norm in float16."""
    lines = [
        f"m{i} = MatMul (h{i}, w{i})  t{i} = Tanh (m{i})  a{i} = Add (h{i}, t{i})\n"
        f"h{i + 1} = LayerNormalization <axis = -1, epsilon = 1e-5> (a{i}, gamma)"
        for i in range(_DEPTH)
    ]
    head = "deep16 (float16[batch, len, 16] x) => (float16[batch, len, 16] y)"
    body = "\n".join(["h0 = Identity (x)", *lines, f"y = Identity (h{_DEPTH})"])
    return f'<ir_version: 9, opset_import: ["" : 18]>\n{head} {{\n{body}\n}}'


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
        "window": _model(_WINDOW, weights(wq=(8, 8), table=(64, 8), words=(12, 8)) | _WINDOW_CONSTANTS),
        "masked": _model(_MASKED, {"scale": np.float32(0.5), "gain": np.float32(1.3)}),
        "gated": _model(_GATED, _GATED_CONSTANTS),
        "narrow": _model(_NARROW, weights(bfloat16, stored=(16, 16)) | {"gain": np.float32(0.7)}),
        "deep16": _model(_deep(), weights(np.float16, **{f"w{i}": (16, 16) for i in range(_DEPTH)}, gamma=(16,))),
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
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items())
    return model


def feeds(
    model: onnx.ModelProto, rng: np.random.Generator, *, length: int = 9, scale: float = 2.0, shifted: bool = False
) -> Feeds:
    """Random inputs as these models are known to need them, without the verifier's own generation."""
    sizes = {"batch": 3, "n": 2, "height": 12, "width": 10}
    found: Feeds = {}
    for value in model.graph.input:
        kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
        shape = tuple(sizes.get(d.dim_param, length) if d.dim_param else d.dim_value for d in dims)
        if value.name == "code":
            drawn = rng.choice([0, 7, 900, 999, 1000, 1001, 1500], shape)
        elif value.name == "ids":
            drawn = rng.integers(0, 12, shape)
        elif len(shape) == 4 and "mask" in value.name:
            drawn = rng.choice([0.0, 0.0, -0.5, -3.0, -1e4], shape)
            drawn[..., 0] = 0
        elif "mask" in value.name:
            drawn = rng.random(shape) < 0.7
            drawn[..., 0] = True
        elif kind == onnx.TensorProto.BOOL:
            drawn = np.asarray(rng.random(shape) < 0.5)
        elif kind == onnx.TensorProto.INT64:
            drawn = rng.integers(0, 2 if "type" in value.name else 900, shape) if shape else np.asarray(3)
        else:
            drawn = scale * (1 + 0.05 * rng.standard_normal(shape) if shifted else rng.standard_normal(shape))
        found[value.name] = np.asarray(drawn).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    return found
