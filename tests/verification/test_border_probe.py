"""Inner values of a model whose weights are kept in a file."""

from __future__ import annotations

import numpy as np
import onnx

from sardonyx.ir import io
from sardonyx.runtime.sessions import Runtime
from sardonyx.verification.border_probe import BorderProbe

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[N, 1500] x) => (float[N, 1600] y) { a = MatMul(x, w) y = Relu(a) }"""


def test_weights_in_a_file_are_computed_in_double_precision_too() -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((1500, 1600), (2, 1500)))
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    probe = BorderProbe(io.from_proto(model), Runtime.ORT)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    for results, tolerance in ((probe.run({"x": x}, ["a"]), 1e-4), (probe.in_double({"x": x}, ["a"]), 1e-11)):
        assert results is not None
        np.testing.assert_allclose(np.asarray(results[1]["a"]), exact, atol=tolerance)
        np.testing.assert_allclose(np.asarray(results[0][0]), np.maximum(exact, 0), atol=tolerance)
