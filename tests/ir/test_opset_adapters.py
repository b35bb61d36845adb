"""Every adapter, node by node: its result runs in the newer opset and gives the same bits.

The runtime, with its own optimizations off, runs both sides.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from passes.util import Feeds, compare, draw, graph_text, outputs, parse
from raised import raised
from sardonyx.errors import RuntimeFailure
from sardonyx.ir.opset_raising import NEWEST
from sardonyx.runtime import Session

# opset, graph, operators of the new graph (None: unchanged)
SAME: list[tuple[int, str, list[str] | None]] = [
    (11, "g (float[2, 3, 4] x) => (float[3] y) { y = ReduceSum <axes = [0, -1], keepdims = 0> (x) }", None),
    (11, "g (float[2, 3] x) => (float[1, 1] y) { y = ReduceSum (x) }", None),
    *(
        (
            opset,
            f"g (float[N, 3, 4] x) => (float[N, 3, 1] y) {{ p = Abs(x) y = Reduce{name} <axes = [{axis}]> (p) }}",
            None,
        )
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
        for opset, axis in ((7, 2), (13, -1), (17, -1))
    ),
    (13, "g (float[2, 3] x) => (float y) { y = ReduceMean <keepdims = 0> (x) }", None),
    (17, "g (float[2, 3] x) => (float y) { y = ReduceMean <axes = [0, 1], keepdims = 0> (x) }", None),
    (7, "g (float[2, 1, 3, 1] x) => (float[2, 3] y) { y = Squeeze <axes = [1, 3]> (x) }", None),
    (12, "g (float[2, 1, 3, 1] x) => (float[2, 3] y) { y = Squeeze (x) }", None),
    (12, "g (float[2, 3] x) => (float[1, 2, 3, 1] y) { y = Unsqueeze <axes = [0, -1]> (x) }", None),
    (7, "g (float[6, 2] x) => (float[2, 2] y, float[4, 2] z) { y, z = Split <axis = 0, split = [2, 4]> (x) }", None),
    (11, "g (float[2, 6] x) => (float[2, 3] y, float[2, 3] z) { y, z = Split <axis = -1> (x) }", None),
    (17, "g (float[2, 6] x) => (float[2, 3] y, float[2, 3] z) { y, z = Split <axis = 1> (x) }", None),
    (
        17,
        "g (float[6] x) => (float[2] y, float[4] z) <int64[2] s = {2, 4}> { y, z = Split <axis = 0> (x, s) }",
        None,
    ),
    (7, "g (float[4, 5] x) => (float[2, 2] y) { y = Slice <starts = [1, -3], ends = [3, -1]> (x) }", None),
    (9, "g (float[4, 5] x) => (float[4, 3] y) { y = Slice <starts = [2], ends = [900], axes = [1]> (x) }", None),
    (9, "g (float[4, 5] x) => (float[4, 2] v, int64[4, 2] i) { v, i = TopK <k = 2> (x) }", None),
    (10, "g (float[4, 5] x) => (float[4, 2] v, int64[4, 2] i) <int64[1] k = {2}> { v, i = TopK (x, k) }", None),
    (17, "g (float[2, 8, 3, 1] x) => (float[2, 8, 3, 2] y) { y = DFT (x) }", None),
    (17, "g (float[2, 8, 3, 1] x) => (float[2, 8, 2, 2] y) { y = DFT <axis = 2, onesided = 1> (x) }", None),
    (17, "g (float[2, 8, 1] x) => (float[2, 5, 2] y) <int64 n = {5}> { y = DFT <axis = 1> (x, n) }", None),
    (7, "g (float[N] x) => (float[N] y) { y = Clip <min = -0.5, max = 0.25> (x) }", None),
    (10, "g (float[N] x) => (float[N] y) { y = Clip <max = 0.25> (x) }", None),
    (10, "g (float[N] x) => (float[N] y) { y = Clip (x) }", None),
    (7, "g (float[2, 3] x) => (float[3, 6] y) { y = Pad <pads = [0, 1, 1, 2]> (x) }", None),
    (10, "g (float[2, 3] x) => (float[3, 6] y) { y = Pad <pads = [0, 1, 1, 2], value = 1.5> (x) }", None),
    (10, 'g (float[2, 3] x) => (float[2, 6] y) { y = Pad <pads = [0, 1, 0, 2], mode = "reflect"> (x) }', None),
    (10, "g (double[2, 3] x) => (double[2, 2] y) { y = Pad <pads = [0, -1, 0, 0], value = 1.5> (x) }", None),
    (7, "g (float[N] x) => (float[N] y) { y = Dropout <ratio = 0.75> (x) }", None),
    (11, "g (float16[N] x) => (float16[N] y) { y = Dropout <ratio = 0.75> (x) }", None),
    (7, "g (float[2, 3] x) => (float[2, 3] y) { y = Softmax (x) }", None),
    (12, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax <axis = -1> (x) }", None),
    *(
        (
            opset,
            f"g (float[2, 3, N] x) => (float[2, 3, N] y) {{ y = {name} <axis = {axis}> (x) }}",
            ["Flatten", name, "Shape", "Reshape"],
        )
        for name in ("Softmax", "LogSoftmax", "Hardmax")
        for opset, axis in ((7, 1), (9, 0), (11, 1), (12, -2), (12, -3))
    ),
    (11, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Hardmax (x) }", ["Flatten", "Hardmax", "Shape", "Reshape"]),
    (
        7,
        "g (float[1, 2, 3, 3] x) => (float[1, 2, 6, 9] y) { y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x) }",
        ["Resize"],
    ),
    (
        7,
        "g (float[1, 2, 3, 3] x) => (float[1, 2, 6, 9] y)"
        ' { y = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]> (x) }',
        ["Resize"],
    ),
    (
        9,
        "g (float[1, 2, 3, 3] x) => (float[1, 2, 6, 7] y) <float[4] s = {1, 1, 2, 2.5}> { y = Upsample (x, s) }",
        ["Resize"],
    ),
    (
        9,
        'g (float[1, 2, 3, 3] x, float[4] s) => (float[A, B, C, D] y) { y = Upsample <mode = "linear"> (x, s) }',
        ["Resize"],
    ),
    (10, "g (float[1, 2, 3, 3] x) => (float[1, 2, 6, 7] y) <float[4] s = {1, 1, 2, 2.5}> { y = Resize (x, s) }", None),
    *(
        (
            opset,
            "g (float[1, 2, 5, 5] x) => (float[1, 2, H, W] y) <float[0] r = {}, float[4] s = {1, 1, 2.6, 0.6}>"
            f' {{ y = Resize <mode = "{mode}", coordinate_transformation_mode = "{coordinates}"> (x, r, s) }}',
            None,
        )
        for opset in (11, 13, 18)
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    ),
    (
        11,
        "g (float[1, 2, 5, 5] x) => (float[1, 2, 8, 3] y)"
        ' <float[0] r = {}, float[0] s = {}, int64[4] z = {1, 2, 8, 3}> { y = Resize <mode = "linear"> (x, r, s, z) }',
        None,
    ),
    (
        8,
        "g (float[2, 3, 4] x) => (float[2, 3, 4] y)"
        " <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}, float[3] m = {1, 1, 0}, float[3] v = {1, 2, 3}>"
        " { y = BatchNormalization <spatial = 1, momentum = 0.5> (x, s, b, m, v) }",
        None,
    ),
    (
        14,
        "g (float[2, 3, 4] x) => (float[2, 3, 4] y)"
        " <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}, float[3] m = {1, 1, 0}, float[3] v = {1, 2, 3}>"
        " { y = BatchNormalization (x, s, b, m, v) }",
        None,
    ),
    (9, "g (float[N] x) => (float[N] y) { y = Erf(x) }", None),
    (
        10,
        "g (float[1, 1, 6, 6] x) => (float[1, 1, 2, 2] y) <float[1, 4] r = {0, 0, 4, 4}, int64[1] i = {0}>"
        " { y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, r, i) }",
        None,
    ),
    (
        9,
        "g (float[3, 3] x, float[1, 3] u) => (float[3, 3] y) <int64[1, 3] i = {1, 0, 2}>"
        " { y = Scatter <axis = 0> (x, i, u) }",
        ["ScatterElements"],
    ),
    (7, "g (float[1, 1, 5, 5] x) => (float[1, 1, 3, 3] y) { y = MaxPool <kernel_shape = [3, 3]> (x) }", None),
    (
        9,
        "g () => (float[2, 3] y) <int64[2] i = {0, 2}, int64 d = {3}, float[2] v = {0, 1}> { y = OneHot (i, d, v) }",
        None,
    ),
    (
        7,
        "g (float[1, 2, 4] x, float[2, 3, 3] w) => (float[1, 3, 6] y) { y = ConvTranspose (x, w) }",
        None,
    ),
    (10, "g (float[N] x) => (uint8[N] y) <float s = {0.1}, uint8 z = {7}> { y = QuantizeLinear (x, s, z) }", None),
    (13, "g (float[2, 3] x) => (float[3, 2] y) <int64[2] s = {3, -1}> { y = Reshape (x, s) }", None),
]


@pytest.mark.parametrize(("opset", "graph", "operators"), SAME, ids=range(len(SAME)))
def test_the_same_bits_in_every_newer_opset(opset: int, graph: str, operators: list[str] | None) -> None:
    before = parse(graph_text(graph, opset))
    feeds = draw(before, 3, {"*": 4})
    if "s" in feeds:  # scales of an Upsample, which must be at least one
        feeds["s"] = np.array([1, 1, 2, 3], np.float32)
    wanted = outputs(before, feeds)
    newest = 21 if "RoiAlign" in graph else NEWEST
    after = None
    for newer in sorted({opset + 1, 13, 17, 18, 20, newest} - set(range(opset + 1))):
        after, why = raised(before, newer)
        if newer == 13 and "an axis may be empty" in why:
            continue
        assert after is not None, why
        onnx.checker.check_model(after, full_check=True)
        assert after.opset_import[0].version == newer
        for output, left, right in zip(before.graph.output, wanted, outputs(after, feeds), strict=True):
            compare(f"{output.name} in opset {newer}", left, right, exact=True)
    if operators is not None:
        assert after is not None
        assert [node.op_type for node in after.graph.node] == operators


HOSTILE = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1.0, 3e38, -3e38, 1e-40, 2.5])

# Graphs in which every axis may be empty
DYNAMIC = [
    *(
        (opset, f"g (float[N, M] x) => (float[A, B] y) {{ y = Reduce{name} <axes = [{axis}]> (x) }}")
        for name in ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
        for opset, axis in ((11, 0), (12, -1))
    ),
    (12, "g (float[N, M] x) => (float[A, B] y) { y = ReduceMean (x) }"),
    *(
        (opset, f"g (float[N, M, 2] x) => (float[N, M, 2] y) {{ y = {name} <axis = {axis}> (x) }}")
        for name in ("Softmax", "LogSoftmax", "Hardmax")
        for opset, axis in ((7, 0), (9, 1), (11, 2), (12, -1), (12, -2))
    ),
    (12, "g (float[N, M] x) => (float[1, N, M, 1] y) { y = Unsqueeze <axes = [0, -1]> (x) }"),
    (12, "g (float[N, 1, M] x) => (float[N, M] y) { y = Squeeze <axes = [1]> (x) }"),
    (12, "g (float[N, M] x) => (float[A, M] y, float[B, M] z) { y, z = Split <axis = 0> (x) }"),
    (17, "g (float[N, 4] x) => (float[N, 2] y, float[N, 2] z) { y, z = Split <axis = -1> (x) }"),
    (17, "g (float[N, 0] x) => (float[N, 0] y, float[N, 0] z) { y, z = Split <axis = 1> (x) }"),
    (9, "g (float[N, M] x) => (float[A, B] y) { y = Slice <starts = [1, -1], ends = [-1, 2147483647]> (x) }"),
    (9, "g (float[N, M] x) => (float[A, B] y) { y = Slice <starts = [-9], ends = [9], axes = [1]> (x) }"),
    (9, "g (float[N, M] x) => (float[N, 1] v, int64[N, 1] i) { v, i = TopK <k = 1> (x) }"),
    (9, "g (float[N, M] x) => (float[0, M] v, int64[0, M] i) { v, i = TopK <k = 0, axis = 0> (x) }"),
    *(
        (opset, f"g (float[N, M] x) => (float[A, B] y) {{ y = Pad <pads = [1, 0, 0, 2], value = {value}> (x) }}")
        for opset, value in ((7, 0.0), (10, -0.0), (10, 1.5))
    ),
    (10, "g (float[N] x) => (float[N] y) { y = Clip <min = 1.0, max = -1.0> (x) }"),
    (10, "g (float[N] x) => (float[N] y) { y = Clip <min = -0.0> (x) }"),
    (10, "g (float[N] x) => (float[N] y) { y = Clip (x) }"),
    (10, "g (float[N, M] x) => (float[N, M] y) { y = Dropout (x) }"),
    (9, "g (float[N, M] x) => (float[N, M] y) { y = Erf(x) }"),
]


@pytest.mark.parametrize(("opset", "graph"), DYNAMIC, ids=range(len(DYNAMIC)))
def test_hostile_values_and_empty_axes(opset: int, graph: str) -> None:
    """If the source runs, the raised model runs too and gives the same bits."""
    before = parse(graph_text(graph, opset))
    rng = np.random.default_rng(0)
    for newer in sorted({13, 14, 17, 18, 20, NEWEST} - set(range(opset + 1))):
        after, _ = raised(before, newer)
        if after is None:
            continue
        for sizes in itertools.product((0, 1, 2, 4), repeat=2):
            like = draw(before, 0, dict(zip("NM", sizes, strict=True)))
            feed = {name: rng.choice(HOSTILE, value.shape).astype(value.dtype) for name, value in like.items()}
            wanted = _answer(before, feed)
            if wanted is None:
                continue
            got = _answer(after, feed)
            assert got is not None, f"opset {newer} does not run on {sizes}"
            for left, right in zip(wanted, got, strict=True):
                same = (left.dtype, left.shape) == (right.dtype, right.shape)
                assert same, f"{right.shape} for {left.shape} in opset {newer} on {sizes}"
                numbers = ~np.isnan(left)
                assert (numbers == ~np.isnan(right)).all()
                assert left[numbers].tobytes() == right[numbers].tobytes(), f"opset {newer} on {sizes}"


def _answer(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray] | None:
    """Returns the outputs of the runtime, or None if it refuses to run the model."""
    try:
        return [np.asarray(value) for value in Session(model, threads=1).run(feeds)]
    except RuntimeFailure:
        return None


CLOSE = [
    (9, "g (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y) { y = MeanVarianceNormalization (x) }"),
    (12, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = MeanVarianceNormalization <axes = [0, 2]> (x) }"),
    (9, "g (float[1, 1, 5, 5] x) => (float[1, 1, 3, 3] y) { y = AveragePool <kernel_shape = [3, 3]> (x) }"),
    (
        11,
        "g (float[1, 1, 5, 5] x) => (float[1, 1, 3, 3] y)"
        " { y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1>(x) }",
    ),
    *(
        (
            16,
            "g (float[1, 1, 4, 4] x, float[1, 3, 3, 2] p) => (float[1, 1, 3, 3] y)"
            f' {{ y = GridSample <mode = "{mode}", align_corners = {corners}> (x, p) }}',
        )
        for mode in ("bilinear", "bicubic", "nearest")
        for corners in (0, 1)
    ),
    (16, "g (float[1, 1, 4, 4] x, float[1, 3, 3, 2] p) => (float[1, 1, 3, 3] y) { y = GridSample (x, p) }"),
    (
        18,
        "g (float[3, 6, 4] x) => (float[3, 6, 4] y) <float[2] s = {1.5, -2}, float[2] b = {0.5, 1}>"
        " { y = GroupNormalization <num_groups = 2> (x, s, b) }",
    ),
    (
        18,
        "g (float[3, 6, 4] x, float[2] s, float[2] b) => (float[3, 6, 4] y)"
        " { y = GroupNormalization <num_groups = 2> (x, s, b) }",
    ),
]


@pytest.mark.parametrize(("opset", "graph"), CLOSE, ids=range(len(CLOSE)))
def test_only_rounding_differs_where_the_runtime_has_other_kernels(opset: int, graph: str) -> None:
    before = onnx.parser.parse_model(graph_text(graph, opset))
    after, why = raised(before, NEWEST)
    assert after is not None, why
    onnx.checker.check_model(after, full_check=True)
    feeds = draw(before, 1, {})
    compare("y", outputs(before, feeds)[0], outputs(after, feeds)[0], exact=False, rtol=1e-6)


REFUSED = [
    (9, "(float[2] x) => (float[2] y, float[2] m) { y, m = Dropout (x) }", "mask changed its meaning"),
    (10, "(float[2] x) => (float[2] y, bool[2] m) { y, m = Dropout (x) }", "mask changed its meaning"),
    (21, "(float[1, 2, 4] x) => (float[1, 2, 1] y) { y = GlobalLpPool (x) }", "does not run it in opset 22"),
    (21, "(float[2] x) => (float[2] y) { y = RandomNormalLike (x) }", "does not run it in opset 22"),
    (
        16,
        "(float[1, 1, 6, 6] x, float[1, 4] r, int64[1] i) => (float[1, 1, 1, 1] y) { y = RoiAlign (x, r, i) }",
        "does not run it in opset 22",
    ),
    (10, "(float[4] x) => (float[2] y) <float[1] s = {0.5}> { y = Resize (x, s) }", "shrinks"),
    (10, "(float[4] x, float[1] s) => (float[A] y) { y = Resize (x, s) }", "shrinks"),
    (
        11,
        "(float[4] x) => (float[8] y) <float[0] r = {}, float[1] s = {2}>"
        ' { y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (x, r, s) }',
        "coordinates",
    ),
    (
        11,
        "(float[4] x, float[0] r, float[1] s, int64[1] z) => (float[A] y) { y = Resize (x, r, s, z) }",
        "both scales and sizes",
    ),
    (
        8,
        "(float[2, 3, 1] x, float[3, 1] a, float[3, 1] b, float[3, 1] c, float[3, 1] d) => (float[2, 3, 1] y)"
        " { y = BatchNormalization <spatial = 0> (x, a, b, c, d) }",
        "mean for every position",
    ),
    (
        9,
        "(float[2, 3] x, float[3] a, float[3] b, float[3] c, float[3] d) => (float[2, 3] y)"
        " { y, m, v, s, t = BatchNormalization (x, a, b, c, d) }",
        "training",
    ),
    (
        11,
        "(float[1, 1, 6] x) => (float[1, 1, 3] y)"
        " { y = MaxPool <kernel_shape = [1], strides = [4], ceil_mode = 1> (x) }",
        "last windows",
    ),
    (
        18,
        "(float[1, 1, 6] x) => (float[1, 1, 3] y)"
        " { y = AveragePool <kernel_shape = [1], strides = [4], ceil_mode = 1> (x) }",
        "last windows",
    ),
    (
        10,
        "(float[1, 2, 4] x, float[2, 3, 3] w) => (float[1, 3, 4] y)"
        ' { y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, w) }',
        "other side",
    ),
    (
        9,
        "(int64[2] i) => (float[2, 3] y) <int64 d = {3}, float[2] v = {0, 1}> { y = OneHot (i, d, v) }",
        "negative numbers",
    ),
    (9, "(int32[2] x) => (int32[2] y) { y = Erf (x) }", "floating-point numbers only"),
    (
        18,
        "(float[N, C] x, float[2] s, float[2] b) => (float[N, C] y)"
        " { y = GroupNormalization <num_groups = 2> (x, s, b) }",
        "how many channels",
    ),
    (
        8,
        "(float[2, 3, 4] x) => (float[2, 3, 4] y)"
        ' { y = Scan <num_scan_inputs = 1, body = b (float[4] p) => (float[4] q) { q = Relu(p) }> ("", x) }',
        "batches",
    ),
    (14, "(float[2] x) => (float[2] y) { y = Gelu (x) }", "Gelu (y) is not an operator of opset 14"),
    (14, "(float[2] x) => (float[2] y) { y = Nonsense (x) }", "Nonsense (y) is not an operator of opset 14"),
    (6, "(float[2] x) => (float[2] y) { y = Relu (x) }", "opset 6 is not raised"),
]


@pytest.mark.parametrize(("opset", "graph", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_nodes_without_an_equivalent_are_refused(opset: int, graph: str, reason: str) -> None:
    after, why = raised(onnx.parser.parse_model(graph_text(f"g {graph}", opset)), NEWEST)
    assert after is None
    assert reason in why
    assert why.startswith(f"needs opset {NEWEST}; ")
