"""Chains of shape arithmetic (Shape → Gather → Concat → Reshape …), before and after the passes, and why some are left.

A chain is left because its sizes are dynamic, because they depend on the data, or for no good reason: its sizes are
static. Which one it is follows from the symbolic sizes that the chain computes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from sardonyx.analysis.costs.onnx_program import name_dims
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import READS_SHAPE
from sardonyx.ir.scopes import label
from sardonyx.ir.shapes import Size
from sardonyx.ir.shapes.expr import names_in, symbol
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject
from sardonyx.studies.experiments.common import candidate, integer, several

STATIC, DYNAMIC, DATA = "static sizes", "dynamic dimensions", "sizes that depend on data"
NOTHING, OUTPUT = "nothing", "an output"
_ARITHMETIC = (
    *("Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity", "Where", "Equal"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "ReduceProd", "ConstantOfShape", "Range", "Floor", "Ceil"),
)


class ShapeChains(Experiment):
    """The number of chains, their consumers, and the dimensions they depend on."""

    name = "shape-chains"

    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return one cell for each model."""
        return (Cell(self.name, subject.name, "chains", options.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Find the chains before and after the passes."""
        target = cell.options["target"]
        return {
            "before": chains_of(candidate(subject.path, target, ()).model),
            "after": chains_of(candidate(subject.path, target).model),
        }

    def tables(
        self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]
    ) -> Sequence[Table]:
        """Return the number of chains by model, and kinds of chains by model and state."""
        return (
            Table(
                "shape_chains",
                "Chains of shape arithmetic",
                (
                    "model",
                    "chains_before",
                    "chains_after",
                    "nodes_before",
                    "nodes_after",
                    "longest_before",
                    "longest_after",
                ),
                tuple(_sums(answer) for answer in answers),
                "A chain is a Shape node and the arithmetic on small integer tensors that depends on it; nodes that "
                "several chains share are counted once.",
            ),
            Table(
                "shape_chain_kinds",
                "What chains of shape arithmetic depend on",
                ("model", "state", "depends_on", "dims", "feeds", "chains", "nodes"),
                tuple(row for answer in answers for row in _kinds(answer)),
                "By the symbolic sizes that a chain computes: static if all are numbers, dynamic if some are dynamic "
                "dimensions of the inputs, data if some cannot be inferred from the graph.",
            ),
        )

    def findings(self, tables: Mapping[str, Table]) -> Sequence[Finding]:
        """Return how many chains are left, and for which reason."""
        table = tables["shape_chains"]
        models = several(len(table.rows), "model")
        before, after = (sum(integer(row[at]) for row in table.rows) for at in (1, 2))
        if not before and not after:
            return (Finding(f"No chain of shape arithmetic in {models}, before or after.", table.name),)
        left = Counter[str]()
        dims: set[str] = set()
        for _, state, kind, named, _, count, _ in tables["shape_chain_kinds"].rows:
            if state == "after":
                left[str(kind)] += integer(count)
                dims.update(filter(None, str(named or "").split(", ")))
        text = f"Of {several(before, 'chain')} of shape arithmetic in {models}, the passes leave {after}"
        reasons = (
            (left[DYNAMIC], f"{DYNAMIC} ({', '.join(sorted(dims))})"),
            (left[DATA], DATA),
            (left[STATIC], f"{STATIC}, which could still be folded"),
        )
        why = ", ".join(f"{count} for {reason}" for count, reason in reasons if count)
        return (Finding(f"{text}{': ' + why if why else ''}.", "shape_chain_kinds"),)


def chains_of(model: ir.Model) -> list[dict[str, object]]:
    """Return the nodes, consumers and dimensions of each chain."""
    facts = Facts(model)
    name_dims(facts.shapes, [value for value in model.graph.inputs if not value.is_initializer()], symbol)
    facts.infer()
    chains: list[dict[str, object]] = []
    for chain in _chains(facts):
        inside = set(chain)
        ends = [value for node in chain for value in node.outputs if _leaves(value, inside)]
        kind, dims = _depends(ends, inside, facts)
        chains.append(
            {
                "nodes": [label(node) for node in chain],
                "feeds": sorted(_consumers(ends, inside)),
                "depends_on": kind,
                "dims": dims,
            }
        )
    return chains


def _chains(facts: Facts) -> Iterator[Collection[ir.Node]]:
    """Yield each Shape that is computed at run time, with the integer arithmetic on it."""
    starts = (node for scope in facts.live_scopes() for node in scope.graph)
    for start in starts:
        if start.domain or start.op_type not in READS_SHAPE:
            continue
        chain, edge = {start: None}, [start]
        while edge:
            readers = {use.node: None for node in edge for value in node.outputs for use in value.uses()}
            edge = [reader for reader in readers if reader not in chain and _is_arithmetic(reader, facts)]
            chain.update(dict.fromkeys(edge))
        yield chain


def _is_arithmetic(node: ir.Node, facts: Facts) -> bool:
    """Return whether a node computes on sizes: integers of rank 0 or 1."""
    if node.domain or node.op_type not in _ARITHMETIC:
        return False
    dtype = facts.dtype(node.inputs[0])
    return dtype is not None and dtype.is_integer() and facts.rank(node.inputs[0]) in (0, 1)


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


def _consumers(ends: Iterable[ir.Value], inside: set[ir.Node]) -> set[str]:
    names: set[str] = set()
    for value in ends:
        names.update(use.node.op_type for use in value.uses() if use.node not in inside)
        names.update([OUTPUT] if value.is_graph_output() else [])
    return names or {NOTHING}


def _depends(ends: Iterable[ir.Value], inside: set[ir.Node], facts: Facts) -> tuple[str, list[str]]:
    """Return the kind of sizes that the chain computes, and the names of their dimensions."""
    sizes = [size for value in ends for size in _sizes(value, inside, facts)]
    inferred = [size for size in sizes if size is not None and (isinstance(size, int) or not size.is_vague)]
    names = sorted(set(names_in(inferred)))
    if len(inferred) < len(sizes):
        return DATA, names
    return (DYNAMIC, names) if names else (STATIC, [])


def _sizes(value: ir.Value, inside: set[ir.Node], facts: Facts) -> Sequence[Size | None]:
    """Return the sizes in a value; if its contents are not sizes (a range, a fill), those it is computed from."""
    contents = facts.contents(value)
    if contents is not None and None not in contents:
        return contents
    node = value.producer()
    inputs = node.inputs if node is not None else ()
    operands = [operand for operand in inputs if operand is not None and operand.producer() in inside]
    return [size for operand in operands for size in _sizes(operand, inside, facts)] if operands else (None,)


def _sums(answer: CellAnswer) -> tuple[Entry, ...]:
    states = [answer.answer["before"], answer.answer["after"]]
    chains = [len(state) for state in states]
    nodes = [_distinct(state) for state in states]
    longest = [max((len(chain["nodes"]) for chain in state), default=0) for state in states]
    return (answer.subject.name, *chains, *nodes, *longest)


def _kinds(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    for state in ("before", "after"):
        groups: dict[tuple[str, str, str], list[Answer]] = defaultdict(list)
        for chain in answer.answer[state]:
            groups[chain["depends_on"], ", ".join(chain["dims"]), ", ".join(chain["feeds"])].append(chain)
        for (kind, dims, feeds), chains in sorted(groups.items()):
            yield answer.subject.name, state, kind, dims or None, feeds, len(chains), _distinct(chains)


def _distinct(chains: Iterable[Answer]) -> int:
    return len({node for chain in chains for node in chain["nodes"]})
