"""The benchmarks measure the peak and time of the child process alone, and ratios have the documented direction."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import compare
import measure
import peers


@pytest.mark.medium
def test_the_peak_is_that_of_the_child_process() -> None:
    """Measured from a small process, as the campaigns do: the memory of a large parent counts in its children."""
    hungry = "x = bytearray(b'1') * (200 << 20)"
    campaign = f"import measure, sys; print(measure.run([sys.executable, '-c', {hungry!r}]).peak_mb)"
    folder = Path(measure.__file__).parent
    output = subprocess.run([sys.executable, "-c", campaign], check=True, capture_output=True, cwd=folder).stdout
    assert 200 < float(output) < 225


def test_the_time_covers_the_whole_child_process() -> None:
    assert 0.3 < measure.run([sys.executable, "-c", "import time; time.sleep(0.3)"]).seconds < 5


@pytest.mark.slow
def test_sleeping_counts_as_wall_time_only_and_computing_as_both() -> None:
    asleep = measure.run([sys.executable, "-c", "import time; time.sleep(0.5)"])
    busy = measure.run([sys.executable, "-c", "sum(i * i for i in range(4_000_000))"])
    assert asleep.cpu_seconds < asleep.seconds - 0.4
    assert 0.05 < busy.cpu_seconds < busy.seconds + 0.05


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_private_memory_does_not_grow_with_the_weights_while_verifying(tmp_path: Path) -> None:
    """Weights of 300 MB in a separate file, which is a hole; both models run, in less private memory than that."""
    width = 5000
    text = f"""<ir_version: 10, opset_import: ["" : 18]> agraph (float[n, {width}] x) => (float[n, {width}] y) {{
        a = MatMul(x, w0)  b = Identity(a)  c = MatMul(b, w1)  d = Identity(c)  y = MatMul(d, w2) }}"""
    model = onnx.parser.parse_model(text)
    for index in range(3):
        weight = model.graph.initializer.add(name=f"w{index}", data_type=1, dims=[width, width], data_location=1)
        for key, value in (("location", "weights"), ("offset", index * 4 * width**2), ("length", 4 * width**2)):
            weight.external_data.add(key=key, value=str(value))
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(3 * 4 * width**2)
        for index in range(3):  # no two weights are the same
            os.pwrite(file.fileno(), struct.pack("f", index + 1), index * 4 * width**2)
    onnx.save(model, tmp_path / "model.onnx")
    target = str(tmp_path / "small.onnx")
    command = [sys.executable, "-m", "sardonyx", "optimize", str(tmp_path / "model.onnx"), "-o", target, "-q"]
    private, mapped = measure.memory_of_all(command)
    assert private < 150
    assert mapped > 300


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_checking_a_rewrite_of_a_large_weight_keeps_few_copies_of_it(tmp_path: Path) -> None:
    """A float16 product whose fusion is also checked in double precision: a weight of 24 MB, 96 MB in double."""
    rows, columns = 2048, 6144
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float16[n, {rows}] x) => (float16[n, {columns}] y) {{ a = MatMul(x, w)  y = Add(a, b) }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    weights = {"w": random.normal(size=(rows, columns)) / 45, "b": random.normal(size=columns)}
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float16), name))
    onnx.save(model, tmp_path / "model.onnx")
    target = str(tmp_path / "small.onnx")
    command = [sys.executable, "-m", "sardonyx", "optimize", str(tmp_path / "model.onnx"), "-o", target, "-q"]
    assert measure.memory_of_all(command)[0] < 600


def test_medians_are_taken_measure_by_measure() -> None:
    costs = [measure.Cost(1, 30, 200), measure.Cost(3, 10, 100), measure.Cost(2, 20, 300)]
    assert measure.median(costs) == measure.Cost(2, 20, 200)


def test_a_failing_command_is_no_measurement() -> None:
    with pytest.raises(measure.CommandFailed, match=r"exit 3.*because"):
        measure.run([sys.executable, "-c", "print('because'); raise SystemExit(3)"])


def test_commands_are_interleaved(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    commands = {name: [sys.executable, "-c", append, str(log), name] for name in ("a", "b")}
    costs = measure.interleaved(commands, repeats=2)
    assert log.read_text() == "abab"
    assert [len(runs) for runs in costs.values()] == [2, 2]


def test_the_ratio_is_ours_over_theirs_per_run() -> None:
    ours = [measure.Cost(seconds, 0, 0) for seconds in (1.0, 8.0, 3.0)]
    theirs = [measure.Cost(seconds, 0, 0) for seconds in (2.0, 4.0, 2.0)]
    assert measure.paired_ratio(ours, theirs) == 1.5


def test_a_claim_fails_only_above_its_bound() -> None:
    assert compare.Claim("x", 1.0, 1.0, "×").met
    assert not compare.Claim("x", 1.01, 1.0, "×").met
    assert compare.Claim("x", 1.01, 1.0, "×").line().startswith("MISS")


MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x, bool c) => (float[2, 3] y) {
    one = Constant <value = float {1.0}> ()
    y = If(c) <
        then_branch = t () => (float[2, 3] p) { p = Add(x, one) },
        else_branch = e () => (float[2, 3] q) { q = Neg(x) }
    >
}
"""


@pytest.mark.medium
def test_nodes_in_bodies_count_and_constants_are_counted_separately(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    counted = subprocess.run([sys.executable, peers.__file__, "count", path], check=True, capture_output=True).stdout
    assert json.loads(counted) == {"nodes": 3, "constants": 1, "batch_norms": 0}


@pytest.mark.medium
def test_the_runtime_writes_its_own_optimized_file(tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), source)
    measure.run([sys.executable, peers.__file__, "onnxruntime", str(source), str(output)])
    assert onnx.load(output).graph.node
