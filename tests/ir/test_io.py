"""Weights stay on disk, saving streams them, and no file is ever partly written."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.common import atomic_write
from sardonyx.errors import OutputError
from sardonyx.ir import io
from sardonyx.ir.io import files
from sardonyx.ir.tensors import ComputedTensor, FileTensor, transposed

ROWS, COLUMNS = 40, 30


def weight() -> np.ndarray:
    return np.arange(ROWS * COLUMNS, dtype="f4").reshape(ROWS, COLUMNS)


def model_proto(array: np.ndarray | None = None) -> onnx.ModelProto:
    array = weight() if array is None else array
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="n")],
        "g",
        [value("x", 1, ["batch", array.shape[0]])],
        [value("y", 1, ["batch", array.shape[1]])],
        [TensorProto(name="w", data_type=1, dims=array.shape, raw_data=array.tobytes(), doc_string="a weight")],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(model_proto().SerializeToString())
    return tmp_path / "m.onnx"


def tensor_of(model: ir.Model) -> Any:
    return model.graph.initializers["w"].const_value


def saved_weight(path: Path) -> np.ndarray:
    return onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])


def test_a_weight_is_a_range_of_the_file(path: Path) -> None:
    tensor = tensor_of(io.load(path))
    assert isinstance(tensor, FileTensor)
    assert path.read_bytes()[tensor.offset : tensor.offset + tensor.length] == weight().tobytes()
    assert (tensor.name, tensor.doc_string) == ("w", "a weight")
    np.testing.assert_array_equal(tensor.numpy(), weight())


def test_packed_float_data_stays_on_disk_too_and_keeps_its_field(tmp_path: Path) -> None:
    proto = model_proto()
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].float_data.extend(weight().flatten().tolist())
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    model = io.load(tmp_path / "m.onnx")
    assert isinstance(tensor_of(model), FileTensor)
    np.testing.assert_array_equal(tensor_of(model).numpy(), weight())
    assert io.to_proto(model) == proto
    io.save(model, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == proto


def test_saving_over_the_input_leaves_the_model_usable(path: Path) -> None:
    model = io.load(path)
    original = tensor_of(model)
    model.graph.initializers["w"].const_value = transposed(original, (1, 0))
    model.doc_string = "longer than before, so that every offset in the file moves"
    for _ in range(3):
        io.save(model, path, force=True)
        np.testing.assert_array_equal(saved_weight(path), weight().T)
        np.testing.assert_array_equal(original.numpy(), weight())
    assert os.listdir(path.parent) == ["m.onnx"]


@pytest.mark.parametrize("external", [False, True])
def test_a_file_is_hashed_while_it_is_written(path: Path, external: bool) -> None:
    model, out = io.load(path), path.parent / "out.onnx"
    for name in ("big", "bigger"):
        tensor = ir.tensor(np.ones((600, 600), "f4"), name=name)
        model.graph.register_initializer(ir.Value(name=name, const_value=tensor))
    digest = io.save(model, out, external=external, hashed=True).digest
    assert digest == hashlib.sha256(out.read_bytes()).hexdigest()
    assert io.save(model, out, external=external, force=True).digest is None


def test_an_open_file_gives_several_graphs_even_if_it_is_replaced(path: Path) -> None:
    file = io.ModelFile.open(path)
    path.unlink()
    first, second = file.graph(), file.graph()
    first.graph.initializers.pop("w")
    np.testing.assert_array_equal(tensor_of(second).numpy(), weight())


def test_external_data_is_beside_the_model_and_aligned(path: Path) -> None:
    out = path.parent / "out.onnx"
    model = io.load(path)
    big = np.ones((600, 600), "f4")
    model.graph.register_initializer(ir.Value(name="big", const_value=ir.tensor(big, name="big")))
    io.save(model, out, external=True)
    proto = onnx.load(out, load_external_data=False)
    entries = [{e.key: e.value for e in t.external_data} for t in proto.graph.initializer]
    assert [entry["location"] for entry in entries] == ["out.onnx.data"] * 2
    assert int(entries[1]["offset"]) % 4096 == 0
    assert os.path.getsize(out) < 1000
    np.testing.assert_array_equal(saved_weight(out), weight())
    onnx.checker.check_model(str(out))


def test_an_explicit_default_location_does_not_hide_the_external_one(path: Path) -> None:
    proto = model_proto()
    proto.graph.initializer[0].data_location = TensorProto.DEFAULT
    path.write_bytes(proto.SerializeToString())
    io.save(io.load(path), path.parent / "out.onnx", external=True)
    np.testing.assert_array_equal(saved_weight(path.parent / "out.onnx"), weight())


def test_a_checksum_in_the_reference_survives(path: Path) -> None:
    io.save(io.load(path), path.parent / "a.onnx", external=True)
    proto = onnx.load(path.parent / "a.onnx", load_external_data=False)
    proto.graph.initializer[0].external_data.add(key="checksum", value="abc")
    (path.parent / "a.onnx").write_bytes(proto.SerializeToString())
    io.save(io.load(path.parent / "a.onnx"), path.parent / "b.onnx")
    again = onnx.load(path.parent / "b.onnx", load_external_data=False).graph.initializer[0]
    assert {entry.key: entry.value for entry in again.external_data}["checksum"] == "abc"


def test_external_stays_external_and_replaces_its_own_data(path: Path) -> None:
    out = path.parent / "out.onnx"
    io.save(io.load(path), out, external=True)
    model = io.load(out)
    for _ in range(3):
        io.save(model, out, force=True)
        np.testing.assert_array_equal(saved_weight(out), weight())
        np.testing.assert_array_equal(tensor_of(model).numpy(), weight())
        assert len([name for name in os.listdir(path.parent) if name.endswith(".data")]) == 1
    io.save(model, out, force=True, external=False)
    assert onnx.load(out, load_external_data=False) == model_proto()
    assert sorted(os.listdir(path.parent)) == ["m.onnx", "out.onnx"]


def test_data_of_another_model_is_not_removed(path: Path) -> None:
    out = path.parent / "out.onnx"
    (path.parent / "out.onnx.data").write_bytes(b"precious")
    io.save(io.load(path), out, external=True)
    io.save(io.load(path), out, external=True, force=True)
    assert (path.parent / "out.onnx.data").read_bytes() == b"precious"
    np.testing.assert_array_equal(saved_weight(out), weight())


@pytest.mark.parametrize("commits", [0, 1])
def test_the_old_model_still_works_after_a_kill_between_two_renames(
    path: Path, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop without clean-up, as after a kill, when this number of files was renamed."""
    out = path.parent / "out.onnx"
    io.save(io.load(path), out, external=True)
    done: list[str] = []
    commit = atomic_write.Draft.commit

    def stop(self: atomic_write.Draft, *, replace: bool) -> None:
        if len(done) == commits:
            os._exit(9)
        commit(self, replace=replace)
        done.append(self.path)

    monkeypatch.setattr(atomic_write.Draft, "commit", stop)
    child = os.fork()
    if child == 0:
        model = io.load(out)
        model.graph.initializers["w"].const_value = transposed(tensor_of(model), (1, 0))
        io.save(model, out, force=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    np.testing.assert_array_equal(saved_weight(out), weight())


def test_a_model_over_two_gigabytes_is_written_with_external_data(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_INLINE_LIMIT", 2000)
    io.save(io.load(path), path.parent / "out.onnx")
    assert (path.parent / "out.onnx.data").exists()
    np.testing.assert_array_equal(saved_weight(path.parent / "out.onnx"), weight())
    with pytest.raises(OutputError):
        io.save(io.load(path), path.parent / "inline.onnx", external=False)


def test_a_file_that_appears_while_saving_is_not_overwritten(path: Path) -> None:
    out = path.parent / "out.onnx"
    model = io.load(path)

    def appear() -> np.ndarray:
        out.write_bytes(b"precious")
        return weight()

    model.graph.initializers["w"].const_value = ComputedTensor(ir.DataType.FLOAT, (ROWS, COLUMNS), appear)
    with pytest.raises(OutputError):
        io.save(model, out)
    assert out.read_bytes() == b"precious"
    assert sorted(os.listdir(path.parent)) == ["m.onnx", "out.onnx"]


def test_a_failing_computation_leaves_nothing(path: Path) -> None:
    model = io.load(path)

    def fail() -> np.ndarray:
        raise RuntimeError("no such weight")

    model.graph.initializers["w"].const_value = ComputedTensor(ir.DataType.FLOAT, (ROWS, COLUMNS), fail)
    for external in (False, True):
        with pytest.raises(RuntimeError):
            io.save(model, path.parent / "out.onnx", external=external)
        assert os.listdir(path.parent) == ["m.onnx"]


def test_overwriting_keeps_permissions_and_follows_links(path: Path) -> None:
    path.chmod(0o640)
    link = path.parent / "link.onnx"
    link.symlink_to(path)
    io.save(io.load(path), link, force=True)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640


def test_from_proto_changes_nothing_and_renames_nothing(path: Path) -> None:
    proto = model_proto()
    model = io.from_proto(proto)
    model.graph.initializers["w"].name = "renamed"
    assert proto == model_proto()
    assert io.to_proto(model).graph.initializer[0].name == "renamed"


def test_fields_of_a_later_onnx_are_kept() -> None:
    """A field that no version of onnx defines, at every level."""
    unknown = b"\xfa\x3e\x03new"  # field 1007
    proto = model_proto()
    proto.functions.append(helper.make_function("d", "f", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], []))
    for message in (proto, proto.graph, proto.graph.node[0], proto.graph.input[0], proto.functions[0]):
        message.MergeFromString(unknown)
    proto.graph.initializer[0].MergeFromString(unknown)
    assert io.to_proto(io.from_proto(proto)).SerializeToString() == proto.SerializeToString()


def test_sparse_initializers_are_constants() -> None:
    proto = model_proto()
    values = helper.make_tensor("w", 1, [2], [5.0, 7.0])
    del proto.graph.initializer[:]
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("", 7, [2, 2], [0, 1, 3, 2]), [ROWS, COLUMNS])
    )
    tensor = tensor_of(io.from_proto(proto))
    expected = np.zeros((ROWS, COLUMNS), "f4")
    expected[0, 1], expected[3, 2] = 5, 7
    np.testing.assert_array_equal(tensor.numpy(), expected)


_MEASURE = """
import resource, sys, threading, time
from sardonyx.ir import io
from sardonyx.ir.tensors import transposed
model = io.load(sys.argv[1])
value = model.graph.initializers["w"]
value.const_value = transposed(value.const_value, (1, 0))
io.save(model, sys.argv[2])
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
assert "sympy" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_follows_the_graph_not_the_weights(tmp_path: Path) -> None:
    """A file of 200 MB, every byte of it transposed on the way, in a process that stays under 140 MB."""
    rows, columns = 20_000, 2_500
    proto = model_proto(np.zeros((1, 1), "f4"))
    proto.graph.initializer[0].raw_data = bytes(4 * rows * columns)
    proto.graph.initializer[0].dims[:] = [rows, columns]
    (tmp_path / "big.onnx").write_bytes(proto.SerializeToString())
    del proto
    command = [sys.executable, "-c", _MEASURE, str(tmp_path / "big.onnx"), str(tmp_path / "out.onnx")]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert os.path.getsize(tmp_path / "out.onnx") > 4 * rows * columns
    assert peak < 140


@pytest.mark.slow
def test_sympy_is_only_imported_for_arithmetic_on_dims() -> None:
    code = """
import sys
from sardonyx.ir import io
assert "sympy" not in sys.modules
import onnx_ir as ir
assert (ir.SymbolicDim("a") + 1).value == "a + 1"
assert ir.SymbolicDim("max(a, 2)").evaluate({"a": 7}) == 7
import sympy
assert sympy.Symbol("x") * 2 == sympy.Mul(2, sympy.Symbol("x")) and sympy.__spec__ is not None
assert ir.SymbolicDim(sympy.Symbol("q")).value == "q"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
