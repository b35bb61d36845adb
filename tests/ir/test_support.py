"""What `support` says of the runtime is so with the installed one, on this CPU."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def  # pyright: ignore[reportAttributeAccessIssue]

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import support
from sardonyx.ir.support import IN_HALF, KERNELS, MAX_IR_VERSION, MAX_OPSET, Behavior, Cpus
from sardonyx.runtime import Session
from sardonyx.verbs.quantize.weights import saturates

_D = ir.DataType
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
TYPES = (
    _D.FLOAT16, _D.BFLOAT16, _D.FLOAT, _D.DOUBLE, _D.BOOL,
    _D.INT8, _D.INT16, _D.INT32, _D.INT64, _D.UINT8, _D.UINT16, _D.UINT32, _D.UINT64,
)  # fmt: skip
PAIR, MATRIX, STATES = [2], [2, 2], [1, 2, 4]
SHAPES: dict[str, list[list[int]]] = {  # of the operands of that element type; a pair where none are given
    **{name: [PAIR, PAIR] for name in ("Add", "Div", "Mul", "Sub", "Max", "Min", "Equal", "Where")},
    "Clip": [PAIR, [], []],
    **{name: [MATRIX, MATRIX] for name in ("MatMul", "com.microsoft::FusedMatMul")},
    **{name: [MATRIX, MATRIX, PAIR] for name in ("Gemm", "com.microsoft::FusedGemm")},
    **{name: [[1, 1, 3], [1, 1, 1], [1]] for name in ("Conv", "ConvTranspose", "com.microsoft::FusedConv")},
    "LayerNormalization": [MATRIX, PAIR, PAIR],
    "RMSNormalization": [MATRIX, PAIR],
    "Attention": [[1, 1, 2, 4]] * 3,
    "RotaryEmbedding": [[1, 1, 2, 4], [1, 2, 2], [1, 2, 2]],
    **{name: [MATRIX, PAIR] for name in ("com.microsoft::BiasGelu", "com.microsoft::FastGelu")},
    "com.microsoft::SkipLayerNormalization": [STATES, STATES, [4]],
    "com.microsoft::SkipSimplifiedLayerNormalization": [STATES, STATES, [4]],
    "com.microsoft::Attention": [STATES, [4, 12], [12]],
    "com.microsoft::MultiHeadAttention": [STATES, STATES, STATES],
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "com.microsoft::FusedGemm": {"activation": "Relu"},
    "com.microsoft::FusedConv": {"activation": "Relu"},
    "com.microsoft::Attention": {"num_heads": 1},
    "com.microsoft::MultiHeadAttention": {"num_heads": 1},
}
BEFORE: dict[str, tuple[_D, list[int]]] = {"Where": (_D.BOOL, PAIR)}
AFTER: dict[str, tuple[_D, list[int]]] = {"Expand": (_D.INT64, [1]), "Pad": (_D.INT64, PAIR)}


def model(operator: str, dtype: ir.DataType) -> onnx.ModelProto:
    """One node."""
    operands = [(dtype, shape) for shape in SHAPES.get(operator, [PAIR])]
    operands = [*([BEFORE[operator]] if operator in BEFORE else []), *operands]
    operands += [AFTER[operator]] if operator in AFTER else []
    inputs = [helper.make_tensor_value_info(f"x{i}", each.value, shape) for i, (each, shape) in enumerate(operands)]
    domain, _, op_type = operator.rpartition("::")
    names = [value.name for value in inputs]
    node = helper.make_node(op_type, names, ["y"], domain=domain, **ATTRIBUTES.get(operator, {}))
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info("y")])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("operator", sorted(KERNELS))
def test_the_runtime_has_these_kernels_and_no_others(operator: str) -> None:
    loaded: set[ir.DataType] = set()
    for dtype in TYPES:
        try:
            Session(model(operator, dtype), threads=1)
        except RuntimeFailure:
            continue
        loaded.add(dtype)
    assert loaded == KERNELS[operator] - {_D.STRING}


def test_no_other_standard_operator_of_the_list_computes_in_half_precision() -> None:
    """The list has what ARM has; a CPU with fewer kernels rounds less often."""
    own = {
        kernel.op_name
        for kernel in get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider" and kernel.domain == "" and kernel.version_range[1] >= MAX_OPSET
        if "tensor(float16)" in kernel.type_constraints.get("T", kernel.type_constraints.get("T1", ()))
    }
    assert (own >= IN_HALF) if IS_ARM else (IN_HALF & own)


def test_the_newest_versions_of_files_that_the_runtime_accepts() -> None:
    def loads(ir_version: int, opset: int) -> bool:
        head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
        try:
            Session(onnx.parser.parse_model(f"{head} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}"), threads=1)
        except RuntimeFailure:
            return False
        return True

    assert loads(MAX_IR_VERSION, MAX_OPSET)
    assert not loads(MAX_IR_VERSION + 1, MAX_OPSET)
    assert not loads(MAX_IR_VERSION, MAX_OPSET + 1)


# Each function below measures one row: it returns whether what the row says happens with the installed runtime.

LOWEST = float(np.finfo(np.float32).min)
NUMBERS = np.random.default_rng(0)


def parsed(text: str, opset: int = 23) -> onnx.ModelProto:
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> g '
    return onnx.parser.parse_model(head + text)


def run(text: str, opset: int = 23, *, optimize: bool = False, **feeds: Any) -> Any:
    """The first result of a model."""
    return Session(parsed(text, opset), threads=1, optimize=optimize).run(
        {name: np.asarray(value) for name, value in feeds.items()}
    )[0]


def fails(text: str, opset: int = 23, *, optimize: bool = False, **feeds: Any) -> bool:
    try:
        run(text, opset, optimize=optimize, **feeds)
    except RuntimeFailure:
        return True
    return False


def session(text: str, opset: int = 23, *, optimized: str | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if optimized is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = optimized
    proto = parsed(text, opset).SerializeToString()
    return onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])


def kernels(text: str, opset: int, folder: Any) -> list[str]:
    """The operators that the runtime makes of a model."""
    path = str(folder / "optimized.onnx")
    session(text, opset, optimized=path)
    return [node.op_type for node in onnx.load(path).graph.node]


def seconds(text: str, **feeds: np.ndarray) -> float:
    """The least time of a run."""
    loaded, times = session(text), list[float]()
    for _ in range(30):
        start = time.perf_counter()
        loaded.run(None, feeds)
        times.append(time.perf_counter() - start)
    return min(times)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return NUMBERS.normal(size=shape).astype(dtype)


def group_bias(folder: Any) -> bool:
    feeds: dict[str, Any] = {"x": np.zeros((1, 4, 3), np.float16), "w": np.zeros((4, 2, 1), np.float16)}
    head = "(float16[1, 4, 3] x, float16[4, 2, 1] w, float16[4] b) => (float16[1, 4, 3] y)"
    text = f"{head} {{ y = Conv <group = 2> (x, w, b) }}"
    return run(text, b=np.arange(4, dtype=np.float16), **feeds)[0, :, 0].tolist() != [0, 1, 2, 3]


def attention_width(folder: Any) -> bool:
    text = "(T[1, 1, 3, 8] q, T[1, 1, 3, 8] k, T[1, 1, 3, 12] v) => (T[1, 1, 3, 12] y) { y = Attention (q, k, v) }"
    feeds: dict[str, Any] = {"q": normal(1, 1, 3, 8), "k": normal(1, 1, 3, 8), "v": normal(1, 1, 3, 12)}
    half = run(text.replace("T", "float16"), **{name: array.astype(np.float16) for name, array in feeds.items()})
    return not np.allclose(half, run(text.replace("T", "float"), **feeds), atol=0.01)


def attention_lowest(folder: Any) -> bool:
    head = "(float[1, 1, 1, 4] q, float[1, 1, 2, 4] k, float[1, 2] m) => (float[1, 1, 1, 4] y)"
    text = f"{head} {{ y = Attention (q, k, k, m) }}"
    feeds: dict[str, Any] = {"q": np.zeros((1, 1, 1, 4), np.float32), "k": np.ones((1, 1, 2, 4), np.float32)}
    at, above = (np.full((1, 2), low, np.float32) for low in (LOWEST, np.nextafter(np.float32(LOWEST), np.float32(0))))
    return not run(text, m=at, **feeds).any() and bool((run(text, m=above, **feeds) == 1).all())


def attention_cache(folder: Any) -> bool:
    head = "(float[1, 1, 1, 4] q, float[1, 1, P, 4] p) => (float[1, 1, 1, 4] y)"
    text = f"{head} {{ RESULTS = Attention (q, q, q, , p, p) }}"
    feed = np.ones((1, 1, 1, 4), np.float32)
    assert not fails(text.replace("RESULTS", "y, k, v"), q=feed, p=feed)
    return fails(text.replace("RESULTS", "y"), q=feed, p=feed)


def where_sign(folder: Any) -> bool:
    text = "(bool[35] c, float[35] x, float[35] z) => (float[35] y) { y = Where (c, x, z) }"
    negative = np.full(35, -0.0, np.float32)
    return not np.signbit(run(text, c=np.ones(35, bool), x=negative, z=-negative)).all()


def sign_of_extremes(folder: Any) -> bool:
    text = "(float[37] x, float[37] z) => (float[37] y) { y = Max (x, z) }"
    negative = np.full(37, -0.0, np.float32)
    signs = np.signbit([run(text, x=negative, z=-negative), run(text, x=-negative, z=negative)])
    return bool(signs.any() and not signs.all())


def integer_power(folder: Any) -> bool:
    return run("(int64 x, int64 e) => (int64 y) { y = Pow (x, e) }", x=2**53 + 1, e=1) != 2**53 + 1


def last_slice(folder: Any) -> bool:
    text = "(float[3] x, int64[1] s, int64[1] e, int64[1] a) => (float[N] y) { y = Slice (x, s, e, a, s) }"
    return len(run(text, x=np.arange(3, dtype=np.float32), s=[-1], e=[2**63 - 1], a=[0])) == 3


def half_erf(folder: Any) -> bool:
    x = np.linspace(-4, 4, 2001).astype(np.float16)
    found = run("(float16[N] x) => (float16[N] y) { y = Erf (x) }", x=x).astype(float)
    return bool(np.abs(found - [math.erf(float(number)) for number in x]).max() > 0.001)


def half_sums(folder: Any) -> bool:
    x = np.ones((1, 1, 64, 64), np.float16)  # 4,096 ones: no odd number above 2,048 is a float16
    x[0, 0, 0, 0] = 3
    found = run("(float16[1, 1, H, W] x) => (float16[1, 1, 1, 1] y) { y = GlobalAveragePool (x) }", x=3 * x)
    return float(found.item()) != float(np.float16(np.mean(3 * x.astype(float))))


def saturation(folder: Any) -> bool:
    return saturates()


def lacks_22(folder: Any) -> bool:
    text = "() => (float[2] y) { y = RandomNormal <shape = [2]> () }"
    return fails(text, 22) and not fails(text, 21)


def empty_split(folder: Any) -> bool:
    text = "(float[N] x) => (float[A] y, float[B] z) { y, z = Split <ATTRIBUTE> (x) }"
    empty = np.zeros(0, np.float32)
    return fails(text.replace("ATTRIBUTE", "num_outputs = 2"), 18, x=empty) and not fails(
        text.replace("<ATTRIBUTE>", ""), 13, x=empty
    )


def empty_image(folder: Any) -> bool:
    text = "(float[1, 1, H] x) => (float[1, 1, M] y) <float[1, 1, 1] w = {2}> { y = Conv (x, w) }"
    return fails(text, x=np.zeros((1, 1, 0), np.float32))


def old_half_pool(folder: Any) -> bool:
    text = "(float16[1, 1, 4, 4] x) => (float16[1, 1, 2, 2] y) { y = MaxPool <kernel_shape = [3, 3]> (x) }"
    return fails(text, 11, optimize=True, x=np.ones((1, 1, 4, 4), np.float16))


def hard_sigmoid(folder: Any) -> bool:
    return "Cast" in kernels("(float16[4] x) => (float16[4] y) { y = HardSigmoid (x) }", 22, folder)


def hard_swish(folder: Any) -> bool:
    return kernels("(float[4] x) => (float[4] y) { y = HardSwish (x) }", 22, folder) == ["HardSigmoid", "Mul"]


def half_gelu(folder: Any) -> bool:
    return "Gelu" not in kernels("(float16[4] x) => (float16[4] y) { y = Gelu (x) }", 22, folder)


def skip_normalization(folder: Any) -> bool:
    shape = "float[1, 64, 768]"
    head = f"({shape} x, {shape} s, float[768] g) => ({shape} y)"
    feeds: dict[str, Any] = {"x": normal(1, 64, 768), "s": normal(1, 64, 768), "g": normal(768)}
    apart = seconds(f"{head} {{ t = Add (x, s) y = LayerNormalization (t, g) }}", **feeds)
    return seconds(f"{head} {{ y = com.microsoft.SkipLayerNormalization (x, s, g) }}", **feeds) > 1.5 * apart


def grouped_integers(folder: Any) -> bool:
    def time_of(image: type, filters: type, total: str, operator: str) -> float:
        types = [np.dtype(each).name.replace("float32", "float") for each in (image, filters)]
        head = f"({types[0]}[1, 32, 28, 28] x, {types[1]}[32, 1, 3, 3] w) => ({total}[1, 32, 26, 26] y)"
        x, w = NUMBERS.integers(0, 99, (1, 32, 28, 28)), NUMBERS.integers(0, 99, (32, 1, 3, 3))
        text = f"{head} {{ y = {operator} <group = 32> (x, w) }}"
        return seconds(text, x=x.astype(image), w=w.astype(filters))

    floats = time_of(np.float32, np.float32, "float", "Conv")
    return time_of(np.uint8, np.int8, "int32", "ConvInteger") > 1.5 * floats


def gemm_zero_points(folder: Any) -> bool:
    text = (
        "(float[3, 2] x) => (float[3, 2] y) <float s = {0.02}, uint8 z = {128}, int8[2, 2] w = {1, 2, 3, 4}, "
        "float[2] t = {0.1, 0.1}, int8[2] o = {0, 0}> { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) "
        "e = DequantizeLinear <axis = 1> (w, t ZEROS) p = Gemm (d, e) r = QuantizeLinear (p, s, z) "
        "y = DequantizeLinear (r, s, z) }"
    )
    found = [kernels(text.replace("ZEROS", zeros), 17, folder) for zeros in ("", ", o")]
    return "QGemm" not in found[0] and "QGemm" in found[1]


ROWS = {name: row for name, row in vars(support).items() if isinstance(row, Behavior)}
MEASURE: dict[str, Callable[[Any], bool]] = {name: globals()[name.lower()] for name in ROWS}


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("SKIP_NORMALIZATION", "GROUPED_INTEGERS")])
def test_the_runtime_behaves_as_the_row_says(name: str, tmp_path: Any) -> None:
    row = ROWS[name]
    if row.cpus is Cpus.ARM and not IS_ARM:
        pytest.skip("the row is about ARM CPUs")
    holds = MEASURE[name](tmp_path)
    if row.cpus is Cpus.SOME and not holds:
        pytest.skip("this CPU is not one of those")
    assert holds, f"{row.fact}: this is no longer so"


@pytest.mark.campaign  # a timing
@pytest.mark.parametrize("name", ["SKIP_NORMALIZATION", "GROUPED_INTEGERS"])
def test_the_operator_is_as_slow_as_the_row_says(name: str, tmp_path: Any) -> None:
    assert MEASURE[name](tmp_path), f"{ROWS[name].fact}: this is no longer so"


def test_a_row_is_about_operators_types_and_opsets() -> None:
    row = support.OLD_HALF_POOL
    assert row.concerns("MaxPool")
    assert row.concerns("MaxPool", _D.FLOAT16, 11)
    assert not row.concerns("MaxPool", _D.FLOAT16, 12)
    assert not row.concerns("MaxPool", _D.FLOAT)
    assert not row.concerns("AveragePool")
