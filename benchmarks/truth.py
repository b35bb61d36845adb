"""Are the tags true? Every exported value is joined with the eager run that made it; both must name one module.

    python benchmarks/truth.py [NAME ...] --exporter dynamo|torchscript
    python benchmarks/truth.py [NAME ...] --structure

The ONNX file runs with runtime optimizations off and every intermediate value exposed. A value that both sides have
(shape, kind and all elements) is evidence: the node's owner must be the module that executed one of the operations
with that value, in the same call of it; a node that inherited its tag must sit at or above it. Values that many
operations could have made (constants, masks, a handful of elements, an operand unchanged) are no evidence and are not
counted.
`--structure` needs no values: it counts the operations of every module, in the eager run and in torch.export's graph.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import architectures
import tracer
from sardonyx.errors import SardonyxError
from sardonyx.frontend.tracing.adapter import Adapter, ModuleCall
from sardonyx.ir import io, origins
from sardonyx.ir.scopes import label
from sardonyx.records import provenance
from sardonyx.records.run import How
from sardonyx.runtime import Session

RELATIVE, ABSOLUTE = 1e-3, 2e-4  # how far two float runtimes drift apart over a deep model: of an element, of a tensor
ENORMOUS = 1e30  # a mask's "minus infinity" says nothing about scale
TELLING = 4  # a value with fewer distinct elements could have come from anywhere


@dataclass(frozen=True, eq=False)
class Exported:
    """One output of one node of the file, as it was computed."""

    node: str
    op_type: str
    owner: str
    how: How
    value: np.ndarray
    passes_through: bool


@dataclass(frozen=True)
class Verdict:
    """What the join of one export with one eager run showed."""

    nodes: Counter[str]  # agree, disagree, root, unmatched, untelling
    traced: Counter[str]  # agree, elided, missing, untelling
    unique: int  # values that one module alone can have made
    disagreements: tuple[str, ...]


def judge(exported: Sequence[Exported], traced: Sequence[tracer.Traced]) -> Verdict:
    """Join two runs by value and compare the modules they name."""
    index = _Index(traced)
    nodes: Counter[str] = Counter()
    witnesses: dict[tracer.Traced, list[Exported]] = defaultdict(list)
    wrong: list[str] = []
    unique = 0
    for each in exported:
        made_by = index.nearest(each.value) if _telling(each.value) and not each.passes_through else None
        if not made_by:
            nodes["untelling" if made_by is None else "unmatched"] += 1
            continue
        for one in made_by:
            witnesses[one].append(each)
        unique += len({one.calls for one in made_by}) == 1
        verdict = "agree" if any(_agrees(each, one) for one in made_by) else "disagree"
        nodes["root" if each.how is How.ROOT else verdict] += 1
        if verdict == "disagree":
            ran = sorted({" = ".join(sorted(one.calls)) + f" ({one.op})" for one in made_by})
            wrong.append(f"{each.op_type} {each.node}: tagged {each.owner or '(root)'} ({each.how}), run by {ran}")
    reshaped = _Reshaped(exported)
    fates = Counter(_fate(one, witnesses.get(one) or reshaped.of(one)) for one in traced)
    return Verdict(nodes, fates, unique, tuple(wrong))


def _fate(one: tracer.Traced, seen: Sequence[Exported]) -> str:
    """What became of one traced result in the file."""
    if one.passes_through or not _telling(one.value):
        return "untelling"
    if not seen:
        return "missing"
    # A value that is there under another module's name only was made twice in a row, as a copy or a view is: a node
    # that no operation with its value accounts for is found from the node's side.
    return "agree" if any(_agrees(each, one) for each in seen) else "elided"


def _agrees(each: Exported, one: tracer.Traced) -> bool:
    if each.how is How.DIRECT:
        return each.owner in one.calls
    return any(provenance.is_within(name, provenance.module_of(each.owner)) for name in one.modules)


class _Index:
    """Traced results by shape and kind."""

    def __init__(self, traced: Iterable[tracer.Traced]) -> None:
        self._by_form: dict[tuple[tuple[int, ...], str], list[tracer.Traced]] = defaultdict(list)
        for one in traced:
            self._by_form[one.value.shape, one.value.dtype.kind].append(one)

    def nearest(self, value: np.ndarray) -> list[tracer.Traced]:
        """The results that are this value; where several come close, only those that come as close as the closest."""
        likely = self._by_form.get((value.shape, value.dtype.kind), [])
        close = [(error, one) for one in likely if (error := _distance(one.value, value)) <= 1]
        best = min((error for error, _ in close), default=0.0)
        return [one for error, one in close if error <= max(10 * best, 0.001)]


class _Reshaped:
    """Exported values by size: one side may work on rows where the other works on a batch of rows."""

    def __init__(self, exported: Iterable[Exported]) -> None:
        self._by_size: dict[int, list[Exported]] = defaultdict(list)
        for each in exported:
            if each.value.dtype.kind == "f":
                self._by_size[each.value.size].append(each)

    def of(self, one: tracer.Traced) -> list[Exported]:
        """The nodes whose value has the same elements in the same order."""
        flat = one.value.ravel()
        if one.value.dtype.kind != "f":
            return []
        return [each for each in self._by_size[flat.size] if _distance(flat, each.value.ravel()) <= 1]


def _distance(expected: np.ndarray, value: np.ndarray) -> float:
    """The largest difference as a share of what is allowed; infinite where the two cannot be compared."""
    if value.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, value) else np.inf
    if not np.array_equal(np.isfinite(expected), np.isfinite(value)):
        return np.inf
    sane = np.isfinite(expected) & (np.abs(expected) < ENORMOUS)
    a, b = expected[sane].astype(np.float64), value[sane].astype(np.float64)
    if not a.any():
        return np.inf  # nothing to compare
    return float(np.max(np.abs(a - b) / (RELATIVE * np.abs(a) + ABSOLUTE * np.sqrt(np.mean(a * a)))))


def _telling(value: np.ndarray) -> bool:
    """Whether a value could hardly have come from two places by chance."""
    if value.dtype.kind != "f":
        return False
    sane = value[np.isfinite(value) & (np.abs(value) < ENORMOUS)]
    return np.unique(sane[:4096]).size >= TELLING


def run_exposed(path: Path, feeds: Mapping[str, np.ndarray]) -> list[Exported]:
    """Run a file with every value of its main graph as an output."""
    model = io.load(path)
    origins.attach(model)
    proto = onnx.load(path)
    given = {value.name for value in proto.graph.output}
    produced = [(node, out.name) for node in model.graph for out in node.outputs if out.name]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for _, n in produced if n not in given)
    names = [value.name for value in proto.graph.output]
    wanted = {value.name for value in proto.graph.input}
    results = Session(proto, threads=2).run({name: value for name, value in feeds.items() if name in wanted})
    values = {**feeds, **dict(zip(names, results, strict=True))}
    exported: list[Exported] = []
    for node, name in produced:
        value = values[name]
        if node.op_type == "Constant" or not isinstance(value, np.ndarray):
            continue
        operands = [values[i.name] for i in node.inputs if i is not None and i.name in values]
        same = any(isinstance(o, np.ndarray) and o.shape == value.shape and np.array_equal(o, value) for o in operands)
        exported.append(Exported(label(node), node.op_type, origins.owner(node), origins.how(node), value, same))
    return exported


def feeds_of(case: architectures.Case) -> dict[str, np.ndarray]:
    """The example inputs by the names they have in the file."""
    call = ModuleCall(case.module, *copy.deepcopy((case.args, dict(case.kwargs))))
    return {name: tensor.numpy() for name, tensor in zip(call.inputs, call.tensors, strict=True)}


def check(name: str, exporter: str) -> Verdict:
    """Export one architecture and hold its tags to an eager run."""
    case = architectures.build(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        architectures.export(case, path, exporter, verify="off")
        return judge(run_exposed(path, feeds_of(case)), tracer.trace(case.module, case.args, case.kwargs))


def structure(case: architectures.Case) -> tuple[int, Counter[str], Counter[str]]:
    """Operations by module in the eager run and in torch.export's graph: how many both have, and what only one has."""

    def count(traced: Iterable[tracer.Traced]) -> Counter[str]:
        return Counter(f"{one.op} in {' = '.join(sorted(one.modules))}" for one in traced)

    module, args, kwargs = case.module, case.args, case.kwargs
    if "past_key_values" in kwargs:  # torch.export takes no caches as they are
        call = ModuleCall(module, *copy.deepcopy((args, dict(kwargs))))
        module, args, kwargs = Adapter(call), call.tensors, {}
    eager, graph = (count(run(module, args, kwargs)) for run in (tracer.trace, tracer.trace_graph))
    return (eager & graph).total(), eager - graph, graph - eager


def row(name: str, verdict: Verdict) -> str:
    """One line of the table."""
    nodes, traced = verdict.nodes, verdict.traced
    telling = traced.total() - traced["untelling"]
    cells = (
        *(traced.total(), telling, traced["agree"], traced["elided"], traced["missing"]),
        *(nodes["agree"], verdict.unique, nodes["root"], nodes["disagree"]),
    )
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"


TITLES = (
    *("model", "ops traced", "telling", "agree", "copies of another", "not in the file"),
    *("nodes agree", "one module possible", "root", "disagree"),
)


def main(arguments: list[str]) -> int:
    """Check the named architectures, or all; 1 where a tag is false."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(architectures.ARCHITECTURES))
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo")
    parser.add_argument("--structure", action="store_true")
    options = parser.parse_args(arguments)
    if options.structure:
        return _compare_structures(options.names)
    print("| " + " | ".join(TITLES) + " |\n|---" + "|--:" * (len(TITLES) - 1) + "|")
    wrong: list[str] = []
    for name in options.names:
        try:
            verdict = check(name, options.exporter)
        except SardonyxError as refusal:
            print(f"| {name} | {refusal.message} |", flush=True)
            continue
        print(row(name, verdict), flush=True)
        wrong += [f"{name}: {line}" for line in verdict.disagreements]
    print(*("", *wrong), sep="\n")
    return 1 if wrong else 0


def _compare_structures(names: Sequence[str]) -> int:
    """Where code asks whether it is being traced, the two runs differ; an operation that moved is another matter."""
    print("| model | operations in the same module | only in the eager run | only in the graph |\n|---|--:|---|---|")
    moved = False
    for name in names:
        both, eager, graph = structure(architectures.build(name))
        listed = (", ".join(f"{count} × {what}" for what, count in only.items()) for only in (eager, graph))
        print(f"| {name} | {both} | " + " | ".join(listed) + " |", flush=True)
        moved |= bool({what.split()[0] for what in eager} & {what.split()[0] for what in graph})
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
