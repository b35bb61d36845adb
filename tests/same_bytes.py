"""Thirty small files whose optimized bytes are recorded: `python tests/same_bytes.py` writes data/same_bytes.json.

Weights are integers of eight bits, taken from a hash, divided by 64: every machine and library builds the same files.
Run it again where a change of the optimizer changes what it writes.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import sardonyx

RECORD = Path(__file__).parent / "data" / "same_bytes.json"
TARGETS = ("portable", "ort")

# What is folded in these is moved, counted, or rounded once by each operation: +, -, *, /, sqrt, casts.
EXACT = {
    "mlp": """(float[N, 8] x) => (float[N, 4] y) <float[8, 16] w, float[16] b, float[16, 4] v, float[4] c>
        { p = MatMul(x, w) q = Add(p, b) r = Relu(q) s = MatMul(r, v) y = Add(s, c) }""",
    "gemm_of_transposes": """(float[N, 8] x) => (float[N, 4] y) <float[4, 8] w, float[4] b>
        { t = Transpose <perm = [1, 0]> (w) y = Gemm(x, t, b) }""",
    "gelu": """(float[N, 8] x) => (float[N, 8] y)
        { r = Constant <value = float {1.41421354}> () one = Constant <value = float {1.0}> ()
          half = Constant <value = float {0.5}> ()
          d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }""",
    "swish": "(float[N, 8] x) => (float[N, 8] y) { s = Sigmoid(x) y = Mul(x, s) }",
    "hard_swish": """(float[N, 8] x) => (float[N, 8] y)
        { three = Constant <value = float {3.0}> () six = Constant <value = float {6.0}> ()
          zero = Constant <value = float {0.0}> ()
          a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six) }""",
    "layer_norm": """(float[N, 8] x) => (float[N, 8] y) <float[8] g, float[8] b>
        { two = Constant <value = float {2.0}> () e = Constant <value = float {0.00001}> ()
          m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p)
          ve = Add(v, e) s = Sqrt(ve) n = Div(d, s) ng = Mul(n, g) y = Add(ng, b) }""",
    "rms_norm": """(float[N, 8] x) => (float[N, 8] y) <float[8] g>
        { two = Constant <value = float {2.0}> () e = Constant <value = float {0.00001}> ()
          p = Pow(x, two) v = ReduceMean <axes = [-1]> (p) ve = Add(v, e) s = Sqrt(ve) r = Reciprocal(s)
          n = Mul(x, r) y = Mul(n, g) }""",
    "conv_batch_norm": """(float[N, 3, H, W] x) => (float[N, 4, P, Q] y)
        <float[4, 3, 3, 3] w, float[4] b, float[4] g, float[4] h, float[4] m, float[4] positive_v>
        { c = Conv <pads = [1, 1, 1, 1]> (x, w, b) n = BatchNormalization(c, g, h, m, positive_v) y = Relu(n) }""",
    "conv_transpose_batch_norm": """(float[N, 3, H, W] x) => (float[N, 4, P, Q] y)
        <float[3, 4, 2, 2] w, float[4] g, float[4] h, float[4] m, float[4] positive_v>
        { c = ConvTranspose(x, w) y = BatchNormalization(c, g, h, m, positive_v) }""",
    "batch_norm_alone": """(float[N, 4, H] x) => (float[N, 4, H] y)
        <float[4] g, float[4] h, float[4] m, float[4] positive_v>
        { y = BatchNormalization(x, g, h, m, positive_v) }""",
    "conv_scale_and_add": """(float[N, 3, H, W] x) => (float[N, 4, P, Q] y)
        <float[4, 3, 3, 3] w, float[1, 4, 1, 1] s, float[1, 4, 1, 1] b>
        { c = Conv(x, w) m = Mul(c, s) a = Add(m, b) y = Relu(a) }""",
    "conv_skip": """(float[N, 4, 8, 8] x) => (float[N, 4, 8, 8] y) <float[4, 4, 1, 1] w, float[4] b>
        { c = Conv(x, w, b) a = Add(c, x) y = Relu(a) }""",
    "pad_and_conv": """(float[N, 3, H, W] x) => (float[N, 4, P, Q] y) <float[4, 3, 3, 3] w>
        { p = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> () a = Pad(x, p) y = Conv(a, w) }""",
    "attention": """(float[N, S, 8] x) => (float[N, S, 8] y)
        <float[8, 8] q, float[8, 8] k, float[8, 8] v, float[8, 8] o>
        { shape = Constant <value = int64[4] {0, 0, 2, 4}> () back = Constant <value = int64[3] {0, 0, 8}> ()
          half = Constant <value = float {0.5}> ()
          a = MatMul(x, q) b = MatMul(x, k) c = MatMul(x, v)
          ar = Reshape(a, shape) br = Reshape(b, shape) cr = Reshape(c, shape)
          at = Transpose <perm = [0, 2, 1, 3]> (ar) bt = Transpose <perm = [0, 2, 3, 1]> (br)
          ct = Transpose <perm = [0, 2, 1, 3]> (cr)
          s = MatMul(at, bt) d = Mul(s, half) p = Softmax <axis = -1> (d) z = MatMul(p, ct)
          zt = Transpose <perm = [0, 2, 1, 3]> (z) zr = Reshape(zt, back) y = MatMul(zr, o) }""",
    "transposes": """(float[N, 4, 8] x) => (float[N, 8, 4] y)
        { a = Transpose <perm = [0, 2, 1]> (x) b = Relu(a) c = Transpose <perm = [0, 2, 1]> (b) d = Abs(c)
          y = Transpose <perm = [0, 2, 1]> (d) }""",
    "views": """(float[N, 4, 8] x) => (float[N, 32] y)
        { s = Constant <value = int64[3] {0, 8, 4}> () t = Constant <value = int64[2] {0, -1}> ()
          a = Reshape(x, s) b = Identity(a) y = Reshape(b, t) }""",
    "shape_arithmetic": """(float[N, 4, 8] x) => (float[N, A] y)
        { s = Shape(x) i = Constant <value = int64 {0}> () n = Gather(s, i) z = Constant <value = int64[1] {0}> ()
          u = Unsqueeze(n, z) m = Constant <value = int64[1] {-1}> () t = Concat <axis = 0> (u, m)
          y = Reshape(x, t) }""",
    "folded_sum": """(float[N, 8] x) => (float[N, 8] y) <float[8] a, float[8] b, float[8] positive_c>
        { p = Add(a, b) q = Mul(p, a) r = Sqrt(positive_c) s = Div(q, r) t = Sub(s, b) y = Mul(x, t) }""",
    "folded_half": """(float16[N, 8] x) => (float16[N, 8] y) <float[8] a, float[8] positive_b>
        { p = Div(a, positive_b) q = Cast <to = 10> (p) y = Add(x, q) }""",
    "folded_double": """(float[N, 8] x) => (float[N, 8] y) <float[8] a, float[8] positive_b>
        { p = Cast <to = 11> (a) q = Cast <to = 11> (positive_b) r = Div(p, q) s = Sqrt(q) t = Mul(r, s)
          u = Cast <to = 1> (t) y = Add(x, u) }""",
    "folded_indices": """(float[9, 8] x) => (float[3, 8] y)
        { a = Constant <value = int64 {0}> () b = Constant <value = int64 {9}> () c = Constant <value = int64 {3}> ()
          r = Range(a, b, c) y = Gather <axis = 0> (x, r) }""",
    "folded_mask": """(float[N, 4, 4] x) => (float[N, 4, 4] y)
        { s = Constant <value = int64[2] {4, 4}> () ones = ConstantOfShape <value = float[1] {1.0}> (s)
          l = Trilu <upper = 0> (ones) half = Constant <value = float {0.5}> () k = Greater(l, half)
          zero = Constant <value = float {0.0}> () low = Constant <value = float {-10000.0}> ()
          m = Where(k, zero, low) y = Add(x, m) }""",
    "folded_tiles": """(float[N, 8] x) => (float[N, 8] y) <float[1, 4] a>
        { t = Constant <value = int64[2] {1, 2}> () r = Tile(a, t) e = Constant <value = int64[2] {1, 8}> ()
          f = Expand(r, e) y = Mul(x, f) }""",
    "two_of_the_same": """(float[N, 8] x) => (float[N, 8] y) <float[8, 8] w>
        { a = MatMul(x, w) b = MatMul(x, w) c = Tanh(a) d = Tanh(b) y = Add(c, d) }""",
    "a_branch_that_is_known": """(float[N, 8] x) => (float[N, 8] y) {
        c = Constant <value = int64 {1}> () k = Cast <to = 9> (c)
        y = If (k) <then_branch = a () => (float[N, 8] p) { p = Relu(x) },
                    else_branch = b () => (float[N, 8] q) { q = Neg(x) }> }""",
    "split_and_concat": """(float[N, 8] x) => (float[N, 8] y)
        { s = Constant <value = int64[2] {4, 4}> () a, b = Split <axis = 1> (x, s)
          c = Concat <axis = 1> (a, b) y = Relu(c) }""",
}
# What is folded in these is computed by a kernel that sums in an order of its own or approximates, and so may round
# otherwise on another kind of processor: it is compared only on the kind that the record was made on.
BY_KERNELS = {
    "folded_product": """(float[N, 8] x) => (float[N, 8] y) <float[8, 16] a, float[16, 8] b>
        { w = MatMul(a, b) y = MatMul(x, w) }""",
    "folded_means": """(float[N, 64] x) => (float[N, 64] y) <float[33, 64] positive_a>
        { m = ReduceMean <axes = [0], keepdims = 0> (positive_a) s = Sqrt(m) y = Mul(x, s) }""",
    "folded_rotary_table": """(float[16, 4] x) => (float[16, 4] y) <float[16, 1] p, float[1, 4] f>
        { e = Exp(f) a = MatMul(p, e) c = Cos(a) s = Sin(a) m = Mul(x, c) y = Add(m, s) }""",
    "folded_activations": """(float[N, 64] x) => (float[N, 64] y) <float[64] a>
        { e = Erf(a) t = Tanh(e) g = Sigmoid(t) s = Softmax <axis = 0> (g) y = Mul(x, s) }""",
}


def built(name: str, text: str) -> onnx.ModelProto:
    """The model of a text; declared constants get their values."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> agraph {text}')
    for info in model.graph.value_info:
        shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        drawn = hashlib.shake_256(f"{name} {info.name}".encode()).digest(int(np.prod(shape)))
        numbers = np.frombuffer(drawn, np.int8).astype(np.float32) / np.float32(64)
        if info.name.startswith("positive"):
            numbers = np.abs(numbers) + np.float32(0.25)
        model.graph.initializer.append(numpy_helper.from_array(numbers.reshape(shape), info.name))
    del model.graph.value_info[:]
    return model


def digests(models: dict[str, str], folder: Path, threads: int | None = None) -> dict[str, str]:
    """SHA-256 of what `optimize` writes, for every model and target."""
    found: dict[str, str] = {}
    for name, text in models.items():
        for target in TARGETS:
            path = folder / f"{name}.{target}.onnx"
            sardonyx.optimize(built(name, text), path, target=target, verify="off", threads=threads)
            found[f"{name} {target}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        exact, by_kernels = (digests(models, Path(folder)) for models in (EXACT, BY_KERNELS))
    record = {"machine": platform.machine(), "exact": exact, "by_kernels": by_kernels}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
