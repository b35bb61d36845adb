"""The tables of a run's record: nodes, modules, rewrites, weights and how values are connected."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.common import gc_pause
from sardonyx.ir.facts import Facts
from sardonyx.ir.opset_raising import RAISE
from sardonyx.ir.origins import owner
from sardonyx.ir.plain_data import attributes_of, dtype_name, value_type
from sardonyx.ir.rewriter import Log
from sardonyx.ir.scopes import bodies, is_constant, label, operator, top_graphs
from sardonyx.passes import Pass
from sardonyx.records import provenance as p
from sardonyx.records.run import (
    Accuracy,
    Artifact,
    Counts,
    Event,
    ModuleCount,
    OpCount,
    PassRecord,
    Refusal,
    RefusalGroup,
    WeightSummary,
    Wiring,
)
from sardonyx.verbs.analyze.census import Census, Owned, owned

UNNOTED_GROWTH = 4096  # bytes by which a file may grow without a note
NODES_NAMED = 3  # nodes named for each reason of a near miss
_ORDER = tuple(Accuracy)  # the strictest first


class GraphSnapshot(Struct, frozen=True):
    """The parts of a graph that a record needs, kept because later rewrites change the graph."""

    counts: Counts
    ops: Counter[str]
    modules: dict[str, Owned]


def snapshot(facts: Facts) -> GraphSnapshot:
    """Return counts, operators and modules of a model whose nodes have origins."""
    with gc_pause.paused():
        census = Census.of(facts.model)
        ops = Counter(map(operator, census.nodes))
        return GraphSnapshot(census.counts, ops, owned(census))


def op_counts(before: GraphSnapshot, after: GraphSnapshot) -> tuple[OpCount, ...]:
    """Return the counts by operator, the most frequent first."""
    names = sorted(before.ops | after.ops, key=lambda op: (-before.ops[op], op))
    return tuple(OpCount(op, before.ops[op], after.ops[op]) for op in names)


def module_counts(before: GraphSnapshot, after: GraphSnapshot, hierarchy: p.Hierarchy) -> tuple[ModuleCount, ...]:
    """Return the counts of every module that owns nodes and of all modules above it, in the order of their paths."""
    counts: list[ModuleCount] = []
    owners = before.modules.keys() | after.modules.keys()
    for path in sorted({path for module in owners for path in p.lineage(module)}):
        old, new = before.modules.get(path, Owned()), after.modules.get(path, Owned())
        tag = hierarchy.tag(path)
        counts.append(ModuleCount(path, tag, old.nodes, new.nodes, old.parameters, old.bytes, new.bytes))
    return tuple(counts)


def pass_records(passes: Sequence[Pass], log: Log) -> tuple[PassRecord, ...]:
    """Return the records of the passes in the order they run, and last that of raising the opset if it was raised."""
    modules: dict[str, Counter[str]] = defaultdict(Counter)
    for event in log.events:
        modules[event.pass_name][event.owner] += 1
    refusals: dict[str, list[Refusal]] = defaultdict(list)
    for refusal in log.refusals:
        refusals[refusal.pass_name].append(refusal)
    records: list[PassRecord] = []
    for rule in (*passes, *((RAISE,) if modules[RAISE.name] else ())):
        tally, where = log.tallies[rule.name], dict(sorted(modules[rule.name].items()))
        numbers = (tally.rewrites, tally.nodes, tally.constants, tally.initializers, tally.bytes)
        told, seconds = (rule.name, rule.algebra, rule.accuracy), round(tally.seconds, 6)
        records.append(PassRecord(*told, *numbers, seconds, where, _grouped(refusals[rule.name]), rule.about))
    return tuple(records)


def growth_notes(before: Counts, log: Log) -> tuple[str, ...]:
    """Return a note if the file grew by more than 4 kB and 1 %, with the passes that contributed most."""
    grown = sum(tally.growth for tally in log.tallies.values())
    if grown <= max(UNNOTED_GROWTH, before.bytes // 100):
        return ()
    parts = sorted(((tally.growth, name) for name, tally in log.tallies.items() if tally.growth > 0), reverse=True)
    named = ", ".join(f"{name} {_kilobytes(size)}" for size, name in parts[:NODES_NAMED])
    return (f"the file grew by {_kilobytes(grown)} besides its tags: {named}",)


def _kilobytes(size: int) -> str:
    return f"{size / 1000:,.1f} kB"


def loosest(events: Iterable[Event], passes: Sequence[Pass]) -> Accuracy:
    """Return the accuracy class of a whole run, which is that of its loosest rewrite."""
    classes = {rule.name: rule.accuracy for rule in (*passes, RAISE)}
    return max((classes[event.pass_name] for event in events), key=_ORDER.index, default=Accuracy.EXACT)


def artifact(model: ir.Model, path: str | os.PathLike[str] | None, digest: str | None) -> Artifact:
    """Return the artifact of a model that was read or written, or is in memory; `digest` is the hash of its file."""
    file = (None, None, 0) if path is None else (os.fspath(path), digest, os.path.getsize(path))
    return Artifact(*file, model.ir_version, dict(model.opset_imports))


def _grouped(refusals: Sequence[Refusal]) -> tuple[RefusalGroup, ...]:
    by_reason: dict[str, list[Refusal]] = defaultdict(list)
    for refusal in refusals:
        by_reason[refusal.reason].append(refusal)
    return tuple(
        RefusalGroup(
            reason,
            len(group),
            tuple(refusal.nodes[-1] for refusal in group[:NODES_NAMED]),
            dict(sorted(Counter(refusal.owner for refusal in group).items())),
        )
        for reason, group in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    )


# The nodes and edges of a graph as plain data, from which the report draws one module at a time.

Places = dict[ir.Node, int]


def wiring(model: ir.Model, facts: Facts | None = None) -> Wiring:
    """Return all nodes other than constants in execution order, and the edges between them.

    A node inside a body has edges from the nodes outside whose values it reads. The producers of a body's outputs have
    edges to the node that owns the body, which comes after them, so every edge leads forward. The graphs of functions
    follow that of the model. With `facts`, the types of the values are included.
    """
    places: Places = {}
    edges: dict[tuple[int, int], ir.Value] = {}
    for graph in top_graphs(model):
        _walk(graph, places, edges)
    modules: dict[str, int] = {}
    owners = [modules.setdefault(owner(node), len(modules)) for node in places]
    inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
    outputs = {value.name or "": value for value in model.graph.outputs}
    types = _Types(facts)
    details = {} if facts is None else _node_details(places, types, facts)
    return Wiring(
        modules=tuple(modules),
        names=tuple(map(label, places)),
        ops=tuple(map(operator, places)),
        owners=tuple(owners),
        edges=tuple(edges),
        inputs={
            name: tuple(sorted({places[user] for user in value.consumers() if user in places}))
            for name, value in inputs.items()
        },
        outputs={name: next(iter(_producers([value], places)), -1) for name, value in outputs.items()},
        edge_types=types.of(edges.values()),
        input_types=types.of(inputs.values()),
        output_types=types.of(outputs.values()),
        **details,
        types=tuple(types.known),
    )


def _node_details(nodes: Iterable[ir.Node], types: _Types, facts: Facts) -> dict[str, Any]:
    """Return the fields of a wiring that describe single nodes; of a name with several values only the name."""
    listed = list(nodes)
    values: dict[str, ir.Value] = {}
    several: set[str] = set()  # bodies may use a name of the graph around them for another value
    for value in (each for node in listed for each in (*node.inputs, *node.outputs) if each is not None):
        if values.setdefault(value.name or "", value) is not value:
            several.add(value.name or "")
    for name in several:
        del values[name]
    indices = zip(values, types.of(values.values()), strict=True)
    constants = ((name, facts.tensor(value)) for name, value in values.items())
    return {
        "attributes": tuple({name: shortened(value) for name, value in attributes_of(node).items()} for node in listed),
        "operands": tuple(tuple("" if each is None else each.name or "" for each in node.inputs) for node in listed),
        "results": tuple(tuple(each.name or "" for each in node.outputs) for node in listed),
        "value_types": {name: index for name, index in indices if index >= 0},
        "weights": summaries({name: tensor for name, tensor in constants if tensor is not None}),
    }


class _Types:
    """The distinct types of values; none without facts."""

    def __init__(self, facts: Facts | None) -> None:
        self.known: dict[str, int] = {}
        self._facts = facts
        self._seen: dict[object, int] = {}

    def of(self, values: Iterable[ir.Value]) -> tuple[int, ...]:
        """Return the index of the type of each value, -1 if its rank or its element type is not known."""
        facts, indices = self._facts, list[int]()
        if facts is None:
            return ()
        for value in values:
            key = facts.dtype(value), facts.shape(value)
            if key not in self._seen:  # few types are distinct, and writing expressions is slow
                written = value_type(*key)
                self._seen[key] = -1 if written is None else self.known.setdefault(written, len(self.known))
            indices.append(self._seen[key])
        return tuple(indices)


def _walk(graph: ir.Graph, places: Places, edges: dict[tuple[int, int], ir.Value]) -> None:
    for node in graph:
        if is_constant(node):
            continue
        operands = list(node.inputs)
        for _, body in bodies(node):
            _walk(body, places, edges)
            operands.extend(body.outputs)
        place = places[node] = len(places)
        for producer, value in _producers(operands, places).items():
            edges[producer, place] = value


def _producers(values: Sequence[ir.Value | None], places: Places) -> dict[int, ir.Value]:
    """Return the places of the nodes that produce the values, each with the first of its values."""
    found: dict[int, ir.Value] = {}
    for value in values:
        if value is not None and (producer := value.producer()) in places:
            found.setdefault(places[producer], value)
    return found


HISTOGRAM_BINS = 24
_MAX_TENSOR_ELEMENTS = 1 << 22  # elements of a tensor that is read
_MAX_GRAPH_ELEMENTS = 1 << 25  # elements that are read of one graph
_MAX_ATTRIBUTE_CHARS = 200  # characters of an attribute
_NO_NUMBERS = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128, ir.DataType.UNDEFINED)


def shortened(value: object) -> str:
    """Return the value of an attribute as text, cut if it is long."""
    text = ", ".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)
    return text if len(text) <= _MAX_ATTRIBUTE_CHARS else f"{text[: _MAX_ATTRIBUTE_CHARS - 1]}…"


def summaries(constants: Mapping[str, ir.TensorProtocol]) -> dict[str, WeightSummary]:
    """Return a summary of each constant, in the order given."""
    left, numbers = _MAX_GRAPH_ELEMENTS, dict[str, WeightSummary]()
    for name, tensor in sorted(constants.items(), key=lambda item: item[1].size):
        read = tensor.size <= min(left, _MAX_TENSOR_ELEMENTS) and tensor.dtype not in _NO_NUMBERS
        left -= tensor.size if read else 0
        numbers[name] = summary(tensor, read=read)
    return {name: numbers[name] for name in constants}


def summary(tensor: ir.TensorProtocol, *, read: bool = True) -> WeightSummary:
    """Return the type of a tensor and, if it is read, its numbers."""
    kind = f"{dtype_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
    if not read or not tensor.size:
        return WeightSummary(kind)
    values: Any = np.asarray(tensor.numpy()).astype(np.float64).ravel()
    finite = values[np.isfinite(values)]
    if not finite.size:
        return WeightSummary(kind, not_finite=values.size)
    low, high = float(finite.min()), float(finite.max())
    counts: Any = np.histogram(finite, bins=HISTOGRAM_BINS, range=(low, high))[0] if high > low else ()
    return WeightSummary(kind, low, high, tuple(int(count) for count in counts), int(values.size - finite.size))
