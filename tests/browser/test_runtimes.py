"""Models in onnxruntime-web, in a real browser: the values are those of ONNX Runtime, and a difference is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from narrowing import array
from sardonyx.errors import RuntimeFailure
from sardonyx.runtime.remote import RemoteSession
from sardonyx.runtime.sessions import Session
from sardonyx.runtime.web import WebSession
from sardonyx.verification.compare import Oracle

PRODUCT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 4] x) => (float[n, 4] y) { w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()  y = Mul (x, w) }"""
VALUES = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 4] x, int64[n] k, bool[n] flag, float16[n] half, string[n] words)
  => (float[n, 4] y, int64[n] large, bool[n] no, float16[n] twice, string[n] same)
<float[4, 4] w>
{ y = MatMul (x, w)  large = Mul (k, k)  no = Not (flag)  twice = Add (half, half)  same = Identity (words) }"""
FEEDS = {
    "x": np.arange(8, dtype=np.float32).reshape(2, 4),
    "k": np.array([2**31, -3]),
    "flag": np.array([True, False]),
    "half": np.array([0.1, np.inf], np.float16),
    "words": np.array(["a", "é"], object),
}


@pytest.fixture
def opened(tmp_path: Path, node_modules: Path) -> Iterator[tuple[Path, WebSession]]:
    """A file with its weights beside it, and a session of it."""
    model = onnx.parser.parse_model(VALUES)
    weight = onnx.numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")  # exact products
    del model.graph.initializer[:]
    model.graph.initializer.append(weight)
    path = tmp_path / "values.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    session = WebSession(path, "wasm")
    yield path, session
    session.close()


@pytest.mark.medium
def test_values_of_every_kind_are_those_of_onnx_runtime(opened: tuple[Path, WebSession]) -> None:
    path, session = opened
    with pytest.raises(RuntimeFailure, match="invalid dimensions for input: x"):
        session.run(FEEDS | {"x": np.ones((2, 5), np.float32)})
    for ours, theirs in zip(session.run(FEEDS), Session(path).run(FEEDS), strict=True):
        np.testing.assert_array_equal(array(ours), array(theirs), strict=True)
    assert 0 < session.time(0.01) < 1
    assert session.name.startswith("onnxruntime-web 1.")


@pytest.mark.medium
def test_a_difference_is_found_in_the_browser(node_modules: Path) -> None:
    with pytest.MonkeyPatch.context() as before:  # the worker that runs models began without the variable
        before.delenv("SARDONYX_NODE_MODULES")
        RemoteSession(onnx.parser.parse_model(PRODUCT).SerializeToString()).close()
    same, wrong = PRODUCT.replace("(x, w)", "(w, x)"), PRODUCT.replace("4.0", "4.001")
    oracle = Oracle(onnx.parser.parse_model(PRODUCT), runtimes=("web-wasm",), trials=1)
    assert oracle.check(onnx.parser.parse_model(same)).passed
    verdict = oracle.check(onnx.parser.parse_model(wrong))
    assert not verdict.passed
    assert verdict.reference.startswith("onnxruntime-web"), verdict.notes


@pytest.mark.campaign
def test_attention_on_webgpu_has_the_values_of_onnx_runtime(node_modules: Path) -> None:
    """From 32 rows on its kernel uses subgroups where the device has them, with wrong values in SwiftShader's."""
    text = """<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]> g (float[1,64,32] q) => (float[1,64,32] y)
    { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q) }"""
    model = onnx.parser.parse_model(text)
    feeds = {"q": np.random.default_rng(0).standard_normal((1, 64, 32)).astype(np.float32)}
    session = WebSession(model, "webgpu")
    (ours,), (theirs,) = session.run(feeds), Session(model).run(feeds)
    session.close()
    np.testing.assert_allclose(array(ours), array(theirs), rtol=1e-5, atol=1e-6)
    assert session.dispatches == 2
