"""Sizes that nobody gave are the same in every command, and are called by the same names."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.inputs.generator import dynamic_dims
from sardonyx.records.inspection import Inspection

WEIGHTS = ", ".join(["0.5"] * 256)
WINDOWS = f"""g (float[N,1,samples] x) => (float[N,1,s] y) {{
    w = Constant<value = float[1,1,256] {{{WEIGHTS}}}>() y = Conv<strides = [256]>(x, w) }}"""


@pytest.mark.parametrize(
    ("graph", "sizes"),
    [
        (WINDOWS, {"N": 1, "samples": 256}),
        ("g (float[?,3,?] x) => (float[?,3,?] y) { y = Relu(x) }", {"x[0]": 1, "x[2]": 128}),
    ],
)
def test_a_model_is_analyzed_at_sizes_that_it_accepts(graph: str, sizes: dict[str, int]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {graph}')
    analysis = sardonyx.analyze(model)
    assert analysis.sizes == sizes == dynamic_dims(ir.from_proto(model))
    assert analysis.forms[0].work.flops > 0
    other = dict.fromkeys(sizes, 512)
    assert sardonyx.analyze(model, sizes=other).sizes == other
    inspection = sardonyx.inspect(model)
    assert isinstance(inspection, Inspection)
    assert set(sizes) <= {dim.name for dim in inspection.dynamic_dims}
