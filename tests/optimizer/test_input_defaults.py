"""Initializers that are also inputs: frozen on request, otherwise left to callers, with a note."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import pytest

import sardonyx
from sardonyx import OptimizeOptions
from sardonyx.verification.subject import Subject

TEXT = """g (float[2, 4] x, float[4, 4] w, float[4] b, float[4] c) => (float[2, 4] y) {
  e = Exp (b) d = Mul (e, c) a = MatMul (x, w) y = Mul (a, d)
}"""
FROZEN = OptimizeOptions(freeze_inputs=True)


@pytest.fixture(params=[(3, 7), (8, 17)], ids=["IR version 3", "IR version 8"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    version, opset = request.param
    made = onnx.parser.parse_model(f'<ir_version: {version}, opset_import: ["" : {opset}]> {TEXT}')
    rng = np.random.default_rng(0)
    for name, shape in {"w": (4, 4), "b": (4,), "c": (4,)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _result(path: Path) -> np.ndarray:
    with Subject(path).session(threads=1) as engine:
        return np.asarray(engine.run({"x": np.arange(8, dtype=np.float32).reshape(2, 4)})[0])


@pytest.mark.parametrize("keep_opset", [False, True])
def test_frozen_inputs_are_folded(model: Path, keep_opset: bool) -> None:
    output = model.with_name("frozen.onnx")
    options = OptimizeOptions(freeze_inputs=True, keep_opset=keep_opset)
    run = sardonyx.optimize(model, output, options=options)
    assert run.status == "done"
    assert run.verdict is not None
    assert run.notes[0] == "3 initializers ('w', 'b', 'c') are constants and no inputs of the result"
    written = onnx.load(output)
    onnx.checker.check_model(written, full_check=True)
    assert [value.name for value in written.graph.input] == ["x"]
    assert run.after.nodes <= 2 < run.before.nodes == 4
    np.testing.assert_allclose(_result(output), _result(model), rtol=1e-6)


def test_the_source_is_not_changed(model: Path) -> None:
    proto = onnx.load(model)
    before = proto.SerializeToString()
    run = sardonyx.optimize(proto, options=FROZEN)
    assert proto.SerializeToString() == before
    assert [value.name for value in run.to_proto().graph.input] == ["x"]


def test_without_the_option_callers_may_pass_other_values(model: Path) -> None:
    run = sardonyx.optimize(model)
    (note,) = [note for note in run.notes if "initializer" in note]
    assert note.startswith("3 initializers ('w', 'b', 'c') are also inputs, for which callers may pass other values")
    assert note.endswith("`freeze_inputs=True` makes them constants")
    assert [value.name for value in run.to_proto().graph.input] == ["x", "w", "b", "c"]
    assert run.after.nodes == 4


def test_nothing_to_freeze_is_said() -> None:
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Exp (x) }'
    )
    assert "no initializer is an input: there is nothing to freeze" in sardonyx.optimize(made, options=FROZEN).notes


def test_a_certificate_needs_the_inputs_of_the_source(model: Path) -> None:
    with pytest.raises(sardonyx.UsageError, match="a certificate is for a result with the inputs of the source"):
        sardonyx.optimize(model, certificate=model.with_name("c.json.gz"), options=FROZEN)
