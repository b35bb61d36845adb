"""Chains of shape arithmetic (Shape → Gather → Concat → Reshape …), before and after, and why what is left is left.

A chain is left because its sizes are open until the model is run, because they depend on the data itself, or for no
good reason: its sizes were known beforehand. Which one it is follows from what the chain hands on, not from its look.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments.results import several

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.analysis.fusion_patterns import Survey
    from sardonyx.ir.shapes import Size

KNOWN, OPEN, DATA = "sizes known beforehand", "open dims", "sizes that depend on data"
NOTHING, OUTPUT = "nothing", "an output"


class ShapeChains(Experiment):
    """How many chains there are, what they feed, which dims they hang on."""

    name = "shape-chains"

    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """One for each model."""
        return (Cell(self.name, subject.name, "chains", asked.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """The chains of the model as it is and as the passes leave it."""
        from sardonyx.optimizer.candidates import RewriteJob
        from sardonyx.optimizer.pipeline import select

        target = cell.options["target"]
        states = {"before": (), "after": select(target)}
        return {
            state: chains_of(RewriteJob(subject.path, passes, target, _untold).candidate().model)
            for state, passes in states.items()
        }

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> Sequence[Table]:
        """Numbers by model, and kinds of chains by model and state."""
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
                tuple(_sums(each) for each in answers),
                "A chain is a Shape and the arithmetic on small integer tensors that follows from it; chains may share "
                "nodes, which are counted once.",
            ),
            Table(
                "shape_chain_kinds",
                "What chains of shape arithmetic depend on",
                ("model", "state", "depends_on", "dims", "feeds", "chains", "nodes"),
                tuple(row for each in answers for row in _kinds(each)),
                "What a chain hands on, as symbolic sizes: all of them numbers, some of them open dims of the inputs, "
                "or some that nothing in the graph tells.",
            ),
        )

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """How many are left, and for which reason."""
        table = tables["shape_chains"]
        models = several(len(table.rows), "model")
        before, after = (sum(_number(row[at]) for row in table.rows) for at in (1, 2))
        if not before and not after:
            said = f"In {models} nothing computes sizes at run time, before or after."
            return (Finding(said, table.name),)
        left = Counter[str]()
        dims: set[str] = set()
        for _, state, kind, named, _, count, _ in tables["shape_chain_kinds"].rows:
            if state == "after":
                left[str(kind)] += _number(count)
                dims.update(filter(None, str(named or "").split(", ")))
        whole = f"Of {several(before, 'chain')} of shape arithmetic in {models}, the passes leave {after}"
        reasons = (
            (left[OPEN], f"open dims ({', '.join(sorted(dims))})"),
            (left[DATA], DATA),
            (left[KNOWN], f"{KNOWN}, which could still be folded"),
        )
        why = ", ".join(f"{count} for {reason}" for count, reason in reasons if count)
        return (Finding(f"{whole}{': ' + why if why else ''}.", "shape_chain_kinds"),)


def chains_of(model: ir.Model) -> list[dict[str, object]]:
    """Each chain: its nodes, what reads it, what it depends on."""
    from sardonyx.analysis.costs.onnx_program import name_dims
    from sardonyx.analysis.fusion_patterns import Survey, shape_chains
    from sardonyx.ir.facts import Facts
    from sardonyx.ir.scopes import label
    from sardonyx.ir.shapes.expr import symbol

    facts = Facts(model)
    name_dims(facts.shapes, [value for value in model.graph.inputs if not value.is_initializer()], symbol)
    facts.infer()
    survey = Survey(facts)
    found: list[dict[str, object]] = []
    for chain in shape_chains(survey):
        inside = set(chain)
        ends = [value for node in chain for value in node.outputs if _leaves(value, inside)]
        kind, dims = _depends(ends, inside, survey)
        found.append(
            {
                "nodes": [label(node) for node in chain],
                "feeds": sorted(_readers(ends, inside)),
                "depends_on": kind,
                "dims": dims,
            }
        )
    return found


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


def _readers(ends: Iterable[ir.Value], inside: set[ir.Node]) -> set[str]:
    names: set[str] = set()
    for value in ends:
        names.update(use.node.op_type for use in value.uses() if use.node not in inside)
        names.update([OUTPUT] if value.is_graph_output() else [])
    return names or {NOTHING}


def _depends(ends: Iterable[ir.Value], inside: set[ir.Node], survey: Survey) -> tuple[str, list[str]]:
    """Which kind of sizes leave the chain, and the names of those that have one."""
    from sardonyx.analysis.costs.onnx_program import names_in

    sizes = [size for value in ends for size in _handed_on(value, inside, survey)]
    told = [size for size in sizes if size is not None and (isinstance(size, int) or not size.is_vague)]
    names = sorted(set(names_in(told)))
    if len(told) < len(sizes):
        return DATA, names
    return (OPEN, names) if names else (KNOWN, [])


def _handed_on(value: ir.Value, inside: set[ir.Node], survey: Survey) -> Sequence[Size | None]:
    """The sizes in a value; where it holds something else made of sizes (a range, a fill), those it was made of."""
    contents = survey.facts.contents(value)
    if contents is not None and None not in contents:
        return contents
    node = value.producer()
    makers = [
        each for each in (node.inputs if node is not None else ()) if each is not None and each.producer() in inside
    ]
    return [size for each in makers for size in _handed_on(each, inside, survey)] if makers else (None,)


def _sums(each: Answered) -> tuple[Entry, ...]:
    states = [each.answer["before"], each.answer["after"]]
    chains = [len(state) for state in states]
    nodes = [_distinct(state) for state in states]
    longest = [max((len(chain["nodes"]) for chain in state), default=0) for state in states]
    return (each.subject.name, *chains, *nodes, *longest)


def _kinds(each: Answered) -> Iterator[tuple[Entry, ...]]:
    for state in ("before", "after"):
        groups: dict[tuple[str, str, str], list[Answer]] = defaultdict(list)
        for chain in each.answer[state]:
            groups[chain["depends_on"], ", ".join(chain["dims"]), ", ".join(chain["feeds"])].append(chain)
        for (kind, dims, feeds), chains in sorted(groups.items()):
            yield each.subject.name, state, kind, dims or None, feeds, len(chains), _distinct(chains)


def _distinct(chains: Iterable[Answer]) -> int:
    return len({node for chain in chains for node in chain["nodes"]})


def _number(entry: Entry) -> int:
    return entry if isinstance(entry, int) else 0


def _untold(phase: str, fraction: float | None) -> None:
    """Nobody watches a cell from inside."""
