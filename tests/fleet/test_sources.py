"""The models of a command about many: which files a source means, and the names of their results."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest

from sardonyx.errors import ModelError, SardonyxError, UsageError
from sardonyx.fleet.sources import Source, digest, download, find_pairs, find_sources

FILES = ("a.onnx", "x/a.onnx", "y/a.onnx", "y/z/b.onnx", "y/readme.txt", ".hidden/c.onnx", "out/d.onnx")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        (tmp_path / "models" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "models" / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _names(*sources: str, exclude: str | None = "models/out") -> dict[str, str]:
    return {source.name: source.text for source in find_sources(sources, exclude=exclude)}


def test_models_of_a_folder_are_named_by_their_path_in_it(folder: Path) -> None:
    found = {"a": "models/a.onnx", "x/a": "models/x/a.onnx", "y/a": "models/y/a.onnx", "y/z/b": "models/y/z/b.onnx"}
    assert _names("models") == _names("models/") == found
    assert "out/d" in _names("models", exclude=None)
    assert _names("models/y/a.onnx") == {"a": "models/y/a.onnx"}


def test_a_pattern_that_the_shell_did_not_expand_is_expanded(folder: Path) -> None:
    assert list(_names("models/*/a.onnx")) == ["x/a", "y/a"]
    assert list(_names("models/y/**/*.onnx")) == ["a", "z/b"]
    (folder / "models" / "b[1].onnx").touch()
    assert list(_names("models/b[1].onnx")) == ["b[1]"], "an existing file is not a pattern"


def test_a_file_whose_name_no_result_can_have_is_a_problem_of_its_own(folder: Path) -> None:
    names = ("b\udcff", "b\udcfe", r"b\udcff", "new\nline")
    for name in names:
        (folder / "models" / "x" / f"{name}.onnx").touch()
    sources = find_sources(["models/x"])
    assert len({source.name for source in sources}) == 1 + len(names)
    assert [source.name for source in sources if not source.problem] == ["a"]
    for source in sources:
        assert source.text.isprintable()
        assert source.name.isprintable()
        assert os.path.isfile(source.location)
    assert {source.problem for source in find_pairs("models/x", "models/x")} == {source.problem for source in sources}
    (folder / "list.jsonl").write_text(r'{"source": "models/x/new\nline.onnx", "name": "other"}')
    (named,) = find_sources(["list.jsonl"])
    assert (named.name, named.problem) == ("other", "")


def test_a_file_that_does_not_exist_is_left_to_the_command(folder: Path) -> None:
    (missing,) = find_sources(["missing.onnx"])
    assert missing.location == str(folder / "missing.onnx")
    (long,) = find_sources([f"{'n' * 5000}.onnx"])
    assert digest(long.location) is None


def test_models_that_are_built_have_names_for_files(folder: Path) -> None:
    (folder / "net.py").touch()
    config, factory = find_sources(["hf-config:BertConfig?num_hidden_layers=2,hidden_size=64", "net.py:build"])
    assert config.is_built
    assert config.name == "hf-config-BertConfig-num_hidden_layers=2-hidden_size=64"
    assert (factory.name, factory.location) == ("net.py-build", f"{folder}/net.py:build")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["nothing"], "nothing contains no ONNX file"),
        (["models/*.pb"], "models/*.pb matches no file"),
        (["missing.jsonl"], "missing.jsonl cannot be read"),
        (["models/x/a.onnx", "models/y/a.onnx"], "models/x/a.onnx and models/y/a.onnx are both named a"),
        (["models/x", "models/y"], "are both named a"),
        (["summary.onnx"], "the command writes a file of that name"),
    ],
)
def test_what_is_not_clear_is_an_error(folder: Path, sources: list[str], message: str) -> None:
    (folder / "nothing").mkdir()
    with pytest.raises(UsageError) as error:
        find_sources(sources)
    assert message in error.value.message
    assert error.value.hint


def test_a_manifest_names_models_with_their_own_options(folder: Path) -> None:
    (folder / "models" / "list.jsonl").write_text(
        '{"source": "x/a.onnx", "options": ["--target", "ort"]}\n'
        "\n"
        '{"source": "y/a.onnx", "name": "other", "options": {"skip": ["p", "q"], "keep_opset": true, "tune": false}}\n'
        '{"source": "timm:resnet18", "export": {"exporter": "torchscript", "seed": 3}, "candidate": "a.onnx"}\n'
        '{"source": "y"}\n'
    )
    first, second, third, *rest = find_sources(["models/list.jsonl"])
    assert (first.name, first.location, first.options) == ("x/a", str(folder / "models/x/a.onnx"), ("--target", "ort"))
    assert (second.name, second.options) == ("other", ("--skip", "p", "--skip", "q", "--keep-opset"))
    assert (third.name, third.export) == ("timm-resnet18", ("--exporter", "torchscript", "--seed", "3"))
    assert third.candidate == str(folder / "models/a.onnx")
    assert [source.name for source in rest] == ["a", "z/b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "list.jsonl, line 2: "),
        ("[]", "list.jsonl, line 2: Expected `object`"),
        ('{"name": "b"}', "list.jsonl, line 2: Object missing required field `source`"),
        ('{"source": "b.onnx", "option": []}', "list.jsonl, line 2: Object contains unknown field `option`"),
        ('{"source": "b.onnx", "name": "../b"}', "'../b' is no name for a result: it is not below the folder"),
        ('{"source": "b.onnx", "name": "/b"}', "'/b' is no name for a result"),
        ('{"source": "b.onnx", "name": ".b"}', "hidden files are not results"),
        ('{"source": "c.onnx", "name": "a"}', "are both named a"),
        ('{"source": "models", "name": "b"}', "list.jsonl, line 2: models is 5 models"),
        ('{"source": "list.jsonl"}', "list.jsonl, line 2: a manifest cannot name another one"),
        ('{"source": "b.onnx", "export": ["--opset", "18"]}', "list.jsonl, line 2: b.onnx is not exported"),
    ],
)
def test_a_line_that_is_not_valid_is_named(folder: Path, line: str, message: str) -> None:
    (folder / "list.jsonl").write_text('{"source": "a.onnx"}\n' + line)
    with pytest.raises(UsageError) as error:
        find_sources(["list.jsonl"])
    assert message in error.value.message
    assert "\n" not in error.value.message


def test_two_folders_are_paired_by_name(folder: Path) -> None:
    def shown(pair: Source) -> tuple[str, str, str]:
        return pair.name, pair.candidate_text, pair.problem

    pairs = [shown(pair) for pair in find_pairs("models/x", "models/y")]
    assert pairs == [("a", "models/y/a.onnx", ""), ("z/b", "", "models/x has no z/b.onnx")]
    pairs = [shown(pair) for pair in find_pairs("models/y", "models/x")]
    assert pairs == [("a", "models/x/a.onnx", ""), ("z/b", "", "models/x has no z/b.onnx")]
    assert [shown(pair) for pair in find_pairs("models/a.onnx", "models/y/z/b.onnx")] == [
        ("a", "models/y/z/b.onnx", "")
    ]
    for arguments in (("models", "missing"), ("models/a.onnx", None)):
        with pytest.raises(UsageError):
            find_pairs(*arguments)


def test_weights_of_a_model_at_a_url_stay_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "secret").write_bytes(bytes(8))
    for location in ("../secret", str(tmp_path / "secret")):
        _with_weights_in(location, tmp_path / "models/m.onnx")
        with pytest.raises(ModelError, match="weights in another folder"):
            download(f"file://{tmp_path}/models/m.onnx", tmp_path / "here")
        assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["m.onnx"]
        shutil.rmtree(tmp_path / "here")


def _with_weights_in(location: str, path: Path) -> None:
    """Write a model that names a file for its weights."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    model: Any = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor]))
    path.write_bytes(model.SerializeToString())


def test_a_model_whose_files_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    model = tmp_path / "models" / "m.onnx"
    (tmp_path / "secret").write_bytes(bytes(8))
    (tmp_path / "models" / "link").symlink_to("../secret")
    (tmp_path / "models" / "folder").mkdir()
    os.mkfifo(tmp_path / "models" / "pipe")
    for location in ("../secret", "link", "pipe", "folder", "missing", "/proc/kmsg", str(tmp_path / "secret")):
        _with_weights_in(location, model)
        assert digest(str(model)) is None, location
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
        with pytest.raises(SardonyxError):
            download(f"file://{model}", tmp_path / "here")
    (tmp_path / "models" / "weights").write_bytes(bytes(8))
    _with_weights_in("weights", model)
    before = digest(str(model))
    (tmp_path / "models" / "weights").write_bytes(bytes(7) + b"1")
    assert None not in (before, digest(str(model)))
    assert before != digest(str(model))
    for path in (tmp_path / "models", tmp_path / "models" / "pipe", tmp_path / "none.onnx"):
        assert digest(str(path)) is None
        assert digest(path.as_uri()) is None or path.exists()


def test_models_below_a_url_have_names_too() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe({"/bucket/x/a.onnx": b"1", "/bucket/b.onnx": b"2", "/bucket/notes.txt": b"3"})
    memory.pipe("/bucket/list.jsonl", b'{"source": "memory://bucket/x/a.onnx", "name": "c"}')
    try:
        found = {source.name: source.location for source in find_sources(["memory://bucket"])}
        assert found == {"b": "memory://bucket/b.onnx", "x/a": "memory://bucket/x/a.onnx"}
        assert [source.name for source in find_sources(["memory://bucket/list.jsonl"])] == ["c"]
        assert [source.name for source in find_sources(["memory://bucket/x/a.onnx"])] == ["a"]
    finally:
        memory.rm("/bucket", recursive=True)


def test_a_model_at_a_url_has_another_digest_if_it_or_its_weights_change() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    location = "memory://digests/a.onnx"
    seen: list[str | None] = []
    try:
        for name, content in (("a.onnx", b"1"), ("a.onnx", b"23"), ("a.onnx.data", b"4"), ("a.onnx.data", b"56")):
            memory.pipe(f"/digests/{name}", content)
            seen.append(digest(location))
            assert digest(location) == seen[-1]
    finally:
        memory.rm("/digests", recursive=True)
    assert len(set(seen)) == 4
