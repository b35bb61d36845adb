"""The runtime package: cheap to import, silent, every element type, and the reference evaluator as a fallback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx
from narrowing import array
from sardonyx.errors import RuntimeFailure
from sardonyx.passes._evaluation import FAILED
from sardonyx.runtime import ReferenceSession, Session, evaluate, remote
from sardonyx.runtime.remote import RemoteSession, RuntimeCrash, RuntimeTimeout, free_memory
from sardonyx.verification.subject import Subject


def text_model(body: str, opset: int = 18, ir: int = 9) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}]>\n{body}')


def cast_model(source: int, target: int, opset: int = 25) -> onnx.ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], to=target)
    graph = helper.make_graph(
        [node],
        "cast",
        [helper.make_tensor_value_info("x", source, ["n"])],
        [helper.make_tensor_value_info("y", target, ["n"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)


RELU = "g (float[n] x) => (float[n] y) { y = Relu (x) }"


def test_importing_the_package_loads_no_runtime() -> None:
    code = (
        "import sys, sardonyx.runtime; sys.exit(any(m.split('.')[0] in ('onnxruntime', 'onnx') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("form", ["path", "text", "bytes", "proto"])
def test_a_model_loads_from_any_form(form: str, tmp_path: Path) -> None:
    model = text_model(RELU)
    onnx.save(model, tmp_path / "m.onnx")
    source = {
        "path": tmp_path / "m.onnx",
        "text": str(tmp_path / "m.onnx"),
        "bytes": model.SerializeToString(),
        "proto": model,
    }[form]
    for engine in (Session(source), ReferenceSession(source)):
        (y,) = engine.run({"x": np.array([-1, 2], np.float32)})
        np.testing.assert_array_equal(y, [0, 2])


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
        (TensorProto.INT4, ml_dtypes.int4),
        (TensorProto.UINT4, ml_dtypes.uint4),
        (TensorProto.INT2, ml_dtypes.int2),
        (TensorProto.UINT2, ml_dtypes.uint2),
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT64, np.uint64),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.BOOL, np.bool_),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_element_type_is_accepted_and_returned(element: int, dtype: type, count: int) -> None:
    numbers = np.array([1, 0, 1, -1 if np.dtype(dtype).name.startswith(("int", "float", "b")) else 1, 1], np.float32)
    numbers = numbers[:count]
    (small,) = Session(cast_model(TensorProto.FLOAT, element)).run({"x": numbers})
    assert isinstance(small, np.ndarray)
    assert small.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(small.astype(np.float32), numbers.astype(dtype).astype(np.float32))
    (back,) = Session(cast_model(element, TensorProto.FLOAT)).run({"x": numbers.astype(dtype)})
    np.testing.assert_array_equal(back, numbers.astype(dtype).astype(np.float32))


def test_strings_sequences_and_optionals() -> None:
    words = text_model("g (string[n] x) => (string[n] y) { y = Identity (x) }")
    (y,) = Session(words).run({"x": np.array(["a", "ß"], object)})
    assert isinstance(y, np.ndarray)
    assert y.tolist() == ["a", "ß"]
    parts = text_model("g (seq(float[n]) x) => (seq(float[n]) y) { y = Identity (x) }")
    for engine in (Session(parts), ReferenceSession(parts)):
        (z,) = engine.run({"x": [np.ones(2, np.float32), np.zeros(3, np.float32)]})
        assert isinstance(z, list)
        assert [array(part).shape for part in z] == [(2,), (3,)]


def test_optimizations_are_off_by_default() -> None:
    """The runtime's own default merges Pad with MaxPool, which is wrong below zero; off, it must not."""
    model = text_model("""g (float[1, 1, 2, 2] x) => (float[1, 1, a, b] y) {
        pads = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()
        padded = Pad (x, pads)
        y = MaxPool <kernel_shape = [2, 2]> (padded)
    }""")
    x = -np.ones((1, 1, 2, 2), np.float32)
    engine = Session(model)
    (y,) = engine.run({"x": x})
    assert isinstance(y, np.ndarray)
    assert y[0, 0, 0, 0] == 0
    assert engine.name.startswith("onnxruntime ")
    assert engine.name.endswith("optimizations off")
    assert Session(model, optimize=True).name.endswith("optimizations on")


@pytest.mark.parametrize(("ir", "opset"), [(14, 18), (10, 27)])
def test_an_opset_newer_than_the_runtime_runs_in_the_reference(ir: int, opset: int) -> None:
    engine = Subject(text_model(RELU, opset, ir)).any_session()
    assert engine.name.startswith("onnx.reference ")
    (y,) = engine.run({"x": np.array([-1, 2], np.float32)})
    np.testing.assert_array_equal(y, [0, 2])


def test_a_kernel_missing_in_the_runtime_runs_in_the_reference() -> None:
    model = text_model("g (double[n] x) => (double[n] y) { y = Erf (x) }")
    assert Subject(model).any_session().name.startswith("onnx.reference ")


def test_refusals_are_one_line_and_nothing_is_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = text_model("g (float[n] x) => (float[n] y) { y = NoSuchOperator (x) }")
    for action in (
        lambda: Session(broken),
        lambda: Subject(broken).any_session().run({"x": np.ones(1, np.float32)}),
        lambda: Session(b"not a model"),
        lambda: Session(tmp_path / "missing.onnx"),
        lambda: Session(text_model(RELU)).run({}),
        lambda: Session(text_model(RELU)).run({"x": np.ones(1, np.int32)}),
        lambda: Session(text_model(RELU)).run({"x": np.ones((1, 1), np.float32)}),
        lambda: ReferenceSession(text_model(RELU)).run({}),
    ):
        with pytest.raises(RuntimeFailure) as caught:
            action()
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 800
    assert capfd.readouterr() == ("", "")


def test_evaluate_returns_all_outputs_in_order() -> None:
    model = text_model("""g () => (float[2] double, int64[1] size) {
        one = Constant <value = float[2] {1, 2}> ()
        double = Add (one, one)
        size = Shape (one)
    }""")
    double, size = evaluate(model)
    np.testing.assert_array_equal(size, [2])
    np.testing.assert_array_equal(double, [2, 4])


def test_evaluate_returns_tensors_only() -> None:
    model = text_model("g () => (seq(float[1]) y) { x = Constant <value = float[1] {1}> () y = SequenceConstruct (x) }")
    with pytest.raises(RuntimeFailure, match="not a tensor"):
        evaluate(model)


def test_evaluate_falls_back_model_by_model() -> None:
    model = text_model("g () => (double[1] y) { x = Constant <value = double[1] {0.5}> () y = Erf (x) }")
    (y,) = evaluate(model)
    assert y.dtype == np.float64
    assert y[0] == pytest.approx(0.5204998778)
    broken = text_model("g () => (float[1] y) { x = Constant <value = float[1] {1}> () y = NoSuchOperator (x) }")
    with pytest.raises(RuntimeFailure):
        evaluate(broken)


def test_evaluate_keeps_small_types() -> None:
    model = text_model("g () => (bfloat16[2] y) { y = Cast <to = 16> (x) }", opset=19)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1.5, -2], np.float32), "x"))
    (y,) = evaluate(model)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y.astype(np.float32), [1.5, -2])


ENDLESS = """g (int64 n) => (int64 y) { yes = Constant <value = bool {1}> ()
    y = Loop (n, yes, n) <body = b (int64 i, bool c, int64 v) => (bool c2, int64 w) {
        c2 = Identity (c) w = Add (v, v) }> }"""


@pytest.mark.slow
def test_an_empty_batch_that_aborts_the_runtime_is_a_failure_of_that_run_alone() -> None:
    weights = [", ".join(["0.1"] * count) for count in (24, 36)]
    lstm = text_model(
        f"""g (float[s, n, 2] x) => (float[s, 1, n, 3] y)
        <float[1, 12, 2] w = {{{weights[0]}}}, float[1, 12, 3] r = {{{weights[1]}}}> {{
        y, h, c = LSTM <hidden_size = 3> (x, w, r) }}"""
    )
    with RemoteSession(lstm.SerializeToString(), threads=1) as session:
        before = session.run({"x": np.ones((4, 2, 2), np.float32)})
        with pytest.raises(RuntimeCrash, match="the process that runs it"):
            session.run({"x": np.ones((4, 0, 2), np.float32)})
        after = session.run({"x": np.ones((4, 2, 2), np.float32)})
    np.testing.assert_array_equal(before[0], after[0])


@pytest.mark.slow
def test_folding_survives_a_kernel_that_aborts() -> None:
    """An LSTM with an empty batch stays, with a reason; the rest is folded."""
    weights = [", ".join(["0.1"] * count) for count in (24, 36)]
    model = text_model(
        f"""g (float[n] x) => (float[n] y) <float[3, 0, 2] e = {{}}, float two = {{2}},
        float[1, 12, 2] w = {{{weights[0]}}}, float[1, 12, 3] r = {{{weights[1]}}}> {{
        none = Identity (e)  s = Exp (two)  z = Mul (x, s)
        "", h = LSTM <hidden_size = 3> (none, w, r)  k = ReduceSum <keepdims = 0> (h)  y = Add (z, k) }}"""
    )
    run = sardonyx.optimize(model, verify="off")
    assert sorted(node.op_type for node in run.to_proto().graph.node) == ["Add", "LSTM", "Mul", "ReduceSum"]
    assert any(group.reason == FAILED for one in run.passes for group in one.refusals)


@pytest.mark.slow
def test_a_run_that_does_not_end_is_stopped() -> None:
    with RemoteSession(text_model(ENDLESS).SerializeToString(), threads=1, seconds=1.0) as session:
        assert session.run({"n": np.array(3)}) == [24]
        with pytest.raises(RuntimeTimeout, match="did not finish in 1 s"):
            session.run({"n": np.array(1 << 60)})
        assert session.run({"n": np.array(3)}) == [24]


def test_a_closed_session_opens_itself_again() -> None:
    session = RemoteSession(text_model(RELU).SerializeToString(), threads=1)
    session.close()
    session.close()
    assert array(session.run({"x": np.array([-1, 2], np.float32)})[0]).tolist() == [0, 2]
    assert session.usage.seconds > 0
    session.close()


FORKED = """
import os, signal, sys
from pathlib import Path
from sardonyx.runtime import remote
remote.start_early()
import numpy as np
session = remote.RemoteSession(Path(sys.argv[1]))
worker = remote._shared.worker().process
assert os.getpgid(worker) == worker != os.getpgid(0), "an interrupt of this process does not reach it"
same = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (worker, os.getpid())]
feeds = {"x": np.array([1.0, 4.0], np.float32)}
print(same[0] == same[1], session.run(feeds)[0].tolist())
os.kill(worker, signal.SIGKILL)
try:
    session.run(feeds)
except remote.RuntimeCrash as crash:
    print(crash.message)
print(session.run(feeds)[0].tolist(), remote._shared.worker().process != worker)
"""


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the worker is never a fork")
def test_an_early_worker_is_a_fork_and_is_replaced_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(text_model("g (float[N] x) => (float[N] y) { y = Sqrt(x) }"), path)
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # the process has one thread
    command = [sys.executable, "-c", FORKED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == [
        "True [1.0, 2.0]",
        "the process that runs it was killed (SIGKILL)",
        "[1.0, 2.0] True",
    ]
    assert done.stderr == ""


@pytest.mark.medium
def test_a_process_with_threads_does_not_fork() -> None:
    code = (
        "import threading; from sardonyx.runtime import remote; "
        "threading.Thread(target=threading.Event().wait, daemon=True).start(); "
        "remote.start_early(); print(remote._shared._worker)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc returns freed memory on request")
def test_the_worker_returns_the_memory_of_closed_models(tmp_path: Path) -> None:
    """Weights of 100 kB are allocated on the heap, where a small model that is open keeps them from being returned."""
    path = tmp_path / "model.onnx"
    names = [f"w{number}" for number in range(1000)]
    model = text_model(
        "g (float[N] x) => (float[N] y) { y = Sum(x, " + ", ".join(f"{name}_0" for name in names) + ") }"
    )
    for name in names:
        model.graph.initializer.append(numpy_helper.from_array(np.full(25_000, 1, np.float32), name))
        model.graph.node.insert(0, helper.make_node("ReduceMax", [name], [f"{name}_0"], keepdims=0))
    onnx.save(model, path)
    feeds = {"x": np.ones(2, np.float32)}
    small = RemoteSession(text_model("g (float[N] x) => (float[N] y) { y = Sqrt(x) }").SerializeToString())
    small.run(feeds)
    before = small.usage.peak_bytes
    with RemoteSession(path) as large:
        large.run(feeds)
        assert large.usage.peak_bytes > before + 80_000_000
        small.run(feeds)
    free_memory()
    small.run(feeds)
    assert small.usage.peak_bytes < before + 40_000_000
    small.close()


@pytest.fixture
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker of this test alone: the heap of one that ran other models may keep a large result."""
    worker = type(remote._shared)()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(remote, "_shared", worker)
    yield
    worker.stop()


WITH_LARGE_RESULTS = """g (float[1] x, int64[1] n) => (float[1] y)
    { s = Sqrt(x) a = Expand(s, n) b = Exp(a) y = ReduceMax(b) }"""


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.usefixtures("new_worker")
def test_the_memory_of_intermediate_results_is_returned_after_each_run() -> None:
    """All but the first region of the arena, which is as large as the first result or 1 MB."""
    small = RemoteSession(text_model("g (float[N] x) => (float[N] y) { y = Sqrt(x) }").SerializeToString())
    feeds = {"x": np.ones(1, np.float32)}
    small.run(feeds)
    before = small.usage.peak_bytes
    with RemoteSession(text_model(WITH_LARGE_RESULTS).SerializeToString()) as large:
        peaks: list[int] = []
        for _ in range(3):  # what the runtime keeps stays in every round; the system may count pages late in one
            large.run({**feeds, "n": np.array([1 << 24])})
            assert large.usage.peak_bytes > before + 60_000_000
            small.run(feeds)
            peaks.append(small.usage.peak_bytes)
    assert min(peaks) < before + 20_000_000
    small.close()


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.usefixtures("new_worker")
def test_memory_that_a_model_keeps_is_returned_when_it_is_closed() -> None:
    small = RemoteSession(text_model("g (float[N] x) => (float[N] y) { y = Sqrt(x) }").SerializeToString())
    feeds = {"x": np.ones(1, np.float32)}
    small.run(feeds)
    before = small.usage.peak_bytes
    with RemoteSession(text_model(WITH_LARGE_RESULTS).SerializeToString(), keeps_memory=True) as large:
        large.run({**feeds, "n": np.array([1 << 24])})
        small.run(feeds)
        assert small.usage.peak_bytes > before + 60_000_000
    small.run(feeds)
    assert small.usage.peak_bytes < before + 20_000_000
    small.close()
