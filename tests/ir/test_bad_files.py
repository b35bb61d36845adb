"""Files that cannot be read or written give an error of one line with a hint, and leave no files behind."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.errors import ModelError, OutputError, SardonyxError
from sardonyx.ir import io
from sardonyx.ir.io import tensor_data


def small_model(size: int = 1200) -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=1, dims=[size], raw_data=np.arange(size, dtype="f4").tobytes())
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", [value("x", 1, [size])], [value("y", 1, [size])], [weight]
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def with_external(folder: Path, **entries: str) -> Path:
    """A model whose weight is in another file, described by these entries."""
    proto = small_model()
    weight = proto.graph.initializer[0]
    (folder / "w.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, text in {"location": "w.bin", **entries}.items():
        weight.external_data.add(key=key, value=text)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx"


def refused(call: Callable[[], object], kind: type[SardonyxError], *words: str) -> None:
    """The call fails with one line that contains these words, and a hint."""
    with pytest.raises(kind) as caught:
        call()
    message = caught.value.message
    assert "\n" not in message
    assert caught.value.hint
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"not a model at all", b'{"json": true}', os.urandom(4096), b"PK\x03\x04" + bytes(100), b"\x08\x07"],
    ids=["empty", "zero", "text", "json", "noise", "zip", "no graph"],
)
def test_files_that_are_not_models_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    refused(lambda: io.load(tmp_path / "m.onnx"), ModelError, "m.onnx")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(100), "PyTorch checkpoint"),
        ((40).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1]}}' + bytes(20), "safetensors"),
        (b"\x1c\0\0\0TFL3" + bytes(64), "TensorFlow Lite"),
        (b"\x1c\0\0\0ORTM" + bytes(64), "ONNX Runtime's own format"),
        (b"GGUF" + bytes(64), "GGUF"),
        (b'<?xml version="1.0"?><net/>', "OpenVINO"),
    ],
)
def test_files_of_other_formats_are_named(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    refused(lambda: io.load(tmp_path / "m.onnx"), ModelError, "m.onnx", words)


def test_a_file_written_by_torch_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for name, is_zip in (("new.pt", True), ("old.pt", False)):
        torch.save({"w": torch.ones(3)}, tmp_path / name, _use_new_zipfile_serialization=is_zip)
        refused(lambda path=tmp_path / name: io.load(path), ModelError, name, "PyTorch checkpoint")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    refused(lambda: io.load(tmp_path / "no.onnx"), ModelError, "no.onnx", "No such file")
    refused(lambda: io.load(tmp_path), ModelError)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(lambda: io.load(tmp_path / "pipe"), ModelError, "regular file")


@pytest.mark.parametrize("size", [3, 1200])
def test_truncation_is_detected_at_every_byte(size: int, tmp_path: Path) -> None:
    """Except between two fields of the model itself after graph and opset: that is a valid model."""
    whole = small_model(size).SerializeToString()
    fields = list(tensor_data.Bytes(whole).fields(0, len(whole)))
    graph_and_opset = max(f.stop for f in fields if f.number in (7, 8))
    complete = {f.stop for f in fields if f.stop >= graph_and_opset}
    path = tmp_path / "m.onnx"
    inside = range(300, len(whole) - 300)  # only bytes of the weight
    for end in range(len(whole)):
        if end in inside and end % 50:
            continue
        path.write_bytes(whole[:end])
        if end not in complete:
            refused(lambda: io.load(path), ModelError)


def test_a_damaged_byte_gives_a_sardonyx_error_or_another_model(tmp_path: Path) -> None:
    whole = bytearray(small_model(3).SerializeToString())
    path = tmp_path / "m.onnx"
    for place in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            with contextlib.suppress(SardonyxError):  # anything else fails the test
                io.load(path)


def test_bytes_that_do_not_fit_the_shape(tmp_path: Path) -> None:
    for size in (3, 1200):
        proto = small_model(size)
        proto.graph.initializer[0].dims[0] = size + 1
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        refused(lambda: io.load(tmp_path / "m.onnx"), ModelError, "'w'", str(4 * size), str(4 * size + 4))


def test_typed_data_that_does_not_fit_the_shape(tmp_path: Path) -> None:
    proto = small_model(3)
    proto.graph.initializer[0].CopyFrom(TensorProto(name="w", data_type=1, dims=[3], float_data=[1, 2]))
    refused(lambda: io.from_proto(proto), ModelError, "'w'")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "gone.bin"}, ("gone.bin", "No such file")),
        ({"location": "/etc/hostname"}, ("absolute",)),
        ({"location": "../w.bin"}, ("leads out",)),
        ({"location": "sub/../../w.bin"}, ("leads out",)),
        ({"location": ""}, ("no location",)),
        ({"location": "link.bin"}, ("symbolic link",)),
        ({"location": "linked/w.bin"}, ("symbolic link",)),
        ({"location": "folder"}, ("regular file",)),
        ({"offset": "4"}, ("ends at byte",)),
        ({"offset": "-4"}, ("offset",)),
        ({"offset": "many"}, ("offset",)),
        ({"offset": "9" * 5000}, ("offset",)),
        ({"length": "9" * 5000}, ("length",)),
        ({"location": "w.bin\0"}, ("NUL",)),
        ({"length": "8"}, ("8 bytes",)),
    ],
)
def test_external_data_that_is_missing_or_unsafe(
    entries: dict[str, str], words: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    (folder / "folder").mkdir(parents=True)
    path = with_external(folder, **entries)
    data = (folder / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data)
    (folder / "link.bin").symlink_to(folder / "w.bin")
    (folder / "linked").symlink_to(tmp_path)
    refused(lambda: io.load(path), ModelError, *words)


def test_valid_external_data_is_read(tmp_path: Path) -> None:
    model = io.load(with_external(tmp_path))
    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), np.arange(1200, dtype="f4"))


def test_external_data_of_a_model_in_memory_is_refused(tmp_path: Path) -> None:
    proto = onnx.load(with_external(tmp_path), load_external_data=False)
    refused(lambda: io.from_proto(proto), ModelError, "no folder")


def changed(edit: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = small_model(3)
    edit(proto)
    return proto


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda p: p.graph.node[0].input.append("ghost"), ("'ghost'", "nothing defines")),
        (lambda p: p.graph.node.append(p.graph.node[0]), ("'y'", "twice")),
        (lambda p: p.graph.input.append(p.graph.input[0]), ("'x'", "twice")),
        (lambda p: p.graph.initializer.append(p.graph.initializer[0]), ("'w'", "twice")),
        (lambda p: p.graph.output.add(name="ghost"), ("'ghost'", "nothing produces")),
        (lambda p: p.opset_import.add(domain="ai.onnx", version=3), ("two versions",)),
        (lambda p: p.opset_import.add(domain="own", version=1 << 40), ("version 1099511627776", "does not exist")),
        (lambda p: p.graph.node[0].attribute.extend([helper.make_attribute("a", 1)] * 2), ("'a'", "twice")),
        (lambda p: p.functions.extend([helper.make_function("d", "f", [], [], [], [])] * 2), ("f", "twice")),
        (lambda p: p.graph.node[0].attribute.add(name="a", type=onnx.AttributeProto.GRAPH), ("'a'", "but no value")),
        (
            lambda p: p.graph.node[0].attribute.add(name="a", type=onnx.AttributeProto.SPARSE_TENSOR),
            ("'a'", "but no value"),
        ),
        (lambda p: p.graph.initializer[0].ClearField("name"), ("no name",)),
        (lambda p: setattr(p.graph.initializer[0], "data_type", 99), ("99",)),
        (lambda p: p.ClearField("opset_import"), ("opset",)),
        (lambda p: setattr(p.graph.initializer[0], "data_type", 0), ("'w'", "UNDEFINED")),
        (lambda p: p.graph.initializer[0].CopyFrom(TensorProto(name="w")), ("'w'", "no element type")),
        (lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99), ("element type 99",)),
        (
            lambda p: p.graph.initializer[0].CopyFrom(TensorProto(name="w", data_type=7, dims=[1], double_data=[1])),
            ("'w'", "field for another type"),
        ),
        (lambda p: p.graph.node[0].input.pop(), ("(Add)", "1 inputs")),
        (lambda p: p.graph.node[0].output.append("z"), ("(Add)", "2 outputs")),
        (lambda p: p.graph.node[0].input.__setitem__(0, ""), ("(Add)", "no input 0")),
        (lambda p: p.graph.node.add(op_type="Cast", input=["x"], output=["z"]), ("(Cast)", "no attribute 'to'")),
        (
            lambda p: p.graph.node.add(op_type="Cast", input=["x"], output=["z"]).attribute.add(name="to", f=1, type=1),
            ("(Cast)", "'to' of type FLOAT"),
        ),
        (
            lambda p: p.graph.node.add(op_type="Constant", output=["z"]).attribute.add(name="value", type=4),
            ("(Constant)", "'value' without an element type"),
        ),
        (lambda p: p.graph.node.add(op_type="Constant", output=["z"]), ("(Constant)", "not have a value")),
        (
            lambda p: p.graph.node.add(op_type="Constant", output=["z"]).attribute.add(name="", i=1, type=2),
            ("(Constant)", "not have a value"),
        ),
        (
            lambda p: p.graph.node.append(helper.make_node("Transpose", ["x"], ["z"], perm=[9, 1])),
            ("(Transpose)", "no permutation"),
        ),
        (
            lambda p: p.graph.node.append(helper.make_node("Cast", ["x"], ["z"], to=127)),
            ("(Cast)", "'to' with the unknown element type 127"),
        ),
        (
            lambda p: p.graph.node.append(
                helper.make_node("Attention", ["x"] * 3, ["z"], domain="com.microsoft", unidirectional=1.0)
            ),
            ("(Attention)", "'unidirectional' of type FLOAT"),
        ),
        (
            lambda p: p.graph.node.add(op_type="Own", domain="own", output=["z"]).attribute.add(name="t", type=4),
            ("(Own)", "'t' without an element type"),
        ),
    ],
)
def test_models_that_contradict_themselves(edit: Callable[[onnx.ModelProto], object], words: tuple[str, ...]) -> None:
    refused(lambda: io.from_proto(changed(edit)), ModelError, *words)


NAMES = [
    lambda p, name: setattr(p.graph.node[0], "op_type", name),
    lambda p, name: setattr(p.graph.node[0], "name", name),
    lambda p, name: setattr(p.graph.node[0], "doc_string", name),
    lambda p, name: setattr(p.graph.node[0], "domain", name),
    lambda p, name: p.graph.node[0].output.append(name),
    lambda p, name: p.graph.node[0].attribute.add(name=name, i=1, type=2),
    lambda p, name: setattr(p.graph.initializer[0], "name", name),
    lambda p, name: setattr(p.graph.input[0], "name", name),
    lambda p, name: setattr(p.graph, "name", name),
    lambda p, name: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", name),
    lambda p, name: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "denotation", name),
    lambda p, name: setattr(p.graph.input[0].type, "denotation", name),
    lambda p, name: p.metadata_props.add(key=name, value="v"),
    lambda p, name: p.opset_import.add(domain=name, version=1),
    lambda p, name: p.functions.add(name=name, domain="d"),
]


@pytest.mark.parametrize("edit", NAMES)
def test_a_name_that_is_not_utf8(edit: Callable[[onnx.ModelProto, str], object], tmp_path: Path) -> None:
    data = changed(lambda p: edit(p, "n@m@e")).SerializeToString().replace(b"n@m@e", b"n\xffm\xfee")
    (tmp_path / "m.onnx").write_bytes(data)
    refused(lambda: io.load(tmp_path / "m.onnx"), ModelError, "not UTF-8")


def calling(*bodies: tuple[str, ...]) -> onnx.ModelProto:
    """A model that calls f0; function i calls the functions in `bodies[i]`, one after another."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    proto = small_model(3)
    proto.opset_import.append(opsets[1])
    proto.graph.node[0].CopyFrom(helper.make_node("f0", ["x"], ["y"], domain="own"))
    for index, called in enumerate(bodies):
        values = ["in", *(f"v{place}" for place in range(1, len(called))), "out"]
        nodes = [
            helper.make_node(name, [values[place]], [values[place + 1]], domain="own" if name[0] == "f" else "")
            for place, name in enumerate(called)
        ]
        proto.functions.append(helper.make_function("own", f"f{index}", ["in"], ["out"], nodes, opsets))
    return proto


def test_a_function_that_calls_itself() -> None:
    refused(lambda: io.from_proto(calling(("f0",))), ModelError, "calls itself: f0 → f0")
    refused(lambda: io.from_proto(calling(("Abs", "f1"), ("f2",), ("f0",))), ModelError, "calls itself")


@pytest.mark.medium
def test_calls_that_expand_to_more_nodes_than_a_runtime_can_load() -> None:
    doubling = [*((f"f{level}", f"f{level}") for level in range(1, 22)), ("Abs",)]
    refused(lambda: io.from_proto(calling(*doubling)), ModelError, "expand to 2.1e+06 nodes")
    io.from_proto(calling(*((f"f{level}",) for level in range(1, 3000)), ("Abs",)))  # deep, but small


def test_bodies_nested_a_thousand_deep(tmp_path: Path) -> None:
    def field(number: int, content: bytes) -> bytes:
        return tensor_data.varint(number << 3 | 2) + tensor_data.varint(len(content)) + content

    graph = b""
    for _ in range(1000):
        graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
    (tmp_path / "m.onnx").write_bytes(small_model(3).SerializeToString() + field(7, graph))
    refused(lambda: io.load(tmp_path / "m.onnx"), ModelError, "m.onnx")


def test_existing_output_is_kept_without_force(tmp_path: Path) -> None:
    (tmp_path / "out.onnx").write_bytes(b"precious")
    model = io.from_proto(small_model())
    refused(lambda: io.save(model, tmp_path / "out.onnx"), OutputError, "exists")
    assert (tmp_path / "out.onnx").read_bytes() == b"precious"
    io.save(model, tmp_path / "out.onnx", force=True)
    assert onnx.load(tmp_path / "out.onnx") == small_model()
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_output_that_is_a_folder_or_in_a_missing_folder(tmp_path: Path) -> None:
    model = io.from_proto(small_model())
    refused(lambda: io.save(model, tmp_path, force=True), OutputError, "folder")
    refused(lambda: io.save(model, tmp_path / "no" / "m.onnx"), OutputError, "folder")


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("limit", [10, 5_000, 300_000])
def test_a_full_disk_leaves_nothing_behind(outside: bool, limit: int, tmp_path: Path) -> None:
    """A limit on the file size simulates the full disk: writes fail in the middle of the file."""
    (tmp_path / "in.onnx").write_bytes(small_model(100_000).SerializeToString())
    model = io.load(tmp_path / "in.onnx")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(b"precious")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        refused(lambda: io.save(model, folder / "m.onnx", force=True, external=outside), OutputError, "m.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [p.name for p in folder.iterdir()] == ["m.onnx"]
    assert (folder / "m.onnx").read_bytes() == b"precious"


def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """A file system of 64 KiB, if the machine allows mounting one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        model = io.from_proto(small_model(1 << 16))
        refused(lambda: io.save(model, disk / "m.onnx"), OutputError, "No space left")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_no_permission_to_write() -> None:
    """Run as another user, because root may write everywhere."""
    model = io.from_proto(small_model())
    folder = Path(tempfile.mkdtemp())  # not tmp_path: another user could not even see it
    folder.chmod(0o555)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            io.save(model, folder / "m.onnx")
        except OutputError as error:
            status = 0 if error.hint and "\n" not in error.message and "Permission denied" in error.message else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_a_source_that_changes_while_in_use_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small_model().SerializeToString())
    model = io.load(path)
    with path.open("r+b") as file:
        file.truncate(100)
    refused(lambda: io.save(model, tmp_path / "out.onnx"), ModelError, "changed")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_source_rewritten_in_place_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small_model().SerializeToString())
    model = io.load(path)
    with path.open("r+b") as file:
        file.write(b"\0")
    os.utime(path, ns=(0, 0))
    refused(lambda: io.save(model, tmp_path / "out.onnx"), ModelError, "changed")


def test_a_constant_may_have_tags_as_attributes() -> None:
    node = onnx.helper.make_node("Constant", [], ["y"], value_int=3, __source_module="/Model")
    graph = onnx.helper.make_graph([node], "g", [], [onnx.helper.make_tensor_value_info("y", TensorProto.INT64, [])])
    io.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
