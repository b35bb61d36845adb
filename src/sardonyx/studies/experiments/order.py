"""Does the order of the passes matter: shuffled orders, and where the result differs, which two passes and why.

Passes run to a joint fixed point, so that most orders should end alike. Where one does not, the way from the usual
order to the shuffled one is halved, one swap of neighbours at a time, until two orders are left that differ in one
swap and in their result. Those two passes are then tried by themselves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx.analysis.census import Census
from sardonyx.optimizer.pipeline import select
from sardonyx.passes import Pass
from sardonyx.records.run import Event
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments import results
from sardonyx.studies.structure import defaults, shape_of, values_of

SAME, ROUNDING, OTHER, ENDLESS = "same", "other constants", "other graph", "no end"
_SHUFFLES = {False: 3, True: 10}
_DECIDED = ("difference", "first", "then", "alone", "why")
_PLAIN = (
    ir.AttributeType.INT,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOAT,
    ir.AttributeType.FLOATS,
    ir.AttributeType.STRING,
)
_NAMED = 3  # nodes that a reason names
_ABOUT = (
    "The passes of the target in shuffled orders, against the usual one. same: equal graphs up to names, constants "
    "included; other constants: equal graphs whose folded numbers differ, in rounding as a rule; other graph: another "
    "structure. difference: nodes that only the usual / only the shuffled result has. "
    "first and then are two passes whose order decides it, found by halving the way between the two orders; "
    "alone: whether these two passes by themselves, in either order, already give different graphs."
)


class Order(Experiment):
    """Some shuffled orders a model."""

    name = "order"

    def __init__(self, passes: Sequence[Pass] | None = None) -> None:
        """The target's passes where none are given."""
        self._passes = passes

    def cells(self, subject: Subject, asked: Asked) -> list[Cell]:
        """One shuffle each."""
        first = asked.seed * 1000
        return [
            Cell(self.name, subject.name, f"shuffle {first + index}", asked.only("target") | {"shuffle": first + index})
            for index in range(_SHUFFLES[asked.thorough])
        ]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Compare one shuffled order with the usual one."""
        bench = _Bench(subject.path, cell.options["target"])
        usual = tuple(self._passes if self._passes is not None else select(cell.options["target"]))
        other = list(usual)
        random.Random(cell.options["shuffle"]).shuffle(other)
        ours, theirs = bench.result(usual), bench.result(tuple(other))
        answer: Answer = {"outcome": ours.outcome(theirs), "usual": ours.told(), "shuffled": theirs.told()}
        if ours.endless:
            answer["why"] = ours.endless  # the usual order is no measure of another
        elif answer["outcome"] in (OTHER, ENDLESS):
            there = _only_there(ours, theirs)
            answer["difference"] = " / ".join(there) if any(there) else "the same nodes, reading other values"
            acting = {event.pass_name for event in (*ours.events, *theirs.events)}
            answer |= _culprits(bench, usual, tuple(other), acting)
        return answer

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> list[Table]:
        """One row a shuffle."""
        columns = ("model", "shuffle", "outcome", "nodes_usual", "nodes_shuffled")
        rows = tuple(_row(each) for each in answers)
        return [Table("order", "Shuffled orders of the passes", (*columns, *_DECIDED), rows, _ABOUT)]

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> list[Finding]:
        """How often it matters, and the pairs that decide."""
        rows = [dict(zip(tables["order"].columns, row, strict=True)) for row in tables["order"].rows]
        if not rows:
            return []
        counts = Counter(str(row["outcome"]) for row in rows)
        alike = counts[SAME] + counts[ROUNDING]
        said = [
            Finding(
                f"Of {len(rows)} shuffled orders, {alike} end in the usual graph ({counts[SAME]} with the same "
                f"constants to the bit), {counts[OTHER]} in another one, and {counts[ENDLESS]} in none.",
                "order",
            )
        ]
        pairs = Counter((str(row["first"]), str(row["then"])) for row in rows if row["first"] is not None)
        for (first, then), count in pairs.most_common():
            models = sorted({str(row["model"]) for row in rows if (row["first"], row["then"]) == (first, then)})
            times = f"{count} times" if count > 1 else "once"
            said.append(
                Finding(f"The order of {first} and {then} decides the graph, {times} ({', '.join(models)}).", "order")
            )
        return said


@dataclass(frozen=True, slots=True)
class _Result:
    """Where an order ends; an order without an end has its own words for it."""

    shape: str
    values: str
    nodes: int | None
    faces: Counter[str]  # operators with their attributes
    events: tuple[Event, ...]
    endless: str | None = None

    def outcome(self, other: _Result) -> str:
        if self.endless or other.endless:
            return ENDLESS
        if self.shape != other.shape:
            return OTHER
        return SAME if self.values == other.values else ROUNDING

    def told(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "endless": self.endless}


class _Bench:
    """Runs orders of passes on one model."""

    def __init__(self, path: Path, target: str) -> None:
        self._path, self._target = path, target

    def result(self, passes: Sequence[Pass]) -> _Result:
        try:
            made = results.candidate(self._path, passes, self._target)
        except AssertionError as error:  # the driver's own guard against passes that undo each other
            return _Result("", "", None, Counter(), (), endless=str(error))
        return _Result(
            shape_of(made.model),
            values_of(made.model),
            Census.of(made.model).counts.nodes,
            Counter(_face(node) for node in made.model.graph.all_nodes()),
            tuple(made.log.events),
        )


def _face(node: ir.Node) -> str:
    """A node as far as it can be written in a line."""
    usual = defaults(node)
    attributes = ", ".join(
        f"{name}={attribute.value!r}"
        for name, attribute in sorted(node.attributes.items())
        if attribute.type in _PLAIN and not attribute.is_ref() and usual.get(name) != attribute.value
    )
    return f"{node.op_type}({attributes})"


def _culprits(bench: _Bench, usual: Sequence[Pass], other: Sequence[Pass], acting: set[str]) -> Answer:
    """Two passes whose order decides, whether they do by themselves, and what one takes from the other."""
    few = [tuple(each for each in order if each.name in acting) for order in (usual, other)]
    end = bench.result(few[0])
    if end.outcome(bench.result(few[1])) in (OTHER, ENDLESS):  # the others have no part in it
        usual, other = few
    else:
        end = bench.result(usual)
    swaps = _way(usual, other)
    low, high = 0, len(swaps)  # the order after `low` swaps ends as usual, the one after `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        same = bench.result(_after(usual, swaps[:middle])).outcome(end) in (SAME, ROUNDING)
        low, high = (middle, high) if same else (low, middle)
    before, after = _after(usual, swaps[:low]), _after(usual, swaps[:high])
    first, then = before[swaps[low]], before[swaps[low] + 1]
    one, two = bench.result((first, then)), bench.result((then, first))
    alone = one.outcome(two) in (OTHER, ENDLESS)
    if not alone:
        one, two = bench.result(before), bench.result(after)
    return {"first": first.name, "then": then.name, "alone": alone, "why": _reason(first, then, one, two)}


def _way(start: Sequence[Pass], goal: Sequence[Pass]) -> list[int]:
    """Places to swap with the next one, in turn, that lead from one order to the other."""
    now, swaps = list(start), list[int]()
    for place, wanted in enumerate(goal):
        at = now.index(wanted)
        for index in range(at - 1, place - 1, -1):
            now[index], now[index + 1] = now[index + 1], now[index]
            swaps.append(index)
    return swaps


def _after(start: Sequence[Pass], swaps: Sequence[int]) -> tuple[Pass, ...]:
    now = list(start)
    for index in swaps:
        now[index], now[index + 1] = now[index + 1], now[index]
    return tuple(now)


def _reason(first: Pass, then: Pass, one: _Result, two: _Result) -> str:
    """What happens only in one of the two orders, and which nodes both passes want."""
    if one.endless or two.endless:
        return one.endless or two.endless or ""
    said: list[str] = []
    for mine, others, name, rival in ((one, two, first.name, then.name), (two, one, then.name, first.name)):
        done = {(event.pass_name, event.root) for event in others.events}
        new = [event for event in mine.events if (event.pass_name, event.root) not in done]
        wanted = {node.name for event in others.events if event.pass_name == rival for node in event.before}
        taken = [event for event in new if event.pass_name == name and wanted & {node.name for node in event.before}]
        if taken:
            ops = "+".join(dict.fromkeys(node.op_type for node in taken[0].before))
            where = _places(taken)
            said.append(f"with {name} first it takes {ops} at {where}, nodes that {rival} rewrites in the other order")
        elif new:
            counts = Counter(event.pass_name for event in new).most_common(_NAMED)
            did = ", ".join(f"{count} of {who}" for who, count in counts)
            said.append(f"with {name} first there are rewrites that the other order has not: {did}")
    return "; ".join(said) or _told_apart(first, then, one, two)


def _only_there(one: _Result, two: _Result) -> list[str]:
    """Nodes that only one of two graphs has, for each of them."""
    return [", ".join(sorted(mine.faces - theirs.faces)[:_NAMED]) for mine, theirs in ((one, two), (two, one))]


def _told_apart(first: Pass, then: Pass, one: _Result, two: _Result) -> str:
    """How two graphs differ that were made by the same rewrites."""
    there = _only_there(one, two)
    if not any(there):
        return "the same rewrites and the same nodes, which read from each other differently"
    return f"the same rewrites, but with {first.name} first {there[0]}, and with {then.name} first {there[1]}"


def _places(events: Sequence[Event]) -> str:
    more = f" and {len(events) - _NAMED} more places" if len(events) > _NAMED else ""
    return ", ".join(event.root for event in events[:_NAMED]) + more


def _row(each: Answered) -> tuple[Entry, ...]:
    answer = each.answer
    usual, shuffled = answer["usual"], answer["shuffled"]
    decided = (answer.get(name) for name in _DECIDED)
    shuffle = each.cell.options["shuffle"]
    return (each.subject.name, shuffle, answer["outcome"], usual["nodes"], shuffled["nodes"], *decided)
