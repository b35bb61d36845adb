"""`sardonyx dag`: write the graph of every module to one file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put
from sardonyx.cli.files import check_free, write_whole
from sardonyx.cli.options import OUTPUT
from sardonyx.errors import UsageError
from sardonyx.reporting import formatting

if TYPE_CHECKING:
    from sardonyx.records.module_graph import HierarchyDag

HELP = """\b
Example:
  sardonyx dag model.onnx -o hierarchy.json
  sardonyx dag model.onnx --module '/BertModel/BertEncoder/BertLayer.0' | jq '.modules | keys'
  sardonyx dag model.onnx --format graphml -o model.graphml
  sardonyx dag model.onnx --module '/BertModel/BertEncoder/BertLayer.0' --format mermaid

Lists every module by its tag, with its operations, their connections, and its inputs and outputs; every operation with
its modules; and every weight with all modules that use it. Weight values are not read.
GraphML opens in yEd and NetworkX, the model-explorer JSON in Model Explorer; modules are groups in both. Mermaid is a
chart of one module for Markdown: its own nodes, one box for each submodule, and the inputs and outputs.

Exit: 0 done, 1 failed, 2 usage.
"""


class Format(StrEnum):
    """The format of the file."""

    JSON = "json"
    GRAPHML = "graphml"
    MODEL_EXPLORER = "model-explorer"
    MERMAID = "mermaid"


Output = Annotated[Path | None, options.output("standard output")]
As = Annotated[
    Format,
    typer.Option(
        "--format",
        help="json: all modules; graphml: for yEd and NetworkX; model-explorer; mermaid: a chart for Markdown.",
        rich_help_panel=OUTPUT,
    ),
]


def dag(
    model: options.Model,
    output: Output = None,
    as_format: As = Format.JSON,
    module: options.Module = None,
    include_torch_nn: options.TorchNN = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.dag` and write its document."""
    if output is not None and output.resolve() == model.resolve():
        raise UsageError("--output is the model itself", hint="choose another name")
    check_free(output, force=force)

    from sardonyx import dag as run_dag

    graphs = run_dag(model, module=module, include_torch_nn=include_torch_nn)
    document = _rendered(graphs, as_format)
    if output is None:
        put(document)
        return 0
    write_whole(output, document.encode(), force=force)
    if not quiet:
        put(f"{_sentence(graphs)} → {formatting.visible(str(output))}\n")
    return 0


def _rendered(graphs: HierarchyDag, as_format: Format) -> str:
    match as_format:
        case Format.JSON:
            return graphs.to_json().decode() + "\n"
        case Format.GRAPHML:
            from sardonyx.reporting.viewers.graphml import render_graphml

            return render_graphml(graphs)
        case Format.MODEL_EXPLORER:
            from sardonyx.reporting.viewers.model_explorer import render_model_explorer

            return render_model_explorer(graphs).decode() + "\n"
        case Format.MERMAID:
            from sardonyx.reporting.viewers.mermaid import render_mermaid

            return render_mermaid(graphs)


def _sentence(graphs: HierarchyDag) -> str:
    parts = (
        formatting.plural(len(graphs.modules), "module"),
        formatting.plural(len(graphs.operations), "operation"),
        formatting.plural(len(graphs.initializers), "initializer"),
    )
    return ", ".join(parts)
