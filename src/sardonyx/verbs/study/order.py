"""Does the order of the passes matter? Shuffled orders, and if the result differs, which two passes and why.

Passes run to a joint fixed point, so most orders should give the same graph. If one does not, the usual order is turned
into the shuffled one by swaps of neighbours s1, …, sn, and a binary search finds the swap i at which the result
changes: the order after s1, …, s(i-1) gives the usual graph, the order after s1, …, si does not. The two swapped passes
are then run by themselves in both orders.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx_ir as ir
from msgspec import Struct

from sardonyx.fleet.cells import Cell
from sardonyx.ir.rewriter import EndlessRewriting
from sardonyx.passes import Pass
from sardonyx.records.run import Event
from sardonyx.records.study import Finding, Table
from sardonyx.verbs.analyze.census import Census
from sardonyx.verbs.optimize.pipeline import select
from sardonyx.verbs.study.experiment import (
    Answer,
    Answers,
    Experiment,
    StudyOptions,
    Subject,
    Tables,
    candidate,
    defaults,
    shape_of,
    values_of,
)

SAME, ROUNDING, OTHER, ENDLESS = "same", "other constants", "other graph", "no end"
_SHUFFLES = {False: 3, True: 10}
_DECIDED = ("difference", "first", "then", "alone", "why")
_SHOWN = (  # types of attributes that are shown
    ir.AttributeType.INT,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOAT,
    ir.AttributeType.FLOATS,
    ir.AttributeType.STRING,
)
_NODES_NAMED = 3  # nodes or passes that a reason names


class Order(Experiment):
    """Some shuffled orders for each model."""

    name = "order"

    def __init__(self, passes: Sequence[Pass] | None = None) -> None:
        """Use these passes; None: the passes of the target."""
        self._passes = passes

    def cells(self, subject: Subject, options: StudyOptions) -> list[Cell]:
        """Return one cell for each shuffled order."""
        numbers = range(options.seed * 1000, options.seed * 1000 + _SHUFFLES[options.thorough])
        target = options.only("target")
        return [Cell(self.name, subject.name, f"shuffle {each}", target | {"shuffle": each}) for each in numbers]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Compare one shuffled order with the usual one."""
        run = functools.partial(_result, subject.path, cell.options["target"])
        usual = tuple(self._passes if self._passes is not None else select(cell.options["target"]))
        shuffled = list(usual)
        random.Random(cell.options["shuffle"]).shuffle(shuffled)
        expected, actual = run(usual), run(tuple(shuffled))
        answer: Answer = {"outcome": expected.outcome(actual), "usual": expected.nodes, "shuffled": actual.nodes}
        if expected.endless:
            answer["why"] = expected.endless  # the usual order has no result to compare with
        elif answer["outcome"] in (OTHER, ENDLESS):
            nodes = _differing_nodes(expected, actual)
            answer["difference"] = " / ".join(nodes) if any(nodes) else "the same nodes with other inputs"
            acting = {event.pass_name for event in (*expected.events, *actual.events)}
            answer |= _deciding_pair(run, usual, tuple(shuffled), acting)
        return answer

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return one row for each shuffled order."""
        shown = ("outcome", "usual", "shuffled", *_DECIDED)
        rows = tuple(
            (each.subject.name, each.cell.options["shuffle"], *(each.answer.get(name) for name in shown))
            for each in answers
        )
        about = (
            "The passes of the target in shuffled orders, compared with the usual order. same: equal graphs up to "
            "names, with equal constants; other constants: equal graphs whose folded constants differ, usually by "
            "rounding; other graph: another structure; no end: the passes reach no fixed point. difference: nodes that "
            "only the usual / only the shuffled result has. first, then: two passes whose order decides, found by "
            "binary search between the two orders; alone: whether these two passes by themselves already give "
            "different graphs."
        )
        columns = ("model", "shuffle", "outcome", "nodes_usual", "nodes_shuffled", *_DECIDED)
        return [Table("order", "Shuffled orders of the passes", columns, rows, about)]

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return how often the order matters, and the pairs of passes that decide."""
        rows = tables["order"].named_rows()
        if not rows:
            return []
        counts = Counter(str(row["outcome"]) for row in rows)
        equal = counts[SAME] + counts[ROUNDING]
        texts = [
            f"Of {len(rows)} shuffled orders, {equal} give the usual graph ({counts[SAME]} with bit-identical "
            f"constants), {counts[OTHER]} give another graph, and {counts[ENDLESS]} reach no fixed point."
        ]
        pairs = Counter((str(row["first"]), str(row["then"])) for row in rows if row["first"] is not None)
        for (first, then), count in pairs.most_common():
            models = sorted({str(row["model"]) for row in rows if (row["first"], row["then"]) == (first, then)})
            times = f"{count} times" if count > 1 else "once"
            texts.append(f"The order of {first} and {then} decides the graph, {times} ({', '.join(models)}).")
        return [Finding(text, "order") for text in texts]


class _Result(Struct, frozen=True):
    """The result of one order of passes; `endless` is the reason if it reaches no fixed point."""

    shape: str
    values: str
    nodes: int | None
    node_texts: Counter[str]  # operators with their attributes
    events: tuple[Event, ...]
    endless: str | None = None

    def outcome(self, other: _Result) -> str:
        if self.endless or other.endless:
            return ENDLESS
        if self.shape != other.shape:
            return OTHER
        return SAME if self.values == other.values else ROUNDING


def _result(path: Path, target: str, passes: Sequence[Pass]) -> _Result:
    try:
        made = candidate(path, target, passes)
    except EndlessRewriting as error:
        return _Result("", "", None, Counter(), (), endless=str(error))
    texts = Counter(map(_node_text, made.model.graph.all_nodes()))
    nodes = Census.of(made.model).counts.nodes
    return _Result(shape_of(made.model), values_of(made.model), nodes, texts, tuple(made.log.events))


_Run = Callable[[Sequence[Pass]], _Result]


def _node_text(node: ir.Node) -> str:
    """Return the operator and the simple attributes of a node in one line."""
    default = defaults(node)
    attributes = ", ".join(
        f"{name}={attribute.value!r}"
        for name, attribute in sorted(node.attributes.items())
        if attribute.type in _SHOWN and not attribute.is_ref()
        if name not in default or default[name].value != attribute.value
    )
    return f"{node.op_type}({attributes})"


def _deciding_pair(run: _Run, usual: Sequence[Pass], shuffled: Sequence[Pass], acting: set[str]) -> Answer:
    """Return two passes whose order decides, whether they do so alone, and why.

    The two orders have other results; `acting` are the names of passes that rewrite something in either of them.
    """
    reduced = [tuple(rule for rule in order if rule.name in acting) for order in (usual, shuffled)]
    expected = run(reduced[0])
    if expected.outcome(run(reduced[1])) in (OTHER, ENDLESS):  # the other passes do not matter
        usual, shuffled = reduced
    else:
        expected = run(usual)
    orders = _orders_between(usual, shuffled)
    low, high = 0, len(orders) - 1  # invariant: the order at `low` gives `expected`, that at `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        same = run(orders[middle]).outcome(expected) in (SAME, ROUNDING)
        low, high = (middle, high) if same else (low, middle)
    before, after = orders[low], orders[high]
    first, then = next(pair for pair in zip(before, after, strict=True) if pair[0] is not pair[1])
    one, two = run((first, then)), run((then, first))
    alone = one.outcome(two) in (OTHER, ENDLESS)
    if not alone:
        one, two = run(before), run(after)
    return {"first": first.name, "then": then.name, "alone": alone, "why": _reason(first, then, one, two)}


def _orders_between(start: Sequence[Pass], goal: Sequence[Pass]) -> list[tuple[Pass, ...]]:
    """Return the orders from one to another, each of which swaps two neighbours of the one before."""
    orders = [tuple(start)]
    for position, rule in enumerate(goal):
        for index in range(orders[-1].index(rule) - 1, position - 1, -1):
            last = orders[-1]
            orders.append((*last[:index], last[index + 1], last[index], *last[index + 2 :]))
    return orders


def _reason(first: Pass, then: Pass, one: _Result, two: _Result) -> str:
    """Return which rewrites happen in only one of the two orders, and which nodes both passes match."""
    if one.endless or two.endless:
        return one.endless or two.endless or ""
    texts: list[str] = []
    for mine, others, name, rival in ((one, two, first.name, then.name), (two, one, then.name, first.name)):
        done = {(event.pass_name, event.root) for event in others.events}
        new = [event for event in mine.events if (event.pass_name, event.root) not in done]
        contested = {node.name for event in others.events if event.pass_name == rival for node in event.before}
        taken = [event for event in new if event.pass_name == name and contested & {node.name for node in event.before}]
        if taken:
            ops = "+".join(dict.fromkeys(node.op_type for node in taken[0].before))
            roots = ", ".join(event.root for event in taken[:_NODES_NAMED])
            roots += f" and {len(taken) - _NODES_NAMED} more" if len(taken) > _NODES_NAMED else ""
            texts.append(f"with {name} first it rewrites {ops} at {roots}, nodes that {rival} rewrites otherwise")
        elif new:
            counts = Counter(event.pass_name for event in new).most_common(_NODES_NAMED)
            rewrites = ", ".join(f"{count} of {pass_name}" for pass_name, count in counts)
            texts.append(f"with {name} first there are rewrites that the other order does not have: {rewrites}")
    nodes = _differing_nodes(one, two)
    if texts:
        return "; ".join(texts)
    if not any(nodes):
        return "the same rewrites and the same nodes, with other connections"
    return f"the same rewrites, but with {first.name} first {nodes[0]}, and with {then.name} first {nodes[1]}"


def _differing_nodes(one: _Result, two: _Result) -> list[str]:
    """Return, for each of two graphs, the nodes that only it has."""
    pairs = ((one, two), (two, one))
    return [", ".join(sorted(mine.node_texts - theirs.node_texts)[:_NODES_NAMED]) for mine, theirs in pairs]
