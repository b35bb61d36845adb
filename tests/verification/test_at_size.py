"""Feeds have the given sizes, including formulas of dims, and the model is unchanged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

import sardonyx
from narrowing import array
from sardonyx.errors import UsageError
from sardonyx.inputs.generator import at_size, dynamic_dims, sizes_of
from sardonyx.ir import io
from sardonyx.verification.subject import Subject

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, seq, 4] x, float[batch, total] m, float[2, unnamed] n, float[2, past] p)
    => (float[a, b, 4] y) { y = Relu(x) }
"""


@pytest.fixture
def model() -> ir.Model:
    proto = onnx.parser.parse_model(MODEL)
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "past + seq"  # which the parser does not accept
    proto.graph.input[2].type.tensor_type.shape.dim[1].ClearField("dim_param")
    return ir.from_proto(proto)


def _shapes(model: ir.Model, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    return {name: array(value).shape for name, value in at_size(model, sizes).items()}


def test_dims_are_listed_with_their_default_sizes(model: ir.Model) -> None:
    assert dynamic_dims(model) == {"batch": 1, "seq": 128, "n[1]": 128, "past": 128}


def test_sizes_reach_every_input_that_has_the_dim(model: ir.Model) -> None:
    shapes = _shapes(model, {"batch": 3, "seq": 5, "past": 7, "n[1]": 2})
    assert shapes == {"x": (3, 5, 4), "m": (3, 12), "n": (2, 2), "p": (2, 7)}
    assert _shapes(model, {"seq": 6})["m"] == (1, 134)


def test_sizes_are_read_back_from_feeds(model: ir.Model) -> None:
    fed = at_size(model, {"batch": 3, "seq": 5, "past": 7, "n[1]": 2})
    assert sizes_of(model, fed) == {"batch": 3, "seq": 5, "n[1]": 2, "past": 7}


def test_a_formula_of_names_that_no_input_has_is_a_name(model: ir.Model) -> None:
    model.graph.inputs[3].shape = ir.Shape((2, 9))
    assert dynamic_dims(model) == {"batch": 1, "seq": 128, "past + seq": 128, "n[1]": 128}


def test_the_shapes_of_the_model_are_unchanged(model: ir.Model) -> None:
    before = [str(value.shape) for value in model.graph.inputs]
    at_size(model, {"seq": 6})
    assert [str(value.shape) for value in model.graph.inputs] == before


def test_an_unknown_dim_is_refused_with_the_known_ones(model: ir.Model) -> None:
    with pytest.raises(UsageError, match="'length'") as refused:
        at_size(model, {"length": 3})
    assert refused.value.hint == "the dynamic dimensions are batch, seq, n[1], past"


def test_random_feeds_follow_the_seed(model: ir.Model) -> None:
    arrays = [array(at_size(model, {}, seed=seed)["x"]) for seed in (1, 1, 2)]
    assert (arrays[0] == arrays[1]).all()
    assert (arrays[0] != arrays[2]).any()


WAVE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, samples] x) => (float[batch, 4, frames] y) {
    axes = Constant <value = int64[1] {1}> ()
    c = Unsqueeze (x, axes)
    y = Conv <strides = [256]> (c, w)
}
"""


@pytest.fixture
def wave() -> ir.Model:
    """A convolution over windows of 512 samples."""
    proto = onnx.parser.parse_model(WAVE)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 1, 512), np.float32), "w"))
    return ir.from_proto(proto)


def test_sizes_that_the_model_rejects_are_replaced(wave: ir.Model) -> None:
    assert dynamic_dims(wave) == {"batch": 1, "samples": 512}
    assert dynamic_dims(wave, {"batch": 3}) == {"batch": 3, "samples": 512}
    assert array(at_size(wave)["x"]).shape == (1, 512)


def test_given_sizes_are_never_replaced(wave: ir.Model) -> None:
    assert dynamic_dims(wave, {"samples": 300}) == {"batch": 1, "samples": 300}


def test_a_dimension_of_one_that_broadcasts_keeps_its_size() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, t, 4] x, float[k, 4] z) => (float[a, b, 4] y)'
    proto = onnx.parser.parse_model(text + " { y = Add (x, z) }")
    assert dynamic_dims(ir.from_proto(proto)) == {"n": 1, "k": 1, "t": 128}


def test_sizes_of_petabytes_are_replaced_by_those_of_the_trials() -> None:
    dims = ", ".join("abcdefghi")
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu (x) }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert max(dynamic_dims(model).values()) <= 4
    assert math.prod(array(at_size(model)["x"]).shape) < 1 << 22
    assert dynamic_dims(model, {"b": 64})["b"] == 64


def test_the_batch_of_a_recurrent_state_is_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, samples] x, float[2, ?, 16] state) => (float y, float[2, ?, 16] stateN)
        { y = ReduceSum <keepdims = 0> (x) stateN = Add (state, y) }"""
    sizes = {"batch": 1, "samples": 128, "state[1]": 1}
    assert dynamic_dims(ir.from_proto(onnx.parser.parse_model(text))) == sizes


SOUND = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, samples] x) => (float[windows, 256] y)
    <float[2] sides = {-1.0, 65536.0}>
{
    roots = Abs (sides)
    numbers = Sqrt (roots)
    negative = Neg (numbers)
    first = Constant <value = bool[2] {1, 0}> ()
    target = Where (first, negative, numbers)
    shape = Cast <to = 7> (target)
    y = Reshape (x, shape)
}
"""


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Samples are read in windows of 256, as the values of the graph say and its shapes do not."""
    onnx.save_model(onnx.parser.parse_model(SOUND), tmp_path / "sound.onnx")
    return tmp_path / "sound.onnx"


def test_sizes_that_only_runs_find_are_found(sound: Path) -> None:
    model, opened = io.load(sound), Subject(sound).any_session
    assert dynamic_dims(model)["samples"] == 128
    found = dynamic_dims(model, {}, opened)
    assert found["batch"] * found["samples"] % 256 == 0
    assert dynamic_dims(model, {"batch": 4}, opened)["samples"] % 64 == 0
    assert dynamic_dims(model, {"samples": 100}, opened) == {"batch": 1, "samples": 100}  # no run accepts it


RECURRENT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, samples] x, float[1, rows, 3] h, bool long) => (float[?, 1, ?, 3] y)
    <int64[1] first = {0}>
{
    y = If (long) <
        then_branch = on () => (float[?, 1, ?, 3] p) {
            s = Constant <value = int64[3] {0, -1, 12}> ()
            windows = Reshape (x, s)
            t = Transpose <perm = [1, 0, 2]> (windows)
            state = If (long) <
                then_branch = same () => (float[1, ?, 3] k) { k = Identity (h) },
                else_branch = other () => (float[?, ?, ?, ?] l) { l = Unsqueeze (h, first) }
            >
            p = LSTM <hidden_size = 3> (t, w, r, , , state)
        },
        else_branch = off () => (float[?, 1, ?, 3] q) { z = Unsqueeze (h, first)  q = Identity (z) }
    >
}
"""


def test_the_batch_of_a_state_is_that_of_the_input(tmp_path: Path) -> None:
    """The graph does not tell, since the rank of the state is unknown; the reference evaluator accepts other sizes."""
    proto = onnx.parser.parse_model(RECURRENT)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (1, 12, 12)), ("r", (1, 12, 3))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype("f4"), name))
    onnx.save_model(proto, tmp_path / "state.onnx")
    verdict = sardonyx.verify(tmp_path / "state.onnx", tmp_path / "state.onnx")
    assert verdict.reference.startswith("onnxruntime")
    assert any(trial.dims["rows"] == trial.dims["batch"] > 1 for trial in verdict.trials)


def test_other_commands_use_sizes_that_only_runs_find(sound: Path) -> None:
    (model,) = sardonyx.profile(sound, runs=1).models
    assert model.kernels
    (point,) = sardonyx.bench(sound, seconds=0.1, starts=0).points
    assert point.sizes["batch"] * point.sizes["samples"] % 256 == 0
