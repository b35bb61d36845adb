"""`sardonyx decompose`: a model by where it comes from, its attention spelled out, and the graph module in a file."""

from __future__ import annotations

import os
from typing import Any, cast

import torch
from torch import fx

from sardonyx.analysis.torch_models import RecordingProbe, parts, road, symbolic
from sardonyx.frontend.attention.decompose import check_has_code, decompose
from sardonyx.frontend.attention.roles import decomposition_of
from sardonyx.frontend.inputs.example_resolution import Inputs, example_for
from sardonyx.frontend.models.resolve import resolve
from sardonyx.frontend.running import initialize
from sardonyx.ir.io import Draft, check_free, explained
from sardonyx.records.analysis import Decomposed
from sardonyx.records.progress import Clock, Progress


def take_apart(
    source: str,
    inputs: Inputs = None,
    output: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Decomposed:
    """Spell the attention of a model out, and write the graph module with `torch.save` where an output is named.

    Args:
        source: where the model comes from, as `export` takes it.
        inputs: example inputs; derived where None.
        output: where to write; weights are made only then.
        task: which head a Hugging Face model gets.
        seed: of random weights and of what is drawn.
        force: overwrite an existing output.
        progress: told the phase.

    Raises:
        ModelError: no road leads through the model, or an option of one of its attentions cannot be right.
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
        made = decompose(resolved.module, example.args, kwargs=example.kwargs)
    taken_apart = decomposition_of(made)
    assert taken_apart is not None, "decompose lets what it makes carry it"
    graph = symbolic(resolved.module) if taken_apart.method == "symbolic-trace" else None
    if output is not None:
        with clock.phase("writing"):
            _save(made, os.fspath(output), force=force)
    return Decomposed(
        source=source,
        output=None if output is None else os.fspath(output),
        nodes_before=None if graph is None else len(graph.nodes),
        nodes=len(made.graph.nodes),
        attentions=tuple(parts(taken_apart)),
        notes=(*example.notes, *lazy, *road(taken_apart)),
        seconds=clock.seconds,
    )


def _save(module: fx.GraphModule, path: str, *, force: bool) -> None:
    with explained(path), Draft(path) as draft:
        with open(draft.fileno(), "wb", closefd=False) as stream:
            torch.save(module, cast("Any", stream))
        draft.commit(replace=force)
