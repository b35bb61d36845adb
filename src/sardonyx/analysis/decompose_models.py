"""`sardonyx decompose`: load a model, decompose its attention into primitive operations, and save the graph module."""

from __future__ import annotations

import os

from sardonyx.analysis.torch_models import RecordingProbe, attention_costs, decomposition_notes, symbolic_graph
from sardonyx.atomic_write import check_free
from sardonyx.frontend.attention.decompose import check_has_code, decompose
from sardonyx.frontend.attention.decomposed_file import save_decomposed
from sardonyx.frontend.attention.roles import decomposition_of
from sardonyx.frontend.inputs.example_resolution import Inputs, example_for
from sardonyx.frontend.models.resolve import resolve
from sardonyx.frontend.running import initialize
from sardonyx.records.analysis import Decomposed
from sardonyx.records.progress import Clock, Progress


def decompose_model(
    source: str,
    inputs: Inputs = None,
    output: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Decomposed:
    """Decompose the attention of a model, and write the graph module if an output is given.

    Args:
        source: The source of the model, as `export` accepts it.
        inputs: Example inputs; derived if None.
        output: The file to write; weights are initialized only if it is given.
        task: The head of a Hugging Face model.
        seed: Seed of random weights and inputs.
        force: Overwrite an existing output.
        progress: Called with the phase.

    Raises:
        ModelError: If the model cannot be traced, or the options of one of its attention blocks are invalid.
    """
    if output is not None:
        check_free(os.fspath(output), force=force)
    clock = Clock(progress)
    with clock.phase("model"):
        resolved = resolve(source, task=task, seed=seed, filled=output is not None)
        check_has_code(resolved.module)
    with clock.phase("inputs"):
        example = example_for(resolved.module, resolved, inputs, None, seed, RecordingProbe())
        lazy = initialize(resolved.module, example.args, example.kwargs)
    with clock.phase("decomposing"):
        decomposed = decompose(resolved.module, example.args, kwargs=example.kwargs)
    decomposition = decomposition_of(decomposed)
    assert decomposition is not None, "decompose attaches it to its result"
    graph = symbolic_graph(resolved.module) if decomposition.method == "symbolic-trace" else None
    if output is not None:
        with clock.phase("writing"):
            save_decomposed(decomposed, output, force=force)
    return Decomposed(
        source=source,
        output=None if output is None else os.fspath(output),
        nodes_before=None if graph is None else len(graph.nodes),
        nodes=len(decomposed.graph.nodes),
        attentions=tuple(attention_costs(decomposition)),
        notes=(*example.notes, *lazy, *decomposition_notes(decomposition)),
        seconds=clock.seconds,
    )
