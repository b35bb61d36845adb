"""What the experiments on passes share: the graph that some passes make of a model, and races between such graphs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx.analysis.census import Census
from sardonyx.ir import io
from sardonyx.measurement import feeds, interleaving
from sardonyx.measurement.statistics import Comparison
from sardonyx.optimizer.candidates import Candidate, RewriteJob
from sardonyx.passes import Pass
from sardonyx.records.run import Counts
from sardonyx.runtime.timed import Settings, Timed
from sardonyx.studies.structure import shape_of

TIMES = ("ratio", "low", "high", "floor", "finding", "rounds")  # of a comparison, as columns
SLOT = 0.02  # seconds at a time: a race has many contenders here
NARROW = 0.02  # width of an interval that is good enough
_TOGETHER = 3e9  # bytes of models that are loaded at once


def candidate(path: Path, passes: Sequence[Pass], target: str) -> Candidate:
    """The model after these passes, in this order."""
    return RewriteJob(path, tuple(passes), target, _nobody).candidate()


def counted(model: ir.Model) -> dict[str, Any]:
    """The size of a graph, and its structure as a hash."""
    return sizes(Census.of(model).counts) | {"shape": shape_of(model)}


def sizes(counts: Counts) -> dict[str, int]:
    """What a cell keeps of counts."""
    return {
        "nodes": counts.nodes,
        "constants": counts.constants,
        "initializers": counts.initializers,
        "bytes": counts.bytes,
    }


def compared(found: Comparison) -> dict[str, Any]:
    """What a cell keeps of a comparison."""
    return {name: getattr(found, name) for name in TIMES} | {"finding": str(found.finding)}


def raced(
    source: Path,
    others: Mapping[str, ir.Model],
    pairs: Mapping[str, str | None],
    *,
    threads: int,
    seconds: float,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Time models against each other in one process, taking turns.

    Args:
        source: the reference, of whose inputs all of them are fed.
        others: the other contenders by name.
        pairs: what to compare, as contender and whom with; with the source where None.
        threads: of the runtime.
        seconds: for all of it.
        seed: of the inputs and of the order.

    Returns:
        What was found of each pair, by its contender.
    """
    drawn = feeds.at_size(io.load(source), seed=seed)
    settings = Settings(threads=threads)
    at_once = max(1, int(_TOGETHER // max(1, source.stat().st_size)) - 3)
    names = list(pairs)
    groups = [names[start : start + at_once] for start in range(0, len(names), at_once)]
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        taking_part = dict.fromkeys((*filter(None, (pairs[name] for name in group)), *group))
        with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
            runs = {"": interleaving.slot(Timed(source, settings).ready(drawn), seconds=SLOT)}
            twin = interleaving.slot(Timed(source, settings).ready(drawn), seconds=SLOT)
            for index, name in enumerate(taking_part):
                file = Path(folder) / f"{index}.onnx"
                io.save(others[name], file)
                runs[name] = interleaving.slot(Timed(file, settings).ready(drawn), seconds=SLOT)
            race = interleaving.race(runs, seconds=seconds / len(groups), narrow=NARROW, twin=twin, seed=seed)
        found |= {name: compared(race.comparison(name, against=pairs[name])) for name in group}
    return found


def _nobody(_phase: str, _fraction: float | None) -> None:
    """No one listens to the passes of a cell."""


# How findings say numbers.


def several(count: int, noun: str) -> str:
    """1 model, 2 models."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
