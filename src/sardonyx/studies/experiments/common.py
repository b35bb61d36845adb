"""Functions that several experiments share: graphs after some passes, their sizes and costs, and timing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.analysis.census import Census
from sardonyx.analysis.costs.onnx_program import program_of
from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.traffic import moved
from sardonyx.inputs.at_size import BATCH, LENGTH, at_size
from sardonyx.ir import io
from sardonyx.ir.shapes.expr import symbol, total, value_of
from sardonyx.ir.tagged_model import tagged
from sardonyx.measurement import interleaving
from sardonyx.measurement.statistics import Comparison
from sardonyx.optimizer.candidates import Candidate, RewriteJob
from sardonyx.optimizer.pipeline import select
from sardonyx.passes import Pass
from sardonyx.records.run import Counts
from sardonyx.records.study import Entry
from sardonyx.runtime.timed import Settings, TimedModel
from sardonyx.studies.structure import shape_of
from sardonyx.temporary import temporary_folder

TIMES = ("ratio", "low", "high", "floor", "finding", "rounds")  # columns of a comparison
SLOT = 0.02  # seconds of one turn: short, since many models are timed at once
NARROW = 0.02  # width of an interval at which timing stops
_LOADED_AT_ONCE = 3e9  # bytes of model files, so that sessions of all fit into the memory of a small machine


def candidate(path: Path, target: str, passes: Sequence[Pass] | None = None) -> Candidate:
    """Return the model after these passes in this order; None: all passes of the target."""
    chosen = tuple(select(target) if passes is None else passes)
    return RewriteJob(path, chosen, target, lambda _phase, _fraction: None).candidate()


def graph_sizes(model: ir.Model) -> dict[str, Any]:
    """Return the counts of a graph and the hash of its structure."""
    return count_sizes(Census.of(model).counts) | {"shape": shape_of(model)}


def count_sizes(counts: Counts) -> dict[str, int]:
    """Return counts as part of an answer."""
    return {
        "nodes": counts.nodes,
        "constants": counts.constants,
        "initializers": counts.initializers,
        "bytes": counts.bytes,
    }


def costs(source: Path | onnx.ModelProto | ir.Model) -> dict[str, int]:
    """Return nodes, bytes, FLOPs and bytes moved of a graph, with default sizes for dynamic dimensions."""
    model = tagged(source).model
    counts = Census.of(model).counts
    program = program_of(model)
    first = _first_dimensions(model)
    sizes = {dim: BATCH if dim in first else LENGTH for dim in program.symbols}
    flops = (operation.flops for operation in program.operations if operation.kind is not OpKind.VIEW)
    return {
        "nodes": counts.nodes,
        "bytes": counts.bytes,
        "flops": value_of(total(flops), sizes),
        "traffic": value_of(total(transfer.bytes for transfer in moved(program)), sizes),
    }


def _first_dimensions(model: ir.Model) -> set[str]:
    """Return the dynamic dimensions that are the first of some input, as symbols."""
    names: set[str] = set()
    for value in model.graph.inputs:
        first = value.shape[0] if value.shape else None
        if first is not None and not isinstance(first, int):
            names.add(repr(symbol(first.value or f"{value.name}_0")))
    return names


def time_models(
    source: Path,
    others: Mapping[str, ir.Model],
    pairs: Mapping[str, str | None],
    *,
    threads: int,
    seconds: float,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Time models against each other in one process, in interleaved turns.

    Args:
        source: the reference; all models get its inputs.
        others: the other models by name.
        pairs: the comparisons, as a model and the model to compare it with; None: the source.
        threads: of the runtime.
        seconds: time limit for all comparisons.
        seed: of the inputs and of the order.

    Returns:
        The comparison of each pair, by the name of its model.
    """
    inputs = at_size(io.load(source), seed=seed)
    settings = Settings(threads=threads)
    at_once = max(1, int(_LOADED_AT_ONCE // max(1, source.stat().st_size)) - 3)
    names = list(pairs)
    groups = [names[start : start + at_once] for start in range(0, len(names), at_once)]
    comparisons: dict[str, dict[str, Any]] = {}
    for group in groups:
        loaded = dict.fromkeys((*filter(None, (pairs[name] for name in group)), *group))
        with temporary_folder() as folder:
            runs = {"": interleaving.slot(TimedModel(source, settings).ready(inputs), seconds=SLOT)}
            twin = interleaving.slot(TimedModel(source, settings).ready(inputs), seconds=SLOT)
            for index, name in enumerate(loaded):
                file = Path(folder) / f"{index}.onnx"
                io.save(others[name], file, durable=False)
                runs[name] = interleaving.slot(TimedModel(file, settings).ready(inputs), seconds=SLOT)
            race = interleaving.race(runs, seconds=seconds / len(groups), narrow=NARROW, twin=twin, seed=seed)
        comparisons |= {name: _comparison(race.comparison(name, against=pairs[name])) for name in group}
    return comparisons


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {name: getattr(comparison, name) for name in TIMES} | {"finding": str(comparison.finding)}


def integer(entry: Entry) -> int:
    """Return an entry of a table if it is an integer, otherwise 0."""
    return entry if isinstance(entry, int) else 0


def several(count: int, noun: str) -> str:
    """Return a count with its noun: 1 model, 2 models."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
