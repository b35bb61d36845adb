"""Serve the commands about ONNX files to an agent as MCP tools.

Example:
  sardonyx mcp --root models

Serves inspect, optimize, verify, locate and analyze over the Model Context Protocol on standard input and output
until the input ends. Tools read and write files in one folder only. Each returns fields of a record, whose JSON
Schema is that of the tool's output. Needs the MCP SDK; in a checkout of sardonyx: pip install ".[mcp]".

Exit: 0 done, 1 failed, 2 usage.
"""

from __future__ import annotations

from pathlib import Path

from sardonyx.cli.options import Option
from sardonyx.cli.verb import Given, Verb
from sardonyx.errors import UsageError


def _run(given: Given) -> int:
    from sardonyx.frontend.installed import require_installed

    root: Path = given.root
    if not root.is_dir():
        raise UsageError(f"--root {root} is not a folder", hint="name the folder with the models")
    require_installed("mcp", "an MCP server needs", extra="mcp")
    from sardonyx.verbs.mcp.server import serve

    serve(root.resolve())
    return 0


VERB = Verb(
    options=(Option("root", "FOLDER", "The folder whose files may be read and written.", type=Path, default=Path()),),
    run=_run,
)  # fmt: skip
