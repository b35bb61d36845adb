"""Write the graph of every module, for programs and viewers.

Example:
  sardonyx dag model.onnx -o hierarchy.json
  sardonyx dag model.onnx --module '/BertModel/BertEncoder/BertLayer.0' | jq '.modules | keys'
  sardonyx dag small.onnx --format model-explorer -o small.json --node-data runs/today
  sardonyx dag model.onnx --module '/BertModel/BertEncoder/BertLayer.0' --format mermaid

Lists every module by its tag, with its operations, inputs and outputs; every operation with its modules; and every
weight with all modules that use it. Weight values are not read. GraphML opens in yEd and NetworkX, model-explorer JSON
in Model Explorer, with modules as groups; --node-data adds the time, FLOPs and pass of each node. Mermaid is a chart of
one module for Markdown.

Exit: 0 done, 1 failed, 2 usage.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sardonyx.cli import options
from sardonyx.cli.console import put
from sardonyx.cli.files import check_free
from sardonyx.cli.options import MODEL, OUTPUT, choice, listed
from sardonyx.cli.verb import Given, Verb
from sardonyx.common.atomic_write import write_whole
from sardonyx.errors import UsageError
from sardonyx.reporting import formatting

if TYPE_CHECKING:
    from sardonyx.records.inspection import HierarchyDag

Format = Literal["json", "graphml", "model-explorer", "mermaid"]


def _run(given: Given) -> int:
    output, as_format, data = given.output, given.format, given.node_data
    if output is not None and output.resolve() == given.model.resolve():
        raise UsageError("--output is the model itself", hint="choose another name")
    if data and (output is None or as_format != "model-explorer"):
        raise UsageError("--node-data is for files of Model Explorer", hint="add --format model-explorer and -o FILE")
    check_free(output, *(_data_files(output).values() if data else ()), force=given.force)
    graphs = given.call()
    document = _rendered(graphs, as_format)
    if output is None:
        put(document)
        return 0
    further = _node_data(graphs, data, output) if data else {}
    write_whole(output, document.encode(), force=given.force)
    for path, text in further.items():
        write_whole(path, text, force=given.force)
    if not given.quiet:
        parts = {"module": graphs.modules, "operation": graphs.operations, "initializer": graphs.initializers}
        counts = ", ".join(formatting.plural(len(part), noun) for noun, part in parts.items())
        names = ", ".join(formatting.visible(str(path)) for path in (output, *further))
        put(f"{counts} → {names}\n")
        if data:
            words = ("model-explorer", str(output), "--node_data_paths", ",".join(map(str, further)))
            put(f"open with: {formatting.visible(shlex.join(words))}\n")
    return 0


def _data_files(output: Path | None) -> dict[str, Path]:
    """Return the path of each kind of data of nodes, beside the graph."""
    from sardonyx.verbs.dag.viewer_files import KINDS

    return {} if output is None else {kind: output.with_suffix(f".{kind}.json") for kind in KINDS}


def _node_data(graphs: HierarchyDag, sources: list[Path], output: Path) -> dict[Path, bytes]:
    """Return the files with data of nodes, from records about the model.

    Raises:
        UsageError: no record is about this model.
    """
    from sardonyx.reporting.run_bundle import record_groups
    from sardonyx.verbs.dag.viewer_files import render_node_data

    records = [located.record for group in record_groups(sources) for located in group.records]
    files = render_node_data(graphs, records)
    if not files:
        hint = "`sardonyx optimize MODEL -o SMALL --run FOLDER` writes records of both files"
        raise UsageError(f"there are no data of the nodes of {graphs.model} in {sources[0]}", hint=hint)
    return {path: files[kind] for kind, path in _data_files(output).items() if kind in files}


def _rendered(graphs: HierarchyDag, as_format: Format) -> str:
    if as_format == "json":
        return formatting.printable_json(graphs.to_json()) + "\n"
    if as_format == "mermaid":
        from sardonyx.reporting.module_contents import render_mermaid

        return render_mermaid(graphs)
    from sardonyx.verbs.dag.viewer_files import render_graphml, render_model_explorer

    if as_format == "graphml":
        return render_graphml(graphs)
    return formatting.printable_json(render_model_explorer(graphs)) + "\n"


VERB = Verb(
    of=("dag",),
    options=(
        MODEL,
        options.output("standard output"),
        choice("format", Format, "Format of the file.", default="json", group=OUTPUT),
        listed("node_data", "SOURCE", "Record or run folder with data of nodes. Repeatable.", group=OUTPUT, type=Path,
            read=options.check_readable),
        options.MODULE, options.TORCH_NN, options.FORCE, options.QUIET,
    ),
    run=_run,
)  # fmt: skip
