"""The MCP server: announces the tools, and runs each call in a thread. Errors of users are results of the tool."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sardonyx.errors import SardonyxError, UsageError
from sardonyx.verbs.mcp.tools import TOOLS, Folder, Tool

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
        return types.ListToolsResult(tools=[_announced(types, tool) for tool in TOOLS])

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


def _announced(types: Any, tool: Tool) -> Any:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.output_schema(),
        annotations=types.ToolAnnotations(read_only_hint=not tool.writes, open_world_hint=False),
    )
