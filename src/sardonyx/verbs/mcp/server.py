"""The MCP server: its tools, each with the verb that it calls and the fields of the record it returns.

Each call runs in a thread. Errors of users are results of the tool.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

import sardonyx
from sardonyx.errors import SardonyxError, UsageError, did_you_mean
from sardonyx.records.base import Record

_STRING: dict[str, Any] = {"type": "string"}
_NAMES: dict[str, Any] = {"type": "array", "items": _STRING}
_MODEL: dict[str, Any] = {"type": "string", "description": "Path of an ONNX file in the folder of the server."}
_HEAD = ("record", "schema_version")


class Folder(Struct, frozen=True):
    """The folder whose files tools may use."""

    root: Path  # absolute, without links

    def file(self, name: str) -> Path:
        """Return a file in the folder, which need not exist.

        Raises:
            UsageError: If the path leads out of the folder, also by a link.
        """
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root):
            raise UsageError(f"{name} is outside the folder of the server", hint="name a file in it")
        return path

    def model(self, name: str) -> Path:
        """Return a model whose data files are in the folder too; loading refuses those beside it that are links."""
        path = self.file(name)
        if not path.is_file():
            there = (file.name for file in self.root.glob("*.onnx"))
            raise UsageError(f"{name} does not exist", hint=did_you_mean(name, there))
        return path

    def hidden(self, text: str) -> str:
        """Return a text without the path of the folder."""
        return text.replace(f"{self.root}{os.sep}", "")


class Tool(Struct, frozen=True):
    """One tool."""

    name: str
    description: str
    returns: type[Record]
    fields: tuple[str, ...]  # that it returns if none are asked for
    arguments: Mapping[str, dict[str, Any]]
    required: tuple[str, ...]
    call: Callable[[Folder, Mapping[str, Any]], Record]
    writes: bool = False

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        fields = {
            "type": "array",
            "items": {"enum": [name for name in self.returns.published().__struct_fields__ if name not in _HEAD]},
            "description": f"Fields of the record to return; otherwise {', '.join(self.fields)}.",
        }
        return {
            "type": "object",
            "properties": {**self.arguments, "fields": fields},
            "required": list(self.required),
            "additionalProperties": False,
        }

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the record, of which only the first fields are always there."""
        published = self.returns.json_schema()
        definitions: dict[str, Any] = published["$defs"]
        root = definitions[published["$ref"].rpartition("/")[2]]
        return {**root, "required": list(_HEAD), "$defs": definitions}

    def run(self, folder: Folder, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call the verb; return fields of its record.

        Raises:
            UsageError: If an argument is missing, unknown or of another type.
            SardonyxError: From the verb.
        """
        properties: dict[str, dict[str, Any]] = self.input_schema()["properties"]
        for name in self.required:
            if name not in arguments:
                raise UsageError(f"{self.name} needs {name}", hint=str(properties[name].get("description", "")))
        for name, value in arguments.items():
            if name not in properties:
                raise UsageError(f"{self.name} has no argument {name!r}", hint=f"it has {', '.join(properties)}")
            if not _fits(value, properties[name]):
                raise UsageError(f"{name} is {value!r}", hint=f"its JSON Schema is {properties[name]}")
        data: dict[str, Any] = msgspec.json.decode(self.call(folder, arguments).to_json())
        fields = {*_HEAD, *(arguments.get("fields") or self.fields)}
        return {name: value for name, value in data.items() if name in fields}


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "boolean": bool, "number": (int, float), "integer": int, "array": list, "object": dict,
}  # fmt: skip


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value has the type of a schema, as far as the schemas of this file go."""
    if "enum" in schema:
        return value in schema["enum"]
    kind = _TYPES[schema["type"]]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return False
    if isinstance(value, list):
        return all(_fits(each, schema["items"]) for each in cast("list[Any]", value))
    if isinstance(value, dict):
        return all(_fits(each, schema["additionalProperties"]) for each in cast("dict[str, Any]", value).values())
    return True


def _inspect(folder: Folder, given: Mapping[str, Any]) -> Record:
    return sardonyx.inspect(folder.model(given["model"]))


def _optimize(folder: Folder, given: Mapping[str, Any]) -> Record:
    return sardonyx.optimize(
        folder.model(given["model"]),
        folder.file(given["output"]),
        target=given.get("target", "portable"),
        only=given.get("only"),
        skip=given.get("skip"),
        force=given.get("overwrite", False),
    )


def _verify(folder: Folder, given: Mapping[str, Any]) -> Record:
    limits = {name: given[name] for name in ("rtol", "atol") if name in given}
    return sardonyx.verify(folder.model(given["first"]), folder.model(given["second"]), **limits)


def _locate(folder: Folder, given: Mapping[str, Any]) -> Record:
    return sardonyx.locate(folder.model(given["first"]), folder.model(given["second"]))


def _analyze(folder: Folder, given: Mapping[str, Any]) -> Record:
    return sardonyx.analyze(folder.model(given["model"]), sizes=given.get("sizes"))


_TWO: dict[str, dict[str, Any]] = {"first": {**_MODEL, "description": "The reference."}, "second": _MODEL}

TOOLS = (
    Tool(
        "inspect",
        "Describe an ONNX file without running it: inputs, outputs, dynamic dimensions, operators, modules.",
        sardonyx.Inspection,
        (
            "path",
            "file_bytes",
            "opsets",
            "counts",
            "parameters",
            "ops",
            "inputs",
            "outputs",
            "dynamic_dims",
            "coverage",
        ),
        {"model": _MODEL},
        ("model",),
        _inspect,
    ),
    Tool(
        "optimize",
        "Make an ONNX file smaller, verify that the result computes the same, and write it; nothing is written if"
        " verification fails.",
        sardonyx.Run,
        ("status", "source", "result", "before", "after", "opset_changes", "rolled_back", "verdict", "notes"),
        {
            "model": _MODEL,
            "output": {**_MODEL, "description": "Where to write the result."},
            "target": {"enum": ["portable", "ort"], "description": "Standard operators, or also ONNX Runtime's own."},
            "only": {**_NAMES, "description": "Run only these passes."},
            "skip": {**_NAMES, "description": "Leave these passes out."},
            "overwrite": {"type": "boolean", "description": "Replace an existing output."},
        },
        ("model", "output"),
        _optimize,
        writes=True,
    ),
    Tool(
        "verify",
        "Run two ONNX files on the same inputs and say whether they compute the same.",
        sardonyx.Verdict,
        ("passed", "reference", "accuracy", "outputs", "failures", "not_covered", "requested"),
        {**_TWO, "rtol": {"type": "number"}, "atol": {"type": "number"}},
        ("first", "second"),
        _verify,
    ),
    Tool(
        "locate",
        "Find the first module whose outputs differ between two ONNX files, and the modules that cause the error.",
        sardonyx.Location,
        ("same", "gradual", "module", "shares", "error", "failures", "notes"),
        _TWO,
        ("first", "second"),
        _locate,
    ),
    Tool(
        "analyze",
        "Compute the FLOPs, bytes moved and peak memory of an ONNX file, by module, and what could be fused.",
        sardonyx.Analysis,
        ("sources", "sizes", "forms", "notes"),
        {
            "model": _MODEL,
            "sizes": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "Sizes of dynamic dimensions by name.",
            },
        },
        ("model",),
        _analyze,
    ),
)


_INSTRUCTIONS = (
    "Sardonyx optimizes ONNX files and verifies the result. Paths are relative to one folder. A result is verified if"
    " `verdict.passed` is true; repeat what `not_covered` and `notes` say. Exit code 3 in an error means that two"
    " models do not compute the same: report it."
)


def serve(root: Path) -> None:
    """Serve the tools on standard input and output until the input ends.

    Args:
        root: The folder of the models, absolute and without links.
    """
    anyio: Any = importlib.import_module("anyio")  # imported when it is used, as the SDK is; both are of an extra
    stdio: Any = importlib.import_module("mcp.server.stdio")
    server = build(Folder(root))

    async def run() -> None:
        async with stdio.stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)


def build(folder: Folder) -> Any:
    """Return the SDK's server with the tools."""
    anyio: Any = importlib.import_module("anyio")
    lowlevel: Any = importlib.import_module("mcp.server.lowlevel.server")
    types: Any = importlib.import_module("mcp.types")
    by_name = {tool.name: tool for tool in TOOLS}

    async def list_tools(_context: Any, _params: Any) -> Any:
        announced = [
            types.Tool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema(),
                output_schema=tool.output_schema(),
                annotations=types.ToolAnnotations(read_only_hint=not tool.writes, open_world_hint=False),
            )
            for tool in TOOLS
        ]
        return types.ListToolsResult(tools=announced)

    async def call_tool(_context: Any, params: Any) -> Any:
        try:
            tool = by_name.get(params.name)
            if tool is None:
                raise UsageError(f"there is no tool {params.name!r}", hint=f"there are {', '.join(by_name)}")
            result = await anyio.to_thread.run_sync(tool.run, folder, params.arguments or {})
        except SardonyxError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            text = folder.hidden(f"error: {error.message}{hint}\nexit code {error.exit_code}")
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
        text = folder.hidden(json.dumps(result, ensure_ascii=False))
        content = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, structured_content=json.loads(text))

    return lowlevel.Server(
        "sardonyx",
        version=version("sardonyx"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
