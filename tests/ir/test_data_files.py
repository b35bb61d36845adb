"""A save removes a data file only if it wrote or replaced it and no model uses it, and says what it keeps."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.common import atomic_write
from sardonyx.errors import OutputError
from sardonyx.ir import io
from sardonyx.ir.io import data_files
from sardonyx.ir.tensors import ComputedTensor

WEIGHT = np.arange(2048, dtype="f4").reshape(32, 64)


def model_proto() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", 32])],
        [helper.make_tensor_value_info("y", 1, ["batch", 64])],
        [TensorProto(name="w", data_type=1, dims=WEIGHT.shape, raw_data=WEIGHT.tobytes())],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model with the weights in `m.onnx.data`, in a folder of its own."""
    path = tmp_path / "models" / "m.onnx"
    path.parent.mkdir()
    io.save(io.from_proto(model_proto()), path, external=True)
    assert names(path) == ["m.onnx", "m.onnx.data"]
    return path


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def rewritten(path: Path, *, external: bool | None = None) -> tuple[str, ...]:
    """Save a model over itself; return the notes."""
    notes = io.save(io.load(path), path, force=True, external=external).notes
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0]), WEIGHT)
    return notes


def edited(path: Path, edit: Callable[[onnx.ModelProto], None]) -> None:
    proto = onnx.load(path, load_external_data=False)
    edit(proto)
    path.write_bytes(proto.SerializeToString())


def locate(proto: onnx.ModelProto, location: str) -> None:
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location


@pytest.mark.parametrize("external", [False, True])
def test_the_data_of_the_replaced_model_is_removed_without_a_word(path: Path, external: bool) -> None:
    assert rewritten(path, external=external) == ()
    assert names(path) == (["m.onnx", "m.onnx.1.data"] if external else ["m.onnx"])


def _as_it_is(proto: onnx.ModelProto) -> None:
    del proto


def _other_spelling(proto: onnx.ModelProto) -> None:
    locate(proto, "./M.onnx.data")


def _in_a_function(proto: onnx.ModelProto) -> None:
    tensor = proto.graph.initializer[0]
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    proto.functions.append(helper.make_function("d", "f", [], ["c"], [constant], [helper.make_opsetid("", 17)]))
    del proto.graph.initializer[:]


def _in_a_body(proto: onnx.ModelProto) -> None:
    body = helper.make_graph([], "b", [], [], [proto.graph.initializer[0]])
    proto.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=body, else_branch=body))
    del proto.graph.initializer[:]


def _in_training_info(proto: onnx.ModelProto) -> None:
    proto.training_info.add().algorithm.initializer.append(proto.graph.initializer[0])
    del proto.graph.initializer[:]


@pytest.mark.parametrize("edit", [_as_it_is, _other_spelling, _in_a_function, _in_a_body, _in_training_info])
@pytest.mark.parametrize("name", ["with_past.onnx", "a_model_without_suffix", "link.onnx"])
def test_data_that_another_model_uses_is_kept(path: Path, name: str, edit: Callable[[onnx.ModelProto], None]) -> None:
    """Decoders are often exported as two models that share their weights."""
    other = path.parent.parent / name if name == "link.onnx" else path.with_name(name)
    shutil.copy(path, other)
    edited(other, edit)
    if name == "link.onnx":
        path.with_name(name).symlink_to(other)
    assert rewritten(path, external=False) == (f"kept m.onnx.data, a data file of the replaced model: {name} uses it",)
    assert names(path) == sorted(["m.onnx", "m.onnx.data", name])
    assert path.with_name("m.onnx.data").read_bytes() == WEIGHT.tobytes()


def test_names_that_are_not_utf_8(path: Path) -> None:
    path.with_name(os.fsdecode(b"\xff.onnx")).write_bytes(path.read_bytes())
    hostile = path.read_bytes().replace(b"m.onnx.data", b"m.onnx.\xff\xfe\xfda")
    path.with_name("hostile.onnx").write_bytes(hostile)
    assert rewritten(path) == ("kept m.onnx.data, a data file of the replaced model: \ufffd.onnx uses it",)


def test_data_is_kept_beside_a_model_that_cannot_be_read(path: Path) -> None:
    other = path.with_name("Other.ONNX")
    other.write_bytes(path.read_bytes()[:50])
    (path.parent / "folder.onnx").mkdir()  # no model
    path.with_name("notes.txt").write_text("no model either")
    why = "Other.ONNX cannot be read and may use it"
    assert rewritten(path) == (f"kept m.onnx.data, a data file of the replaced model: {why}",)
    assert path.with_name("m.onnx.data").exists()
    other.unlink()
    assert rewritten(path) == ()
    assert not path.with_name("m.onnx.1.data").exists()


@pytest.mark.parametrize("location", ["weights.bin", "m.onnx_data", "m.onnx.01.data", "M.onnx.data", "m.onnx.x.data"])
def test_data_with_another_name_is_kept(path: Path, location: str) -> None:
    path.with_name("m.onnx.data").rename(path.with_name(location))
    edited(path, lambda proto: locate(proto, location))
    why = "only m.onnx.data and m.onnx.N.data are removed"
    assert rewritten(path) == (f"kept {location}, a data file of the replaced model: {why}",)
    assert path.with_name(location).exists()


def test_a_link_is_kept(path: Path) -> None:
    """The loader refuses it too, so the model is replaced by another one."""
    victim = path.parent.parent / "victim.data"
    path.with_name("m.onnx.data").rename(victim)
    path.with_name("m.onnx.data").symlink_to(victim)
    notes = io.save(io.from_proto(model_proto()), path, force=True).notes
    assert notes == ("kept m.onnx.data, a data file of the replaced model: it is not a regular file",)
    assert victim.exists()
    assert path.with_name("m.onnx.data").is_symlink()


@pytest.mark.parametrize("is_external", [False, True])
@pytest.mark.parametrize(
    "location", ["m.onnx.x/../../documents/victim.data", "{}/documents/victim.data", "../documents/victim.data"]
)
def test_a_file_outside_the_folder_is_never_removed(path: Path, location: str, is_external: bool) -> None:
    """A hostile model may name any file, also in a tensor that has its data in the model."""
    victim = path.parent.parent / "documents" / "victim.data"
    victim.parent.mkdir()
    victim.write_bytes(b"precious")
    (path.parent / "m.onnx.x").mkdir()
    proto = model_proto()
    if is_external:
        proto.graph.initializer[0].ClearField("raw_data")
        proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    name = location.format(path.parent.parent)
    proto.graph.initializer[0].external_data.add(key="location", value=name)
    path.write_bytes(proto.SerializeToString())
    assert io.external_files(path) == ([name] if is_external else [])
    io.save(io.from_proto(model_proto()), path, force=True)
    assert victim.read_bytes() == b"precious"


def test_an_inline_tensor_names_no_file(path: Path) -> None:
    proto = model_proto()
    proto.graph.initializer[0].external_data.add(key="location", value="m.onnx.data")
    path.write_bytes(proto.SerializeToString())
    assert rewritten(path) == ()
    assert names(path) == ["m.onnx", "m.onnx.data"]


def test_a_failed_save_leaves_nothing_and_takes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even beside a file that cannot be read, which might use any data file but a new one."""
    path.with_name("broken.onnx").write_bytes(b"precious")
    before = {name: path.with_name(name).read_bytes() for name in names(path)}
    commit = atomic_write.Draft.commit

    def fail(self: atomic_write.Draft, *, replace: bool) -> None:
        if self.path == str(path):
            raise KeyboardInterrupt
        commit(self, replace=replace)

    model = io.load(path)
    monkeypatch.setattr(atomic_write.Draft, "commit", fail)
    with pytest.raises(KeyboardInterrupt):
        io.save(model, path, force=True)
    assert {name: path.with_name(name).read_bytes() for name in names(path)} == before


def test_an_interrupt_after_the_rename_keeps_the_new_model_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = atomic_write.Draft.commit

    def interrupted(self: atomic_write.Draft, *, replace: bool) -> None:
        commit(self, replace=replace)
        if self.path == str(path):
            raise KeyboardInterrupt

    model = io.load(path)
    monkeypatch.setattr(atomic_write.Draft, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        io.save(model, path, force=True)
    assert names(path) == ["m.onnx", "m.onnx.1.data"]
    onnx.load(path)


def killed_before_the_model_is_renamed(path: Path) -> str:
    """Return the name of the data file that the killed save left."""
    child = os.fork()
    if child == 0:
        commit = atomic_write.Draft.commit

        def kill(self: atomic_write.Draft, *, replace: bool) -> None:
            if self.path == str(path):
                os.kill(os.getpid(), signal.SIGKILL)
            commit(self, replace=replace)

        atomic_write.Draft.commit = kill
        io.save(io.load(path), path, force=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(names(path)) == 5, "data, model, new data, draft of the model, journal"
    return "m.onnx.1.data"


def test_a_journal_removes_the_file_it_lists_and_no_other(path: Path) -> None:
    """A file that was replaced since, and one that a model uses by now, are not what the killed save left."""
    left = path.with_name(killed_before_the_model_is_renamed(path))
    shutil.copy(left, path.with_name("copy"))
    os.replace(path.with_name("copy"), left)
    data_files.remove_left_over(str(path))
    assert names(path) == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]
    left.unlink()
    killed_before_the_model_is_renamed(path)
    shutil.copy(path, path.with_name("other.onnx"))
    edited(path.with_name("other.onnx"), lambda proto: locate(proto, left.name))
    data_files.remove_left_over(str(path))
    assert names(path) == ["m.onnx", "m.onnx.1.data", "m.onnx.data", "other.onnx"]
    path.with_name("other.onnx").unlink()
    left.unlink()
    killed_before_the_model_is_renamed(path)
    data_files.remove_left_over(str(path))
    assert names(path) == ["m.onnx", "m.onnx.data"]


def test_drafts_of_running_processes_and_of_other_files_stay(path: Path) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    mine = atomic_write.draft_name("m.onnx")
    dead = [
        atomic_write.draft_name(name).replace(f"-{os.getpid()}-", f"-{gone}-") for name in ("m.onnx", "m.onnx.9.data")
    ]
    other = atomic_write.draft_name("m.onnx.json").replace(f"-{os.getpid()}-", f"-{gone}-")
    far, old = (f".m.onnx.{'0' * 8}-{number}-{'0' * 6}.part" for number in (1, 2))
    for name in (mine, *dead, other, far, old, ".m.onnx.part"):
        path.with_name(name).touch()
    os.utime(path.with_name(old), (0, 0))
    rewritten(path, external=False)
    assert names(path) == sorted(["m.onnx", mine, other, far, ".m.onnx.part"])
    atomic_write.write_whole(str(path.with_name("m.onnx.json")), b"{}", force=False)
    assert other not in names(path)


def test_data_is_not_written_where_nobody_finds_it(path: Path) -> None:
    """A model that is a link is loaded with the data beside the link."""
    links = path.parent.parent / "links"
    links.mkdir()
    (links / "m.onnx").symlink_to(path)
    before = {name: path.with_name(name).read_bytes() for name in names(path)}
    with pytest.raises(OutputError, match="link into another folder"):
        io.save(io.load(path), links / "m.onnx", force=True)
    assert {name: path.with_name(name).read_bytes() for name in names(path)} == before
    path.with_name("link.onnx").symlink_to(path)
    io.save(io.load(path), path.with_name("link.onnx"), force=True)
    assert names(path) == ["link.onnx", "m.onnx", "m.onnx.1.data"]
    onnx.load(path.with_name("link.onnx"))


@pytest.mark.parametrize("external", [True, False])
def test_what_a_temporary_file_holds_is_not_computed_again(path: Path, tmp_path: Path, external: bool) -> None:
    model, computed = io.load(path), list[int]()

    def double() -> np.ndarray:
        computed.append(1)
        return 2 * WEIGHT

    model.graph.initializers["w"].const_value = ComputedTensor(ir.DataType.FLOAT, WEIGHT.shape, double, name="w")
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        copies = io.save(model, Path(folder, "temporary.onnx"), external=True, durable=False).copies
    one, other = tmp_path / "one.onnx", tmp_path / "other.onnx"
    io.save(model, one, external=external, copies=copies)
    assert computed == [1]
    io.save(model, other, external=external)
    assert computed == [1, 1]
    for file in (one, other):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(onnx.load(file).graph.initializer[0]), 2 * WEIGHT)


def test_only_a_temporary_file_is_read_again(path: Path) -> None:
    assert io.save(io.load(path), path.with_name("kept.onnx"), external=True).copies is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of open files from /proc")
@pytest.mark.parametrize("durable", [True, False])
def test_files_are_on_the_disk_before_they_get_their_names(
    path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    link, replace, fsync, unlink = os.link, os.replace, os.fsync, os.unlink

    def flushed(fd: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        events.append("flush " + re.sub(r"\.(.+)\.[0-9a-f]{8}-\d+-[0-9a-f]{6}\.part", r"\1", name))
        fsync(fd)

    def named(rename: Callable[..., None]) -> Callable[[str, str], None]:
        def call(source: str, target: str) -> None:
            events.append(f"name {os.path.basename(target)}")
            rename(source, target)

        return call

    def removed(name: str, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            events.append(f"remove {name}")
        unlink(name, dir_fd=dir_fd)

    model = io.load(path)
    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "link", named(link))
    monkeypatch.setattr(os, "replace", named(replace))
    monkeypatch.setattr(os, "unlink", removed)
    io.save(model, path, force=True, durable=durable)
    expected = [
        *("flush m.onnx.1.data", "name m.onnx.1.data", "flush models"),
        *("flush m.onnx", "name m.onnx", "flush models"),
        "remove m.onnx.data",
    ]
    assert events == [event for event in expected if durable or not event.startswith("flush")]
