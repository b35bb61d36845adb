"""`sardonyx mcp`, with the client of the protocol's own SDK over standard input and output."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest

from sardonyx.cli.main import run
from sardonyx.errors import SardonyxError, UsageError
from sardonyx.records.reading import kinds
from sardonyx.verbs.mcp.server import TOOLS, Folder

MODEL = "agraph (float[N] x) => (float[N] y) { a = Identity(x)  b = Exp(a)  c = Identity(b)  y = Relu(c) }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, and another one beside it."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {MODEL}')
    (tmp_path / "models").mkdir()
    onnx.save(model, tmp_path / "models" / "model.onnx")
    onnx.save(model, tmp_path / "secret.onnx")
    return tmp_path / "models"


def with_client(folder: Path, talk: Callable[[Any], Awaitable[None]]) -> None:
    """Run the command as a client starts it, and talk to it."""
    mcp = pytest.importorskip("mcp")
    import anyio

    arguments = ["-m", "sardonyx", "mcp", "--root", str(folder)]

    async def main() -> None:
        python_path = [entry for entry in sys.path if entry]
        env = {"PYTHONPATH": ":".join(python_path)}
        server = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=env)
        async with mcp.Client(server) as client:
            await talk(client)

    with ThreadPoolExecutor(1) as pool:  # the thread of a test that opened a browser has a running loop
        pool.submit(anyio.run, main).result()


@pytest.mark.medium
def test_an_agent_optimizes_and_verifies(folder: Path) -> None:
    async def talk(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["inspect", "optimize", "verify", "locate", "analyze"]
        inspected = await client.call_tool("inspect", {"model": "model.onnx"})
        assert inspected.structured_content["counts"]["nodes"] == 4
        run = await client.call_tool("optimize", {"model": "model.onnx", "output": "small.onnx"})
        assert not run.is_error
        assert run.structured_content["after"]["nodes"] == 2
        assert run.structured_content["verdict"]["passed"]
        assert (run.structured_content["record"], run.structured_content["result"]["path"]) == ("run", "small.onnx")
        assert "events" not in run.structured_content
        assert onnx.load(folder / "small.onnx").graph.node
        verdict = await client.call_tool("verify", {"first": "model.onnx", "second": "small.onnx"})
        assert verdict.structured_content["passed"]
        located = await client.call_tool("locate", {"first": "model.onnx", "second": "small.onnx"})
        assert located.structured_content["same"]
        costs = await client.call_tool("analyze", {"model": "model.onnx", "sizes": {"N": 100}, "fields": ["sizes"]})
        assert costs.structured_content == {"record": "analysis", "sizes": {"N": 100}, "schema_version": 1}
        again = await client.call_tool("optimize", {"model": "model.onnx", "output": "small.onnx"})
        assert again.is_error
        assert again.content[0].text.startswith("error: small.onnx exists")
        outside = await client.call_tool("inspect", {"model": "../secret.onnx"})
        assert outside.is_error
        assert "outside the folder" in outside.content[0].text

    with_client(folder, talk)


def test_paths_stay_in_the_folder(folder: Path) -> None:
    (folder / "link.onnx").symlink_to(folder.parent / "secret.onnx")
    files = Folder(folder.resolve())
    assert files.file("sub/new.onnx") == folder.resolve() / "sub" / "new.onnx"
    for name in ("../secret.onnx", str(folder.parent / "secret.onnx"), "link.onnx", "sub/../../secret.onnx"):
        with pytest.raises(UsageError, match="outside the folder"):
            files.file(name)
        with pytest.raises(UsageError, match="outside the folder"):
            TOOLS[1].run(files, {"model": "model.onnx", "output": name})
    with pytest.raises(UsageError, match="does not exist") as caught:
        files.model("modle.onnx")
    assert caught.value.hint == "did you mean model.onnx or link.onnx?"


@pytest.mark.parametrize("location", ["../secret.onnx", "link.bin"])
def test_data_outside_the_folder_is_not_read(folder: Path, location: str) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret.onnx")
    model = onnx.load(folder / "model.onnx")
    weight = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    model.graph.initializer.append(weight)
    model.graph.node.add(op_type="Add", input=["y", "w"], output=["z"])
    (folder / "outside.onnx").write_bytes(model.SerializeToString())
    files = Folder(folder.resolve())
    with pytest.raises(SardonyxError, match=r"leads out of the model|goes through a symbolic link"):
        TOOLS[1].run(files, {"model": "outside.onnx", "output": "o.onnx"})
    assert not (folder / "o.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "inspect needs model"),
        ({"model": 3}, "model is 3"),
        ({"model": "model.onnx", "depth": 3}, "inspect has no argument 'depth'"),
        ({"model": "model.onnx", "fields": ["everything"]}, "fields is"),
    ],
)
def test_wrong_arguments_are_named(folder: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TOOLS[0].run(Folder(folder.resolve()), arguments)


@pytest.mark.medium
def test_tools_return_fields_of_published_records() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for tool in TOOLS:
        assert tool.returns in kinds().values()
        assert set(tool.fields) <= set(tool.returns.__struct_fields__), tool.name
        for schema in (tool.input_schema(), tool.output_schema()):
            assert schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)


def test_a_missing_sdk_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert run(["mcp", "--root", str(folder)]) == 2
    assert 'pip install ".[mcp]"' in capsys.readouterr().err
    assert run(["mcp", "--root", str(folder / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
